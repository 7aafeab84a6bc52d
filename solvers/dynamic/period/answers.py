"""Which plans keep to a period T where weights are synchronised once in M micro-batches: answers of suffixes.

Everything repeats after a round of M pairs of passes, and a synchronisation keeps its device between the last pair
of a round and the first of the next. A suffix *answers* a pass that comes to its first stage in pair a of a round:
by when, beyond a period for each pair in between, is it back from pair b? These are M x M numbers, and all that
the stages before need to know of the suffix. In front of one with answers R, behind a boundary, a stage of this
pace and synchronisation has

    X[a, b] = pace + max(wait[a, b], boundary - T + R[a + 1, b]),

and its answers are those of ways through X on which its device goes on from pair b to pair b + 1, T less, and
after the last pair of a round with the synchronisation. A plan keeps to T if no way comes back to a pair later
than it began there. Of two suffixes the one with no larger answers leaves at least what the other does.

``wait`` is what turning at the stage itself from pair a to pair b takes at least, so numbers below say nothing.
Where receivers pay for boundaries, what the first stage of a suffix fetches is not known yet, so suffixes keep X
and the synchronisation of their first stage.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.limits import TooLargeError, in_time
from pipecut.formulation.problem.options import BoundaryCharge
from pipecut.formulation.problem.plan import Span
from pipecut.solvers.dynamic.period.stage_periods import PeriodStages, StagePeriods
from pipecut.solvers.dynamic.period.walk import Found, WayBack
from pipecut.solvers.dynamic.states.states import Numbers, StateSpace, Steps
from pipecut.solvers.step_time.unbeaten import numbered, unbeaten

AT_ONCE = 1 << 22
"""So many numbers of answers are made in one go."""
Index = NDArray[np.intp]
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """Suffixes of one slot, a row each: ``node``, and ``place`` where they begin.

    ``rows`` are answers, and where receivers pay X and the synchronisation. ``behind`` is the suffix that each
    goes on with, of the slot before; ``stage`` has kind, stop, pace and synchronisation of its first stage,
    ``step`` the number of steps and the index in them.
    """

    node: Numbers
    place: Places
    rows: Times
    behind: Numbers
    stage: Times
    step: Times

    def of(self, rows: Index | Numbers) -> Answered:
        """Return some of them."""
        return Answered(*(getattr(self, one.name)[rows] for one in fields(self)))

    @staticmethod
    def joined(parts: list[Answered]) -> Answered:
        """Return all of several."""
        return Answered(*(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(Answered)))


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """What suffixes are to a stage before them: where it stops, ``ways`` beside its pace, which suffix."""

    stop: Places
    ways: Times
    suffix: Numbers


class AnswerReach:
    """The unbeaten suffixes of all plans that keep to one period T, slot by slot."""

    def __init__(self, space: StateSpace, periods: StagePeriods, period_ns: int) -> None:
        self.space, self.periods, self.period_ns = space, periods, period_ns
        self._tables = periods.atoms.times.tables
        self._steps, self._total = periods.steps, periods.space.stops
        nothing = np.zeros((1, self._total + 1), dtype=np.int64)
        sent = (self._tables.activation, self._tables.gradient)
        self._fetched, self._returned = (np.concatenate([one, nothing]) for one in sent)
        self._receiver = self._tables.instance.cost.boundary_charge is BoundaryCharge.RECEIVER
        _, classes = np.unique(space.joined, axis=0, return_inverse=True)
        self._classes: Numbers = classes.reshape(-1)
        self._stands = [int(np.argmax(self._classes == one)) for one in range(int(self._classes.max()) + 1)]
        pairs = np.arange(self._steps)
        self._wait: Times = -period_ns * ((pairs[None, :] - pairs[:, None]) % self._steps)
        self._rules = periods.slots(max(1, periods.counts.stop - 1))
        self.found: list[Answered] = []
        self._held = 0

    def run(self) -> bool:
        """Go through the slots up to the first plan; tell whether one keeps to the period.

        Raises StoppedError, and TooLargeError where suffixes are too many to be kept.
        """
        for slot in range(len(self._rules)):
            arrived, parts = self._arriving(slot), list[Answered]()
            for number, steps in enumerate(in_time(self.space.steps, self._tables.deadline)):
                parts += self._put_before(slot, number, steps, arrived)
            if not parts:
                return False
            found = self._best(Answered.joined(parts))
            self._held += found.rows.nbytes
            self._check(self._held)
            self.found.append(found)
            if self._whole() is not None:
                return True
        return False

    def _check(self, needed: int) -> None:
        TooLargeError.refuse_above(
            f"answers of suffixes in {self._steps} micro-batches", needed, "lower training.micro_batches"
        )

    def _whole(self) -> int | None:
        """Return a suffix of the last slot that is a whole plan."""
        if len(self.found) not in self.periods.counts:
            return None
        last = self.found[-1]
        whole = np.flatnonzero((last.place == 0) & self.space.complete[last.node])
        whole = whole[np.argsort(self.space.taken[last.node[whole]], kind="stable")]
        if self._receiver and len(whole):
            _, kept = self._closed(self._ways(last.rows[whole]), last.rows[whole, -1])
            whole = whole[kept]
        return int(whole[0]) if len(whole) else None

    def _ways(self, rows: Times) -> Times:
        return rows[:, : self._steps**2].reshape(len(rows), self._steps, self._steps)

    def _arriving(self, slot: int) -> dict[tuple[int, int], Arrived]:
        """Return the suffixes behind a stage by class of servers and state."""
        if slot == 0:
            one = np.zeros(1, dtype=np.int64)
            empty = Arrived(one + self._total, self._wait[None], one - 1)
            return {(at, int(state)): empty for at in range(len(self._stands)) for state in self.space.empty}
        found, last = dict[tuple[int, int], Arrived](), self.found[-1]
        for at, servers in enumerate(self._stands):
            ways, suffix = self._behind(last, self.space.joined[servers, self.space.node_servers[last.node]])
            state, stop = self.space.node_state[last.node[suffix]], last.place[suffix]
            some = self._unbeaten(ways.reshape(-1, self._steps**2), state, stop)
            for one in np.unique(state[some]).tolist():
                own = some[state[some] == one]
                own = own[np.argsort(stop[own], kind="stable")]
                found[at, one] = Arrived(stop[own], ways[own], suffix[own])
        return found

    def _behind(self, last: Answered, joined: Numbers) -> tuple[Times, Index]:
        """Return what suffixes are to stages before them over these links, and which of them can be there."""
        fetched, returned = (one[joined, last.place][:, None, None] for one in (self._fetched, self._returned))
        if not self._receiver:
            further = np.roll(self._ways(last.rows), -1, axis=1) + fetched + returned - self.period_ns
            return np.maximum(further, self._wait), np.arange(len(further))
        answers, kept = self._closed(self._ways(last.rows) + fetched, last.rows[:, -1])
        further = np.maximum(np.roll(answers, -1, axis=1) - self.period_ns, self._wait)
        return further + returned[kept], kept

    def _unbeaten(self, rows: Times, *keys: Numbers) -> Index:
        return unbeaten(rows, numbered(np.column_stack(keys).astype(np.int64)), self._tables.deadline)

    def _best(self, found: Answered) -> Answered:
        return found.of(self._unbeaten(found.rows, found.node, found.place))

    def _put_before(
        self, slot: int, number: int, steps: Steps, arrived: dict[tuple[int, int], Arrived]
    ) -> list[Answered]:
        """Return suffixes by node with a stage of these steps put before others."""
        keys = np.stack([steps.node, self._classes[steps.servers], steps.state], axis=1)
        rows, first = np.unique(keys, axis=0, return_index=True)
        into: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for (node, one, state), at in zip(rows.tolist(), first.tolist(), strict=True):
            if (one, state) in arrived:
                into.setdefault((one, state), []).append((node, at))
        found: list[Answered] = []
        for key, ways in in_time(into.items(), self._tables.deadline):
            parts = [part for kind in steps.kinds for part in self._grown(slot, kind, arrived[key])]
            if parts:
                best = self._best(Answered.joined(parts))
                for node, at in ways:
                    step = np.broadcast_to(np.array([number, at]), (len(best.place), 2))
                    own = np.full_like(best.place, node)
                    found.append(Answered(own, best.place, best.rows, best.behind, best.stage, step))
                self._check(self._held + sum(part.rows.nbytes for part in found))
        return found

    def _grown(self, slot: int, kind: int, arrived: Arrived) -> list[Answered]:
        """Return suffixes with a stage of a kind put before others, without devices."""
        stages = self.periods.stages(self._rules[slot], kind, self.period_ns, np.unique(arrived.stop))
        low, high = (np.searchsorted(arrived.stop, stages.stop, side=side) for side in ("left", "right"))
        many = high - low
        row = np.repeat(np.arange(len(many)), many)
        behind = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many) + low[row]
        likely = self._likely(stages, arrived, row, behind)
        row, behind = row[likely], behind[likely]
        size, found = max(1, AT_ONCE // self._steps**2), list[Answered]()
        for at in in_time(range(0, len(row), size), self._tables.deadline):
            some, own = stages.of(row[at : at + size]), behind[at : at + size]
            ways = arrived.ways[own] + some.pace[:, None, None]
            rows, kept = self._closed(ways, some.sync)
            if self._receiver:
                rows = ways[kept]
            rows = rows.reshape(-1, self._steps**2)
            if self._receiver:
                rows = np.column_stack([rows, some.sync[kept]])
            own, some = arrived.suffix[own[kept]], some.of(kept)
            stage = np.column_stack([np.full_like(some.stop, kind), some.stop, some.pace, some.sync])
            none = np.zeros((len(kept), 2), dtype=np.int64)
            found.append(Answered(none[:, 0], some.first, rows, own, stage, none))
        return found

    def _likely(self, stages: PeriodStages, arrived: Arrived, row: Numbers, behind: Numbers) -> NDArray[np.bool_]:
        """Tell for which stages and suffixes no way of one pair alone comes back too late."""
        pairs = np.arange(self._steps)
        loops = arrived.ways[:, (pairs + 1) % self._steps, pairs]
        late, within = loops[:, -1][behind], loops[:, :-1].max(axis=1, initial=-self._steps * self.period_ns)
        pace = stages.pace[row] - self.period_ns
        return (within[behind] + pace <= 0) & (late + pace + stages.sync[row] <= 0)

    def _closed(self, ways: Times, sync: Times) -> tuple[Times, Index]:
        """Return the answers of stages with these ways, and which of them keep to the period; only their rows.

        The device goes on from one pair to the next at one pair of a round after another.
        """
        answers, kept = ways.copy(), np.arange(len(ways))
        for pair in range(self._steps):
            after = (pair + 1) % self._steps
            more = sync[kept] * (after == 0) - self.period_ns
            good = answers[:, after, pair] + more <= 0
            if not good.all():
                answers, kept, more = answers[good], kept[good], more[good]
            back = answers[:, :, pair, None] + more[:, None, None] + answers[:, None, after, :]
            np.maximum(answers, back, out=answers)
        return answers, kept

    def stages(self) -> list[Found]:
        """Return the stages of a whole plan from the front. Raises LookupError if there is none."""
        at = self._whole()
        if at is None:
            raise LookupError("no whole plan keeps to the period")
        walk = WayBack(self.space, self._tables)
        for suffixes in reversed(self.found):
            kind, stop, *most = suffixes.stage[at].tolist()
            number, row = suffixes.step[at].tolist()
            span = Span(int(suffixes.place[at]), stop)
            walk.put(self.space.steps[number], row, kind, span, (most[0], most[1]))
            at = int(suffixes.behind[at])
        return walk.found
