"""Which suffixes of a plan keep to a period T, by slot, node and first place: one number each.

A run of neighbouring stages keeps to T if its passes and the transfers between them take at most T for each
stage. Of all runs that begin with the first stage of a suffix the largest excess over this is (Kadane)

    z = pace - T + max(0, z of the suffix behind + boundary between) <= 0,

and the stages before need to know nothing else of the suffix. A smaller z leaves at least what a larger one
does, so the least is kept for each slot, node and place. A synchronisation that is charged in every micro-batch
counts for the first stage of a run alone: ``limit - T + max(0, ...) <= 0``, and z goes on without it. One that
is overlapped has limits of its own.

Where receivers pay for boundaries, a stage fetches activations from the stage before it, which is not known when
it is put there: what it takes for that is added when that stage is, and may not make z more than 0 either.

Cost: for each slot O(ways x places**2) in numpy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from formulation.costs.tables import Times
from formulation.limits.deadline import in_time
from formulation.problem.options import BoundaryCharge
from formulation.problem.plan import Plan, Span, Stage
from solvers.dynamic.period.stage_periods import StagePeriods
from solvers.dynamic.states.states import Numbers, StateSpace, Steps

__all__: list[str] = []

NEVER_NS = 1 << 60
"""The excess of no suffix at all."""


@dataclass(frozen=True, slots=True)
class Found:
    """A stage on the way back: how it runs, its atoms, and the excess of the run behind it."""

    stage: Stage
    kind: int
    behind: int


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
        self._rounds = self._tables.instance.training.micro_batches
        self.least: list[Times] = []
        self._arrivals: list[dict[tuple[int, int], Times]] = []
        self._ends: dict[int, Times] = {}
        slots = min(self._total, self._tables.instance.devices)
        self._rules = periods.reaching.slots(slots)

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
        first, stop = self._band(slot, kind, behind)
        if len(first):
            starts = np.flatnonzero(np.diff(first, prepend=-1))
            arrived = np.ascontiguousarray(behind.T)[stop]  # a row for each stage: what is read lies together
            spent = arrived + (self.periods.pace[kind, first, stop] - self.period_ns)[:, None]
            late = spent > 0
            if self.periods.limit is not None:
                late |= ~self._keeps(self.periods.limit[kind, first, stop][:, None], arrived)
            spent[late] = NEVER_NS
            found[:, first[starts]] = np.minimum.reduceat(spent, starts, axis=0).T
        for first, stop, rows in self.periods.pairs.get(kind, []):
            for pace, limit in rows.tolist():
                whole = behind[:, stop] + pace - self.period_ns
                fits = self._keeps(limit, behind[:, stop]) & (whole <= 0)
                found[:, first] = np.minimum(found[:, first], np.where(fits, whole, NEVER_NS))
        return found

    def _band(self, slot: int, kind: int, behind: Times) -> tuple[Numbers, Numbers]:
        """Return the stages (first, stop), by first, that end within their limits where some suffix begins."""
        some = np.flatnonzero((behind < NEVER_NS).any(axis=0))
        first = np.arange(self._total)
        low = np.searchsorted(some, first, side="right")
        many = np.maximum(np.searchsorted(some, self.ends(slot, kind)[:-1], side="right") - low, 0)
        offset = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        return np.repeat(first, many), some[np.repeat(low, many) + offset]

    def _spent(self, kind: int, first: int, stops: slice, behind: Times) -> tuple[Times, NDArray[np.bool_]]:
        """Return the excess of runs with a stage from ``first`` to each stop, and whether it is allowed."""
        spent = behind[..., stops] + (self.periods.pace[kind, first, stops] - self.period_ns)
        fits = spent <= 0
        if self.periods.limit is not None:
            fits &= self._keeps(self.periods.limit[kind, first, stops], behind[..., stops])
        return spent, fits

    def _keeps(self, limit: Times | int, behind: Times) -> NDArray[np.bool_]:
        if self.periods.charged:
            return np.asarray(behind + limit <= self.period_ns)
        return np.broadcast_to(np.asarray(limit) <= self._rounds * self.period_ns, behind.shape)

    def ends(self, slot: int, kind: int) -> Times:
        """Return the furthest ends of stages by pace and memory."""
        rule = self._rules[slot]
        if rule not in self._ends:
            self._ends[rule] = self.periods.reaching.ends(rule, self.period_ns)
        return self._ends[rule][kind]

    def stages(self) -> list[Found]:
        """Return the stages of a whole plan from the front. Raises LookupError if there is none."""
        start = self._complete()
        if start is None:
            raise LookupError("no whole plan keeps to the period")
        slot, node = start
        real = tuple(range(len(self._tables.instance.servers)))
        place, found = 0, []
        while slot >= 0:
            steps, at, kind, stop, behind = self._step_back(slot, node, place)
            step = self.space.step(int(steps.state[at]), int(steps.place[at]))
            real = tuple(real[step.moved[server]] for server in range(len(real)))
            groups = self.space.suffixes.places[step.place].groups
            group = self._tables.groups[next(one for one in groups if self._tables.kind_of[one] == kind)]
            counts = tuple(sorted((real[server], count) for server, count in group.counts))
            span = Span(place, stop)
            found.append(Found(Stage(span, replace(group, counts=counts), (0,) * len(span)), kind, behind))
            if slot:
                node = self._node_behind(slot, int(steps.state[at]), int(steps.servers[at]), stop)
            slot, place = slot - 1, stop
        return found

    def _step_back(self, slot: int, node: int, place: int) -> tuple[Steps, int, int, int, int]:
        """Return (steps, index, kind, stop, excess behind) of a stage whose suffix has the least excess here."""
        target = int(self.least[slot][node, place])
        for steps in self.space.steps:
            low, high = np.searchsorted(steps.node, [node, node + 1])
            for at in range(low, high):
                behind = self._arrivals[slot].get((int(self._classes[steps.servers[at]]), int(steps.state[at])))
                if behind is None:
                    continue
                for kind in steps.kinds:
                    stop = self._stop(slot, kind, place, behind, target)
                    if stop is not None:
                        return steps, at, kind, stop, int(behind[stop])
        raise LookupError(f"slot {slot}: no stage from place {place} leads to node {node}")

    def _stop(self, slot: int, kind: int, place: int, behind: Times, target: int) -> int | None:
        stops = slice(place + 1, int(self.ends(slot, kind)[place]) + 1)
        spent, fits = self._spent(kind, place, stops, behind)
        good = np.flatnonzero(fits & (spent == target))
        if len(good):
            return place + 1 + int(good[-1])
        for first, stop, rows in self.periods.pairs.get(kind, []):
            if first == place:
                for pace, limit in rows.tolist():
                    whole = int(behind[stop]) + pace - self.period_ns
                    if whole == target and bool(self._keeps(limit, behind[stop : stop + 1])[0]):
                        return stop
        return None

    def _node_behind(self, slot: int, state: int, servers: int, stop: int) -> int:
        nodes = np.flatnonzero(self.space.node_state == state)
        joined = self.space.joined[servers, self.space.node_servers[nodes]]
        return int(nodes[np.argmin(self._behind(self.least[slot - 1][nodes, stop], joined, stop))])


def plan_of(found: list[Found], periods: StagePeriods, period_ns: int) -> Plan | None:
    """Return the plan of layers with forms, or None where a stage has none so fast, which is then known."""
    most = period_ns if periods.charged else period_ns * periods.fine.instance.training.micro_batches
    stages: list[Stage] = []
    for one in found:
        forms = periods.forms(one.kind, one.stage.span, one.behind, most)
        if forms is None:
            return None
        stages.append(replace(one.stage, span=periods.space.layers(one.stage.span), forms=forms))
    return Plan(tuple(stages))
