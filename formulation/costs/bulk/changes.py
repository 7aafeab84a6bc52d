"""What changes of layout take, from every form to every other: coefficients by pairs of letters.

``formulation.costs.times.changes_ns``, which compares layouts, is the specification.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.bulk.alike import SINGLES, fullest, number_of_forms, places_by, runs_of, sorted_out
from pipecut.formulation.costs.bulk.columns import Column, column, transfer
from pipecut.formulation.limits import Deadline, in_time
from pipecut.formulation.problem.groups import GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import PAIRS

Times = NDArray[np.int64]

NONE, ALL, SHIFT, SENT = (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)
"""(a, b, c) for ``a * gather + b * turn + c * load * turn`` of a tensor, in t - 1 messages on t devices."""
MOVES = {
    **{"RC": SHIFT, "CR": SHIFT, "RW": ALL, "CW": ALL, "EW": ALL},
    **{"RE": SENT, "CE": SENT, "ER": SENT, "EC": SENT},
}
"""What a tensor moves from rows, columns, whole tensors and experts to another of them, where it moves at all."""
MADE = "RWCRCREW"
MATRIX_TAKES, JOIN_TAKES = "RCWCRREC", "RWCRCREC"
"""By form how a layer makes its output and takes its input. F turns forward and E backward (AccPar Table 5)."""


class _Batch(NamedTuple):
    """Edges whose consumers are alike: their indices, the sizes that occur, and which one each edge has."""

    matrix: bool
    named: bool
    edges: list[int]
    sizes: Column
    size_of: list[int]


def between_of(instance: Instance, kinds: tuple[GroupKind, ...], deadline: Deadline) -> Times:
    """Return the times by kind, edge, form of its producer and of its consumer; alike ones are priced once."""
    forms, batches = number_of_forms(instance.layers), list(_batches(instance))
    # Of kinds that divide a stage alike, over alike links, changes are the same whatever else they do.
    keys = (
        (kind.tensor_parallel_degree, kind.shares, kind.inner, kind.axes, kind.grid, kind.mode.recompute)
        for kind in kinds
    )
    ones, of_one = sorted_out(keys)
    times = np.zeros((len(ones), len(instance.form_edges), forms, forms), dtype=np.int64)
    for row, kind in zip(times, in_time((kinds[one] for one in ones), deadline), strict=True):
        for batch in batches if kind.inner is not None else ():
            found = np.zeros((len(batch.sizes), forms, forms), dtype=np.int64)
            for (source, form), column_of in _changes(instance, kind, batch):
                found[:, source, form] = column_of
            row[batch.edges] = found[batch.size_of]
    return times[of_one]


def _batches(instance: Instance) -> Iterator[_Batch]:
    edges, named = instance.form_edges, instance.demands.recompute_layers
    keys = ((instance.layers[edge.consumer].is_matrix, edge.consumer in named) for edge in edges)
    for key, row in places_by(keys):
        firsts, size_of = sorted_out(edges[at].size_bytes for at in row)
        yield _Batch(*key, row, column(edges[row[at]].size_bytes for at in firsts), size_of)


def _changes(instance: Instance, kind: GroupKind, batch: _Batch) -> Iterator[tuple[tuple[int, int], Column]]:
    """Yield forms of producer and consumer, and the times to change the layouts of a batch of tensors."""
    sizes, runs = batch.sizes, runs_of(kind, batch.named)
    t = kind.tensor_parallel_degree
    forms, load = number_of_forms(instance.layers), instance.cost.expert_load
    takes = MATRIX_TAKES if batch.matrix else JOIN_TAKES
    for (source, made), (form, taken) in itertools.product(enumerate(MADE[:forms]), enumerate(takes[:forms])):
        there, back = MOVES.get(made + taken, NONE), MOVES.get(taken + made, NONE)
        a, b, c = (one + other for one, other in zip(there, back, strict=True))
        of = kind.shares.rows if "R" in made + taken else kind.shares.columns
        part = a * of.gather + (b + c * load) * of.turn
        if part:
            messages = (a + b + c) * (t - 1)
            spent = transfer(sizes * part.numerator, part.denominator, messages, kind.inner)
            yield (source, form), _run(spent, made, taken, runs)
    if kind.axes is not None and forms > SINGLES:
        made, taken = ([_lies(letters, form) for form in range(forms)] for letters in (MADE, takes))
        known = cache(lambda have, want: _on_grid(kind, have, want, load, sizes, runs))
        for source, form in itertools.product(range(forms), repeat=2):
            if max(source, form) >= SINGLES:
                yield (source, form), known(made[source], taken[form])


def _lies(letters: str, form: int) -> str:
    """Return how a tensor lies inside the rows of a grid, and across them."""
    return "".join(letters[one] for one in PAIRS.get(form, (form, form)))


def _on_grid(kind: GroupKind, have: str, want: str, load: Fraction, sizes: Column, runs: int) -> Column:
    """Return the time to change a tensor from these two letters to those, so often, and its gradient back."""
    parts, messages = [Fraction(0), Fraction(0)], [0, 0]
    held = {
        "R": [fullest(kind, 0, size) for size in kind.grid],
        "C": [Fraction(1, size) for size in kind.grid],
        "E": [min(Fraction(1), load / size) for size in kind.grid],
    }
    for lies, ends in ((have, want), (want, have)):
        late = [(ends[axis] == "W") - (lies[axis] == "W") for axis in (0, 1)]
        for axis in (0, 1):
            all_moved, turned, sent = MOVES.get(lies[axis] + ends[axis], NONE)
            other, first = 1 - axis, late[axis] < late[1 - axis] or (axis == 1 and late[0] == late[1])
            rest = (lies if first else ends)[other]
            left = Fraction(1) if rest == "W" else held[rest][other]
            own, by_rows = kind.grid[axis], kind.shares.samples if "R" in lies[axis] + ends[axis] else 0
            by_rows = -(-by_rows // kind.grid[other]) if rest == "R" else by_rows
            lacking = Fraction(own - 1, own)
            missed = Fraction(by_rows - by_rows // own, by_rows) if by_rows else lacking
            most = Fraction(-(-by_rows // own), by_rows) if by_rows else held["C"][axis]
            parts[axis] += left * (missed * all_moved + lacking * most * (turned + sent * load))
            messages[axis] += (own - 1) * (all_moved + turned + sent)
    whole = [kind.shares.replica * part for part in parts]
    spent = 0 * sizes
    for part, number, link, lies, ends in zip(whole, messages, kind.axes or (), have, want, strict=True):
        moved = transfer(sizes * part.numerator, part.denominator, number, link)
        spent = spent + _run(moved, lies, ends, runs)
    return spent


def _run(spent: Column, have: str, want: str, runs: int) -> Column:
    """Return a change there and back with what of it lies in the forward pass as often as that is run."""
    if "W" in (have, want):
        return runs * spent if want == "W" else spent
    return spent + (runs - 1) * (spent - spent // 2)
