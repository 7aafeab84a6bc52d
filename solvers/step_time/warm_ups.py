"""Plans with other warm-ups, for a start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from pipecut.formulation.costs.memory import MemoryParts, capacity_bytes
from pipecut.formulation.costs.passes import pipeline_passes
from pipecut.formulation.executed import step_of_training_ns
from pipecut.formulation.limits import Deadline, StoppedError, in_time
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan


def warmed(instance: Instance, plan: Plan, deadline: Deadline) -> Plan:
    """Return a plan with warm-ups that no change of one stage's alone makes quicker; it may break rules as it did.

    Begun with classic ones, eager ones, and the longest that memory allows; after the deadline with the best so
    far. Cost: some hundred steps executed.
    """
    training, passes = instance.training, pipeline_passes(instance, plan)
    least, most = training.warm_ups(len(plan)), [_longest(instance, plan, at) for at in range(len(plan))]
    eager = replace(training, warm_up="eager").warm_ups(len(plan))
    known: dict[tuple[int, ...], int] = {}

    def step_ns(warm_ups: tuple[int, ...]) -> int:
        if warm_ups not in known:
            known[warm_ups] = step_of_training_ns(training, passes, overlapped=False, warm_ups=warm_ups)
        return known[warm_ups]

    def within(warm_ups: tuple[int, ...]) -> tuple[int, ...]:
        found: list[int] = []
        for wanted, low, high in zip(warm_ups, least, most, strict=True):
            found.append(max(low, min(wanted, high, *found[-1:])))
        return tuple(found)

    best = min((least, within(eager), within((training.micro_batches,) * len(plan))), key=step_ns)
    with suppress(StoppedError):
        while True:
            found = min(in_time(_beside(best, least, most), deadline), key=step_ns, default=best)
            if step_ns(found) >= step_ns(best):
                break
            best = found
    return Plan(tuple(replace(stage, warm_up=many) for stage, many in zip(plan.stages, best, strict=True)))


def _longest(instance: Instance, plan: Plan, index: int) -> int:
    """Return the longest warm-up for which a stage has the memory, or 1: each pass of it holds as much more."""
    stage, many = plan.stages[index], instance.training.micro_batches
    if not instance.constraints.memory:
        return many

    def held(warm_up: int) -> int:
        stages = (*plan.stages[:index], replace(stage, warm_up=warm_up), *plan.stages[index + 1 :])
        return MemoryParts.of_stage(instance, Plan(stages), index).total

    once, left = held(2) - held(1), capacity_bytes(instance, stage.group) - held(1)
    return max(1, min(many, 1 + left // once if once else many))


def _beside(best: tuple[int, ...], least: tuple[int, ...], most: list[int]) -> Iterator[tuple[int, ...]]:
    """Yield the warm-ups in which one stage has another, within memory, and none more than the one before it."""
    for at, (low, high) in enumerate(zip(least, most, strict=True)):
        fewest = max((low, *best[at + 1 : at + 2]))
        for own in range(fewest, min((high, *best[max(0, at - 1) : at])) + 1):
            yield (*best[:at], own, *best[at + 1 :])
