"""``pipecut.simulate``: the timeline of a plan for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pipecut
from pipecut.formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from tests.commands.test_evaluate_command import LAYERS, write_plan
from tests.report.test_page import Page

FOUR = ["training.micro_batches=4"]


@pytest.fixture
def problem(scenario: Path) -> pipecut.Instance:
    return pipecut.load(scenario, FOUR)


@pytest.fixture
def halves(problem: pipecut.Instance) -> pipecut.Plan:
    return pipecut.read_plan(write_plan((LAYERS[:3], {"node0": 1}), (LAYERS[3:], {"node1": 1})), problem)


def test_the_best_plan_is_run_and_drawn(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = pipecut.load(scenario)
    outcome = pipecut.plan(problem)
    ran = pipecut.simulate(problem, outcome.needed_plan(), claim=outcome)
    assert ran.outcome is not None and ran.outcome.proof is pipecut.Proof.OPTIMAL
    assert ran.content["claim"]["objective"] == 866_400 and ran.makespan_ns == ran.content["makespan_ns"]
    assert [measure.key for measure in ran.measures] == [row["key"] for row in ran.content["measures"]]
    ran.write("page.html", trace="trace.json", svg="pictures")
    assert Page(Path("page.html").read_text(encoding="utf-8")).json == ran.content
    assert json.loads(Path("trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert len(list(Path("pictures").glob("*.svg"))) == 4
    assert capsys.readouterr() == ("", ""), "a program is not told what it has asked for"
    with pytest.raises(ValueError, match="there is no directory"):
        ran.write("none/page.html")


def test_a_claim_is_shown_and_changes_nothing(problem: pipecut.Instance) -> None:
    outcome = pipecut.plan(problem)
    bare = pipecut.simulate(problem, outcome.needed_plan())
    named = pipecut.simulate(problem, outcome.needed_plan(), claim=outcome, name="mine")
    assert bare.makespan_ns == named.makespan_ns
    assert (bare.outcome, named.outcome) == (None, outcome)
    assert (bare.name, named.name) == (problem.name, "mine")


def test_other_orders(problem: pipecut.Instance, halves: pipecut.Plan) -> None:
    named = pipecut.simulate(problem, halves, schedule="zero_bubble_h1")
    table = pipecut.simulate(problem, halves, table=zero_bubble_h1(2, 4))
    rows = [",".join(map(str, named.timeline.schedule.actions(rank))) for rank in range(2)]
    Path("mine.csv").write_text("\n".join(rows), encoding="utf-8")
    filed = pipecut.simulate(problem, halves, table=pipecut.read_schedule("mine.csv"))
    assert named.makespan_ns == table.makespan_ns == filed.makespan_ns
    assert filed.content["schedule"] == "mine.csv"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "slow"}, "no schedule 'slow'; expected one of interleaved, zero_bubble_h1, best"),
        ({"schedule": "interleaved"}, "needs the number of chunks"),
        ({"schedule": "interleaved", "chunks": 3}, "no multiple of its 3 chunks"),
        ({"chunks": 2}, "chunks is only for the schedule interleaved"),
        ({"schedule": "best", "table": zero_bubble_h1(2, 4)}, "the name of a schedule or its table, not both"),
    ],
)
def test_wrong_input(
    problem: pipecut.Instance, halves: pipecut.Plan, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pipecut.simulate(problem, halves, **options)  # pyright: ignore[reportArgumentType]


def test_a_schedule_file_that_is_not_there(scenario: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        pipecut.read_schedule(scenario.parent / "none.csv")


def test_no_plan_to_run_is_said(scenario: Path) -> None:
    outcome = pipecut.plan(pipecut.load(scenario, ["cluster.devices.card.memory=1 KiB"]))
    with pytest.raises(ValueError, match="there is no plan: infeasible"):
        outcome.needed_plan()
