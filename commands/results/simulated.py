"""``pipecut.simulate``: a plan that was run, for programs. The command line's page, pictures and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipecut.commands.orders import order
from pipecut.commands.parts.drawing import targets_of, write_files
from pipecut.commands.searched_order import SearchedOrder, best_order_of, with_order, with_order_content
from pipecut.commands.terminal.failures import InputError
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Outcome
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.schedules.table import PipelineSchedule
from pipecut.formulation.timeline.timeline import Timeline
from pipecut.report.content import content_of
from pipecut.report.measures import Measure
from pipecut.report.simulation import Simulation
from pipecut.report.simulation import simulate as run


@dataclass(frozen=True, eq=False)
class Simulated:
    """A plan's run: its timeline, the measures beside their formulas, and all numbers as plain data.

    ``outcome`` is the claim of the solver that found the plan, None where none was given. ``order`` is the
    claim of the search for the best order of actions, None for any other order. ``other`` is the plan beside it.
    """

    name: str
    simulation: Simulation
    outcome: Outcome | None = None
    order: SearchedOrder | None = None
    other: Simulation | None = None

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
        return with_order(Measure.all_of(self.simulation), self.order)

    @cached_property
    def content(self) -> dict[str, Any]:
        """What ``pipecut simulate --json`` writes (``docs/simulate.md``), without other solvers."""
        against = None
        if self.other is not None:
            against = with_order_content(
                content_of(self.other, scenario=self.name, plan_name="the other plan"), None
            )
        content = content_of(self.simulation, scenario=self.name, outcome=self.outcome, against=against)
        return with_order_content(content, self.order)

    def __str__(self) -> str:
        """Return timeline and formulas side by side, without colours and 80 columns wide."""
        from pipecut.commands.parts.tables import measure_lines, rank_table, run_name
        from pipecut.commands.terminal.terminal import WIDTH, drawn

        tables = (run_name(self.content), "", *measure_lines(self.content), "", rank_table(self.content))
        return drawn(*tables, width=WIDTH).rstrip("\n")

    def _repr_html_(self) -> str:
        """Return the timeline, the memory over time and the text, for notebooks."""
        from pipecut.commands.results.planned import drawn_in_html, words_in_html

        return drawn_in_html(self.content, ("timeline", "memory")) + words_in_html(str(self))

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


def simulate(
    instance: Instance,
    plan: Plan,
    *,
    schedule: str | None = None,
    chunks: int | None = None,
    table: PipelineSchedule | None = None,
    limits: Limits | None = None,
    claim: Outcome | None = None,
    name: str | None = None,
    against: Plan | None = None,
) -> Simulated:
    """Run a plan step by step, and return its timeline and measures, which can be written as a page.

    Without more it runs in the order of its training's schedule. ``schedule`` names another, of which one step is
    run: ``interleaved`` (with ``chunks`` stages a rank), ``zero_bubble_h1``, or ``best`` (the shortest, searched
    for within ``limits`` and proved); ``table`` is one of your own. ``claim`` is shown on the page beside the run,
    under ``name`` (None: that of the model); ``against`` is another plan, which runs in the order of the training
    too and which the page shows beside this one. Raises ValueError for wrong input, for a plan without a price,
    for one that does not fit the order, and where no order fits into memory.
    """
    if schedule is None and chunks is not None:
        raise ValueError("chunks is only for the schedule interleaved")
    if schedule is not None and table is not None:
        raise ValueError("expected the name of a schedule or its table, not both")
    if against is not None and (schedule is not None or table is not None):
        raise ValueError("expected another plan to compare with, or an order of actions, not both")
    chosen = None if schedule is None else order(schedule, chunks)
    if chosen is None:
        other = None if against is None else run(instance, against)
        return Simulated(name or instance.name, run(instance, plan, table), claim, other=other)
    if chosen.searched:
        best = best_order_of(instance, _priced(instance, plan), limits or Limits())
        return Simulated(name or instance.name, run(instance, plan, best.schedule), claim, best)
    return Simulated(name or instance.name, run(instance, plan, chosen.schedule(instance, plan)), claim)


def _priced(instance: Instance, plan: Plan) -> Plan:
    """Return a plan that has a price, so that it can be run. Raises ValueError for any other."""
    evaluation = evaluate(instance, plan)
    if evaluation.objective is None:
        raise ValueError("; ".join(violation.message for violation in evaluation.violations))
    return plan
