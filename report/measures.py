"""The run in a few numbers, each beside what a formula says of it, and in which sense the two should agree."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from formulation.costs.goals import goal_value
from formulation.problem.constraints import Goal
from formulation.problem.options import Combine
from formulation.problem.training import Schedule
from formulation.timeline import bounds
from formulation.timeline.durations import Transfers
from formulation.timeline.measures import TimelineMeasures
from report import theory
from report.placement import INTERLEAVED, ZERO_BUBBLE
from report.simulation import Simulation

BUBBLE = "bubble (idle share of device time)"

Number = int | float


class Relation(enum.StrEnum):
    """What the timeline should be, compared with the formula."""

    EXACT = "="
    LEAST = "≥"
    MOST = "≤"
    RELATED = "~"
    """Near it."""
    NONE = ""
    """There is no formula."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of the timeline beside that of a formula (None: there is none). ``unit``: ns or share."""

    key: str
    name: str
    unit: str
    timeline: Number | None
    relation: Relation
    formula: Number | None
    source: str

    @staticmethod
    def all_of(simulation: Simulation) -> list[Measure]:
        """Return makespan, period and bubble, each with every formula that speaks of it."""
        return [*_makespan(simulation), *_period(simulation), _bubble(simulation)]


def number(value: Fraction | int | None) -> Number | None:
    """Return a fraction as a whole number if it is one, else as the nearest floating-point number."""
    if value is None or isinstance(value, int):
        return value
    return int(value) if value.denominator == 1 else float(value)


Row = Callable[[Relation, int, str], Measure]


def _makespan(simulation: Simulation) -> list[Measure]:
    total = simulation.micro_batches
    name = "makespan of one step" if simulation.made.schedule.flush else f"makespan of {total:,} micro-batches"

    def row(relation: Relation, formula: int, source: str) -> Measure:
        return Measure("makespan", name, "ns", simulation.timeline.makespan_ns, relation, formula, source)

    whole = _in_whole_passes(simulation)
    rows = _planned_makespan(simulation, row) if whole else _given_makespan(simulation, row)
    if whole and simulation.made.schedule.flush and simulation.instance.cost.combine is Combine.MAX:
        costs = simulation.evaluation.stages
        estimate = goal_value(Goal.ITERATION_TIME, simulation.instance, simulation.plan, costs)
        alone = simulation.instance.training.schedule is Schedule.NAIVE
        source = "M times the latency" if alone else "latency, and M − 1 times the bottleneck"
        rows.append(row(Relation.RELATED, estimate, f"iteration time of the evaluator: {source}"))
    return rows


def _planned_makespan(simulation: Simulation, row: Row) -> list[Measure]:
    """Return the closed forms of the schedules that the planner knows."""
    durations, total = simulation.made.durations, simulation.micro_batches
    schedule = simulation.instance.training.schedule
    exact = Relation.LEAST if any(durations.sync_ns) else Relation.EXACT
    if schedule is Schedule.NAIVE:
        formula = theory.naive_iteration_ns(durations, total)
        return [row(exact, formula, "every pass and transfer, one after another")]
    if schedule is Schedule.GPIPE and _overlapped(simulation):
        formula = theory.gpipe_iteration_ns(durations, total)
        return [row(exact, formula, "latency, and M − 1 times the slowest forward and backward pass")]
    lower = bounds.iteration_lower_bound_ns(durations, total)
    rows = [row(Relation.LEAST, lower, "lower bound: fill, M passes of one stage, drain")]
    if simulation.made.schedule.flush and _overlapped(simulation) and _classic(simulation):
        upper = theory.iteration_upper_bound_ns(durations, total) + max(durations.sync_ns)
        rows.append(row(Relation.MOST, upper, "upper bound: M + S − 1 of the slowest of all passes and transfers"))
    return rows


def _given_makespan(simulation: Simulation, row: Row) -> list[Measure]:
    """Return what holds in any order, and for uniform stages what the order is famous for."""
    durations, total = simulation.made.durations, simulation.micro_batches
    busiest = total * max(sum(_passes(simulation, stage) for stage in stages) for stages in simulation.ranks)
    rows = [row(Relation.LEAST, busiest, "lower bound: all passes of the busiest rank")]
    forward, whole = (
        max(durations.forward_ns),
        max(_passes(simulation, stage) for stage in range(_stages(simulation))),
    )
    if simulation.schedule == ZERO_BUBBLE:
        found = busiest + _zero_bubble_idle_ns(simulation)
        rows.append(
            row(Relation.RELATED, found, "uniform stages: M (F + I + W) + (S − 1) (F + I − W), of the slowest")
        )
    elif simulation.schedule == Schedule.ZERO_BUBBLE_V:
        each = max(*durations.forward_ns, *durations.input_gradient_ns, *durations.weight_gradient_ns)
        found = theory.zero_bubble_v_iteration_ns(len(simulation.ranks), total, each)
        rows.append(
            row(Relation.RELATED, found, "passes that are all as long as the longest: 6 M + P − 1 of them")
        )
    elif simulation.schedule == INTERLEAVED:
        ranks, chunks = len(simulation.ranks), len(simulation.ranks[0])
        found = bounds.uniform_iteration_ns(ranks, total, forward, whole - forward, chunks)
        rows.append(row(Relation.RELATED, found, "uniform stages: (V M + P − 1) times the slowest stage"))
    return rows


