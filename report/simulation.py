"""A plan on the timeline of its scenario: one optimiser step, or enough of a run that never flushes."""

from __future__ import annotations

from dataclasses import dataclass

from formulation.evaluate import Evaluation, evaluate
from formulation.instance import Instance
from formulation.options import Schedule
from formulation.plan import Plan
from formulation.timeline.from_plan import PlanRun, from_plan
from formulation.timeline.timeline import Timeline, run
from formulation.units import ceil_div

LEAST_MICRO_BATCHES = 16
"""Of a run without a flush; so many that a short pipeline shows its steady state."""
MICRO_BATCHES_A_STAGE = 4
"""Of a run without a flush: the pipeline fills and drains in one for each stage; the middle half is steady."""


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """A plan, its price by the formulas, and its execution. Stage ``s`` works as rank ``s`` of the timeline."""

    instance: Instance
    plan: Plan
    evaluation: Evaluation
    steps: int
    made: PlanRun
    timeline: Timeline

    @property
    def micro_batches(self) -> int:
        """Micro-batches that were run, of all steps together."""
        return self.timeline.schedule.micro_batches


def simulate(instance: Instance, plan: Plan) -> Simulation:
    """Run a plan under the schedule of its training. Raises ValueError for a plan that has no price."""
    evaluation = evaluate(instance, plan)
    if evaluation.objective is None:
        raise ValueError("; ".join(violation.message for violation in evaluation.violations))
    steps = steps_of(instance, plan)
    made = from_plan(instance, plan, steps=steps)
    timeline = run(made.schedule, made.durations, made.execution)
    return Simulation(instance, plan, evaluation, steps, made, timeline)


def steps_of(instance: Instance, plan: Plan) -> int:
    """Return how many optimiser steps are run: one with a flush, else until the middle of the run is steady."""
    training = instance.training
    if training.schedule is not Schedule.ASYNC_ONE_F_ONE_B:
        return 1
    wanted = max(LEAST_MICRO_BATCHES, MICRO_BATCHES_A_STAGE * len(plan))
    return ceil_div(wanted, training.micro_batches)
