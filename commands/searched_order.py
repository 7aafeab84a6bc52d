"""The best order of a plan's actions: searched for by what is installed for it, and shown beside a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Protocol

from pipecut.commands.parser.arguments import GIVEN_ORDERS
from pipecut.commands.terminal.failures import InputError
from pipecut.commands.terminal.interrupt import run_stoppable
from pipecut.commands.terminal.progress import ProgressLine
from pipecut.formulation.outcome import FalseClaimError, Limits, Proof
from pipecut.formulation.schedules.table import PipelineSchedule, ScheduleError
from pipecut.report.measures import Measure
from pipecut.solvers.installed import INSTALL, loaded, registered

if TYPE_CHECKING:
    from pipecut.commands.parts.task import Task
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan

    Search = Callable[[Instance, Plan, Limits], "SearchedOrder"]

ORDERS = "pipecut.orders"
"""The group of searches for orders (``solvers.installed``), by the name of the order: each object is a function of
an instance, a plan of it and limits, which returns a SearchedOrder. It raises ScheduleError where no order can be
sought, and FalseClaimError for a defect."""
BEST = GIVEN_ORDERS[-1]


class SearchedOrder(Protocol):
    """What a search for an order of actions found, and what it says of that."""

    @property
    def proof(self) -> Proof:
        """What is proved of the order, or that there is none."""
        ...

    @property
    def order(self) -> PipelineSchedule | None:
        """The order, under the name that it has of itself; None where none fits into memory."""
        ...

    @property
    def schedule(self) -> PipelineSchedule:
        """The order, called the best. Raises ScheduleError where none fits into memory."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return the claim as plain data."""
        ...

    def rows(self) -> list[tuple[str, str]]:
        """Return lines on the order as pairs of key and words."""
        ...

    def measures(self) -> list[Measure]:
        """Return the makespan beside what is proved of it, and beside other orders."""
        ...

    def notes(self) -> list[str]:
        """Return what is said of the order in the notes of a claim."""
        ...


def best_order_of(instance: Instance, plan: Plan, limits: Limits) -> SearchedOrder:
    """Search for the order of the actions of one step in which it ends first.

    Raises ScheduleError where no order can be sought, ValueError where nothing is installed that searches, and
    FalseClaimError for a defect.
    """
    for entry in registered(ORDERS, BEST):
        search: Search = loaded(entry)
        return search(instance, plan, limits)
    raise ValueError(unsearched())


def unsearched() -> str:
    """Say what to install for the best order; nothing where something searches for it."""
    if registered(ORDERS, BEST):
        return ""
    return f"schedule {BEST}: nothing is installed that searches for it; {INSTALL}"


def search_order(task: Task, plan: Plan) -> SearchedOrder:
    """Search for the best order with a progress line, within the limits of the task; Ctrl-C ends the search.

    Raises InputError where no order can be sought, and ClaimFailedError where the search contradicts the timeline.
    """
    begun, title = task.limits.begun(), f"order of actions of {task.scenario.name}"
    with ProgressLine(title, quiet=task.quiet, deadline=begun.deadline) as line:
        limits = replace(begun, stopped=task.stop.is_set, progress=line.report)
        try:
            return run_stoppable(
                lambda: best_order_of(task.instance, plan, limits),
                task.stop,
                line.stopping,
                deadline=begun.deadline,
                instead=task.out_of_time(f"schedule {BEST}: no order was found in time"),
            )
        except ScheduleError as error:
            raise InputError(f"{task.scenario.path}: schedule {BEST}: {error}") from error
        except FalseClaimError as error:
            raise task.claim_failed(task.solver, str(error)) from error


def with_order(measures: Sequence[Measure], best: SearchedOrder | None) -> list[Measure]:
    """Return the measures of a run in the best order, what its search says standing with the makespan."""
    if best is None:
        return list(measures)
    first = [one for one in measures if one.key == "makespan"]
    return [*first, *best.measures(), *(one for one in measures if one.key != "makespan")]


def with_order_content(content: dict[str, Any], best: SearchedOrder | None) -> dict[str, Any]:
    """Return what ``report.content.content_of`` made, with ``order`` (null for any other order) and its measures.

    What fixed orders take is also said in the notes of the claim, which a page shows.
    """
    if best is None:
        return content | {"order": None}
    measures, claim = content["measures"], content["claim"]
    at = sum(one["key"] == "makespan" for one in measures)
    rows = [*measures[:at], *map(asdict, best.measures()), *measures[at:]]
    more = {
        "measures": rows,
        "claim": claim | {"notes": [*claim["notes"], *best.notes()]},
        "order": best.to_dict(),
    }
    return content | more