def _zero_bubble_idle_ns(simulation: Simulation) -> int:
    """Return for how long each of uniform stages waits under ZB-H1, with the passes of the slowest."""
    weights = max(simulation.made.durations.weight_gradient_ns)
    whole = max(_passes(simulation, stage) for stage in range(_stages(simulation)))
    return theory.zero_bubble_h1_iteration_ns(_stages(simulation), 1, 0, whole - weights, weights) - whole


def _period(simulation: Simulation) -> list[Measure]:
    found = number(TimelineMeasures(simulation.timeline).period_ns)
    rows: list[Measure] = []
    bottleneck = simulation.bottleneck_ns
    if bottleneck is not None:
        slowest = "stage" if simulation.by_stage else "rank"
        source = f"the bottleneck: slowest {slowest} or boundary for one micro-batch"
        rows.append(Measure("period", "period", "ns", found, Relation.RELATED, bottleneck, source))
    closed = _period_formula(simulation) if _in_whole_passes(simulation) else None
    if closed is not None:
        rows.append(Measure("period", "period", "ns", found, Relation.RELATED, number(closed[0]), closed[1]))
    return rows or [Measure("period", "period", "ns", found, Relation.NONE, None, "")]


def _period_formula(simulation: Simulation) -> tuple[Fraction | int, str] | None:
    """Return the period in the middle of a long run of the schedule; None where no closed form holds."""
    durations, schedule = simulation.made.durations, simulation.instance.training.schedule
    if schedule is Schedule.NAIVE:
        return durations.latency_ns, "one micro-batch alone"
    if not _overlapped(simulation) or (not simulation.made.schedule.flush and any(durations.sync_ns)):
        return None
    if schedule is Schedule.GPIPE:
        backward = (_passes(simulation, at) - durations.forward_ns[at] for at in range(_stages(simulation)))
        return max(durations.forward_ns) + max(backward), "slowest forward and slowest backward pass"
    source = "1F1B, far from both ends: largest mean over runs of stages and the transfers between them"
    warm_ups = () if _classic(simulation) else simulation.plan.warm_ups(simulation.instance.training)
    return theory.one_f_one_b_period_ns(durations, warm_ups), source


def _bubble(simulation: Simulation) -> Measure:
    stages, total = _stages(simulation), simulation.micro_batches
    found = number(TimelineMeasures(simulation.timeline).bubble_of_total)
    formula, source = theory.gpipe_bubble(stages, total), "uniform stages: (S − 1) / (M + S − 1)"
    if simulation.priced and simulation.instance.training.schedule is Schedule.NAIVE:
        formula, source = Fraction(stages - 1, stages), "uniform stages: (S − 1) / S"
    elif simulation.schedule == INTERLEAVED:
        formula = theory.gpipe_bubble(len(simulation.ranks), total * len(simulation.ranks[0]))
        source = "uniform stages: (P − 1) / (V M + P − 1)"
    elif simulation.schedule == Schedule.ZERO_BUBBLE_V:
        ranks = len(simulation.ranks)
        whole = theory.zero_bubble_v_iteration_ns(ranks, total, 1)
        formula, source = Fraction(whole - 6 * total, whole), "passes of equal length: (P − 1) / (6 M + P − 1)"
    elif simulation.schedule == ZERO_BUBBLE:
        idle = _zero_bubble_idle_ns(simulation)
        whole = total * max(_passes(simulation, stage) for stage in range(stages))
        formula, source = Fraction(idle, max(1, whole + idle)), "uniform stages: (S − 1) (F + I − W) of the step"
    elif not simulation.priced:
        return Measure("bubble", BUBBLE, "share", found, Relation.NONE, None, "")
    return Measure("bubble", BUBBLE, "share", found, Relation.RELATED, number(formula), source)


def _passes(simulation: Simulation, stage: int) -> int:
    """Return the time of all passes of one micro-batch at a stage."""
    durations = simulation.made.durations
    return durations.forward_ns[stage] + durations.backward_ns[stage] + durations.recompute_ns[stage]


def _stages(simulation: Simulation) -> int:
    return len(simulation.plan)


def _overlapped(simulation: Simulation) -> bool:
    return simulation.made.execution.transfers is Transfers.OVERLAPPED


def _classic(simulation: Simulation) -> bool:
    return simulation.plan.unlike_classic(simulation.instance.training) is None


def _in_whole_passes(simulation: Simulation) -> bool:
    """Tell whether formulas know the run: groups of one stage each, whose backward passes are not in halves."""
    return simulation.by_stage and not simulation.instance.training.schedule.in_halves
