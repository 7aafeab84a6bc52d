"""Which suffixes of a plan keep to a period T, by slot, node and first place: one number each.

A run of neighbouring stages keeps to T if its passes and the transfers between them take at most T for each
stage. Of all runs that begin with the first stage of a suffix the largest excess over this is (Kadane)

    z = pace - T + max(0, z of the suffix behind + boundary between) <= 0,

and the stages before need to know nothing else of the suffix. A smaller z leaves at least what a larger one
does, so the least is kept for each slot, node and place. A synchronisation that is charged in every micro-batch
counts for the first stage of a run alone: ``limit - T + max(0, ...) <= 0``, and z goes on without it. One that
is overlapped has limits of its own. One that is charged once in several micro-batches is seen here as far as a
stage alone waits for it, which no plan undercuts.

Where receivers pay for boundaries, a stage fetches activations from the stage before it, which is not known when
it is put there: what it takes for that is added when that stage is, and may not make z more than 0 either.

Cost: for each slot O(ways x places**2) in numpy.
"""

from __future__ import annotations

import numpy as np

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.limits import in_time
from pipecut.formulation.problem.options import BoundaryCharge
from pipecut.formulation.problem.plan import Span
from pipecut.solvers.dynamic.period.stage_periods import Pair, PeriodStages, StagePeriods
from pipecut.solvers.dynamic.period.walk import Found, WayBack
from pipecut.solvers.dynamic.states.states import Numbers, StateSpace, Steps

NEVER_NS = 1 << 60
"""The excess of no suffix at all."""


