"""A plan on the timeline: one optimiser step, or enough of a run that never flushes.

Under the schedule of its training a plan's stages work on ranks of their own. Under any other order of actions
(``report.placement``) a rank may hold several of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from formulation.costs.goals import goal_value
from formulation.evaluate import Evaluation, evaluate
from formulation.problem.constraints import Goal
from formulation.problem.instance import Instance
from formulation.problem.options import BoundaryCharge, Combine
from formulation.problem.plan import Plan
from formulation.problem.training import Schedule, Training
from formulation.schedules.table import PipelineSchedule
from formulation.timeline.footprint import peak_in_flight
from formulation.timeline.from_plan import PlanRun
from formulation.timeline.timeline import Timeline, run
from report.placement import ZERO_BUBBLE, check_placement, rank_stages, violations_on_ranks
from report.theory import zero_bubble_h1_in_flight


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
    ranks do (``report.placement``). Raises ValueError for a plan that has no price, or that a given schedule does
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
