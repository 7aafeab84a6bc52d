"""A plan under an order of actions that the planner does not know: which stages share a rank, and what that means.

The planner gives every stage devices of its own. Interleaved 1F1B deals the stages out to fewer ranks, round and
round, so the stages of one rank must name the same device group. What the evaluator prices under the schedule of
the training then no longer holds in three places, and the rules are held to the ranks instead:

*devices*, *line*  each rank takes its devices once, however many stages it holds
*memory*           the peak of the timeline, of all stages of the rank together, against the smallest device
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from formulation.constraints.loosening import size_text
from formulation.constraints.rules import RULES
from formulation.constraints.violation import Violation
from formulation.costs.memory import capacity_bytes
from formulation.problem.groups import Group
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan
from formulation.schedules.table import PipelineSchedule, ScheduleError
from formulation.timeline.footprint import Footprint
from formulation.timeline.timeline import Timeline

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
        yield f"it has {schedule.stages} stages, the plan {len(plan)}"
        return
    if schedule.micro_batches != wanted:
        yield f"it has {schedule.micro_batches} micro-batches, training.micro_batches is {wanted}"
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
    named = " + ".join(f"{count} x {instance.servers[server].name}" for server, count in group.counts)
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
