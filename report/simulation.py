"""A plan on the timeline: one optimiser step, or enough of a run that never flushes.

Under the schedule of its training a plan's stages work on ranks of their own. Under any other order of actions
(``report.simulation``) a rank may hold several of them.

A plan under an order of actions that the planner does not know: which stages share a rank, and what that means.

The planner gives every stage devices of its own. Interleaved 1F1B deals the stages out to fewer ranks, round and
round, so the stages of one rank must name the same device group. What the evaluator prices under the schedule of
the training then no longer holds in three places, and the rules are held to the ranks instead:

*devices*, *line*  each rank takes its devices once, however many stages it holds
*memory*           the peak of the timeline, of all stages of the rank together, against the smallest device

What theory says of a schedule without executing it: bubbles, iteration times, periods, micro-batches in flight.

Each function names its source and where it holds; a test compares it with the timeline, with ``==`` where it is
exact and with an inequality where it is a bound. S stages, M micro-batches; ``f_s`` and ``b_s`` are the forward
and backward times of stage s (the latter with recomputation), ``a_s`` and ``g_s`` the transfers of activation
and gradient over the boundary behind it, all without contention and overlapped with computation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from pipecut.formulation.constraints.constraint import Violation, devices_of, size_text
from pipecut.formulation.constraints.rules import RULES
from pipecut.formulation.costs.goals import goal_value
from pipecut.formulation.costs.memory import capacity_bytes
from pipecut.formulation.evaluate import Evaluation, evaluate
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import BoundaryCharge, Combine
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.schedules.table import PipelineSchedule, ScheduleError, peak_in_flight
from pipecut.formulation.timeline.durations import Durations
from pipecut.formulation.timeline.from_plan import PlanRun
from pipecut.formulation.timeline.measures import Footprint
from pipecut.formulation.timeline.timeline import Timeline, run

INTERLEAVED, ZERO_BUBBLE = "interleaved", "zero_bubble_h1"
"""Names of the schedules that the planner does not know, but theory does."""
OF_RANKS = ("devices", "line")
"""Rules that count devices: held to one stage of each rank."""
OF_TIMELINE = "memory"
"""The rule that depends on the schedule: held to the timeline."""


def rank_stages(schedule: PipelineSchedule) -> tuple[tuple[int, ...], ...]:
    """Return the stages of each rank, in order."""
    found: list[list[int]] = [[] for _ in range(schedule.ranks)]
    for stage, ranks in enumerate(schedule.stage_ranks):
        for rank in ranks:
            found[rank].append(stage)
    return tuple(tuple(stages) for stages in found)


def check_placement(instance: Instance, plan: Plan, schedule: PipelineSchedule) -> None:
    """Raise ScheduleError unless a plan can run in this order, with one line for each reason."""
    reasons = list(_reasons(instance, plan, schedule))
    if reasons:
        raise ScheduleError("\n".join(f"schedule {schedule.name}: {reason}" for reason in reasons))


def _reasons(instance: Instance, plan: Plan, schedule: PipelineSchedule) -> Iterator[str]:
    wanted = instance.training.micro_batches
    if schedule.stages != len(plan):
        yield f"its stages are {schedule.stages}, those of the plan {len(plan)}"
        return
    if schedule.micro_batches != wanted:
        yield f"its micro-batches are {schedule.micro_batches}, training.micro_batches is {wanted}"
    for stage, ranks in enumerate(schedule.stage_ranks):
        if len(ranks) != 1:
            listed = ", ".join(map(str, ranks))
            yield f"stage {stage} is on ranks {listed}; a stage of a plan works as one rank, with all its replicas"
    for rank, stages in enumerate(rank_stages(schedule)):
        if not stages:
            yield f"rank {rank} has no action, expected a stage"
            continue
        first = plan.stages[stages[0]].group
        for stage in stages[1:]:
            if plan.stages[stage].group != first:
                yield (
                    f"stages {stages[0]} and {stage} share rank {rank}, but run on {_group(instance, first)} and "
                    f"{_group(instance, plan.stages[stage].group)}; the plan has to give them the same devices"
                )


def _group(instance: Instance, group: Group) -> str:
    named = devices_of(instance, group.counts)
    shared = group.mode.in_words(group.devices)
    return f"{named} ({shared})" if shared else named


def violations_on_ranks(
    instance: Instance, plan: Plan, found: Sequence[Violation], timeline: Timeline, footprint: Footprint
) -> tuple[Violation, ...]:
    """Return the rules that a plan breaks in the order of this timeline; ``found`` are those of the evaluator."""
    kept = [one for one in found if one.rule not in (*OF_RANKS, OF_TIMELINE)]
    ranks = rank_stages(timeline.schedule)
    # How a stage warms up is said by the order.
    firsts = Plan(tuple(replace(plan.stages[stages[0]], warm_up=None) for stages in ranks))
    for rule in RULES:
        if rule.name in OF_RANKS:
            kept += rule.check(instance, firsts)
    if instance.constraints.memory:
        kept += _memory(instance, firsts, timeline, footprint)
    return tuple(kept)


def _memory(instance: Instance, firsts: Plan, timeline: Timeline, footprint: Footprint) -> Iterator[Violation]:
    for rank, stage in enumerate(firsts.stages):
        peak = footprint.over_time(timeline, rank).peak_bytes
        capacity = capacity_bytes(instance, stage.group)
        if peak > capacity:
            message = (
                f"rank {rank} holds {size_text(peak)} on each of {_group(instance, stage.group)} under "
                f"{timeline.schedule.name}, which have {size_text(capacity)}:"
                f" {size_text(peak - capacity)} too much"
            )
            yield Violation(OF_TIMELINE, f"rank {rank}", peak, capacity, "bytes", message)


def gpipe_bubble(stages: int, micro_batches: int) -> Fraction:
    """Return idle over *total* device time of uniform stages, (S - 1) / (M + S - 1).

    Exact for GPipe and 1F1B. Source: GPipe, arXiv 1811.06965, §2.3.
    """
    return Fraction(stages - 1, micro_batches + stages - 1)


def zero_bubble_h1_iteration_ns(
    stages: int, micro_batches: int, forward_ns: int, input_gradient_ns: int, weight_gradient_ns: int
) -> int:
    """Return the iteration time of uniform stages under ZB-H1, M (F + I + W) + (S - 1) (F + I - W).

    Exact if W is not longer than F, nor than I, and M is at least S. Source: arXiv 2401.10241, Table 2.
    """
    ideal = micro_batches * (forward_ns + input_gradient_ns + weight_gradient_ns)
    return ideal + (stages - 1) * (forward_ns + input_gradient_ns - weight_gradient_ns)


def naive_iteration_ns(durations: Durations, micro_batches: int) -> int:
    """Return the iteration time without a pipeline, M times the latency. Exact for any stages."""
    return micro_batches * durations.latency_ns


def gpipe_iteration_ns(durations: Durations, micro_batches: int) -> int:
    """Return GPipe's iteration time: the latency, and M - 1 times the slowest forward and slowest backward pass.

    Exact for any stages: each half is a flow shop of equal jobs, which is paced by its slowest machine, and no
    backward pass can start before the last stage has done all forward passes.
    """
    slowest = max(durations.forward_ns) + max(durations.whole_backward_ns)
    return durations.latency_ns + (micro_batches - 1) * slowest


def iteration_upper_bound_ns(durations: Durations, micro_batches: int) -> int:
    """Return an upper bound of the iteration time of GPipe and 1F1B with uneven stages, and no other warm-ups.

    (M + S - 1) (max f + max a + max b + max g): as if every stage were as slow as the slowest in either direction
    and also spent the transfers itself; longer passes never make a fixed order faster.
    """
    slowest = max(durations.forward_ns) + max(durations.whole_backward_ns)
    slowest += max(durations.activation_ns, default=0) + max(durations.gradient_ns, default=0)
    return (micro_batches + durations.stages - 1) * slowest


def one_f_one_b_period_ns(durations: Durations, warm_ups: Sequence[int] = ()) -> Fraction:
    """Return the period of 1F1B, with or without a flush, far from both ends of a long run.

    The largest average over runs of neighbouring stages s..q: (sum of f + b of the stages + sum of a + g of the
    boundaries between them) / (q - s + 1). It is the maximum cycle mean of the order of actions: going down from
    F at s to F at q, to the B that follows there, and up to B at s, one comes to the micro-batch q - s + 1 after
    the first; no other simple cycle exists. With ``warm_ups`` w it is the one w_s - w_q + 1 after it. Without
    transfers classic warm-ups have the slowest stage, PipeDream's formula
    (arXiv 1806.03377, §3.2); with them it is more than the larger of stage and transfer that PipeDream and
    ``formulation.evaluate`` charge, since 1F1B has too few micro-batches in flight to hide them. Cost: quadratic.
    """
    passes = [f + b for f, b in zip(durations.forward_ns, durations.whole_backward_ns, strict=True)]
    boundaries = [a + g for a, g in zip(durations.activation_ns, durations.gradient_ns, strict=True)]
    warm = list(warm_ups) or [durations.stages - stage for stage in range(durations.stages)]
    best = Fraction(0)
    for first in range(durations.stages):
        total = 0
        for last in range(first, durations.stages):
            total += passes[last] + (boundaries[last - 1] if last > first else 0)
            best = max(best, Fraction(total, warm[first] - warm[last] + 1))
    return best


def zero_bubble_h1_in_flight(stages: int, stage: int, micro_batches: int) -> tuple[int, int]:
    """Return the most micro-batches in flight at a stage of ZB-H1 until ``I``, and until ``W``.

    min(S - s, M), as in 1F1B, and min(S, M): the same at every stage (arXiv 2401.10241, §2.1).
    """
    return min(stages - stage, micro_batches), min(stages, micro_batches)


def zero_bubble_v_iteration_ns(ranks: int, micro_batches: int, pass_ns: int) -> int:
    """Return the iteration time of ZB-V where every pass of either chunk, F, I and W, takes as long.

    6 M + P - 1 of them with M of at least 2 P - 1: a rank stands still for none of them, and the last one begins
    P - 1 of them later than the first (arXiv 2401.10241, §6). With fewer 6 M + 4 P - 2 - 2 M, if that is more.
    """
    return (6 * micro_batches + max(ranks - 1, 4 * ranks - 2 - 2 * micro_batches)) * pass_ns


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """A plan, its price by the formulas, and its execution.

    ``ranks[r]`` are the stages that rank ``r`` holds; ``priced`` tells whether the schedule is the one that the
    evaluator prices, that is, of the training (then rank ``s`` holds stage ``s``, or every stage of its group).
    """

    instance: Instance
    plan: Plan
    evaluation: Evaluation
    steps: int
    made: PlanRun
    timeline: Timeline
    ranks: tuple[tuple[int, ...], ...]
    priced: bool

    @property
    def micro_batches(self) -> int:
        """Micro-batches that were run, of all steps together."""
        return self.timeline.schedule.micro_batches

    @property
    def by_stage(self) -> bool:
        """Whether the schedule is one that is priced, and every stage has a rank of its own."""
        return self.priced and self.instance.training.chunks == 1

    @property
    def schedule(self) -> str:
        """The name of the schedule."""
        return str(self.instance.training.schedule) if self.by_stage else self.made.schedule.name

    @property
    def bottleneck_ns(self) -> int | None:
        """The evaluator's time of the slowest rank or boundary for one micro-batch; None if times are added up."""
        if self.instance.cost.combine is not Combine.MAX:
            return None
        costs = self.evaluation.stages
        if self.priced:
            return goal_value(Goal.BOTTLENECK, self.instance, self.plan, costs)
        terms = [sum(costs[stage].total_ns for stage in stages) for stages in self.ranks]
        if self.instance.cost.boundary_charge is BoundaryCharge.LINK and len(self.ranks) > 1:
            terms += [cost.boundary_ns for cost in costs]
        return max(terms)


