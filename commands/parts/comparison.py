"""Several solvers on one instance: a row each, every claim held against the best plan, and the table as data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from commands.parts.task import Task
from commands.terminal.exit_codes import ExitCode
from commands.terminal.failures import ClaimFailedError
from formulation.evaluate import evaluate
from formulation.outcome import Outcome, Proof
from ingest.plans.plan_file import plan_to_dict
from report.claims import goals_to_list, scope_to_dict
from solvers.crosscheck.checked_solve import RefutedError, contradiction

if TYPE_CHECKING:
    from formulation.problem.instance import Instance
    from formulation.problem.plan import Plan

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
        outcome = task.search(solver, alone=True)
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
        "notes": [] if found is None else list(found.notes),
        "reason": row.reason,
    }
