"""The gap table for people: a document, and its summary for the terminal, both from the data of ``--json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipecut.commands.terminal import terminal as human
from pipecut.formulation.costs.amounts import goal_text
from pipecut.formulation.problem.constraints import Goal
from pipecut_literature.gaps.cases import LARGE_LAYERS, SLOWER, VARIANTS, GapTableFamily
from pipecut_literature.gaps.report import ALL, BREAKS, FAILED, GAP, NO_PLAN
from pipecut_literature.studies.study import Study, StudyTable, words

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