def simulate(instance: Instance, plan: Plan, schedule: PipelineSchedule | None = None) -> Simulation:
    """Run a plan under the schedule of its training, or one step in the order of any other schedule.

    A schedule that is given decides which stages share a rank; what a plan must keep is then held to what the
    ranks do (``report.simulation``). Raises ValueError for a plan that has no price, or that a given schedule does
    not fit. Cost: linear in layers, edges and actions.
    """
    evaluation = evaluate(instance, plan)
    if evaluation.objective is None:
        raise ValueError("; ".join(violation.message for violation in evaluation.violations))
    steps = 1 if schedule else instance.training.steps_run(len(plan))
    made = _in_order(instance, plan, schedule) if schedule else PlanRun.of(instance, plan, steps=steps)
    timeline = run(made.schedule, made.durations, made.execution)
    if schedule:
        alone = replace(instance, training=_flushing(instance, schedule))
        found = violations_on_ranks(alone, plan, evaluation.violations, timeline, made.footprint)
        evaluation = replace(evaluation, violations=found)
    ranks = rank_stages(made.schedule)
    return Simulation(instance, plan, evaluation, steps, made, timeline, ranks, schedule is None)


def _in_order(instance: Instance, plan: Plan, schedule: PipelineSchedule) -> PlanRun:
    """Return a plan made ready for a given schedule, which flushes: stages keep one version of their weights.

    Of ZB-H1 also the gradients of outputs that wait, which nobody counts in the order of a file.
    """
    check_placement(instance, plan, schedule)
    flushing = replace(instance, training=_flushing(instance, schedule))
    return replace(PlanRun.of(flushing, plan), schedule=schedule)


