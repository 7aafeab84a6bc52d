"""A second plan, run in the same way, whose numbers and pictures are shown beside those of the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commands.parts.task import Task
from commands.simulation.best_order import with_order_content
from commands.simulation.orders import Order
from commands.terminal.failures import InputError
from formulation.schedules.table import ScheduleError
from report.content import content_of
from report.simulation import simulate


def check_against(task: Task, path: str | None, order: Order | None) -> None:
    """Raise InputError, before any search, for a plan that cannot be shown beside another."""
    if path is None:
        return
    if order is not None and order.searched:
        raise InputError("--against: not with --schedule best, an order that is made for one plan alone")
    task.with_plan(path)


def content_of_other(
    task: Task, path: str | None, order: Order | None, shown: int | None
) -> dict[str, Any] | None:
    """Run the other plan in the same way and return its content; None where there is none. Raises InputError."""
    if path is None:
        return None
    other, plan = task.with_plan(path)
    try:
        ran = simulate(other.instance, plan, order.schedule(other.instance, plan) if order else None)
    except (ScheduleError, ValueError) as error:
        raise InputError(f"--against {path}: {error}") from error
    name = Path(path).name
    return with_order_content(content_of(ran, scenario=task.scenario.name, shown=shown, plan_name=name), None)
