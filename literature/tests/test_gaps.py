"""The gap table: its cases, its sums, its document, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from pipecut.commands.parser.options import parse
from pipecut.commands.parts.comparison import ComparisonRow
from pipecut.commands.terminal.failures import ExitCode, UsageError
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Outcome, Proof
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers import catalogue
from pipecut.solvers.catalogue import SolverEntry
from pipecut.solvers.reference import line_dp
from pipecut_literature.gaps import cases as gap_cases
from pipecut_literature.gaps.cases import (
    VARIANTS,
    GapTableCase,
    GapTableFamily,
    every_series,
    number_of_cases,
    smallest_fit,
    with_memory,
)
from pipecut_literature.gaps.document import (
    BREAKS,
    FAILED,
    GAP,
    NO_PLAN,
    REFUSED,
    document,
    entry,
    gap_text,
    planner_cell,
    summary,
    summary_table,
    to_dict,
)
from pipecut_literature.gaps.solve import CaseResult, GapTableSearch, Provers, run_series
from pipecut_literature.studies.study import to_markdown
from tests.command_line import Command
from tests.generators import cluster_graphs, instances, layer_graphs
from tests.laws import so_many

SLOW = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=so_many(60))
PLAN = Plan(())
SOLVERS = "line_dp,state_dp,pipepar,pipedream,alpa,data_parallel,picky"
TESTED = tuple(SOLVERS.split(","))


def feasible(solver: str, objective: int) -> ComparisonRow:
    return ComparisonRow(solver, Outcome(solver, Proof.FEASIBLE, PLAN, objective))


def optimal(objective: int) -> Outcome:
    return Outcome("exact", Proof.OPTIMAL, PLAN, objective, objective)


def result(
    number: int, *rows: ComparisonRow, best: Outcome | None = None, family: GapTableFamily = GapTableFamily.PLAIN
) -> CaseResult:
    """Case number so-and-so; without another one the optimum is 60."""
    found = best or optimal(60)
    case = GapTableCase(f"case{number}", "v", family, None)
    return CaseResult(case, Goal.BOTTLENECK, (*rows, ComparisonRow("exact", found)), found)


def planner_of(content: dict[str, Any], solver: str, family: str = "all") -> dict[str, Any]:
    (row,) = (one for one in content["planners"] if (one["solver"], one["family"]) == (solver, family))
    return row


@pytest.fixture
def folder(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one tiny scenario in the place of the shipped ones."""
    monkeypatch.setattr(gap_cases, "SHIPPED", scenario.parent)
    return scenario.parent


def test_median_worst_and_counts_are_exact() -> None:
    refused, none = (
        ComparisonRow("p", reason="skipped: too large"),
        ComparisonRow("p", Outcome("p", Proof.UNKNOWN)),
    )
    broken = ComparisonRow("p", Outcome("p", Proof.UNKNOWN, PLAN, 50), violations=("memory",))
    crashed = ComparisonRow("p", reason="broke down: KeyError", failure=ExitCode.DEFECT)
    bounded = Outcome("exact", Proof.UNKNOWN, bound=30)
    results = [
        *(result(number, feasible("p", price)) for number, price in enumerate((60, 90, 120, 180))),
        *(result(4, refused), result(5, none), result(6, broken), result(7, crashed)),
        result(8, feasible("p", 3000), best=bounded),
        result(9, broken, best=Outcome("exact", Proof.INFEASIBLE)),
    ]
    content = to_dict(results, 10)
    row = planner_of(content, "p")
    # Gaps 0, 1/3, 1/2 and 2/3; the median lies between the middle two.
    assert row["median_gap"] == float(Fraction(5, 12)) and row["worst_gap"] == float(Fraction(2, 3))
    assert row["worst_case"] == "case3, v"
    counts = {key: row[key] for key in ("run", "known", "optimal", "breaks_rules", "no_plan", "unproved")}
    assert counts == {"run": 7, "known": 4, "optimal": 1, "breaks_rules": 1, "no_plan": 1, "unproved": 1}
    assert (row["refused"], row["failed"], row["impossible"]) == (1, 1, 1)
    assert counts["run"] == sum(counts[key] for key in ("known", "breaks_rules", "no_plan", "unproved"))
    states = [one["planners"][0]["status"] for one in content["cases"]]
    assert states == [*[GAP] * 4, REFUSED, NO_PLAN, BREAKS, FAILED, GAP, BREAKS]
    assert content["cases"][8]["planners"][0]["gap"] == 0.99 and not content["cases"][8]["proved"]


