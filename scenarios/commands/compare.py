"""``pipecut compare``: several solvers on one instance, side by side; with ``--all`` the gap table."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from formulation.amounts import goal_amount, goal_text
from formulation.evaluate import evaluate
from formulation.options import Goal
from formulation.outcome import Outcome, Proof
from formulation.scope import scope_of, scope_parts
from report.claims import goals_to_list, scope_to_dict
from scenarios import human, output
from scenarios.exit_codes import ExitCode
from scenarios.failures import ClaimFailedError
from scenarios.running import RefutedError, contradiction
from scenarios.task import EXIT_CODES, Task, open_task

if TYPE_CHECKING:
    from rich.table import Table

    from formulation.instance import Instance

NOTHING = "-"
KEEPS_RULES = (Proof.OPTIMAL, Proof.FEASIBLE)
"""Proofs of outcomes whose plan keeps every rule."""


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one solver: an outcome, or the reason why there is none."""

    solver: str
    outcome: Outcome | None = None
    violations: tuple[str, ...] = ()
    reason: str = ""
    failure: ExitCode | None = None
    """How the whole comparison ends if the solver broke down or its claim failed its check."""


def run(arguments: argparse.Namespace) -> int:
    """Run the solvers one after another, show a row for each, and return the exit code."""
    if arguments.everything:
        from scenarios.gap_command import run_all  # built from what is here

        return run_all(arguments)
    task = open_task(arguments)
    rows = held_to_the_best(task, [compared_row(task, solver) for solver in arguments.solvers])
    best = strongest([row.outcome for row in rows if row.outcome is not None and row.failure is None])
    goal = task.instance.goals[0]
    if arguments.json:
        arguments.reply.put(comparison_to_dict(task, rows, best), problems_of(rows))
    else:
        output.show(_table(goal, rows, best), "", _lines(task.instance, rows, best))
    return _exit_code(rows, best)


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


def compared_row(task: Task, solver: str) -> Row:
    """Run one solver. Nothing that it does wrong ends the comparison."""
    if task.stop.is_set():
        return Row(solver, reason="not run: stopped")
    try:
        outcome = task.search(solver, cross_check=False)
        return Row(solver, outcome, broken_rules(task, outcome))
    except ClaimFailedError as error:
        refuted = error.__cause__
        broken = broken_rules(task, refuted.outcome) if isinstance(refuted, RefutedError) else ()
        return Row(solver, None, broken, _one_line(error), ExitCode.FALSE_CLAIM)
    except ValueError as error:
        return Row(solver, reason=f"skipped: {error}")
    except Exception as error:
        return Row(solver, reason=f"broke down: {type(error).__name__}: {error}", failure=ExitCode.DEFECT)


def broken_rules(task: Task, outcome: Outcome) -> tuple[str, ...]:
    """Name the rules that the plan of an outcome breaks."""
    found = () if outcome.plan is None else evaluate(task.instance, outcome.plan).violations
    return tuple(dict.fromkeys(violation.rule for violation in found))


def held_to_the_best(task: Task, rows: list[Row]) -> list[Row]:
    """Hold every claim against the best plan that any solver found; mark the rows that it refutes."""
    priced = [row.outcome for row in rows if row.outcome is not None and row.outcome.objective is not None]
    best = min((one for one in priced if one.proof in KEEPS_RULES), key=_price, default=None)
    if best is None:
        return rows
    held: list[Row] = []
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


def problems_of(rows: Iterable[Row]) -> list[str]:
    """Say of every solver that broke down or made a false claim why the comparison ends in an error."""
    return [f"{row.solver}: {row.reason}" for row in rows if row.failure is not None]


def _exit_code(rows: list[Row], best: Outcome | None) -> ExitCode:
    failures = [row.failure for row in rows if row.failure is not None]
    if failures:
        return min(failures)
    return ExitCode.NOT_PROVED if best is None else EXIT_CODES[best.proof]


def _keeps_rules(row: Row) -> str:
    if row.violations:
        return f"breaks {', '.join(row.violations)}"
    return NOTHING if row.outcome is None or row.outcome.plan is None else "yes"


def _table(goal: Goal, rows: list[Row], best: Outcome | None) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("solver", "proof", "keeps the rules"):
        table.add_column(title)
    for title in ("objective", "gap", "stages", "time"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(row.solver, *_cells(goal, row, best))
    return table


def _cells(goal: Goal, row: Row, best: Outcome | None) -> tuple[str, ...]:
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


def _lines(instance: Instance, rows: list[Row], best: Outcome | None) -> str:
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


def comparison_to_dict(task: Task, rows: list[Row], best: Outcome | None) -> dict[str, Any]:
    """Return the table as plain data: the bound that gaps are measured to, and one entry for each solver."""
    proved = best is not None and best.of_first_goal().proof is Proof.OPTIMAL
    return {
        "scenario": task.scenario.name,
        "optimum": best.objective if best is not None and proved else None,
        "bound": None if best is None else best.bound,
        "scope": scope_to_dict(task.instance),
        "solvers": [_row_to_dict(row, best) for row in rows],
    }


def _row_to_dict(row: Row, best: Outcome | None) -> dict[str, Any]:
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
        "notes": [] if found is None else list(found.notes),
        "reason": row.reason,
    }
