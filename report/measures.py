"""The run in a few numbers, each beside what a formula says of it, and in which sense the two should agree."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from formulation.options import Combine, Schedule
from formulation.timeline import closed_forms
from formulation.timeline.durations import Transfers
from formulation.timeline.measures import bubble_of_total, period_ns
from report.simulation import Simulation

EXACT, LEAST, MOST, RELATED = "=", "≥", "≤", "~"
"""What the timeline should be, compared with the formula: equal, at least, at most, or near it."""

Number = int | float


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of the timeline beside that of a formula (None: there is none). ``unit``: ns or share."""

    key: str
    name: str
    unit: str
    timeline: Number | None
    relation: str
    formula: Number | None
    source: str


def measures_of(simulation: Simulation) -> list[Measure]:
    """Return makespan, period and bubble, each with every formula that speaks of it."""
    return [*_makespan(simulation), *_period(simulation), _bubble(simulation)]


def number(value: Fraction | int | None) -> Number | None:
    """Return a fraction as a whole number if it is one, else as the nearest floating-point number."""
    if value is None or isinstance(value, int):
        return value
    return int(value) if value.denominator == 1 else float(value)


def _makespan(simulation: Simulation) -> list[Measure]:
    durations, total = simulation.made.durations, simulation.micro_batches
    schedule = simulation.instance.training.schedule
    name = "makespan of one step" if simulation.made.schedule.flush else f"makespan of {total:,} micro-batches"
    exact = LEAST if any(durations.sync_ns) else EXACT

    def row(relation: str, formula: int, source: str) -> Measure:
        return Measure("makespan", name, "ns", simulation.timeline.makespan_ns, relation, formula, source)

    if schedule is Schedule.NAIVE:
        formula = closed_forms.naive_iteration_ns(durations, total)
        return [row(exact, formula, "every pass and transfer, one after another")]
    if schedule is Schedule.GPIPE and _overlapped(simulation):
        formula = closed_forms.gpipe_iteration_ns(durations, total)
        return [row(exact, formula, "latency, and M − 1 times the slowest forward and backward pass")]
    lower = closed_forms.iteration_lower_bound_ns(durations, total)
    rows = [row(LEAST, lower, "lower bound: fill, M passes of one stage, drain")]
    if simulation.made.schedule.flush and _overlapped(simulation):
        upper = closed_forms.iteration_upper_bound_ns(durations, total) + max(durations.sync_ns)
        rows.append(row(MOST, upper, "upper bound: M + S − 1 of the slowest of all passes and transfers"))
    return rows


def _period(simulation: Simulation) -> list[Measure]:
    found = number(period_ns(simulation.timeline))
    rows: list[Measure] = []
    if simulation.instance.cost.combine is Combine.MAX:
        objective = simulation.evaluation.objective
        source = "the objective: slowest stage or boundary for one micro-batch"
        rows.append(Measure("period", "period", "ns", found, RELATED, objective, source))
    closed = _period_formula(simulation)
    if closed is not None:
        rows.append(Measure("period", "period", "ns", found, RELATED, number(closed[0]), closed[1]))
    return rows or [Measure("period", "period", "ns", found, "", None, "")]


def _period_formula(simulation: Simulation) -> tuple[Fraction | int, str] | None:
    """Return the period in the middle of a long run of the schedule; None where no closed form holds."""
    durations, schedule = simulation.made.durations, simulation.instance.training.schedule
    if schedule is Schedule.NAIVE:
        return closed_forms.latency_ns(durations), "one micro-batch alone"
    if not _overlapped(simulation) or (not simulation.made.schedule.flush and any(durations.sync_ns)):
        return None
    if schedule is Schedule.GPIPE:
        slowest = max(durations.forward_ns) + max(durations.backward_ns)
        return slowest, "slowest forward and slowest backward pass"
    source = "1F1B, far from both ends: largest mean over runs of stages and the transfers between them"
    return closed_forms.one_f_one_b_period_ns(durations), source


def _bubble(simulation: Simulation) -> Measure:
    stages, total = len(simulation.plan), simulation.micro_batches
    found = number(bubble_of_total(simulation.timeline))
    if simulation.instance.training.schedule is Schedule.NAIVE:
        formula, source = Fraction(stages - 1, stages), "uniform stages: (S − 1) / S"
    else:
        formula, source = closed_forms.gpipe_bubble(stages, total), "uniform stages: (S − 1) / (M + S − 1)"
    name = "bubble (idle share of device time)"
    return Measure("bubble", name, "share", found, RELATED, number(formula), source)


def _overlapped(simulation: Simulation) -> bool:
    return simulation.made.execution.transfers is Transfers.OVERLAPPED
