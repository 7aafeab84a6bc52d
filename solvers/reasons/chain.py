"""What the critical chain of a plan's timeline consists of."""

from __future__ import annotations

from formulation.costs.prices import updates_ns
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan
from formulation.timeline.chain import ChainPart, parts_of_chain
from formulation.timeline.from_plan import PlanRun
from formulation.timeline.timeline import run


def chain_parts(instance: Instance, plan: Plan) -> tuple[ChainPart, ...]:
    """Return the parts of the critical chain, the longest first; their times add up to the makespan.

    Raises ScheduleError where there are too many passes to be run. Cost: that of the timeline.
    """
    made = PlanRun.of(instance, plan, steps=instance.training.steps_run(len(plan)))
    updates = [updates_ns(instance, stage)[0] for stage in plan.stages]
    return parts_of_chain(run(made.schedule, made.durations, made.execution), updates)
