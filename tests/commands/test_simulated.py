"""``pipecut.simulate``: the timeline of a plan for programs, and the last call of the paper's Listing 1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pipecut
from formulation.problem.layers import Layer, Split, layer_graph
from formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from tests.commands.test_evaluate_command import LAYERS, write_plan
from tests.report.test_page import Page

FOUR = ["training.micro_batches=4"]


def test_the_best_plan_is_run_and_drawn(scenario: Path) -> None:
    ran = pipecut.simulate(str(scenario))
    assert ran.outcome is not None and ran.outcome.proof is pipecut.Proof.OPTIMAL
    assert ran.content["claim"]["objective"] == 866_400 and ran.makespan_ns == ran.content["makespan_ns"]
    assert [measure.key for measure in ran.measures] == [row["key"] for row in ran.content["measures"]]
    ran.write("page.html", trace="trace.json", svg="pictures")
    assert Page(Path("page.html").read_text(encoding="utf-8")).json == ran.content
    assert json.loads(Path("trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert len(list(Path("pictures").glob("*.svg"))) == 4
    with pytest.raises(ValueError, match="there is no directory"):
        ran.write("none/page.html")


def test_a_plan_can_be_given_in_any_form(scenario: Path) -> None:
    loaded = pipecut.load_scenario(scenario, FOUR)
    outcome = pipecut.plan(loaded)
    assert outcome.plan is not None
    plan = write_plan((LAYERS[:3], {"node0": 1}), (LAYERS[3:], {"node1": 1}))
    runs = [
        pipecut.simulate(loaded, outcome),
        pipecut.simulate(loaded, outcome.plan),
        pipecut.simulate(loaded.load(), outcome.plan),
        pipecut.simulate(loaded.load()),
    ]
    assert len({ran.makespan_ns for ran in runs}) == 1
    assert [ran.outcome is None for ran in runs] == [False, True, True, False]
    assert len(pipecut.simulate(loaded, plan).content["stages"]) == 2


def test_other_orders(scenario: Path) -> None:
    loaded = pipecut.load_scenario(scenario, FOUR)
    plan = write_plan((LAYERS[:3], {"node0": 1}), (LAYERS[3:], {"node1": 1}))
    named = pipecut.simulate(loaded, plan, schedule="zero_bubble_h1")
    table = pipecut.simulate(loaded, plan, schedule=zero_bubble_h1(2, 4))
    rows = [",".join(map(str, named.timeline.schedule.actions(rank))) for rank in range(2)]
    Path("mine.csv").write_text("\n".join(rows), encoding="utf-8")
    filed = pipecut.simulate(loaded, plan, schedule="mine.csv")
    assert named.makespan_ns == table.makespan_ns == filed.makespan_ns
    assert filed.content["schedule"] == "mine.csv"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "slow"}, "no schedule 'slow'; expected one of interleaved, zero_bubble_h1, best"),
        ({"schedule": "interleaved"}, "needs the number of chunks"),
        ({"schedule": "interleaved", "chunks": 3}, "no multiple of its 3 chunks"),
        ({"chunks": 2}, "chunks is only for the schedule interleaved"),
        ({"schedule": "none.csv"}, "No such file"),
    ],
)
def test_wrong_input(scenario: Path, options: dict[str, object], message: str) -> None:
    plan = write_plan((LAYERS[:3], {"node0": 1}), (LAYERS[3:], {"node1": 1}))
    with pytest.raises(ValueError, match=message):
        pipecut.simulate(scenario, plan, **options)  # pyright: ignore[reportArgumentType]


def test_no_plan_to_run_is_said(scenario: Path) -> None:
    with pytest.raises(ValueError, match="there is no plan to run: infeasible"):
        pipecut.simulate(pipecut.load_scenario(scenario, ["cluster.devices.card.memory=1 KiB"]))


def test_the_last_call_of_the_listing(scenario: Path) -> None:
    inputs = pipecut.load_running_envs(scenario)
    model = pipecut.load_model("tiny.json")
    costs, forms = pipecut.profile_model(inputs, model)
    strategy = pipecut.trial_run(model, costs, forms)
    ran = pipecut.simulate(inputs, model, strategy)
    assert ran.content["claim"]["objective"] == strategy.time_ns
    with pytest.raises(ValueError, match="expected a problem with a plan"):
        pipecut.simulate(inputs, model)
    other = layer_graph("other", [Layer("one", "linear", Split.MATRIX, 4, 4, 4, 4, 9)], [])
    with pytest.raises(ValueError, match="the strategy is that of another model"):
        pipecut.simulate(inputs, other, strategy)
