"""What stages take at best in each pass, whatever the forms of their layers: rows that no other undercuts.

From the formulas alone, layer by layer: of a stage that grows, by the forms of the layers that later ones still
look at, every row (forward pass, backward pass, synchronisation, bytes held, largest working set) is kept that no
other is at most in all five. Rows of stages that could keep to no limit, or fit into no device, are left out. A
backward pass contains what is computed again. Exact for any layer graph.

A *room* is a sum of the passes of a stage up to some place, and what it may be at most: what paths take elsewhere
in any plan of so many stages is known (``formulation.certificates.executed.ahead``), and the rest is left for the
stage. A row is of use if it keeps to one room of a place where the stage may stop, and there to all limits of a
stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.certificates.executed.ways import Rows, unbeaten
from pipecut.formulation.costs.least import form_uses
from pipecut.formulation.costs.memory import MemoryParts, received_bytes
from pipecut.formulation.costs.passes import change_passes, layer_passes
from pipecut.formulation.limits import NEVER, Deadline, TooLargeError
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import GroupKind, forms_on
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FormEdge, Split
from pipecut.formulation.problem.precision import Copy
from pipecut.formulation.schedules.keeps import Keeps

PASSES, HELD, WORKING = slice(0, 3), 3, 4
MOST_ROWS = 1 << 20
"""So many rows of stages that grow are looked at in one proof."""
NEVER_NS = 1 << 60
"""The least of layers that lead nowhere."""
NO_LIMIT = 1 << 58
"""A limit of so many bytes is none."""
PRICES = (0.25, 1.0, 4.0)
"""Bytes are added to sums at such prices: so many times what both have to spend."""
Forms = tuple[int, ...]
Choices = Mapping[Forms, Sequence[tuple[Forms, Rows]]]
"""By the forms that are looked at before a layer: those behind it, and what it adds to rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Within:
    """What a stage may take: ``often @ (forward, backward, synchronisation) <= most_ns``, row by row.

    ``paces``: forward and backward passes count together alone, and both are said as forward ones.
    """

    often: Rows
    most_ns: NDArray[np.int64]
    paces: bool = False

    @staticmethod
    def step(micro_batches: int, step_ns: int) -> Within:
        """Return the limits of a stage whose step takes at most so long: all its passes lie one after another."""
        return Within(np.array([[micro_batches, micro_batches, 1]]), np.array([step_ns]))

    @staticmethod
    def period(micro_batches: int, period_ns: int, *, charged: bool) -> Within:
        """Return the limits of a stage that keeps to a period, synchronised once in so many micro-batches."""
        often = micro_batches * charged
        limits = np.array([[1, 1, 0], [often, often, 1]]), np.array([period_ns, micro_batches * period_ns])
        return Within(*limits, paces=True)

    def keep(self, rows: Rows) -> NDArray[np.bool_]:
        """Tell which rows keep to all limits."""
        return np.asarray((rows[:, PASSES] @ self.often.T <= self.most_ns).all(axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class BestStages:
    """Stages of one kind by ascending stop, a row each: where they begin and stop, ``passes`` (three, in ns).

    Those that stop at place j are rows ``begins[j]`` up to ``begins[j + 1]``.
    """

    first: NDArray[np.intp]
    stop: NDArray[np.intp]
    passes: Rows
    begins: NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class RoomOfStages:
    """What stages of a kind may take, a row each by ascending ``first``, up to ``stop``.

    ``often @ passes <= most``, with the same ``often`` in all rows.
    """

    often: Rows
    first: NDArray[np.intp]
    stop: NDArray[np.intp]
    most: NDArray[np.int64]

    def of(self, first: int) -> RoomOfStages:
        """Return the rows of one place."""
        some = slice(*np.searchsorted(self.first, [first, first + 1]))
        return RoomOfStages(self.often, self.first[some], self.stop[some], self.most[some])


class PassFronts:
    """The stages of an instance that keep to some limits; what was worked out is remembered.

    ``rooms`` returns by kind and rule what stages may take: those alone are worked out that one of them is for.
    """

    def __init__(
        self,
        instance: Instance,
        kinds: tuple[GroupKind, ...],
        within: Within,
        deadline: Deadline = NEVER,
        rooms: Callable[[int, Keeps | None], Sequence[RoomOfStages]] | None = None,
    ) -> None:
        self._rooms = rooms
        self._instance, self._kinds, self._within, self._deadline = instance, kinds, within, deadline
        self._places = CutSpace.of(instance).places
        self._number = {place: at for at, place in enumerate(self._places)}
        self._into, self._last_use = form_uses(instance)
        self._cell = cache(self._of_layer)
        self._change = cache(self._of_change)
        self._left = MOST_ROWS
        self.rows = cache(self._rows)

    def _rows(self, kind: int, rule: Keeps | None) -> BestStages:
        """Return the stages of a kind, by its number, that keep what this rule says (None: no limit on memory).

        Raises StoppedError after the deadline, and TooLargeError where forms leave too many rows. Cost: linear in
        layers for each place where stages begin, times rows, forms, and forms of layers that are still looked at.
        """
        own, rooms = self._kinds[kind], None if self._rooms is None else self._rooms(kind, rule)
        found: list[tuple[int, int, Rows]] = []
        for first in range(len(self._places) - 1):
            self._deadline.check()
            if rooms is None:
                found += self._from(own, rule, first, range(first + 1, len(self._places)))
            else:
                found += self._within_rooms(own, rule, first, [one.of(first) for one in rooms])
        found.sort(key=lambda row: row[1])
        many = [len(rows) for _, _, rows in found]
        first, stop = (np.repeat(np.array([row[at] for row in found], dtype=np.intp), many) for at in (0, 1))
        passes = np.concatenate([rows for _, _, rows in found]) if found else np.zeros((0, 3), dtype=np.int64)
        return BestStages(first, stop, passes, np.searchsorted(stop, np.arange(len(self._places) + 1)))

    def _within_rooms(
        self, kind: GroupKind, rule: Keeps | None, first: int, rooms: Sequence[RoomOfStages]
    ) -> list[tuple[int, int, Rows]]:
        """Return the stages from a place on that rooms are for, which are all from there."""
        if not any(len(one.stop) for one in rooms):
            return []
        stop = np.concatenate([one.stop for one in rooms])
        begin = self._places[first]
        often = np.concatenate([np.tile(one.often, (len(one.stop), 1)) for one in rooms])
        most = np.concatenate([one.most for one in rooms])
        choices = self._graph(kind, rule, begin, self._places[int(stop.max())])
        room = _room_that_counts(choices, self._room(kind, rule, begin))
        every = np.pad(self._within.often, ((0, 1), (0, 2)))
        every[-1, HELD] = 1
        limits = every, np.append(self._within.most_ns, room)
        within = RoomsFrom.of(stop, np.pad(often, ((0, 0), (0, 2))), most, limits)
        ahead = LookAhead(within, self._places, begin, choices)
        return self._from(kind, rule, first, ahead.stops.tolist(), (choices, ahead))

    def _graph(self, kind: GroupKind, rule: Keeps | None, begin: int, end: int) -> list[Choices]:
        """Return the choices of every layer of a stage from one layer up to another."""
        live: list[int] = []
        keys: set[Forms] = {()}
        found: list[Choices] = []
        for layer in range(begin, end):
            follows = self._instance.layers[layer].split is Split.FOLLOW
            around = live if follows else [*live, layer]
            kept = [at for at, one in enumerate(around) if self._last_use[one] > layer]
            own: dict[Forms, list[tuple[Forms, Rows]]] = {}
            for forms in keys:
                chosen = self._choices(kind, rule, (begin, layer), live, forms)
                own[forms] = [(tuple(one[at] for at in kept), cell) for one, cell in chosen]
            found.append(own)
            keys, live = {key for rows in own.values() for key, _ in rows}, [around[at] for at in kept]
        return found

    def _from(
        self,
        kind: GroupKind,
        rule: Keeps | None,
        first: int,
        stops: Sequence[int],
        known: tuple[list[Choices], LookAhead] | None = None,
    ) -> list[tuple[int, int, Rows]]:
        """Return the stages from a place to one of some others: both, and their unbeaten passes."""
        begin, room = self._places[first], self._room(kind, rule, self._places[first])
        choices = known[0] if known else self._graph(kind, rule, begin, self._places[stops[-1]])
        states: dict[Forms, Rows] = {(): np.zeros((1, 5), dtype=np.int64)}
        found: list[tuple[int, int, Rows]] = []
        for layers, own in enumerate(choices, 1):
            grown: dict[Forms, list[Rows]] = {}
            for forms, rows in states.items():
                for key, cell in own[forms]:
                    new = rows + cell
                    new[:, WORKING] = np.maximum(rows[:, WORKING], cell[WORKING])
                    # What is looked at ahead holds the limits of a stage, too.
                    some = known[1].useful(layers, key, new).any(axis=1) if known else self._within.keep(new)
                    some &= new[:, HELD] + new[:, WORKING] <= room
                    grown.setdefault(key, []).append(new[some])
            states = {forms: self._best(np.concatenate(parts)) for forms, parts in grown.items()}
            states = {forms: rows for forms, rows in states.items() if len(rows)}
            if not states:
                break
            if self._number.get(begin + layers) in stops:
                stop = self._number[begin + layers]
                parts = [self._stopped(known, layers, stop, *one)[:, PASSES] for one in states.items()]
                passes = np.concatenate(parts)
                found.append((first, stop, passes[unbeaten(passes, self._deadline)]))
        return found

    @staticmethod
    def _stopped(
        known: tuple[list[Choices], LookAhead] | None, layers: int, stop: int, forms: Forms, rows: Rows
    ) -> Rows:
        """Return the rows of stages of so many layers that may be of use as they are."""
        if known is None:
            return rows
        at = int(np.searchsorted(known[1].stops, stop))
        return rows[known[1].useful(layers, forms, rows)[:, at]]

    def _best(self, rows: Rows) -> Rows:
        self._left -= len(rows)
        if self._left < 0:
            raise TooLargeError(f"stages can trade their passes for one another in more than {MOST_ROWS} ways")
        return rows[unbeaten(rows, self._deadline)]

    def _room(self, kind: GroupKind, rule: Keeps | None, begin: int) -> int:
        if rule is None:
            return NO_LIMIT
        capacity = min(self._instance.device_classes[one].memory_bytes for one in kind.classes)
        return capacity - rule.in_flight * received_bytes(self._instance, kind, begin)

    def _choices(
        self, kind: GroupKind, rule: Keeps | None, at: tuple[int, int], live: list[int], forms: Forms
    ) -> list[tuple[Forms, Rows]]:
        """Return the forms around a layer with each of its own, and what that adds to rows.

        ``at`` are the first layer of the stage, and this one.
        """
        first, layer = at
        row, copy = self._instance.layers[layer], self._instance.copied(layer, first)
        if row.split is Split.FOLLOW:
            source = self._instance.sources[layer]
            form = forms[live.index(source)] if source in live else 0
            return [(forms, self._cell(kind, rule, layer, form, copy).copy())]
        edges = [
            (forms[live.index(edge.source)], edge) for edge in self._into.get(layer, ()) if edge.source in live
        ]
        found: list[tuple[Forms, Rows]] = []
        for form in forms_on(row, kind):
            cell = self._cell(kind, rule, layer, form, copy).copy()
            for source, edge in edges:
                cell[:2] += self._change(kind, edge, source, form)
            found.append(((*forms, form), cell))
        return found

    def _of_layer(self, kind: GroupKind, rule: Keeps | None, layer: int, form: int, copy: Copy | None) -> Rows:
        """Return the five numbers of a layer; without a limit on memory it holds nothing."""
        forward, backward, sync = layer_passes(self._instance, layer, form, kind, copy)[:3]
        passes = (forward + backward, 0, sync) if self._within.paces else (forward, backward, sync)
        if rule is None:
            return np.array([*passes, 0, 0], dtype=np.int64)
        parts = MemoryParts.of_layer(self._instance, kind, layer, form, copy).times(rule, kind.mode)
        return np.array([*passes, parts.lasting, parts.working_set], dtype=np.int64)

    def _of_change(self, kind: GroupKind, edge: FormEdge, source: int, form: int) -> tuple[int, int]:
        """Return what a change of layout adds to both passes."""
        passes = change_passes(self._instance, edge, source, form, kind)
        return (sum(passes), 0) if self._within.paces else passes


def _room_that_counts(choices: list[Choices], room: int) -> int:
    """Return how many bytes a stage may hold: no limit, and layers that hold nothing, where all forms fit."""
    cells = [[cell for rows in own.values() for _, cell in rows] for own in choices]
    held = sum(max(int(cell[HELD]) for cell in own) for own in cells)
    if held + max(int(cell[WORKING]) for own in cells for cell in own) > room:
        return room
    for cell in (cell for own in cells for cell in own):
        cell[HELD:] = 0
    return NO_LIMIT


@dataclass(frozen=True, slots=True, eq=False)
class RoomsFrom:
    """Rooms of stages from one place on, by ascending ``stop``, the number of a place.

    ``often[:, r] @ row <= most[:, r]``, all of them, for one room r of a stop, and ``limits``, all of them, too.
    """

    stop: NDArray[np.intp]
    often: Rows
    most: NDArray[np.int64]
    limits: tuple[Rows, NDArray[np.int64]]

    @staticmethod
    def of(
        stop: NDArray[np.intp], often: Rows, most: NDArray[np.int64], limits: tuple[Rows, NDArray[np.int64]]
    ) -> RoomsFrom:
        """Return rooms for sums of passes, and with each those together with bytes that are held at some prices.

        The last of the limits is that on bytes: whoever keeps to both keeps to their sum at any price.
        """
        order, (every, whole) = np.argsort(stop, kind="stable"), limits
        parts, mosts = [often[order]], [most[order]]
        for share in PRICES if whole[-1] < NO_LIMIT else ():
            price = np.maximum(1, (share * (most[order] / max(1, int(whole[-1])))).astype(np.int64))
            parts.append(often[order] + price[:, None] * every[-1])
            mosts.append(most[order] + price * whole[-1])
        return RoomsFrom(stop[order], np.stack(parts), np.stack(mosts), limits)


class LookAhead:
    """Tells which rows may be of use, layer by layer. ``choices`` are those of the layers from ``begin`` on."""

    def __init__(self, rooms: RoomsFrom, places: Sequence[int], begin: int, choices: Sequence[Choices]) -> None:
        self.stops, self._starts = np.unique(rooms.stop, return_index=True)
        every, most = rooms.limits
        self._sums, self._rooms, self._limits = len(rooms.often), len(rooms.stop), len(most)
        own = rooms.often.reshape(-1, rooms.often.shape[2])
        self._often = np.concatenate([own, np.tile(every, (len(self.stops), 1))])
        self._most = np.concatenate([rooms.most.reshape(-1), np.tile(most, len(self.stops))])
        at = np.concatenate([np.tile(rooms.stop, self._sums), np.repeat(self.stops, len(most))])
        self._least = self._work_back(np.array(places)[at], begin, choices)

    def _work_back(
        self, ends: NDArray[np.int64], begin: int, choices: Sequence[Choices]
    ) -> list[dict[Forms, Rows]]:
        """Return by layer and forms the least that layers from there on add to each room."""
        last = [key for rows in choices[-1].values() for key, _ in rows]
        found = [{key: np.where(ends == begin + len(choices), 0, NEVER_NS) for key in last}]
        for layer, own in reversed(list(enumerate(choices, begin))):
            behind, now = found[-1], dict[Forms, Rows]()
            for forms, rows in own.items():
                added = np.stack([cell for _, cell in rows]) @ self._often.T
                least = (added + np.stack([behind[key] for key, _ in rows])).min(axis=0)
                stopped = np.where(ends == layer, 0, NEVER_NS)
                now[forms] = np.where(ends > layer, np.minimum(least, NEVER_NS), stopped)
            found.append(now)
        return found[::-1]

    def useful(self, layers: int, forms: Forms, rows: Rows) -> NDArray[np.bool_]:
        """Return by row and stop whether a row of so many layers that ends in these forms may be of use there."""
        kept = rows @ self._often.T + self._least[layers][forms] <= self._most
        many = self._sums * self._rooms
        all_sums = kept[:, :many].reshape(len(rows), self._sums, self._rooms).all(axis=1)
        one = np.logical_or.reduceat(all_sums, self._starts, axis=1)
        every = kept[:, many:].reshape(len(rows), len(self.stops), self._limits).all(axis=2)
        return np.asarray(one & every)