def _flushing(instance: Instance, schedule: PipelineSchedule) -> Training:
    """Return the training that a given schedule stands for: that of one step, each stage by itself."""
    order = Schedule.ZERO_BUBBLE_H1 if schedule.name == ZERO_BUBBLE else Schedule.ONE_F_ONE_B
    return replace(instance.training.closed(), schedule=order, chunks=1)


def peak_formula_bytes(simulation: Simulation) -> list[int | None]:
    """Return what a formula says of the peak of every rank; None where it holds several stages.

    That of the evaluator, if it prices the schedule; else the most micro-batches in flight at the stage, which
    follow from the order alone (of ZB-H1 by its closed form), times their stash.
    """
    if simulation.priced:
        return [cost.memory_bytes for cost in simulation.evaluation.stages[: len(simulation.ranks)]]
    schedule, footprint = simulation.made.schedule, simulation.made.footprint
    kept = peak_in_flight(schedule)
    if schedule.name == ZERO_BUBBLE:
        many = range(schedule.stages)
        kept = [zero_bubble_h1_in_flight(len(many), at, schedule.micro_batches)[1] for at in many]
    return [
        footprint.static_bytes[stages[0]] + kept[stages[0]] * footprint.stash_bytes[stages[0]]
        if len(stages) == 1
        else None
        for stages in simulation.ranks
    ]
