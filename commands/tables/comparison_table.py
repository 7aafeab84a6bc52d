"""Several solvers on one instance as a table for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from commands.parts.comparison import ComparisonRow, gap_to
from commands.tables.display import scope_rows
from commands.tables.key_lines import GOOD, OPEN, WIDEST, WRONG, KeyLines, Row
from commands.terminal import human
from commands.terminal.exit_codes import ExitCode
from formulation.costs.amounts import goal_amount, goal_text
from formulation.outcome import Outcome, Proof
from formulation.problem.options import Goal

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

    from formulation.problem.instance import Instance

__all__: list[str] = []

NOTHING = "-"
INDENT = "    "
CLAIMS: dict[Proof, str] = {
    Proof.OPTIMAL: "optimal",
    Proof.FEASIBLE: "a plan, no proof",
    Proof.INFEASIBLE: "no plan exists",
    Proof.UNKNOWN: "no plan found",
}
"""What a solver says, in words that fit a column."""


def comparison_parts(
    instance: Instance, rows: list[ComparisonRow], best: Outcome | None
) -> tuple[RenderableType, ...]:
    """Return what the best plan is, a row for each solver, best first, and what each of them has to say."""
    goal = instance.goals[0]
    found, scope = _result(goal, rows, best), KeyLines(scope_rows(instance))
    return found, "", _table(goal, rows, best), "", scope, "", _Remarks(rows)


class _Remarks:
    """What each solver has to say, below its name."""

    def __init__(self, rows: list[ComparisonRow]) -> None:
        self.rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines."""
        for row in self.rows:
            for remark in (*(() if row.outcome is None else row.outcome.notes), row.reason):
                if not remark:
                    continue
                style = WRONG if row.failure is not None and remark == row.reason else ""
                text = Text.assemble((f"{row.solver}: ", "bold"), (human.printable(remark), style))
                room = max(1, min(options.max_width, WIDEST) - len(INDENT))
                lines = [text] if options.no_wrap else text.wrap(console, room)
                for at, line in enumerate(lines):
                    yield Text(INDENT if at else "") + line


def _result(goal: Goal, rows: list[ComparisonRow], best: Outcome | None) -> KeyLines:
    """Say what the best plan is, who has it, and what gaps are measured to."""
    if best is not None and best.proof is Proof.INFEASIBLE:
        return KeyLines([("proof", Text(f"no plan exists ({best.solver})", style=WRONG))])
    kept = [row for row in rows if _place(row)[0] == 0]
    found: list[Row] = []
    if kept:
        least = min(_place(row)[1] for row in kept)
        holders = ", ".join(row.solver for row in kept if _place(row)[1] == least)
        found.append(("best plan", f"{goal_amount(goal, least)}, by {holders}"))
    if best is None or best.bound is None:
        return KeyLines([*found, ("gap", Text("no solver proved a bound", style=OPEN))])
    proved = best.of_first_goal().proof is Proof.OPTIMAL
    what = "the proved optimum" if proved else "the best proved bound (no optimum was proved)"
    words = f"to {what}, {goal_amount(goal, best.bound)}, as a share of the objective"
    return KeyLines([*found, ("gap", Text(words, style=GOOD if proved else OPEN))])


def _place(row: ComparisonRow) -> tuple[int, int]:
    """Return where a row stands: plans that keep the rules by price, those that break some, then none."""
    if row.outcome is None or row.outcome.objective is None or row.failure is not None:
        return 2, 0
    return int(bool(row.violations)), row.outcome.objective


def _table(goal: Goal, rows: list[ComparisonRow], best: Outcome | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("solver", no_wrap=True, overflow="fold")
    table.add_column("claim")
    for title in ("objective", "gap", "stages", "searched"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in sorted(rows, key=_place):
        table.add_row(row.solver, *_cells(goal, row, best))
    return table


def _claim(row: ComparisonRow) -> Text:
    """Return how strongly a row is held, or why there is nothing to hold."""
    if row.failure is ExitCode.FALSE_CLAIM:
        return Text("false claim", style=WRONG)
    if row.outcome is None:
        return Text(row.reason.split(":", 1)[0], style="dim")
    if row.violations:
        return Text(f"breaks {', '.join(row.violations)}", style=WRONG)
    return Text(CLAIMS[row.outcome.proof], style=GOOD if row.outcome.proof is Proof.OPTIMAL else "")


def _cells(goal: Goal, row: ComparisonRow, best: Outcome | None) -> tuple[str | Text, ...]:
    found = row.outcome
    if found is None:
        return (_claim(row), *[NOTHING] * 4)
    gap = None if row.violations else gap_to(best, found)
    return (
        _claim(row),
        NOTHING if found.objective is None else goal_text(goal, found.objective),
        NOTHING if gap is None else human.gap(gap),
        NOTHING if found.plan is None else str(len(found.plan)),
        f"{found.seconds:.2f} s",
    )
