"""Several solvers on one instance as a table for people."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from commands.parts.comparison import ComparisonRow, gap_to
from commands.terminal import human
from commands.terminal.exit_codes import ExitCode
from formulation.costs.amounts import goal_amount, goal_text
from formulation.outcome import Outcome, Proof
from formulation.problem.options import Goal
from formulation.scope import scope_of, scope_parts

if TYPE_CHECKING:
    from formulation.problem.instance import Instance

__all__ = ["comparison_parts"]

NOTHING = "-"


def comparison_parts(
    instance: Instance, rows: list[ComparisonRow], best: Outcome | None
) -> tuple[Table, str, str]:
    """Return a row for each solver, and in words what gaps are measured to and what each solver has to say."""
    return _table(instance.goals[0], rows, best), "", _lines(instance, rows, best)


def _keeps_rules(row: ComparisonRow) -> str:
    if row.violations:
        return f"breaks {', '.join(row.violations)}"
    return NOTHING if row.outcome is None or row.outcome.plan is None else "yes"


def _table(goal: Goal, rows: list[ComparisonRow], best: Outcome | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("solver", "proof", "keeps the rules"):
        table.add_column(title)
    for title in ("objective", "gap", "stages", "time"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(row.solver, *_cells(goal, row, best))
    return table


def _cells(goal: Goal, row: ComparisonRow, best: Outcome | None) -> tuple[str, ...]:
    found, refuted = row.outcome, row.failure is ExitCode.FALSE_CLAIM
    if found is None:
        proof = "false claim" if refuted else row.reason.split(":", 1)[0]
        return (proof, _keeps_rules(row), *[NOTHING] * 4)
    gap = None if row.violations else gap_to(best, found)
    return (
        "false claim" if refuted else str(found.proof),
        _keeps_rules(row),
        NOTHING if found.objective is None else goal_text(goal, found.objective),
        NOTHING if gap is None else human.gap(gap),
        NOTHING if found.plan is None else str(len(found.plan)),
        f"{found.seconds:.2f} s",
    )


def _lines(instance: Instance, rows: list[ComparisonRow], best: Outcome | None) -> str:
    """Return what the gap is measured against, and what each solver has to say."""
    goal = instance.goals[0]
    lines = ["gap: no solver proved a bound" if best is None or best.bound is None else _basis(goal, best)]
    if best is not None and best.proof is Proof.INFEASIBLE:
        lines = [f"no plan exists ({best.solver})"]
    scope = "scope: " + human.printable("; ".join(scope_parts(scope_of(instance))))
    lines += textwrap.wrap(scope, human.WIDTH, subsequent_indent=" " * 7)
    for row in rows:
        remarks = (*(() if row.outcome is None else row.outcome.notes), row.reason)
        lines += [f"{row.solver}: {human.printable(remark)}" for remark in remarks if remark]
    return "\n".join(lines)


def _basis(goal: Goal, best: Outcome) -> str:
    proved, bound = best.of_first_goal().proof is Proof.OPTIMAL, goal_amount(goal, best.bound or 0)
    what = "the proved optimum" if proved else "the best proved bound (no optimum was proved)"
    return f"gap: (objective - bound) / objective, to {what}, {bound}"
