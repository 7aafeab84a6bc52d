"""Several solvers on one instance as a table for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from commands.parts.comparison import ComparisonRow, gap_to, plans_of
from commands.tables.display import scope_rows
from commands.tables.key_lines import GOOD, OPEN, WIDEST, WRONG, KeyLines, Row
from commands.tables.stage_lines import stage_in_words
from commands.terminal import human
from commands.terminal.exit_codes import ExitCode
from formulation.costs.amounts import goal_amount, goal_text
from formulation.evaluate import evaluate
from formulation.outcome import Outcome, Proof
from formulation.problem.constraints import Goal

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

    from formulation.problem.instance import Instance

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
    plans = _Plans(instance, rows, best)
    below = (plans, "") if plans.found else ()
    return found, "", _table(goal, rows, best), "", *below, scope, "", _Remarks(rows)


class _Plans:
    """The plans, best first: who has it, what it takes and how far it is from the best, and a line a stage."""

    fits_width = True
    """Like a table it is fitted to the width also for whoever reads it by program."""

    def __init__(self, instance: Instance, rows: list[ComparisonRow], best: Outcome | None) -> None:
        self.found = plans_of(rows)
        self._instance, self._best = instance, best

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines."""
        for at, (plan, rows) in enumerate(self.found.items()):
            if at:
                yield Text("")
            yield from _fitted(self._title(rows), options, console, "")
            costs = evaluate(self._instance, plan).stages
            for index in range(len(plan.stages)):
                words = human.printable(stage_in_words(self._instance, plan, index))
                start = f"  {index}  {human.duration(costs[index].total_ns) if costs else NOTHING:>8}  "
                yield from _fitted(Text(start + words), options, console, " " * len(start))

    def _title(self, rows: list[ComparisonRow]) -> Text:
        outcome, broken = rows[0].outcome, rows[0].violations
        goal, said = self._instance.goals[0], list[str]()
        if outcome is not None and outcome.objective is not None:
            gap = None if broken else gap_to(self._best, outcome)
            said = [goal_text(goal, outcome.objective), *([] if gap is None else [f"gap {human.gap(gap)}"])]
        said += [f"breaks {', '.join(broken)}"] if broken else []
        named = ", ".join(row.solver for row in rows)
        return Text.assemble((named, "bold"), (": " + ", ".join(said), WRONG if broken else ""))


def _fitted(text: Text, options: ConsoleOptions, console: Console, indent: str) -> Iterator[Text]:
    """Yield a text in lines that fit, those after the first further in."""
    room = max(20, min(options.max_width, WIDEST))
    first, *more = text.wrap(console, room) or [text]
    yield first
    if more:
        rest = Text(text.plain[len(first.plain) :].lstrip())
        yield from (Text(indent) + line for line in rest.wrap(console, max(20, room - len(indent))))


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
    kept = [row for row in rows if row.place[0] == 0]
    found: list[Row] = []
    if kept:
        least = min(row.place[1] for row in kept)
        holders = ", ".join(row.solver for row in kept if row.place[1] == least)
        found.append(("best plan", f"{goal_amount(goal, least)}, by {holders}"))
    if best is None or best.bound is None:
        return KeyLines([*found, ("gap", Text("no solver proved a bound", style=OPEN))])
    proved = best.of_first_goal().proof is Proof.OPTIMAL
    what = "the proved optimum" if proved else "the best proved bound (no optimum was proved)"
    words = f"to {what}, {goal_amount(goal, best.bound)}, as a share of the objective"
    return KeyLines([*found, ("gap", Text(words, style=GOOD if proved else OPEN))])


def _table(goal: Goal, rows: list[ComparisonRow], best: Outcome | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("solver", no_wrap=True, overflow="fold")
    table.add_column("claim")
    for title in ("objective", "gap", "stages", "searched"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in sorted(rows, key=lambda one: one.place):
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