def test_families_are_summed_apart() -> None:
    results = [
        result(0, feasible("p", 120)),
        result(1, feasible("p", 240), family=GapTableFamily.MIXED),
        result(2, feasible("p", 600), family=GapTableFamily.MIXED),
    ]
    content = to_dict(results, 3)
    assert planner_of(content, "p", "plain")["worst_gap"] == 0.5
    assert planner_of(content, "p", "mixed")["median_gap"] == float((Fraction(3, 4) + Fraction(9, 10)) / 2)
    assert planner_of(content, "p", "memory")["run"] == 0
    assert planner_of(content, "p", "memory")["median_gap"] is None
    assert planner_of(content, "p")["run"] == 3


def test_a_bound_that_a_plan_reaches_is_the_optimum() -> None:
    bounded = Outcome("exact", Proof.UNKNOWN, bound=60)
    reached, missed = result(0, feasible("p", 60), best=bounded), result(0, feasible("p", 61), best=bounded)
    assert reached.proved and not missed.proved
    assert entry(reached, reached.rows[0]).gap == 0
    assert planner_cell(to_dict([missed], 1)["cases"][0]["planners"][0], proved=False) == "<= 1.64 %"


def test_a_gap_is_never_rounded_to_all_of_it() -> None:
    assert [gap_text(one) for one in (None, 0.0, 0.5, 0.999, 0.9996)] == [
        "-",
        "0 %",
        "50.0 %",
        "99.9 %",
        "> 99.9 %",
    ]


def test_nobody_to_sum() -> None:
    assert summary([])["median_gap"] is None and to_dict([], 4)["planners"] == []
    assert document(to_dict([], 4)).tables == ()


@SLOW
@given(instances(layer_graphs(5), cluster_graphs(4)))
def test_the_smallest_memory_is_the_smallest(instance) -> None:
    plan = line_dp.solve(instance).plan
    assert plan is not None
    factor = smallest_fit(instance, plan)
    if factor == 0:  # nothing is held: any memory will do
        return
    assert evaluate(with_memory(instance, factor), plan).violations == ()
    less = with_memory(instance, factor * Fraction(99, 100))
    needs = {found.rule for found in evaluate(less, plan).violations}
    fits_all_the_same = smallest_fit(instance, plan) <= max(
        Fraction(small.device_class.memory_bytes, large.device_class.memory_bytes)
        for small, large in zip(less.servers, instance.servers, strict=True)
    )
    assert needs == {"memory"} or fits_all_the_same


