"""Several solvers on one instance: a row each, every claim held against the best plan, and the table as data.

Several solvers on one instance as a table for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from pipecut.commands.parts.tables import GOOD, OPEN, WIDEST, WRONG, KeyLines, Row, scope_rows, stage_in_words
from pipecut.commands.parts.task import Task
from pipecut.commands.terminal import terminal as human
from pipecut.commands.terminal.failures import ClaimFailedError, ExitCode
from pipecut.formulation.costs.amounts import goal_amount, goal_text
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Outcome, Proof
from pipecut.formulation.problem.constraints import Goal
from pipecut.ingest.plans.plan_file import plan_to_dict
from pipecut.report.claims import goals_to_list, scope_to_dict
from pipecut.solvers.crosscheck import RefutedError, contradiction

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan

KEEPS_RULES = (Proof.OPTIMAL, Proof.FEASIBLE)
"""Proofs of outcomes whose plan keeps every rule."""


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """What became of one solver: an outcome, or the reason why there is none."""

    solver: str
    outcome: Outcome | None = None
    violations: tuple[str, ...] = ()
    reason: str = ""
    failure: ExitCode | None = None
    """How the whole comparison ends if the solver broke down or its claim failed its check."""

    @property
    def place(self) -> tuple[int, int]:
        """What rows are sorted by: plans that keep the rules by price, those that break some, then none."""
        if self.outcome is None or self.outcome.objective is None or self.failure is not None:
            return 2, 0
        return int(bool(self.violations)), self.outcome.objective


def plans_of(rows: Iterable[ComparisonRow]) -> dict[Plan, list[ComparisonRow]]:
    """Return the plans, best first, each with the rows that have it."""
    found: dict[Plan, list[ComparisonRow]] = {}
    for row in sorted(rows, key=lambda one: one.place):
        if row.outcome is not None and row.outcome.plan is not None:
            found.setdefault(row.outcome.plan, []).append(row)
    return found


def plans_to_list(instance: Instance, rows: Iterable[ComparisonRow], best: Outcome | None) -> list[dict[str, Any]]:
    """Return the plans as plain data, best first: who has each, its gap, and the plan with its prices."""
    return [
        {
            "solvers": [row.solver for row in held],
            "gap": None if held[0].violations else gap_to(best, held[0].outcome),
            "objective": held[0].outcome.objective,
            "violations": list(held[0].violations),
            "stages": plan_to_dict(instance, plan, evaluate(instance, plan))["stages"],
        }
        for plan, held in plans_of(rows).items()
        if held[0].outcome is not None
    ]


def strongest(outcomes: list[Outcome]) -> Outcome | None:
    """Return the outcome that says most: a proof if there is one, else the largest bound that was proved."""
    proved = [one for one in outcomes if one.proof in (Proof.OPTIMAL, Proof.INFEASIBLE)]
    if proved:
        return proved[0]
    bounded = [one for one in outcomes if one.bound is not None]
    return max(bounded, key=lambda one: one.bound or 0, default=None)


def gap_to(best: Outcome | None, outcome: Outcome) -> float | None:
    """Return ``(objective - bound) / objective`` with the strongest bound of all solvers; None without both."""
    if best is None or best.bound is None or outcome.objective is None:
        return None
    return (outcome.objective - best.bound) / outcome.objective if outcome.objective else 0.0


def compared_row(task: Task, solver: str) -> ComparisonRow:
    """Run one solver. Nothing that it does wrong ends the comparison."""
    if task.stop.is_set():
        return ComparisonRow(solver, reason="not run: stopped")
    try:
        outcome = task.search(solver)
        return ComparisonRow(solver, outcome, broken_rules(task.instance, outcome))
    except ClaimFailedError as error:
        refuted = error.__cause__
        broken = broken_rules(task.instance, refuted.outcome) if isinstance(refuted, RefutedError) else ()
        return ComparisonRow(solver, None, broken, _one_line(error), ExitCode.FALSE_CLAIM)
    except ValueError as error:
        return ComparisonRow(solver, reason=f"skipped: {error}")
    except Exception as error:
        return ComparisonRow(
            solver, reason=f"broke down: {type(error).__name__}: {error}", failure=ExitCode.DEFECT
        )


def broken_rules(instance: Instance, outcome: Outcome) -> tuple[str, ...]:
    """Name the rules that the plan of an outcome breaks."""
    found = () if outcome.plan is None else evaluate(instance, outcome.plan).violations
    return tuple(dict.fromkeys(violation.rule for violation in found))


def held_to_the_best(task: Task, rows: list[ComparisonRow]) -> list[ComparisonRow]:
    """Hold every claim against the best plan that any solver found; mark the rows that it refutes."""
    priced = [row.outcome for row in rows if row.outcome is not None and row.outcome.objective is not None]
    best = min((one for one in priced if one.proof in KEEPS_RULES), key=_price, default=None)
    if best is None:
        return rows
    held: list[ComparisonRow] = []
    for row in rows:
        problem = None if row.outcome is None else contradiction(row.outcome, best)
        if problem:
            failed = task.claim_failed(row.solver, problem)
            held.append(replace(row, reason=_one_line(failed), failure=ExitCode.FALSE_CLAIM))
        else:
            held.append(row)
    return held


def _price(outcome: Outcome) -> int:
    return outcome.objective or 0


def _one_line(error: ClaimFailedError) -> str:
    return str(error).replace("\n", "; ")


def problems_of(rows: Iterable[ComparisonRow]) -> list[str]:
    """Say of every solver that broke down or made a false claim why the comparison ends in an error."""
    return [f"{row.solver}: {row.reason}" for row in rows if row.failure is not None]


def comparison_to_dict(task: Task, rows: list[ComparisonRow], best: Outcome | None) -> dict[str, Any]:
    """Return the table as plain data: the bound that gaps are measured to, and one entry for each solver."""
    proved = best is not None and best.of_first_goal().proof is Proof.OPTIMAL
    return {
        "scenario": task.scenario.name,
        "optimum": best.objective if best is not None and proved else None,
        "bound": None if best is None else best.bound,
        "scope": scope_to_dict(task.instance),
        "solvers": [_row_to_dict(row, best) for row in rows],
    }


def _row_to_dict(row: ComparisonRow, best: Outcome | None) -> dict[str, Any]:
    found = row.outcome
    return {
        "solver": row.solver,
        "proof": None if found is None else str(found.proof),
        "objective": None if found is None else found.objective,
        "bound": None if found is None else found.bound,
        "gap": None if found is None or row.violations else gap_to(best, found),
        "goals": [] if found is None else goals_to_list(found),
        "feasible": not row.violations
        if row.violations or (found is not None and found.plan is not None)
        else None,
        "violations": list(row.violations),
        "stages": None if found is None or found.plan is None else len(found.plan),
        "seconds": None if found is None else found.seconds,
        "notes": [] if found is None else [*found.notes, *found.checks],
        "reason": row.reason,
    }


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
            for remark in (
                *(() if row.outcome is None else (*row.outcome.notes, *row.outcome.checks)),
                row.reason,
            ):
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
