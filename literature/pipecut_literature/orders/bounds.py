"""How short no order can make a step: bounds that need no search, each with the argument for it.

They start the search from below, and often end it there. ``head`` is the earliest time at which a stage can begin
its first forward pass, ``drain`` the least time from the stop of its last ``B`` or ``I`` to the end of the step.
All hold for every mode of transfers, with contention or without: messages on busy links only take longer.

===============  ==============================================================================================
bound            argument
===============  ==============================================================================================
closed form      ``timeline.bounds.iteration_lower_bound_ns``, for whole backward passes on ranks of their own
latency          one micro-batch goes through all stages and back
busy stage       head, M forward and M backward passes of one stage one at a time, and its drain. With ``W`` apart
                 also head, M times all three kinds, and what follows the last ``W``
busy rank        the same for all stages of a shared rank: earliest head, all work, what follows the last action
rounds           memory lets at most k micro-batches be in flight at stage s, so (micro-batches taken in order, see
                 ``families``) forward pass j + k begins after backward pass j stops: ceil(M / k) - 1 round trips
                 from s to the last stage and back, before the last few, which make a stage busy themselves
link             the messages of a link one at a time, after the earliest can leave, before the least rest
===============  ==============================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator

from pipecut.formulation.problem.units import ceil_div
from pipecut.formulation.schedules.table import Kind
from pipecut.formulation.timeline.durations import Contention
from pipecut.formulation.timeline.measures import iteration_lower_bound_ns
from pipecut_literature.orders.problem import OrderProblem


class Bounds:
    """Lower bounds of a problem. Cost of making it: quadratic in stages."""

    def __init__(self, problem: OrderProblem) -> None:
        """Compute heads and drains of all stages."""
        self.problem = problem
        self.passes = problem.passes()
        self.heads_ns = [self._head_ns(stage) for stage in range(problem.stages)]
        self.drains_ns = [self._drain_ns(stage) for stage in range(problem.stages)]

    def named(self) -> dict[str, int]:
        """Return the best bound of each kind, in ns, by the names of the table above."""
        problem = self.problem
        whole = range(problem.stages)
        found = {
            "latency": self.heads_ns[-1] + self.round_trip_ns(problem.stages - 1) + self.drains_ns[-1],
            "busy stage": max(self._busy(stage, problem.micro_batches) for stage in whole),
            "busy rank": max(map(self._busy_rank, range(problem.ranks))),
            "rounds": max(self._rounds(), default=0),
            "link": max(self._links(), default=0),
        }
        if problem.one_rank_each and not problem.split:
            found["closed form"] = iteration_lower_bound_ns(problem.durations, problem.micro_batches)
        return found

    def best_ns(self) -> int:
        """Return the largest bound."""
        return max(self.named().values())

    def after_ns(self, stage: int) -> int:
        """Return the least time from the stop of the last backward action of a stage to the end of the step.

        A rank with one stage synchronises and updates it then. A shared rank does so for all its stages, once all
        its work is done; but with overlap other stages may have been synchronised before.
        """
        problem = self.problem
        rank = problem.stage_ranks[stage]
        own = problem.durations.sync_ns[stage] + problem.durations.optimizer_ns[stage]
        return own if problem.execution.overlap_sync else self.tail_ns(rank)

    def tail_ns(self, rank: int) -> int:
        """Return the least time from the stop of the last action of a rank to the end of the step."""
        times, stages = self.problem.durations, self.problem.stages_of(rank)
        updates = sum(times.optimizer_ns[stage] for stage in stages)
        if self.problem.execution.overlap_sync and len(stages) > 1:
            return updates
        return updates + sum(times.sync_ns[stage] for stage in stages)

    def _head_ns(self, stage: int) -> int:
        before = (self.passes[one, Kind.FORWARD] for one in range(stage))
        return sum(one.fetch_ns + one.duration_ns + one.travel_ns for one in before)

    def _drain_ns(self, stage: int) -> int:
        """Return the least time from the stop of a stage's last ``B`` or ``I``, back to stage 0, to the end."""
        best = way = 0
        for at in range(stage, -1, -1):
            one = self.passes[at, self.problem.backward]
            way += one.fetch_ns + one.duration_ns if at < stage else 0
            weights = self.passes.get((at, Kind.WEIGHT_GRADIENT))
            best = max(best, way + (weights.duration_ns if weights else 0) + self.after_ns(at))
            way += one.travel_ns
        return best

    def round_trip_ns(self, stage: int) -> int:
        """Return the least time from the begin of ``F`` at a stage to the stop of its ``B`` or ``I``."""
        problem = self.problem
        later = range(stage, problem.stages)
        total = 0
        for one in (self.passes[at, kind] for at in later for kind in (Kind.FORWARD, problem.backward)):
            total += one.fetch_ns + one.duration_ns
            leaves = one.kind is not Kind.FORWARD and one.stage == stage
            total += 0 if leaves else one.travel_ns
        return total

    def _busy(self, stage: int, count: int) -> int:
        """Return the least end of a step of ``count`` micro-batches that keep a stage busy from its head on.

        The message of the last backward pass travels during its drain, so it does not count as work.
        """
        forward, backward = (self.passes[stage, kind] for kind in self.problem.kinds[:2])
        work = count * (forward.occupied_ns + backward.occupied_ns)
        until = self.heads_ns[stage] + work - backward.hold_ns + self.drains_ns[stage]
        weights = self.passes.get((stage, Kind.WEIGHT_GRADIENT))
        if weights is None:
            return until
        work += count * weights.duration_ns
        return max(until, self.heads_ns[stage] + work + self.after_ns(stage))

    def _busy_rank(self, rank: int) -> int:
        stages = self.problem.stages_of(rank)
        own = [one for one in self.passes.values() if one.rank == rank]
        work = self.problem.micro_batches * sum(one.occupied_ns for one in own)
        last_hold = max(one.hold_ns for one in own)
        return min(self.heads_ns[stage] for stage in stages) + work - last_hold + self.tail_ns(rank)

    def _rounds(self) -> Iterator[int]:
        total = self.problem.micro_batches
        for stage in range(self.problem.stages):
            for kind, most in in_flight_limits(self.problem, stage).items():
                if most < 1:
                    continue
                rounds = ceil_div(total, most) - 1
                trip = self.round_trip_ns(stage)
                trip += self.passes[stage, kind].duration_ns if kind is Kind.WEIGHT_GRADIENT else 0
                later = range(stage, self.problem.stages)
                yield rounds * trip + max(self._busy(one, total - rounds * most) for one in later)
                yield rounds * trip + self.heads_ns[stage] + self.round_trip_ns(stage) + self.drains_ns[stage]

    def _links(self) -> Iterator[int]:
        if self.problem.execution.contention is Contention.NONE:
            return
        senders = [one for one in self.passes.values() if one.link is not None]
        for link in {one.link for one in senders}:
            own = [one for one in senders if one.link == link]
            work = self.problem.micro_batches * sum(one.message_ns for one in own)
            leave, rest = zip(*(self._around_message(one.stage, one.kind) for one in own), strict=True)
            yield min(leave) + work + min(rest)

    def _around_message(self, stage: int, kind: Kind) -> tuple[int, int]:
        """Return the earliest time at which a pass can send a message, and the least time after its arrival."""
        if kind is not Kind.FORWARD:
            taker = self.passes[stage - 1, kind]
            return self.heads_ns[stage] + self.round_trip_ns(stage), taker.duration_ns + self.drains_ns[stage - 1]
        one, taker = self.passes[stage, kind], self.passes[stage + 1, kind]
        rest = self.round_trip_ns(stage + 1) - taker.fetch_ns + self.drains_ns[stage + 1]
        return self.heads_ns[stage] + one.fetch_ns + one.duration_ns, rest


