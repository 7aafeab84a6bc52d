"""``pipecut.simulate``: a plan that was run, for programs. The command line's page, pictures and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from commands.parts.drawing import targets_of, write_files
from commands.simulation.best_order import BestOrder, best_order_of, with_order, with_order_content
from commands.simulation.orders import Order, order, order_of_file
from commands.terminal.failures import InputError
from formulation.evaluate import evaluate
from formulation.outcome import Limits, Outcome
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan
from formulation.schedules.table import PipelineSchedule
from formulation.timeline.timeline import Timeline
from ingest.plans.plan_file import read_plan
from report.content import content_of
from report.measures import Measure, measures_of
from report.simulation import Simulation, simulate


@dataclass(frozen=True, eq=False)
class Simulated:
    """A plan's run: its timeline, the measures beside their formulas, and all numbers as plain data.

    ``outcome`` is the claim of the solver that found the plan, None for a plan that was given. ``order`` is the
    claim of the search for the best order of actions, None for any other order.
    """

    name: str
    simulation: Simulation
    outcome: Outcome | None = None
    order: BestOrder | None = None

    @property
    def timeline(self) -> Timeline:
        """When everything happened, in ns."""
        return self.simulation.timeline

    @property
    def makespan_ns(self) -> int:
        """The time of the whole run: one step, or several of a schedule without a flush (``simulation.steps``)."""
        return self.simulation.timeline.makespan_ns

    @cached_property
    def measures(self) -> list[Measure]:
        """Makespan, period and bubble of the timeline, each beside every formula that speaks of it."""
        return with_order(measures_of(self.simulation), self.order)

    @cached_property
    def content(self) -> dict[str, Any]:
        """What ``pipecut simulate --json`` writes (``docs/simulate.md``), without other solvers."""
        content = content_of(self.simulation, scenario=self.name, outcome=self.outcome)
        return with_order_content(content, self.order)

    def write(
        self,
        page: str | Path | None = None,
        *,
        trace: str | Path | None = None,
        svg: str | Path | None = None,
        png: str | Path | None = None,
    ) -> None:
        """Write a page (HTML), a trace for Perfetto, and folders of pictures; each file whole or not at all.

        Raises ValueError for what cannot be written there, or for PNG without ``pipecut[png]``; OSError where the
        writing itself fails.
        """
        given = (None if path is None else str(path) for path in (page, trace, svg, png))
        try:
            targets = targets_of(*given)
        except InputError as error:
            raise ValueError(str(error)) from error
        write_files(self.simulation, self.content, targets)


def simulate_plan(
    instance: Instance,
    plan: Plan | Outcome | str | Path,
    *,
    name: str,
    schedule: str | Path | PipelineSchedule | None = None,
    chunks: int | None = None,
    limits: Limits | None = None,
) -> Simulated:
    """Run a plan, a plan file or what a solver found: under its training's schedule, or in any other order.

    ``schedule`` is ``interleaved`` (with ``chunks`` stages a rank), ``zero_bubble_h1``, ``best`` (searched for
    within ``limits``), a file as a Path or ending in ``.csv``, or a table of actions; of these one step is run.
    Raises ValueError for a plan without a price, for one that does not fit the order, and where no order fits
    into memory.
    """
    outcome = plan if isinstance(plan, Outcome) else None
    if isinstance(plan, Outcome):
        if plan.plan is None:
            raise ValueError("; ".join((f"there is no plan to run: {plan.proof}", *plan.notes)))
        plan = plan.plan
    given = read_plan(plan, instance) if isinstance(plan, str | Path) else plan
    chosen = _schedule(schedule, chunks)
    if isinstance(chosen, Order) and chosen.searched:
        best = best_order_of(instance, _priced(instance, given), limits or Limits())
        return Simulated(name, simulate(instance, given, best.schedule), outcome, best)
    table = chosen.schedule(instance, given) if isinstance(chosen, Order) else chosen
    return Simulated(name, simulate(instance, given, table), outcome)


def _priced(instance: Instance, plan: Plan) -> Plan:
    """Return a plan that has a price, so that it can be run. Raises ValueError for any other."""
    evaluation = evaluate(instance, plan)
    if evaluation.objective is None:
        raise ValueError("; ".join(violation.message for violation in evaluation.violations))
    return plan


def _schedule(
    schedule: str | Path | PipelineSchedule | None, chunks: int | None
) -> Order | PipelineSchedule | None:
    if schedule is None or isinstance(schedule, PipelineSchedule):
        if chunks is not None:
            raise ValueError("chunks is only for the schedule interleaved")
        return schedule
    is_file = isinstance(schedule, Path) or schedule.endswith(".csv")
    found = order_of_file(schedule) if is_file else order(str(schedule), chunks)
    if is_file and chunks is not None:
        raise ValueError("chunks is only for the schedule interleaved")
    return found
