"""The gap table as plain data: what every planner did with every case, and how far it is from the optimum.

A *gap* is ``(objective - bound) / objective`` of a plan that keeps the rules. Medians and worst gaps are taken
over the cases whose optimum is proved; a gap to a bound that is no optimum can only be too large.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pipecut.commands.parts.comparison import ComparisonRow
from pipecut.formulation.outcome import Proof
from pipecut_literature.gaps.cases import GapTableFamily
from pipecut_literature.gaps.solve import CaseResult, proves

GAP, BREAKS, NO_PLAN, REFUSED, FAILED = "gap", "breaks rules", "no plan", "refused", "failed"
"""What a planner did with a case; FAILED: it broke down, or claimed what does not hold."""
ALL = "all"
"""Stands for all families together."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One planner on one case. ``gap`` is exact where ``proved``, else no less than the true one."""

    solver: str
    family: GapTableFamily
    case: str
    status: str
    gap: Fraction | None
    proved: bool
    impossible: bool


def provers_of(results: Sequence[CaseResult]) -> tuple[str, ...]:
    """Return the solvers that gave a bound on any case, in the order in which they appear."""
    rows = (row for result in results for row in result.rows)
    return tuple(dict.fromkeys(row.solver for row in rows if row.outcome is not None and proves(row.outcome)))


def entry(result: CaseResult, row: ComparisonRow) -> Entry:
    """Return what a planner did with a case."""
    found = row.outcome
    gap = None
    if row.failure is not None:
        status = FAILED
    elif found is None:
        status = REFUSED
    elif found.plan is None:
        status = NO_PLAN
    elif row.violations:
        status = BREAKS
    else:
        status = GAP
        bound = None if result.best is None else result.best.bound
        if bound is not None and found.objective is not None:
            gap = Fraction(found.objective - bound, found.objective) if found.objective else Fraction(0)
    case = result.case
    return Entry(row.solver, case.family, case.name, status, gap, result.proved, result.impossible)


def summary(entries: Iterable[Entry]) -> dict[str, Any]:
    """Return counts, median and worst gap of the entries of one planner.

    Cases that no plan can solve are counted on their own: whatever a planner returns there breaks a rule.
    """
    rows = list(entries)
    possible = [row for row in rows if not row.impossible]
    run = [row for row in possible if row.status not in (REFUSED, FAILED)]
    known = [row for row in run if row.proved and row.gap is not None]
    worst = max(known, key=lambda row: row.gap or 0, default=None)
    median = statistics.median(row.gap for row in known if row.gap is not None) if known else None
    return {
        "run": len(run),
        "breaks_rules": sum(row.status == BREAKS for row in run),
        "no_plan": sum(row.status == NO_PLAN for row in run),
        "unproved": sum(row.status == GAP and not row.proved for row in run),
        "refused": sum(row.status == REFUSED for row in possible),
        "failed": sum(row.status == FAILED for row in rows),
        "impossible": len(rows) - len(possible),
        "optimal": sum(row.gap == 0 for row in known),
        "known": len(known),
        "median_gap": None if median is None else float(median),
        "worst_gap": None if worst is None else float(worst.gap or 0),
        "worst_case": None if worst is None else worst.case,
    }


def to_dict(results: Sequence[CaseResult], planned: int) -> dict[str, Any]:
    """Return everything that the document shows, as plain data for ``--json``."""
    provers = provers_of(results)
    entries = [[entry(result, row) for row in result.rows if row.solver not in provers] for result in results]
    flat = [one for rows in entries for one in rows]
    planners = tuple(dict.fromkeys(one.solver for one in flat))
    return {
        "planned": planned,
        "cases": [_case_to_dict(*pair, provers) for pair in zip(results, entries, strict=True)],
        "planners": [
            {"solver": name, "family": family, **summary(one for one in flat if _belongs(one, name, family))}
            for name in planners
            for family in (ALL, *map(str, GapTableFamily))
        ],
        "provers": [_prover_to_dict(name, results) for name in provers],
    }


def _belongs(one: Entry, solver: str, family: str) -> bool:
    return one.solver == solver and family in (ALL, str(one.family))


def _case_to_dict(result: CaseResult, entries: Sequence[Entry], provers: Sequence[str]) -> dict[str, Any]:
    case, cheapest = result.case, result.cheapest
    rows = {row.solver: row for row in result.rows}
    return {
        "case": case.name,
        "scenario": case.scenario,
        "variant": case.variant,
        "family": str(case.family),
        "memory_percent": case.percent,
        "goal": str(result.goal),
        "proved": result.proved,
        "impossible": result.impossible,
        "bound": None if result.best is None else result.best.bound,
        "best_known": None if cheapest is None else cheapest.objective,
        "proved_by": None if result.best is None else result.best.solver,
        "planners": [
            {
                "solver": one.solver,
                "status": one.status,
                "objective": getattr(rows[one.solver].outcome, "objective", None),
                "gap": None if one.gap is None else float(one.gap),
                "violations": list(rows[one.solver].violations),
                "reason": rows[one.solver].reason,
            }
            for one in entries
        ],
        "provers": [name for name in provers if name in rows],
    }


def _prover_to_dict(name: str, results: Sequence[CaseResult]) -> dict[str, Any]:
    rows = [row for result in results for row in result.rows if row.solver == name]
    found = [row.outcome for row in rows if row.outcome is not None and row.failure is None]
    return {
        "solver": name,
        "run": len(found),
        "proved": sum(one.proof in (Proof.OPTIMAL, Proof.INFEASIBLE) for one in found),
        "seconds": sum(one.seconds for one in found),
        "refused": sum(row.outcome is None and row.failure is None for row in rows),
        "failed": sum(row.failure is not None for row in rows),
    }
