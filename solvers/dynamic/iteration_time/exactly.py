"""The least latency of plans whose stages and boundaries take at most a threshold, cut by cut.

    V[r, n, i] = least latency of the layers from cut i on, if the first stage of this suffix has rank r and the
                 suffix takes the devices of node n

    V[r, n, i] = min over stages of rank r on a group that lead to n, and cuts j behind i, of
                     time(i, j) + (boundary at j and V[r', m, j])

r' is the rank of the next stage: r - 1, for the last rank also r itself; behind a stage of rank 0 nothing follows.
A stage reaches only as far as the threshold lets it. Stages take what tables and corrections say.

Cost: for each threshold steps x ranks x cuts x the longest stage in cuts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.limits import Deadline, in_time
from pipecut.solvers.dynamic.iteration_time.plans import Correction, CutPath
from pipecut.solvers.dynamic.iteration_time.spans import StageSpans
from pipecut.solvers.dynamic.iteration_time.steps import FlatSteps
from pipecut.solvers.dynamic.iteration_time.windows import windows

INFINITE = 1 << 60
Node = tuple[int, int]
"""A state, and the class of the servers of the first stage of its suffix."""


@dataclass(frozen=True, slots=True)
class _Move:
    """Stages of several kinds that lead from the same state to the same node: their steps, by kind."""

    state: int
    joins: int
    node: Node
    kinds: tuple[int, ...]
    steps: tuple[int, ...]


class ExactLatency:
    """Questions about one instance. ``moves`` come by the state and class that they lead from, as it fills up."""

    def __init__(self, spans: StageSpans, steps: FlatSteps, deadline: Deadline) -> None:
        self.spans, self.steps, self.deadline = spans, steps, deadline
        by_node: dict[tuple[int, int, Node], list[int]] = {}
        rows = zip(steps.state, steps.joins, steps.after, steps.first, strict=True)
        for at, (state, joins, after, first) in enumerate(rows):
            by_node.setdefault((int(state), int(joins), (int(after), int(first))), []).append(at)
        self.moves: dict[Node, list[_Move]] = {}
        for key, found in sorted(by_node.items(), key=lambda one: steps.taken[one[0][0]]):
            move = _Move(*key, tuple(int(steps.kind[at]) for at in found), tuple(found))
            self.moves.setdefault(key[:2], []).append(move)

    def least(self, most_ns: int, corrections: Sequence[Correction], below_ns: int = INFINITE) -> CutPath | None:
        """Return the plan of least latency within the threshold, None if there is none of less than ``below_ns``.

        Raises StoppedError after the deadline.
        """
        return _Question(self, most_ns, corrections, below_ns).answer()


class _Question:
    """The table V for one threshold."""

    def __init__(
        self, about: ExactLatency, most_ns: int, corrections: Sequence[Correction], below_ns: int
    ) -> None:
        self.about, self.spans, self.most_ns, self.below_ns = about, about.spans, most_ns, below_ns
        self.corrections = corrections
        self._crossing = np.where(self.spans.crossing <= most_ns, self.spans.crossing, INFINITE)
        self._taking: dict[tuple[int, ...], Times] = {}
        self._value: dict[int, dict[int, Times]] = {}
        self._behind: dict[tuple[int, int], Times] = {}
        self._empty = set(about.steps.empty.tolist())
        self._windows = windows(self.spans, about.steps, most_ns)
        self._ahead = self._least_ahead()

    def answer(self) -> CutPath | None:
        if not self._windows.possible:
            return None
        for behind, moves in in_time(self.about.moves.items(), self.about.deadline):
            self._put_before(behind, moves)
        complete = self.about.steps.complete
        whole = [
            (int(table[rank, 0]), rank, (state, joins))
            for state, tables in self._value.items()
            for joins, table in tables.items()
            for rank in [int(table[:, 0].argmin())]
            if complete[state]
        ]
        best = min(whole, default=(INFINITE, 0, (0, 0)))
        return None if best[0] >= INFINITE else self._path(*best)

    def _put_before(self, joined: Node, moves: list[_Move]) -> None:
        """Put stages before the suffixes of a state, where these and the stages before them leave room."""
        total, taken = self.spans.total, int(self.about.steps.taken[joined[0]])
        behind = self._behind_of(*joined)[: taken + 1, 1:]  # as many stages as ranks need as many devices
        stops, found = np.flatnonzero((behind < INFINITE).any(axis=0)), dict[tuple[int, ...], Times]()
        longest = max(self._taking_of(move.kinds).shape[2] for move in moves)
        if not len(stops) or not longest:
            return
        padded = np.pad(behind, ((0, 0), (0, longest)), constant_values=INFINITE)
        rows = np.lib.stride_tricks.sliding_window_view(padded, longest, axis=1)[:, :total]
        first, last = max(0, int(stops[0]) + 1 - longest), int(stops[-1])
        for move in moves:
            least, most = int(self._windows.least[move.node[0]]), int(self._windows.most[move.node[0]])
            low, high, taking = max(first, least), min(last, most), self._taking_of(move.kinds)
            if low > high or not taking.shape[2]:
                continue
            if move.kinds not in found:
                own = taking[: len(rows), first : last + 1]
                latency = (rows[:, first : last + 1, : taking.shape[2]] + own).min(axis=2)
                useful = latency + self._ahead[first : last + 1] < self.below_ns
                found[move.kinds] = np.where(useful, latency, INFINITE)
            tables = self._value.setdefault(move.node[0], {})
            if move.node[1] not in tables:
                tables[move.node[1]] = self._nothing()
            known = tables[move.node[1]][: len(rows), low : high + 1]
            np.minimum(known, found[move.kinds][:, low - first : high + 1 - first], out=known)

    def _least_ahead(self) -> Times:
        """Return what the layers before every cut take at least, on any devices."""
        least = self.spans.time.min(axis=0)
        least = np.where(least <= self.most_ns, least, INFINITE)
        found = np.zeros(self.spans.total + 1, dtype=np.int64)
        for stop in range(1, self.spans.total + 1):
            found[stop] = min(INFINITE, int((found[:stop] + least[:stop, stop]).min()))
        return found

    def _nothing(self) -> Times:
        return np.full((self.spans.ranks, self.spans.total + 1), INFINITE)

    def _taking_of(self, kinds: tuple[int, ...]) -> Times:
        """Return by rank, first cut and cuts less one what a stage of one of the kinds takes at least."""
        if kinds not in self._taking:
            self._taking[kinds] = np.min([self._of_kind(kind, self._longest(kinds)) for kind in kinds], axis=0)
        return self._taking[kinds]

    def _longest(self, kinds: tuple[int, ...]) -> int:
        _, first, stop = np.nonzero(self.spans.time[list(kinds)] <= self.most_ns)
        return int((stop - first).max(initial=0))

    def _of_kind(self, kind: int, longest: int) -> Times:
        total, ranks = self.spans.total, self.spans.ranks
        first = np.arange(total)[:, None]
        stop = first + np.arange(1, longest + 1)
        time = np.where(stop <= total, self.spans.time[kind][first, np.minimum(stop, total)], INFINITE)
        time = np.where(stop <= self.spans.room[:, kind, :total, None], time, INFINITE)
        for one in self.corrections:
            if one.kind == kind and one.rank < ranks:
                slower = time[one.rank :, one.start, max(0, one.stop - one.start - 1) :]
                np.maximum(slower, one.time_ns, out=slower)
        return np.where(time <= self.most_ns, time, INFINITE)

    def _behind_of(self, state: int, joins: int) -> Times:
        """Return by rank of the stage before and cut what lies behind, with its boundary."""
        if (state, joins) not in self._behind:
            found = self._nothing()
            if state in self._empty:
                found[0, -1] = 0
            for rows in self._joined(state, joins).values():
                np.minimum(found[1:], rows[:-1], out=found[1:])
                np.minimum(found[-1], rows[-1], out=found[-1])
            self._behind[state, joins] = found
        return self._behind[state, joins]

    def _joined(self, state: int, joins: int) -> dict[int, Times]:
        """Return by class of the first stage behind what lies behind a boundary, the boundary included."""
        links = self.about.steps.link[joins]
        return {first: table + self._crossing[links[first]] for first, table in self._value.get(state, {}).items()}

    def _path(self, value: int, rank: int, node: Node) -> CutPath:
        """Walk from the front to the last stage."""
        steps, cuts, times, slowest = list[int](), [0], list[int](), list[int]()
        latency, total = value, self.spans.total
        while cuts[-1] < total:
            move, stop = self._leading(value, rank, node, cuts[-1])
            time, step = min(
                (self._time(kind, rank, cuts[-1], stop), at)
                for kind, at in zip(move.kinds, move.steps, strict=True)
            )
            steps.append(step)
            times.append(time)
            cuts.append(stop)
            value -= time
            if stop == total:
                break
            value, rank, first, boundary = self._following(value, rank, move, stop)
            node = move.state, first
            slowest.append(boundary)
        return CutPath(tuple(steps), tuple(cuts), tuple(times), latency, max((*times, *slowest)))

    def _leading(self, value: int, rank: int, node: Node, cut: int) -> tuple[_Move, int]:
        """Return the first stage of a suffix of this value: where it comes from, and its end."""
        for move in itertools.chain.from_iterable(self.about.moves.values()):
            if move.node == node and self._taking_of(move.kinds).shape[2]:
                own = self._taking_of(move.kinds)[rank, cut]
                behind = self._behind_of(move.state, move.joins)[rank, cut + 1 : cut + 1 + len(own)]
                found = np.flatnonzero(own[: len(behind)] + behind == value)
                if len(found):
                    return move, cut + 1 + int(found[0])
        raise LookupError(f"no stage begins a suffix of {value} ns")

    def _following(self, value: int, rank: int, move: _Move, cut: int) -> tuple[int, int, int, int]:
        """Return value, rank and class of the suffix behind a stage, and the time of the boundary between them."""
        links, last = self.about.steps.link[move.joins], self.spans.ranks - 1
        for first, rows in self._joined(move.state, move.joins).items():
            for behind in (rank - 1, rank) if rank == last else (rank - 1,):
                if behind >= 0 and rows[behind, cut] == value:
                    boundary = int(self._crossing[links[first], cut])
                    return value - boundary, behind, first, boundary
        raise LookupError(f"nothing lies behind a boundary for {value} ns")

    def _time(self, kind: int, rank: int, first: int, stop: int) -> int:
        """Return what tables and corrections say of a stage."""
        if stop > self.spans.room[rank, kind, first]:
            return INFINITE
        learnt = (
            one.time_ns
            for one in self.corrections
            if one.kind == kind and one.rank <= rank and one.start == first and one.stop <= stop
        )
        return max(int(self.spans.time[kind, first, stop]), *learnt, 0)