def in_flight_limits(problem: OrderProblem, stage: int) -> dict[Kind, int]:
    """Return how many micro-batches memory lets a stage have in flight, until the end of each kind of action.

    Until ``B`` or ``I`` each holds its stash; until ``W`` at least the smaller of its stash and what the weight
    gradient needs. What other stages of the rank hold beyond their static bytes is left out, so these are
    necessary; they suffice where ``limits_suffice``. Kinds that memory does not limit are left out; a limit of 0
    or less means that nothing fits.
    """
    footprint, memory = problem.footprint, problem.memory_bytes
    if footprint is None or memory is None:
        return {}
    rank = problem.stage_ranks[stage]
    room = memory[rank] - sum(footprint.static_bytes[one] for one in problem.stages_of(rank))
    stash = footprint.stash_bytes[stage]
    held = {problem.backward: stash}
    if problem.split:
        held[Kind.WEIGHT_GRADIENT] = min(stash, footprint.weight_stash_bytes[stage])
    return {kind: room // each for kind, each in held.items() if each and room // each < problem.micro_batches}


def limits_suffice(problem: OrderProblem, rank: int) -> bool:
    """Tell whether the limits of ``in_flight_limits`` are all that memory asks of a rank.

    So it is for one stage where each micro-batch holds its whole stash until ``W``, or nothing after ``I``.
    """
    stages, footprint = problem.stages_of(rank), problem.footprint
    if footprint is None:
        return True
    if len(stages) != 1:
        return False
    stash, kept = footprint.stash_bytes[stages[0]], footprint.weight_stash_bytes[stages[0]]
    return not problem.split or kept in (0, stash)
