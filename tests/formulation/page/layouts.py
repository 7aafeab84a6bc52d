"""docs/formulation.md, "Forms and layouts", pairs of forms among them: how tensors lie, and what is sent."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from pipecut.formulation.problem.layers import Layer, Split
from pipecut.formulation.problem.options import AllReduce
from tests.formulation.page.computing import Part, part
from tests.formulation.page.numbers import Link, Numbers, transfer_ns

if TYPE_CHECKING:
    from tests.formulation.page.stages import PricedStage

ROWS, WHOLE, COLUMNS = "rows", "whole", "columns"
EXPERTS = "experts"
MADE = {0: ROWS, 1: WHOLE, 2: COLUMNS, 3: ROWS, 4: COLUMNS, 5: ROWS, 6: EXPERTS, 7: WHOLE}
TAKEN = {0: ROWS, 1: COLUMNS, 2: WHOLE, 3: COLUMNS, 4: ROWS, 6: EXPERTS}
TAKEN_BY_JOIN = MADE | {7: COLUMNS}
BY_ROWS = (0, 3, 5)


def changed(stage: PricedStage, have: str, want: str, size: int) -> Fraction:
    """change(a, b) of a tensor."""
    if have in (want, WHOLE):
        return Fraction(0)
    load = stage.numbers.cost.expert_load if EXPERTS in (have, want) else 1
    if ROWS in (have, want):
        return size * (stage.shares.gather_rows if want == WHOLE else load * stage.shares.turn_rows)
    return size * (stage.shares.gather if want == WHOLE else load * stage.shares.turn)


class Axis(NamedTuple):
    """Devices that share a layer in one form: how many, their link, what all have together, and what one lacks."""

    form: int
    devices: int
    link: Link | None
    replica: Fraction
    gather: Fraction


def sent_ns(stage: PricedStage, layer: int, axis: Axis) -> tuple[int, int]:
    """What is sent inside a layer along one axis, forward and backward."""
    numbers, form, n = stage.numbers, axis.form, axis.devices
    split = numbers.layers[layer].split
    if n == 1:
        return 0, 0
    if split is Split.JOIN and form in (5, 7):
        return _own_ns(numbers, numbers.sent[layer], axis)
    if form in (0, 5, 6, 7) or split is not Split.MATRIX:
        return 0, 0
    size = axis.replica * (numbers.made if form in (1, 3) else numbers.taken)[layer]
    once = numbers.sum_ns(size, n, axis.link) if form < 3 else numbers.halves_ns([size], n, axis.link)
    return (once if form != 2 else 0, once if form != 1 else 0)


def _own_ns(numbers: Numbers, size: int, axis: Axis) -> tuple[int, int]:
    """What attention in a ring, and a loss on parts of the vocabulary, send forward and backward."""
    n = axis.devices
    if axis.form == 5:
        once, twice = (transfer_ns(one * size * axis.gather, one * (n - 1), axis.link) for one in (1, 2))
        return once, twice
    ring = numbers.cost.all_reduce is AllReduce.RING
    part, messages = (Fraction(2 * n - 2, n), 2 * n - 2) if ring else (1, 1)
    return transfer_ns(3 * part * size * axis.replica, 3 * messages, axis.link), 0


FIRST = (0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 6, 6, 6, 6, 6, 0, 1, 2, 5, 5, 5, 0, 7)
SECOND = (1, 2, 3, 4, 6, 0, 6, 0, 6, 0, 6, 0, 6, 0, 1, 2, 3, 4, 5, 5, 5, 0, 1, 2, 7, 0)
PAIRS = dict(enumerate(zip(FIRST, SECOND, strict=True), start=8))
FORMS = range(8 + len(PAIRS))


def fraction(stage: PricedStage, layout: str, k: int, load: Fraction, along_rows: int = 1) -> Fraction:
    """part(layout, k), where so many devices share rows along the other axis."""
    if layout == ROWS and stage.whole_rows:
        most = ceil(max(stage.samples) / along_rows)
        return Fraction(ceil(Fraction(most, k)), most)
    return {WHOLE: Fraction(1), EXPERTS: min(Fraction(1), load / k)}.get(layout, Fraction(1, k))


def divides(
    stage: PricedStage, axis: Axis, load: Fraction, rows: tuple[int, ...] = BY_ROWS, along_rows: int = 1
) -> Fraction:
    """The part of the work of a layer that a device does of what the other form leaves."""
    lies = EXPERTS if axis.form == 6 else ROWS if axis.form in rows else COLUMNS
    return fraction(stage, lies, axis.devices, load, along_rows)


def lying(
    stage: PricedStage, axes: list[Axis], load: Fraction, whole: set[int], rows: tuple[int, ...]
) -> Fraction:
    """The part of a tensor that the fullest device has, which lies whole in some forms and by rows in others."""
    one, other = axes
    along_rows = one.devices if one.form in {*rows} - whole else 1
    first = Fraction(1) if one.form in whole else divides(stage, one, load, rows)
    return first * (1 if other.form in whole else divides(stage, other, load, rows, along_rows))


def pair_of(stage: PricedStage, form: int) -> list[Axis]:
    """Both axes of a pair, with what each form divides."""
    numbers, pair, sizes = stage.numbers, PAIRS[form], (stage.grid, stage.degree // stage.grid)
    found = []
    for at, link in enumerate(stage.grid_links):
        whole = stage.shares.replica * fraction(stage, MADE[pair[1 - at]], sizes[1 - at], numbers.cost.expert_load)
        found.append(Axis(pair[at], sizes[at], link, whole, whole * Fraction(sizes[at] - 1, sizes[at])))
    return found


def in_pair(stage: PricedStage, row: Layer, form: int) -> tuple[Fraction, Part]:
    """The work of a device in a pair of forms: its part of the stage, and x, a and b."""
    load, found = stage.numbers.cost.expert_load, [stage.shares.replica, Fraction(1), Fraction(1)]
    axes, sigma = pair_of(stage, form), stage.shares.replica
    beside = 1, axes[0].devices if axes[0].form in BY_ROWS else 1
    for axis, along_rows in zip(axes, beside, strict=True):
        own = divides(stage, axis, load, along_rows=along_rows)
        sigma *= own
        found = [one * more for one, more in zip(found, part(row, axis.form, own, Fraction(1)), strict=True)]
    return sigma, (found[0], found[1], found[2])


def on_axes(stage: PricedStage, v: int, forms: tuple[int, int], size: int) -> list[tuple[str, str, int]]:
    """Of each axis how a tensor lies along it, how it is wanted, and the time there and back."""
    takes = TAKEN if stage.numbers.layers[v].split is Split.MATRIX else TAKEN_BY_JOIN
    lies = [MADE[one] for one in PAIRS.get(forms[0], (forms[0],) * 2)]
    ends = [takes[one] for one in PAIRS.get(forms[1], (forms[1],) * 2)]
    found: list[tuple[str, str, int]] = []
    moved = zip(_one_way(stage, lies, ends, size), _one_way(stage, ends, lies, size), strict=True)
    for at, (there, back) in enumerate(moved):
        k = (stage.grid, stage.degree // stage.grid)[at]
        messages = (k - 1) * ((there > 0) + (back > 0))
        time = transfer_ns(there + back, messages, stage.grid_links[at])
        found.append((lies[at], ends[at], time))
    return found


def _one_way(stage: PricedStage, lies: list[str], ends: list[str], size: int) -> list[Fraction]:
    load, sizes = stage.numbers.cost.expert_load, (stage.grid, stage.degree // stage.grid)
    now, found = list(lies), [Fraction(0), Fraction(0)]
    free = [at for at in (1, 0) if lies[at] == WHOLE]
    last = [at for at in (1, 0) if ends[at] == WHOLE and at not in free]
    for at in [*free, *(one for one in (1, 0) if one not in [*free, *last]), *last]:
        if now[at] not in (ends[at], WHOLE):
            k = sizes[at]
            left = stage.shares.replica * fraction(stage, now[1 - at], sizes[1 - at], load) * size
            by_rows, lacking = ROWS in (now[at], ends[at]), Fraction(k - 1, k)
            along_rows = sizes[1 - at] if now[1 - at] == ROWS else 1
            turned = lacking * fraction(stage, ROWS if by_rows else COLUMNS, k, load, along_rows)
            turned *= load if EXPERTS in (now[at], ends[at]) else 1
            if by_rows and stage.whole_rows:
                most = ceil(max(stage.samples) / along_rows)
                lacking = 1 - Fraction(most // k, most)
            found[at] = left * (lacking if ends[at] == WHOLE else turned)
        now[at] = ends[at]
    return found
