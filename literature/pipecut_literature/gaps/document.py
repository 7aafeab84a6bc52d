"""The gap table for people: a document, and its summary for the terminal, both from the data of ``--json``.

The gap table as plain data: what every planner did with every case, and how far it is from the optimum.

A *gap* is ``(objective - bound) / objective`` of a plan that keeps the rules. Medians and worst gaps are taken
over the cases whose optimum is proved; a gap to a bound that is no optimum can only be too large.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pipecut.commands.parts.comparison import ComparisonRow
from pipecut.commands.terminal import terminal as human
from pipecut.formulation.costs.amounts import goal_text
from pipecut.formulation.outcome import Proof
from pipecut.formulation.problem.constraints import Goal
from pipecut_literature.gaps.cases import LARGE_LAYERS, SLOWER, VARIANTS, GapTableFamily
from pipecut_literature.gaps.solve import CaseResult, proves
from pipecut_literature.studies.study import Study, StudyTable, words

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


NOTHING = "-"
TITLE = "How far planners are from the proved optimum"
SUMMARY = "All cases"
NEARLY_ALL = 0.999
Row = Mapping[str, Any]


def document(content: Mapping[str, Any]) -> Study:
    """Return the document of the content that ``--json`` writes, as tables with the reading that was taken."""
    families = [family for family in GapTableFamily if any(one["family"] == family for one in content["cases"])]
    tables = [
        summary_table(content),
        families_table(content, families),
        *(cases_table(content, family) for family in families),
        provers_table(content),
    ]
    return Study(TITLE, reading(content), tuple(table for table in tables if table.rows))


def reading(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Say what was run and what the numbers mean."""
    proved = sum(one["proved"] for one in content["cases"])
    impossible = sum(one["impossible"] for one in content["cases"])
    variants = ", ".join(variant.name for variant in VARIANTS)
    return words(
        __file__,
        "reading",
        cases=len(content["cases"]),
        planned=content["planned"],
        variants=variants,
        proved=proved,
        impossible=impossible,
        slower=SLOWER,
        layers=LARGE_LAYERS,
    )


def summary_table(content: Mapping[str, Any]) -> StudyTable:
    """Return one row for each planner over all cases."""
    columns = (
        *("planner", "cases run", "breaks rules", "finds no plan", "to a bound only", "to the optimum"),
        *("of these optimal", "median gap", "worst gap", "where"),
    )
    rows = tuple(
        (
            row["solver"],
            *(str(row[key]) for key in ("run", "breaks_rules", "no_plan", "unproved", "known", "optimal")),
            gap_text(row["median_gap"]),
            gap_text(row["worst_gap"]),
            row["worst_case"] or NOTHING,
        )
        for row in content["planners"]
        if row["family"] == ALL
    )
    return StudyTable(SUMMARY, columns, rows, words(__file__, "summary"))


def families_table(content: Mapping[str, Any], families: Sequence[GapTableFamily]) -> StudyTable:
    """Return median and worst gap of each planner by family, with the plans that break rules or are missing."""
    found = {(row["solver"], row["family"]): row for row in content["planners"]}
    planners = dict.fromkeys(row["solver"] for row in content["planners"])
    rows = tuple((name, *(_family_cell(found[name, family]) for family in families)) for name in planners)
    remark = "Median gap, worst gap, and how many plans of how many break rules or are missing."
    return StudyTable("By family", ("planner", *map(str, families)), rows, (remark,))


def cases_table(content: Mapping[str, Any], family: GapTableFamily) -> StudyTable:
    """Return the cases of a family, with the gap of every planner."""
    cases = [one for one in content["cases"] if one["family"] == family]
    planners = list(dict.fromkeys(row["solver"] for one in cases for row in one["planners"]))
    rows: list[tuple[str, ...]] = []
    for one in cases:
        cells = {row["solver"]: planner_cell(row, proved=one["proved"]) for row in one["planners"]}
        rows.append((one["case"], optimum_cell(one), *(cells.get(name, NOTHING) for name in planners)))
    return StudyTable(f"Cases: {family}", ("case", "optimum", *planners), tuple(rows))


def provers_table(content: Mapping[str, Any]) -> StudyTable:
    """Return what the solvers that prove were asked and what they proved."""
    rows = tuple(
        (
            row["solver"],
            *(str(row[key]) for key in ("run", "proved", "refused", "failed")),
            f"{row['seconds']:.0f} s",
        )
        for row in content["provers"]
    )
    remark = "They are asked one after another, quickest first, until one proves the case."
    columns = ("solver", "cases asked", "proved", "refused", "failed", "time")
    return StudyTable("Where the optima come from", columns, rows, (remark,))


def optimum_cell(case: Row) -> str:
    """Return the optimum, or what is known of it."""
    goal = Goal(case["goal"])
    if case["impossible"]:
        return "no plan exists"
    if case["proved"]:
        return goal_text(goal, case["best_known"])
    low = "unknown" if case["bound"] is None else f">= {goal_text(goal, case['bound'])}"
    return low if case["best_known"] is None else f"{low}, <= {goal_text(goal, case['best_known'])}"


def planner_cell(row: Row, *, proved: bool) -> str:
    """Return what a planner did with a case."""
    if row["status"] == GAP:
        return gap_text(row["gap"]) if proved or row["gap"] is None else f"<= {gap_text(row['gap'])}"
    if row["status"] == BREAKS:
        return f"breaks {', '.join(row['violations'])}"
    return {NO_PLAN: NO_PLAN, FAILED: FAILED}.get(row["status"], NOTHING)


def _family_cell(row: Row) -> str:
    if not row["run"]:
        return NOTHING
    missing = row["breaks_rules"] + row["no_plan"]
    return f"{gap_text(row['median_gap'])}, {gap_text(row['worst_gap'])}, {missing} of {row['run']}"


def gap_text(value: float | None) -> str:
    """Return a gap in percent; one that would be rounded to 100 %, which none can be, as ``> 99.9 %``."""
    if value is None:
        return NOTHING
    return "> 99.9 %" if value > NEARLY_ALL else human.gap(value)
