"""``pipecut.plan``: an outcome that knows its problem and prints as the table of the command line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

from commands.terminal.human import WIDTH
from commands.terminal.interrupt import run_stoppable
from formulation.evaluate import evaluate
from formulation.outcome import Limits, Outcome
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan
from planners.catalogue import find_any
from solvers.auto.solve import plan
from solvers.catalogue import AUTO
from solvers.choices.decide import decide

__all__ = ["Planned", "plan_instance"]

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Outcome):
    """An outcome with the instance that it is about. As text it is what ``pipecut plan`` prints."""

    instance: Instance = field(repr=False, compare=False)

    def __str__(self) -> str:
        """Return the stages and the claim, without colours and 80 columns wide."""
        from commands.tables.display import outcome_parts
        from commands.terminal.output import drawn

        evaluation = None if self.plan is None else evaluate(self.instance, self.plan)
        return drawn(*outcome_parts(self.instance, self, evaluation), width=WIDTH).rstrip("\n")

    def needed_plan(self) -> Plan:
        """Return the plan. Raises ValueError where there is none, and says why."""
        if self.plan is None:
            raise ValueError("; ".join((f"there is no plan: {self.proof}", *self.notes)))
        return self.plan


def planned(instance: Instance, outcome: Outcome) -> Planned:
    """Return an outcome with its instance."""
    return Planned(**{row.name: getattr(outcome, row.name) for row in fields(Outcome)}, instance=instance)


def plan_instance(instance: Instance, solver: str | None, limits: Limits, *, cross_check: bool) -> Planned:
    """Solve, check and cross-check; ``pipecut.plan`` says what is raised."""
    method = AUTO if solver is None else find_any(solver)

    def ask(one: Instance, within: Limits) -> Outcome:
        return plan(one, within, method, cross_check=cross_check)

    return stoppable(lambda within: planned(*decide(instance, ask, within)), limits)


def stoppable(work: Callable[[Limits], Found], limits: Limits) -> Found:
    """Work within limits whose clock runs from now on. Ctrl-C stops the work and raises KeyboardInterrupt."""
    interrupted = threading.Event()
    begun = limits.begun(time.monotonic())
    within = replace(begun, stopped=lambda: interrupted.is_set() or begun.stopped())
    found = run_stoppable(lambda: work(within), interrupted)
    if interrupted.is_set():
        raise KeyboardInterrupt
    return found