def test_variants_change_what_they_say(folder: Path) -> None:
    series = {one.variant.name: one for one in every_series(["constraints.memory=true"])}
    assert list(series) == [variant.name for variant in VARIANTS]
    assert number_of_cases(list(series.values())) == sum(1 + len(one.percents) for one in VARIANTS) == 12
    assert not any(one.unlimited.constraints.memory for one in series.values())
    plain, mixed = series["as shipped"].unlimited, series["mixed"].unlimited
    assert [server.device_class.name for server in mixed.servers] == ["card", "card, half"]
    fast, slow = mixed.device_classes
    assert (fast.memory_bytes, fast.flops_per_second) == (1 << 30, 10**12)
    assert (slow.memory_bytes, slow.flops_per_second) == (1 << 29, 10**12 // 2)
    assert mixed.forward_ns[0] == plain.forward_ns[0] and sum(mixed.forward_ns[1]) > sum(plain.forward_ns[0])
    step = series["GPipe step"].unlimited
    assert step.goals == (Goal.ITERATION_TIME,) and step.training.schedule is Schedule.GPIPE
    assert (step.training.global_batch, step.training.micro_batches) == (8, 8)


def test_what_has_no_meaning_is_left_out(folder: Path) -> None:
    alone = load_scenario(folder / "tiny.yaml", ["cluster.servers[0].count=1"])
    summed = load_scenario(folder / "tiny.yaml", ["cost.combine=sum"])
    names = [
        [one.name for one in VARIANTS if gap_cases.varied(scenario, one) is not None]
        for scenario in (alone, summed)
    ]
    assert names == [["as shipped", "GPipe step", "1F1B step"], ["as shipped", "mixed"]]
    ordered = replace(load_scenario(folder / "tiny.yaml"), goals=(Goal.BOTTLENECK, Goal.DEVICES))
    first = gap_cases.varied(ordered, VARIANTS[0])
    assert first is not None and first.goals == (Goal.BOTTLENECK,)
    odd = gap_cases.stepped(Training(global_batch=3), Schedule.GPIPE, 8)
    assert (odd.global_batch, odd.micro_batches) == (24, 8)


def test_large_models_have_fewer_cases() -> None:
    small, large = (gap_cases.variants_for(layers) for layers in (300, 301))
    assert tuple(small) == VARIANTS
    assert [(one.name, one.percents) for one in large] == [("as shipped", (50,)), ("mixed", (50,))]


@pytest.mark.slow
def test_every_planner_is_held_against_a_proved_optimum(folder: Path) -> None:
    search = GapTableSearch((*TESTED[:-1], "brute_force"), Limits(time_limit_s=20), (), quiet=True)
    results = run_series(every_series([]), search)
    assert len(results) == 12
    for one in results:
        assert one.proved or one.impossible
        assert all(row.failure is None for row in one.rows)
        gaps = [found.gap for found in (entry(one, row) for row in one.rows) if found.gap is not None]
        assert all(gap >= 0 for gap in gaps)
    hundred = {one.case.variant: one for one in results if one.case.percent == 100}
    for one in results:
        if one.case.percent is None and one.case.variant in hundred:
            assert one.best is not None and hundred[one.case.variant].best is not None
            assert one.best.bound == getattr(hundred[one.case.variant].best, "bound", None)


def test_those_who_prove_are_asked_last_and_only_until_one_does() -> None:
    provers = Provers()
    for name, seconds, bound in (("slow", 9.0, 1), ("planner", 0.0, None), ("quick", 0.1, 1)):
        provers.note(ComparisonRow(name, Outcome(name, Proof.UNKNOWN, bound=bound, seconds=seconds)))
    assert provers.split(("slow", "planner", "quick")) == (["planner"], ["quick", "slow"])


@pytest.mark.slow
def test_the_document_is_the_json(folder: Path, pipecut: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gap_cases, "SHIPPED", folder)
    ran = pipecut("compare", "--all", "--json", "--out", "gaps.md", "--solvers", SOLVERS)
    assert ran.code == 0 and len(ran.json["cases"]) == ran.json["planned"] == 12
    text = Path("gaps.md").read_text(encoding="utf-8")
    command = f"pipecut compare --all --out gaps.md --solvers {SOLVERS}"
    assert re.search(rf"^Written by `{command}` on \d{{4}}-\d\d-\d\d\.$", text, re.MULTILINE)
    today = re.findall(r"on (\d{4}-\d\d-\d\d)\.", text)[0]
    assert text == to_markdown(document(ran.json), command, today)
    for case in ran.json["cases"]:
        (line,) = re.findall(rf"^\| {re.escape(case['case'])} \| (.+) \|$", text, re.MULTILINE)
        cells = line.split(" | ")[1:]
        assert len(cells) == len(case["planners"])
        for cell, row in zip(cells, case["planners"], strict=True):
            if row["gap"] is not None and case["proved"]:
                assert cell == gap_text(row["gap"])
            assert (row["status"] == BREAKS) == cell.startswith("breaks ")
    for row in ran.json["planners"]:
        if row["family"] == "all":
            (line,) = re.findall(rf"^\| {row['solver']} \| (\d+ .+) \|$", text, re.MULTILINE)[:1]
            run, breaks, none, unproved, known, best, median, worst, _ = line.split(" | ")
            assert [int(one) for one in (run, breaks, none, unproved, known, best)] == [
                row[key] for key in ("run", "breaks_rules", "no_plan", "unproved", "known", "optimal")
            ]
            shown = [None if one == "-" else one for one in (median, worst)]
            assert shown == [
                None if row[key] is None else gap_text(row[key]) for key in ("median_gap", "worst_gap")
            ]
    assert planner_of(ran.json, "picky")["run"] == 0


def test_a_false_claim_is_marked_and_ends_with_its_code(folder: Path, pipecut: Command) -> None:
    ran = pipecut("compare", "--all", "--json", "--solvers", "line_dp,state_dp,wrong_price,broken")
    states = {row["status"] for case in ran.json["cases"] for row in case["planners"]}
    assert ran.code == 4 and states == {FAILED}
    assert planner_of(ran.json, "wrong_price")["failed"] == 12


def test_the_summary_goes_to_the_terminal(folder: Path, pipecut: Command) -> None:
    ran = pipecut("compare", "--all", "--solvers", "line_dp,state_dp,data_parallel", "--quiet")
    assert ran.code == 0 and ran.err == ""
    assert re.search(r"^data_parallel .* %$", ran.out, re.MULTILINE)
    assert re.search(r"^data_parallel: worst in tiny, ", ran.out, re.MULTILINE)


def interrupting(instance: Any, limits: Limits) -> Outcome:
    """Press Ctrl-C once and end when told to."""
    os.kill(os.getpid(), signal.SIGINT)
    while not limits.stopped():
        time.sleep(0.01)
    return Outcome("interrupting", Proof.UNKNOWN)


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_shows_what_is_done_and_writes_nothing(
    folder: Path, pipecut: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job would ignore Ctrl-C
    calls: list[str] = []

    def third_time(instance: Any, limits: Limits) -> Outcome:
        calls.append(instance.name)
        return interrupting(instance, limits) if len(calls) == 3 else Outcome("third_time", Proof.UNKNOWN)

    extra = SolverEntry("third_time", "a fake", lambda: third_time)
    monkeypatch.setattr(catalogue, "SOLVERS", (*catalogue.SOLVERS, extra))
    Path("gaps.md").write_text("the old table", encoding="utf-8")
    ran = pipecut("compare", "--all", "--json", "--out", "gaps.md", "--solvers", "line_dp,state_dp,third_time")
    assert ran.code == 3 and [case["memory_percent"] for case in ran.json["cases"]] == [None, 100]
    assert "stopped after 2 of 12 cases; gaps.md is not written" in ran.err
    assert Path("gaps.md").read_text(encoding="utf-8") == "the old table"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: SCENARIO (or --all)"),
        (["x.yaml", "--all"], "argument --all: not allowed with argument SCENARIO"),
        (["x.yaml", "--out", "y.md"], "argument --out: only allowed with argument --all"),
    ],
)
def test_one_scenario_or_all(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse(["compare", *arguments])


def test_a_document_that_cannot_be_written_is_refused_before_the_work(folder: Path, pipecut: Command) -> None:
    ran = pipecut("compare", "--all", "--out", "nowhere/gaps.md")
    assert ran.code == 2 and "there is no directory" in ran.err


def test_the_summary_table_shows_planners_only() -> None:
    content = to_dict([result(0, feasible("p", 120))], 1)
    assert [row[0] for row in summary_table(content).rows] == ["p"]
