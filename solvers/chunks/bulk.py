"""Many plans of a layout priced at once, by one pass over the passes of a step: arrays by plan; and moved.

Small moves make plans better: an atom goes from one stage to another, and stages between are shifted by one.

The specification is ``formulation.executed.chunks_step_ns`` and ``formulation.costs.memory.chunks_memory``;
a test compares plan by plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pipecut.formulation.costs.memory import capacity_bytes
from pipecut.formulation.executed import in_turn
from pipecut.formulation.limits import Deadline
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.training import Training
from pipecut.formulation.schedules.table import Kind
from pipecut.solvers.chunks import runs
from pipecut.solvers.chunks.case import Case, Dealt, GroupLayout, overlapped
from pipecut.solvers.chunks.runs import Numbers
from pipecut.solvers.search.first_plan import even_cuts

BROKEN = 1 << 59
"""The value of a plan that breaks the rule on memory is this and the bytes by which it does; above every step."""
NEVER = 1 << 62
"""The value of a plan with a stage that takes longer than any plan that counts."""
# About so many numbers are held at once: plans times stages times micro-batches in flight.
AT_ONCE = 1 << 22
# So many plans are moved on at once, the best that are known.
KEPT = 8
# About so many plans are priced before it is looked whether time is over.
MOVED_AT_ONCE = 1 << 13


@dataclass(frozen=True, slots=True)
class ManyPlans:
    """Plans of a layout on the groups of one choice, given as rows of places."""

    case: Case
    choice: tuple[int, ...]

    def values(self, places: Numbers) -> Numbers:
        """Return the values of plans, BROKEN or more where they are none. Cost: passes of a step times plans."""
        many = max(1, AT_ONCE // (self.case.stages * self.case.instance.training.micro_batches))
        parts = [self._values(places[at : at + many]) for at in range(0, len(places), many)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def _values(self, places: Numbers) -> Numbers:
        case, there = self.case, np.ones(len(places), dtype=np.bool_)
        stages = np.zeros((13, case.stages, len(places)), dtype=np.int64)
        for at in range(case.stages):
            known = case.runs[case.kinds[case.rank_of(at)][self.choice[case.rank_of(at)]]]
            first, stop = places[:, at], places[:, at + 1]
            there &= known.there[first, stop]
            stages[:, at] = known.table[:, first, stop]
        sent = self._sent(places)
        if case.steps:
            times = stages[[runs.FORWARD, runs.BACKWARD, runs.WEIGHT, runs.SYNC]]
            found = steps_of(case.instance.training, times, sent, beside=overlapped(case.instance))
        else:
            found = self._bottlenecks(stages[runs.TOTAL], sent.sum(axis=0))
        if case.instance.constraints.memory:
            above = self._above(stages)
            found = np.where(above > 0, BROKEN + above, found)
        return np.where(there, found, NEVER)

    def _sent(self, places: Numbers) -> Numbers:
        """Return activation and gradient of every boundary, by direction, boundary and plan."""
        case = self.case
        groups = [row[at] for row, at in zip(case.layout.choices, self.choice, strict=True)]
        found = np.zeros((2, case.stages - 1, len(places)), dtype=np.int64)
        for rank, pair in enumerate(case.pairs):
            link = case.link(groups[rank], groups[(rank + 1) % len(groups)])
            for at in pair:
                found[:, at] = np.array(link, dtype=np.int64)[:, places[:, at + 1]]
        return found

    def _bottlenecks(self, total: Numbers, both: Numbers) -> Numbers:
        ranks = [total[list(self.case.own(rank))].sum(axis=0) for rank in range(self.case.layout.ranks)]
        links = [both[list(pair)].sum(axis=0) for pair in self.case.pairs if pair]
        return np.max([*ranks, *links], axis=0)

    def _above(self, stages: Numbers) -> Numbers:
        """Return by how many bytes the ranks of each plan are above what they have, all together."""
        case, above = self.case, np.zeros(stages.shape[2], dtype=np.int64)
        for rank, kept in enumerate(case.kept()):
            group, own = case.layout.choices[rank][self.choice[rank]], stages[:, list(case.own(rank))]
            lasting, each, working = held_of(case, own, on_host=group.mode.optimizer_on_host)
            most = np.max([np.tensordot(row, each, 1) for row in np.array(kept, dtype=np.int64)], axis=0)
            held = lasting.sum(axis=0) + most + working
            above += np.maximum(0, held - capacity_bytes(case.instance, group))
        return above


def held_of(case: Case, own: Numbers, *, on_host: bool) -> tuple[Numbers, Numbers, Numbers]:
    """Return what stages of a rank hold once, what they keep as often as ``Case.kept`` says, and the rest.

    ``own`` has the rows of ``Runs`` by stage of the rank. So have the first two; with backward passes in halves
    the second has what waits between these behind it. The rest is the largest working set, and what is computed
    again.
    """
    lasting = own[runs.WEIGHTS] + own[runs.GRADIENTS] + own[runs.OPTIMIZER] * (not on_host)
    each, working = own[runs.STASH] + own[runs.RECEIVED], own[runs.WORKING].max(axis=0)
    if case.instance.training.schedule.in_halves:
        return lasting, np.concatenate([each, own[runs.RECOMPUTED] + own[runs.OUTPUT_GRADIENTS]]), working
    return lasting, each, working + own[runs.RECOMPUTED].max(axis=0)


def steps_of(training: Training, times: Numbers, sent: Numbers, *, beside: bool) -> Numbers:
    """Return the steps of plans, by plan. ``beside``: stages synchronise beside other work.

    ``times`` are by row (forward, first half, second half, synchronisation) and stage, ``sent`` activations and
    gradients by boundary.
    """
    stages, many = times.shape[1], times.shape[2]
    ranks, nothing = training.ranks(stages), np.zeros(many, dtype=np.int64)
    on = [training.rank_of(stage, stages) for stage in range(stages)]
    free, last = [nothing] * ranks, dict[int, Numbers]()
    # What a pass waits for, until it runs: by stage, direction and micro-batch. Nobody waits for what is behind.
    arrived: dict[tuple[int, bool, int], Numbers] = {}
    rows_of = {Kind.FORWARD: [0], Kind.BACKWARD: [1, 2], Kind.INPUT_GRADIENT: [1], Kind.WEIGHT_GRADIENT: [2]}
    taken = [times[rows_of[kind]].sum(axis=0) for kind in Kind]
    for stage, kind, micro_batch in in_turn(training.schedule, ranks, training.chunks, training.micro_batches):
        down = kind == Kind.FORWARD
        begun = free[on[stage]]
        if kind != Kind.WEIGHT_GRADIENT:
            begun = np.maximum(begun, arrived.pop((stage, down, micro_batch), nothing))
        free[on[stage]] = ended = begun + taken[kind][stage]
        after = stage + 1 if down else stage - 1
        if kind != Kind.WEIGHT_GRADIENT and 0 <= after < stages:
            arrived[after, down, micro_batch] = ended + sent[int(not down), min(stage, after)]
        if not down:
            last.pop(stage, None)
            last[stage] = ended
    done = [nothing] * ranks if beside else free
    for stage, ended in last.items():
        done[on[stage]] = np.maximum(done[on[stage]], ended) + times[3, stage]
    return np.max(done, axis=0)


def first_plan(instance: Instance, layout: GroupLayout) -> Dealt | None:
    """Return stages of nearly equal work on the first groups that there are; None where these run out."""
    left = [server.devices for server in instance.servers]
    choice: list[int] = []
    for row in layout.choices:
        fits = (q for q, one in enumerate(row) if all(left[server] >= count for server, count in one.counts))
        chosen = next(fits, None)
        if chosen is None:
            return None
        choice.append(chosen)
        for server, count in row[chosen].counts:
            left[server] -= count
    stages, places = layout.ranks * instance.training.chunks, CutSpace.of(instance).places
    cuts = even_cuts(instance, stages)
    if len(cuts) < stages + 1:
        return None
    return Dealt(tuple(places.index(cut) for cut in cuts), tuple(choice))


def improved(plans: ManyPlans, begin: list[tuple[int, ...]], deadline: Deadline) -> tuple[Dealt | None, int]:
    """Return a plan that no single move of it, or of others nearly as good, makes better, and its value.

    ``begin`` are places of plans to begin with, which may take more memory than there is. None, and a value above
    all, where nothing is met that keeps the rules. After the deadline the best so far. Cost: the moves of a few
    plans, priced as often as they bring something.
    """
    pool = np.unique(np.array(begin, dtype=np.int64), axis=0)
    values = plans.values(pool)
    stages, known = pool.shape[1] - 1, {row.tobytes() for row in pool}
    before = None
    while (before is None or values.min() < before) and not deadline.over():
        before = values.min()
        moved = (pool[:, None, :] + moves(stages)[None]).reshape(-1, stages + 1)
        moved = np.unique(moved[(np.diff(moved) > 0).all(axis=1)], axis=0)
        fresh = [row for row in moved if row.tobytes() not in known]
        known |= {row.tobytes() for row in fresh}
        for at in range(0, len(fresh), MOVED_AT_ONCE):
            if deadline.over():
                break
            part = np.array(fresh[at : at + MOVED_AT_ONCE])
            pool, values = np.concatenate([pool, part]), np.concatenate([values, plans.values(part)])
        best = np.argsort(values, kind="stable")[:KEPT]
        pool, values = pool[best], values[best]
    least = int(values.argmin())
    if values[least] >= BROKEN:
        return None, BROKEN
    return Dealt(tuple(pool[least].tolist()), plans.choice), int(values[least])


@lru_cache(maxsize=64)
def moves(stages: int) -> Numbers:
    """Return what one atom more of one stage and one less of another adds to the places, for every two stages."""
    rows = [
        [step * (one < at <= other) for at in range(stages + 1)]
        for one in range(stages)
        for other in range(one + 1, stages)
        for step in (1, -1)
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, stages + 1)