class PeriodReach:
    """The least excesses for one period T, slot by slot."""

    def __init__(self, space: StateSpace, periods: StagePeriods, period_ns: int) -> None:
        self.space, self.periods, self.period_ns = space, periods, period_ns
        self._tables = periods.atoms.times.tables
        self._total = periods.space.stops
        nothing = np.zeros((1, self._total + 1), dtype=np.int64)
        sent = (self._tables.activation, self._tables.gradient)
        self._fetched, self._returned = (np.concatenate([one, nothing]) for one in sent)
        self._receiver = self._tables.instance.cost.boundary_charge is BoundaryCharge.RECEIVER
        _, classes = np.unique(space.joined, axis=0, return_inverse=True)
        self._classes: Numbers = classes.reshape(-1)
        self._stands = [int(np.argmax(self._classes == one)) for one in range(int(self._classes.max()) + 1)]
        self.least: list[Times] = []
        self._arrivals: list[dict[tuple[int, int], Times]] = []
        self._at_once = periods.charged and periods.steps == 1
        self._rules = periods.slots(max(1, periods.counts.stop - 1))

    def run(self) -> bool:
        """Go through the slots; tell whether a whole plan keeps to the period. Raises StoppedError."""
        for slot in in_time(range(len(self._rules)), self._tables.deadline):
            self._arrivals.append(self._arriving(slot))
            after = np.full((len(self.space.node_state), self._total + 1), NEVER_NS, dtype=np.int64)
            for steps in in_time(self.space.steps, self._tables.deadline):
                self._put_before(slot, steps, after)
            self.least.append(after)
            if not (after < NEVER_NS).any():
                break
        return self._complete() is not None

    def _complete(self) -> tuple[int, int] | None:
        """Return slot and node of a whole plan, with the fewest devices, then the fewest stages."""
        found = [
            (int(self.space.taken[node]), slot, int(node))
            for slot, table in enumerate(self.least)
            if slot + 1 in self.periods.counts
            for node in np.flatnonzero((table[:, 0] < NEVER_NS) & self.space.complete)
        ]
        return min(found)[1:] if found else None

    def _arriving(self, slot: int) -> dict[tuple[int, int], Times]:
        """Return by class of servers and state, for every place, the excess behind a stage that stops there."""
        empty = np.full(self._total + 1, NEVER_NS, dtype=np.int64)
        empty[-1] = 0
        if slot == 0:
            return {(one, int(state)): empty for one in range(len(self._stands)) for state in self.space.empty}
        last = self.least[-1]
        nodes = np.flatnonzero((last < NEVER_NS).any(axis=1))
        nodes = nodes[np.argsort(self.space.node_state[nodes], kind="stable")]
        states, firsts = np.unique(self.space.node_state[nodes], return_index=True)
        found: dict[tuple[int, int], Times] = {}
        for one, servers in enumerate(self._stands):
            joined = self.space.joined[servers, self.space.node_servers[nodes]]
            rows = np.minimum.reduceat(self._behind(last[nodes], joined), firsts, axis=0)
            found.update({(one, int(state)): row for state, row in zip(states, rows, strict=True)})
        return found

    def _behind(self, excess: Times, joined: Numbers, places: int | slice = slice(None)) -> Times:
        """Return what suffixes with these excesses add to the run of a stage before them, over these links."""
        fetched, returned = self._fetched[joined, places], self._returned[joined, places]
        if self._receiver:
            return np.where(excess + fetched <= 0, returned, NEVER_NS)
        return np.where(excess < NEVER_NS, np.maximum(excess + fetched + returned, 0), NEVER_NS)

    def _put_before(self, slot: int, steps: Steps, after: Times) -> None:
        arrivals = self._arrivals[slot]
        keys = np.stack([steps.node, self._classes[steps.servers], steps.state], axis=1)
        ways = [row for row in np.unique(keys, axis=0).tolist() if (row[1], row[2]) in arrivals]
        if not ways:
            return
        wanted = list(dict.fromkeys((one, state) for _, one, state in ways))
        behind = np.stack([arrivals[key] for key in wanted])
        best = np.minimum.reduce([self._before(slot, kind, behind) for kind in steps.kinds])
        at = {key: row for row, key in enumerate(wanted)}
        for node, one, state in ways:
            np.minimum(after[node], best[at[one, state]], out=after[node])

    def _before(self, slot: int, kind: int, behind: Times) -> Times:
        """Return the least excess with a stage of this kind put before suffixes, by row and first place."""
        found = np.full_like(behind, NEVER_NS)
        some = np.flatnonzero((behind < NEVER_NS).any(axis=0))
        stages = self.periods.stages(self._rules[slot], kind, self.period_ns, some)
        if len(stages.first):
            starts = np.flatnonzero(np.diff(stages.first, prepend=-1))
            # A row for each stage, so that what is read lies together.
            arrived = np.ascontiguousarray(behind.T)[stages.stop]
            spent = self._spent(stages, arrived)
            found[:, stages.first[starts]] = np.minimum.reduceat(spent, starts, axis=0).T
        return found

    def _spent(self, stages: PeriodStages, arrived: Times) -> Times:
        """Return the excess of runs that begin with these stages, a row each, NEVER_NS where it is too much."""
        spent = arrived + (stages.pace - self.period_ns)[:, None]
        late = spent > 0
        if self._at_once:
            late |= arrived + stages.limit[:, None] > self.period_ns
        spent[late] = NEVER_NS
        return spent

    def stages(self) -> list[Found]:
        """Return the stages of a whole plan from the front. Raises LookupError if there is none."""
        start = self._complete()
        if start is None:
            raise LookupError("no whole plan keeps to the period")
        slot, node = start
        place, walk = 0, WayBack(self.space, self._tables)
        while slot >= 0:
            steps, at, kind, stop, most = self._step_back(slot, node, place)
            walk.put(steps, at, kind, Span(place, stop), most)
            if slot:
                node = self._node_behind(slot, int(steps.state[at]), int(steps.servers[at]), stop)
            slot, place = slot - 1, stop
        return walk.found

    def _step_back(self, slot: int, node: int, place: int) -> tuple[Steps, int, int, int, Pair]:
        """Return (steps, index, kind, stop, pace and sync at most) of a stage with the least excess here."""
        target = int(self.least[slot][node, place])
        for steps in self.space.steps:
            low, high = np.searchsorted(steps.node, [node, node + 1])
            for at in range(low, high):
                behind = self._arrivals[slot].get((int(self._classes[steps.servers[at]]), int(steps.state[at])))
                if behind is None:
                    continue
                for kind in steps.kinds:
                    found = self._stop(slot, kind, place, behind, target)
                    if found is not None:
                        stop, pace = found
                        return steps, at, kind, stop, (pace, self._most_sync(pace, int(behind[stop])))
        raise LookupError(f"slot {slot}: no stage from place {place} leads to node {node}")

    def _stop(self, slot: int, kind: int, place: int, behind: Times, target: int) -> Pair | None:
        """Return where a stage from a place on stops that has the excess that is looked for, and its pace."""
        some = np.flatnonzero(behind < NEVER_NS)
        stages = self.periods.stages(self._rules[slot], kind, self.period_ns, some)
        stages = stages.of(stages.first == place)
        good = np.flatnonzero(self._spent(stages, behind[stages.stop, None])[:, 0] == target)
        if not len(good):
            return None
        at = good[np.argmax(stages.stop[good])]
        return int(stages.stop[at]), int(stages.pace[at])

    def _most_sync(self, pace: int, behind: int) -> int:
        """Return what a stage of this pace may synchronise before a suffix that adds so much to its run."""
        if self._at_once:
            return self.period_ns - pace - behind
        return self.periods.steps * (self.period_ns - pace * self.periods.charged)

    def _node_behind(self, slot: int, state: int, servers: int, stop: int) -> int:
        nodes = np.flatnonzero(self.space.node_state == state)
        joined = self.space.joined[servers, self.space.node_servers[nodes]]
        return int(nodes[np.argmin(self._behind(self.least[slot - 1][nodes, stop], joined, stop))])
