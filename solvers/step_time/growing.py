"""Labels of stages, layer by layer: in every form that the next one may have, and of these the unbeaten ones.

Labels go that what is still to come of a stage makes too long, in any forms (:class:`Further`).

A stage may take at most so much: of a step, of its memory, and of what paths of a mixture leave for it
(``solvers.step_time.bounds.mixtures``). Each is a sum over layers and changes of layout (working sets are left out
of what is to come), so the least of it from any layer on to the end, for any forms of the live layers, is found
backwards from the end (Bellman 1958). A label that with this least is above the room is in no stage within it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.limits import Deadline, in_time
from pipecut.formulation.problem.groups import forms_on
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.solvers.atoms.programs import OUTSIDE, LayerStep
from pipecut.solvers.atoms.unbeaten import Rows, numbered, unbeaten
from pipecut.solvers.step_time.bounds.columns import BACKWARD, FORWARD, SYNC
from pipecut.solvers.step_time.bounds.pass_tables import HELD, WORKING, StageParts

MANY = 256
"""So many labels are worth a look ahead."""
MOST_KEYS = 1 << 12
"""With more forms of live layers than that nobody looks ahead."""
MOST_LIVE = 62 // (1 + OUTSIDE).bit_length()
"""Nor with more live layers."""
NEVER = 1 << 60
"""More than any sum that counts; sums of a layer stay below half of it."""
NO_LIMIT = NEVER >> 1
Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Put:
    """One layer more, for some rows of forms of the live layers, form by form of the new one.

    ``before``: the row; ``form`` of the layer; ``added`` to each column of passes, and bytes; ``working`` bytes;
    ``live``: the forms of the live layers after it.
    """

    before: Index
    form: Index
    added: Times
    working: Times
    live: Times


@dataclass(frozen=True, slots=True)
class Room:
    """What stages that stop behind so many layers may take: ``often`` each column, a row a sum, at most ``most``.

    They keep to the first ``every`` of these sums, and to all of one choice at least of the others, if there are
    any; a choice are so ``many``, one behind another.
    """

    stop: int
    often: Times
    most: Times
    every: int
    many: int = 1

    def holds(self, sums: Times) -> NDArray[np.bool_]:
        """Tell which rows of sums are within it."""
        within = sums <= self.most
        kept = np.asarray(within[:, : self.every].all(axis=1))
        if self.every == len(self.most):
            return kept
        starts = range(self.every, len(self.most), self.many)
        choices = [np.asarray(within[:, start : start + self.many].all(axis=1)) for start in starts]
        return kept & np.logical_or.reduce(choices)


@dataclass(slots=True)
class Further:
    """Looks ahead along ``steps``, the layers from ``first`` on, where there are many labels.

    ``put`` puts a layer behind forms of live ones; ``rooms`` are of the stages that are asked for.
    """

    first: int
    steps: list[LayerStep]
    put: Callable[[LayerStep, Times], Put]
    rooms: list[Room]
    deadline: Deadline
    _least: dict[int, tuple[Index, list[Times]]] = field(default_factory=dict)
    _given_up: bool = False

    def kept(self, layer: int, keys: Times, rows: Times) -> NDArray[np.bool_]:
        """Tell which labels may become stages; ``rows`` are their columns of passes, and bytes with a working set.

        ``keys``: the forms of the live layers after so many layers. Nothing is left out of stages that stop behind
        all that are asked for. Raises StoppedError after the deadline. Cost: at first some sums over all
        forms of live layers, layer by layer.
        """
        every = np.ones(len(rows), dtype=np.bool_)
        if layer > max(room.stop for room in self.rooms) or self._given_up:
            return every
        if layer not in self._least and (len(rows) <= MANY or not self._look(layer, keys)):
            return every
        numbers, least = self._least[layer]
        at = np.searchsorted(numbers, _numbers(keys))
        open_rooms = [(room, own) for room, own in zip(self.rooms, least, strict=True) if room.stop >= layer]
        return np.logical_or.reduce([room.holds(rows @ room.often.T + own[at]) for room, own in open_rooms])

    def _look(self, layer: int, keys: Times) -> bool:
        """Go through the layers from one on, and back; return False for too many forms."""
        last = max(room.stop for room in self.rooms)
        found, ways = list[Times](), list[tuple[Put, Index]]()
        for step in in_time((None, *self.steps[layer - self.first : last - self.first]), self.deadline):
            put = None if step is None else self.put(step, found[-1])
            live = keys if put is None else put.live
            self._given_up = live.shape[1] > MOST_LIVE or len(_distinct(live)) > MOST_KEYS
            if self._given_up:
                return False
            found.append(_distinct(live))
            if put is not None:
                ways.append((put, np.searchsorted(_numbers(found[-1]), _numbers(live))))
        least = [np.full((len(found[-1]), len(room.most)), NEVER, dtype=np.int64) for room in self.rooms]
        for place in in_time(reversed(range(layer, last + 1)), self.deadline):
            if place < last:
                least = self._back(found[place - layer], *ways[place - layer], least)
            for own, room in zip(least, self.rooms, strict=True):
                if room.stop == place:
                    own[:] = 0
            self._least[place] = _numbers(found[place - layer]), least
        return True

    def _back(self, keys: Times, put: Put, after: Index, behind: list[Times]) -> list[Times]:
        """Return the least from a layer on, by forms of live layers before it, from what is behind it."""
        never: NDArray[np.bool_] = np.any(put.added >= FORBIDDEN, axis=1)
        added = np.where(never[:, None], 0, put.added)
        found: list[Times] = []
        for room, own in zip(self.rooms, behind, strict=True):
            # What would leave 64 bits counts less than it is: the sums are still no more than those of any stage.
            most = (NEVER >> 1) // (1 + int(room.often.sum(axis=1).max()))
            sums = np.minimum(added, most) @ room.often.T + own[after]
            sums = np.where(never[:, None], NEVER, np.minimum(sums, NEVER))
            found.append(sums.reshape(-1, len(keys), sums.shape[1]).min(axis=0, initial=NEVER))
        return found


def countable(often: tuple[int, ...], most_ns: int) -> bool:
    """Tell whether sums of columns so often, none above a limit on the step, stay far from 64 bits."""
    return (1 + sum(often)) * (most_ns + 1) < NEVER >> 1


def _numbers(keys: Times) -> Index:
    """Return a number for each row of forms, ascending as the rows are."""
    found = np.zeros(len(keys), dtype=np.int64)
    for column in keys.T:
        found = found * (1 + OUTSIDE) + column
    return found


def _distinct(keys: Times) -> Times:
    """Return the rows that there are, once each, ascending."""
    return keys[np.unique(_numbers(keys), return_index=True)[1]]


MOST_WAYS = 1 << 23
"""Labels with one layer more; each takes up to 512 bytes: its columns, what they are compared by, and forms."""


class OutgrownError(Exception):
    """Labels of one stage are more than memory is for. Bounds and plans that are known hold all the same."""


@dataclass(frozen=True, slots=True, eq=False)
class Grown:
    """Labels after some layers: a row each, with the forms of the live layers, where it comes from, its form."""

    labels: Rows
    key: NDArray[np.int64]
    before: NDArray[np.intp]
    form: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StageRule:
    """What labels of stages depend on beside their programs; ``room`` is None where memory cannot run out.

    With a ``goal`` they are those of stages from one place on that stop there, or behind them all if these are not
    all that are asked for: (start, stops, whether they are all).
    """

    kind: int
    keeps: Keeps | None
    room: int | None
    goal: tuple[int, tuple[int, ...], bool] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Growing:
    """Puts layers behind labels of stages made ``of`` these parts; of each group about ``width`` stay (0: all)."""

    of: StageParts
    width: int

    def put(self, rule: StageRule, step: LayerStep, keys: NDArray[np.int64]) -> Put:
        """Return one layer more for these forms of the live layers, in every form that it may have."""
        layer, copied = self.of.programs.layers[step.cost]
        cell, row = (rule.kind, layer), self.of.tables.instance.layers[layer]
        allowed = forms_on(row, self.of.tables.kinds[rule.kind]) if step.forms else (0,)
        forms = np.array(allowed, dtype=np.int64)
        before, form = np.tile(np.arange(len(keys)), len(forms)), np.repeat(forms, len(keys))
        key = keys[before]
        lies = form
        if not step.forms and step.source is not None:
            lies = np.where(key[:, step.source] == OUTSIDE, 0, key[:, step.source])
        added = np.zeros((len(before), self.of.passes.columns.width + 1), dtype=np.int64)
        added[:, :-1] = self.of.passes.layers[cell][lies]
        ends = self._copied(layer) if copied else None
        if ends is not None:
            added[:, :-1] += self.of.passes.copies[ends][rule.kind, lies]
        for at, edge in step.edges:
            change = self.of.passes.changes[rule.kind, self.of.programs.edges[edge]]
            inside = key[:, at] != OUTSIDE
            added[inside, :-1] += change[key[inside, at], form[inside]]
        working = np.zeros(len(before), dtype=np.int64)
        held, keeps = self.of.held, rule.keeps
        if rule.room is not None and keeps is not None and held is not None:
            lasting = held.once[cell] + keeps.versions * held.by_version[cell]
            added[:, -1] = (lasting + keeps.in_flight * held.by_micro_batch[cell])[lies]
            working = held.working_set[cell][lies]
            if ends is not None and held.copies:
                added[:, -1] += held.copies[ends].lasting(keeps, rule.kind)[lies]
                working += held.copies[ends].working_set[rule.kind, lies]
        around = np.column_stack([key, form]) if step.forms else key
        return Put(before, form, added, working, around[:, list(step.kept)])

    def _copied(self, layer: int) -> tuple[int, int] | None:
        """Return the last user before it of weights that a layer shares, and the layer."""
        copy = self.of.tables.instance.copies[layer]
        return None if copy is None else (copy.earlier, layer)

    def step(
        self, rule: StageRule, step: LayerStep, so_far: Grown, most_ns: int, layer: int, further: Further | None
    ) -> Grown:
        """Return the unbeaten labels with one more layer, in all its forms, with which a step keeps to a limit.

        Then there are so many layers; ``further`` looks ahead from there. Raises StoppedError after the deadline,
        OutgrownError before it takes too much memory.
        """
        ways = len(so_far.labels) * max(1, len(step.forms))
        if ways > MOST_WAYS:
            raise OutgrownError(
                f"{ways} ways to split the first {layer} layers matter, {MOST_WAYS} of one stage at most can be"
                " looked at; narrow constraints.forms, or merge layers"
            )
        put = self.put(rule, step, so_far.key)
        labels = so_far.labels[put.before]
        labels[:, :WORKING] += put.added
        np.maximum(labels[:, WORKING], put.working, out=labels[:, WORKING])
        passes = self.of.passes.columns.passes(labels[:, :HELD])
        fits = self.of.passes.alone(passes) <= most_ns
        if rule.room is not None:
            fits &= labels[:, HELD] + labels[:, WORKING] <= rule.room
        kept = np.flatnonzero(fits)
        if further is not None and len(kept):
            rows = labels[kept, :WORKING]
            rows[:, -1] += labels[kept, WORKING]
            kept = kept[further.kept(layer, put.live[kept], rows)]
        live = put.live[kept]
        group = numbered(live)
        best = self._unbeaten(labels[kept], group, memory=rule.room is not None)
        if self.width and len(best) > self.width:
            best = best[self._few(labels[kept[best]], group[best])]
        rows = kept[best]
        return Grown(labels[rows], live[best], put.before[rows], put.form[rows])

    def _unbeaten(self, labels: Rows, group: NDArray[np.int64], *, memory: bool) -> NDArray[np.intp]:
        rows = self.of.passes.columns.compared(labels[:, :HELD])
        rows = np.concatenate([rows, labels[:, HELD:]], axis=1) if memory else rows
        return unbeaten(rows, group, self.of.tables.deadline)

    def _few(self, labels: Rows, group: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return about ``width`` labels of every group: the best by passes, and with synchronisation."""
        found, passes = list[NDArray[np.intp]](), self.of.passes.columns.passes(labels[:, :HELD])
        for often in (1, self.of.passes.often):
            score = often * (passes[:, FORWARD] + passes[:, BACKWARD]) + passes[:, SYNC]
            order = np.lexsort((score, group))
            first = np.flatnonzero(np.diff(group[order], prepend=-1))
            rank = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
            found.append(order[rank < self.width])
        return np.unique(np.concatenate(found))
