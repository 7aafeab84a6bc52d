"""How far stages reach within a time, where a table of the times of all stages would be too large.

The least communication of a run of layers from each layout of the live layers before it to each layout of those
behind it is a matrix, and that of two runs in a row their product with sums for products and the less for sums.
So runs of 1, 2, 4, ... atoms from every place are made once, and how far a stage reaches is found by descent: it
takes the longest run with which it stays within the time, then the next shorter one. A stage never gets faster by
a further atom, so that is the furthest end. Layouts of layers before the stage are one more, OUTSIDE: nothing is
paid for them, and they stay OUTSIDE.

Memory: 8 bytes x kinds x places x layouts**2 x log2(places), in place of kinds x places**2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.limits import TooLargeError, in_time
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.options import StageTime
from pipecut.formulation.problem.plan import Span
from pipecut.solvers.atoms.programs import OUTSIDE
from pipecut.solvers.reference.algorithm_1 import StageTimes, check_size, edges_into, last_uses

MOST_LAYOUTS = 64
"""Layouts of the layers that are live at one place, with OUTSIDE: three layers that have all forms."""
Key = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class DoubledTimes(StageTimes):
    """Stage times without their table.

    ``runs[level][k, p, s, t]`` is what 2**level atoms from place p communicate from layout s to layout t.
    """

    runs: tuple[Times, ...] = ()

    def values(self, low: int, high: int) -> Times | None:
        """Return None: nobody knows the times of all stages."""
        return None

    def ends(self, threshold_ns: int) -> Times:
        """Return the furthest ends by kind and first place 0 .. P within a time; the place itself if none fits."""
        kinds, total = self.compute_sum.shape[0], self.compute_sum.shape[1] - 1
        overlap = self.tables.instance.cost.stage_time is StageTime.OVERLAP
        rows, first = np.arange(kinds)[:, None], np.arange(total)
        at = np.broadcast_to(first, (kinds, total)).copy()
        # The last layout of all places is that of a stage that begins there.
        spent = np.full((kinds, total, self.runs[0].shape[2]), FORBIDDEN, dtype=np.int64)
        spent[:, :, -1] = 0
        for level in in_time(reversed(range(len(self.runs))), self.tables.deadline):
            stop = at + (1 << level)
            run = self.runs[level][rows, np.minimum(at, self.runs[level].shape[1] - 1)]
            further = np.minimum((spent[:, :, :, None] + run).min(axis=2), FORBIDDEN)
            moved = further.min(axis=2)
            computed = self.compute_sum[rows, np.minimum(stop, total)] - self.compute_sum[rows, first]
            time = np.maximum(computed, moved) if overlap else computed + moved
            fits = (stop <= total) & (time <= threshold_ns)
            at, spent = np.where(fits, stop, at), np.where(fits[:, :, None], further, spent)
        return np.concatenate([at, np.full((kinds, 1), total)], axis=1)


def doubled_times(tables: Tables, space: CutSpace) -> DoubledTimes:
    """Make the runs of 1, 2, 4, ... atoms from every place of a space.

    Raises TooLargeError as :func:`check_runs` does, and StoppedError after the deadline of the tables.
    Cost: O(kinds x places x log(places) x layouts**3) in numpy.
    """
    instance, places, last = tables.instance, space.places, last_uses(tables)
    check_runs(instance, len(tables.kinds), space)
    live = _live(instance, space, last)
    layouts = [_layouts(instance, row) for row in live]
    width = max(map(len, layouts))
    single = np.empty((len(tables.kinds), space.stops, width, width), dtype=np.int64)
    looks = _Looks(tables, last)
    for at, (first, stop) in in_time(list(enumerate(space.atoms())), tables.deadline):
        single[:, at] = looks.of(Span(first, stop), live[at], layouts[at], layouts[at + 1], width)
    runs = [single]
    while (half := 1 << (len(runs) - 1)) * 2 <= space.stops:
        one, other = runs[-1][:, : space.stops - 2 * half + 1], runs[-1][:, half : space.stops - half + 1]
        runs.append(np.stack([_joined(*pair) for pair in in_time(zip(one, other, strict=True), tables.deadline)]))
    sums = np.zeros((len(tables.kinds), len(instance.layers) + 1), dtype=np.int64)
    np.cumsum(tables.compute, axis=1, out=sums[:, 1:])
    none = np.zeros((len(tables.kinds), 0, 0), dtype=np.int64)
    return DoubledTimes(tables, sums[:, list(places)], none, none, tuple(runs))


def size_of(instance: Instance, kinds: int, space: CutSpace) -> tuple[int, bool]:
    """Return the bytes of stage times, and whether they are doubled because a table of all is too large.

    Raises TooLargeError where both are.
    """
    try:
        return check_size(kinds, space.stops), False
    except TooLargeError:
        return check_runs(instance, kinds, space), True


def check_runs(instance: Instance, kinds: int, space: CutSpace) -> int:
    """Return the bytes of all runs. Raises TooLargeError where they, or the layouts at a place, are too many."""
    if any(copy is not None for copy in instance.copies):
        raise TooLargeError(
            "weights that several layers use are only priced in a table of the times of all stages"
        )
    widths = [
        math.prod(1 + len({0, *instance.layers[one].allowed_forms}) for one in live)
        for live in _live(instance, space, _longest_uses(instance))
    ]
    layouts, levels = max(widths), max(1, space.stops.bit_length())
    if layouts > MOST_LAYOUTS:
        raise TooLargeError(
            f"the forms of several layers matter at once in {layouts} ways, at most {MOST_LAYOUTS} can be searched"
            " in a model of so many layers; narrow them with constraints.forms"
        )
    needed = 8 * kinds * space.stops * layouts**2 * levels
    TooLargeError.refuse_above(
        f"times of runs of layers ({kinds} kinds of device groups, {space.stops} layers, {layouts} ways to split)",
        needed,
        "merge layers, close cuts with constraints.no_cut, or narrow constraints.devices_per_stage",
    )
    return needed


def _longest_uses(instance: Instance) -> tuple[int, ...]:
    """Return what ``last_uses`` is at most, whatever tables cost."""
    last = list(range(len(instance.layers)))
    for edge in instance.form_edges:
        last[edge.source] = max(last[edge.source], edge.consumer)
    for layer, source in enumerate(instance.sources):
        if source is not None:
            last[source] = max(last[source], layer)
    return tuple(last)


def _live(instance: Instance, space: CutSpace, last: tuple[int, ...]) -> list[list[int]]:
    """Return for every place the layers before it whose form a layer behind it looks at."""
    live: list[int] = []
    found: list[list[int]] = [[]]
    for first, stop in space.atoms():
        own = (at for at in range(first, stop) if instance.layers[at].split is not Split.FOLLOW)
        live = [one for one in (*live, *own) if last[one] >= stop]
        found.append(live)
    return found


def _layouts(instance: Instance, live: list[int]) -> dict[Key, int]:
    """Return the number of every way in which live layers can lie; all of them OUTSIDE is -1, the last."""
    forms = [sorted({0, *instance.layers[one].allowed_forms}) for one in live]
    every = list(itertools.product(*([*row, OUTSIDE] for row in forms)))
    return {key: at - len(every) for at, key in enumerate(every)}


def _joined(one: Times, other: Times) -> Times:
    """Return the least of all ways through two runs in a row, ``[p, s, t]``."""
    return np.minimum((one[:, :, :, None] + other[:, None, :, :]).min(axis=2), FORBIDDEN)


class _Looks:
    """What the layers of an atom communicate, from every layout on its left to every one on its right."""

    def __init__(self, tables: Tables, last: tuple[int, ...]) -> None:
        self._tables, self._last, self._into = tables, last, edges_into(tables.instance)
        self._pays = [tables.moves(layer) for layer in range(len(tables.instance.layers))]

    def of(self, atom: Span, live: list[int], left: dict[Key, int], right: dict[Key, int], width: int) -> Times:
        """Return ``[k, s, t]``, FORBIDDEN where there is no way; keys on the left name the ``live`` layers."""
        shape = (len(self._tables.kinds), width)
        states: dict[Key, Times] = {}
        for key, number in left.items():
            states[key] = np.full(shape, FORBIDDEN, dtype=np.int64)
            states[key][:, number] = 0
        for layer in atom.layers:
            live, states = self._after(layer, live, states)
        found = np.full((*shape, width), FORBIDDEN, dtype=np.int64)
        for key, row in states.items():
            found[:, :, right[key]] = row
        return found

    def _bears(self, layer: int) -> bool:
        return self._tables.instance.layers[layer].split is not Split.FOLLOW

    def _after(self, layer: int, live: list[int], states: dict[Key, Times]) -> tuple[list[int], dict[Key, Times]]:
        own = self._borne(layer, live, states) if self._bears(layer) else self._followed(layer, live, states)
        live = [*live, layer] if self._bears(layer) else live
        places = [at for at, one in enumerate(live) if self._last[one] > layer]
        grown: dict[Key, Times] = {}
        for key, row in own:
            short, row = tuple(key[at] for at in places), np.minimum(row, FORBIDDEN)
            grown[short] = np.minimum(grown[short], row) if short in grown else row
        return [live[at] for at in places], grown

    def _borne(self, layer: int, live: list[int], states: dict[Key, Times]) -> Iterator[tuple[Key, Times]]:
        tables = self._tables
        edges = [(live.index(edge.source), number) for number, edge in self._into.get(layer, [])]
        for key, row in states.items():
            inner = [(number, key[at]) for at, number in edges if key[at] != OUTSIDE]
            for form in sorted({0, *tables.instance.layers[layer].allowed_forms}):
                cost = tables.inside[:, layer, form].copy()
                for number, source in inner:
                    cost += tables.between[:, number, source, form]
                yield (*key, form), row + cost[:, None]

    def _followed(self, layer: int, live: list[int], states: dict[Key, Times]) -> Iterator[tuple[Key, Times]]:
        """Add what a layer pays that lies as its source does, by rows if that is OUTSIDE."""
        source = self._tables.instance.sources[layer]
        at = live.index(source) if source in live else None
        for key, row in states.items():
            lies = 0 if at is None or key[at] == OUTSIDE else key[at]
            yield key, row + self._tables.inside[:, layer, lies, None] if self._pays[layer] else row
