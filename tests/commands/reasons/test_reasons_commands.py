from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipecut.commands.main import main
from pipecut.formulation.evaluate import evaluate
from pipecut.ingest.plans.plan_file import read_plan
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers import catalogue
from tests.command_line import Command
from tests.commands.fakes import ROOT, instead_of, wrong_proof

LAYERS = ["conv1", "relu1", "conv2", "relu2", "fc[3]"]
PAGE = (ROOT / "docs" / "reasons.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"<!-- part of: (.+?) -->\n```text\n(.+?)```", PAGE, re.DOTALL)


def written(name: str, *stages: tuple[list[str], dict[str, int]]) -> Path:
    path = Path(name)
    content = {"stages": [{"layers": layers, "devices": devices} for layers, devices in stages]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def plans_in(content: Any) -> list[dict[str, Any]]:
    """Return every object of a reply that is a plan with values."""
    found: list[dict[str, Any]] = []
    if isinstance(content, dict):
        found += [content] if {"values", "stages"} <= set(content) else []
        content = list(content.values())
    if isinstance(content, list):
        found += [one for part in content for one in plans_in(part)]
    return found


def values_of(scenario: Path, stages: list[dict[str, Any]]) -> int | None:
    instance = load_scenario(scenario).load()
    path = Path("again.json")
    path.write_text(json.dumps({"stages": stages}), encoding="utf-8")
    return evaluate(instance, read_plan(path, instance)).objective


def test_every_statement_in_json_is_a_plan_that_can_be_priced_again(pipecut: Command, scenario: Path) -> None:
    plan = written("hand.json", (LAYERS[:2], {"node0": 1}), (LAYERS[2:], {"node1": 2}))
    found = pipecut("explain", plan, scenario, "--json").json
    said = plans_in(found["reasons"])
    assert len(said) > 10 and found["optimum"] is None
    for one in said:
        assert values_of(scenario, one["stages"]) == one["values"][0], one
    base = found["reasons"]["values"][0]
    assert sum(term["value"] * term["times"] for term in found["reasons"]["terms"]) == base
    better = found["reasons"]["better"]
    assert (
        better["costs"][0] < 0 and better["values"][0] == base + better["costs"][0] and not better["broken_rules"]
    )


def test_the_best_plan_is_searched_for_where_none_is_given(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("explain", scenario)
    assert ran.code == 0 and "optimal, proved" in ran.out and "\nbounds " in ran.out
    assert "better" not in [line.split()[0] for line in ran.out.splitlines() if line.strip()]
    asked = pipecut("explain", scenario, "--json", "--time-limit", "20 s").json
    assert asked["optimum"]["proof"] == "optimal" and asked["reasons"]["values"] == [asked["optimum"]["objective"]]
    idle = asked["reasons"]["idle"]
    if idle is not None:
        assert idle["best"]["objective"] >= asked["optimum"]["objective"]


@pytest.mark.parametrize("solver", ["data_parallel", "naive_model_parallel"])
def test_a_plan_that_the_run_itself_has_beaten_is_not_what_is_explained(
    pipecut: Command, scenario: Path, solver: str
) -> None:
    searched = pipecut("plan", scenario, "--json", "--solver", solver).json
    best = pipecut("plan", scenario, "--json").json["objective"]
    assert searched["objective"] > best
    found = pipecut("explain", scenario, "--json", "--set", f"solver.name={solver}").json
    value = found["reasons"]["values"][0]
    assert found["optimum"]["objective"] == value < searched["objective"]
    assert found["reasons"]["better"] is None
    more = found["reasons"]["idle"]
    assert more is None or more["best"]["objective"] is None or more["best"]["objective"] >= value
    assert any("this plan turned up" in note for note in found["reasons"]["notes"])


@pytest.mark.slow
def test_what_was_chosen_with_the_plan_is_said_of_all_that_is_spoken_of(pipecut: Command, scenario: Path) -> None:
    told = pipecut("explain", scenario, "--set", "training.micro_batches=choose", "--json").json["reasons"][
        "notes"
    ]
    assert any("micro-batch" in note and "all plans spoken of have" in note for note in told)
    assert pipecut("explain", scenario, "--json").json["reasons"]["notes"] == []


def test_executed_goals_are_explained_by_the_chain(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("explain", scenario, "--set", "objective=step_time", "--set", "training.schedule=one_f_one_b")
    assert "what overlaps does not add up" in ran.out and "\nchain " in ran.out
    assert "is paced" not in ran.out


def test_what_is_not_answered_in_time_is_said(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipecut.commands.explain.REASONS_S", 0.0)
    plan = written("hand.json", (LAYERS[:2], {"node0": 1}), (LAYERS[2:], {"node1": 2}))
    ran = pipecut("explain", plan, scenario)
    assert "not answered in time" in ran.out and "\nopen " in ran.out and "--time-limit" in ran.out
    assert "there is no other" not in ran.out


def test_that_nothing_may_be_cut_beside_a_cut_is_said_once(pipecut: Command, scenario: Path) -> None:
    plan = written("hand.json", (LAYERS[:2], {"node0": 1}), (LAYERS[2:], {"node1": 2}))
    narrowed = scenario.read_text(encoding="utf-8") + "\nconstraints: {no_cut: [relu1, relu2, fc*]}\n"
    scenario.write_text(narrowed, encoding="utf-8")
    ran = pipecut("explain", plan, scenario)
    assert ran.out.count("no_cut") == 1 and "breaks no_cut" not in ran.out


def test_reasons_are_told_line_by_line(pipecut: Command, scenario: Path) -> None:
    plan = written("hand.json", (LAYERS[:2], {"node0": 1}), (LAYERS[2:], {"node1": 2}))
    text = pipecut("explain", plan, scenario).out
    reasons = text[text.index("\nbounds ") :]
    assert "\nbetter " in reasons and "one layer right" in reasons


def test_a_plan_that_breaks_rules_says_which(pipecut: Command, scenario: Path) -> None:
    plan = written("hand.json", (LAYERS[:3], {"node1": 1}), (LAYERS[3:], {"node0": 1}))
    ran = pipecut("explain", plan, scenario)
    assert ran.code == 1 and "breaks     line" in ran.out


def test_a_neighbour_out_of_memory_says_by_how_much(pipecut: Command, scenario: Path) -> None:
    plan = written("hand.json", (LAYERS[:4], {"node0": 1}), (LAYERS[4:], {"node0": 1}))
    needed = pipecut("explain", plan, scenario, "--json").json["reasons"]["memory"]
    most = max(row["needed_bytes"] for row in needed)
    assert needed[1]["needed_bytes"] == most
    limited = ("--set", "constraints.memory=true", "--set", f"cluster.devices.card.memory={most} B")
    found = pipecut("explain", plan, scenario, "--json", *limited).json["reasons"]
    assert found["broken_rules"] == []
    rules = found["cuts"][0]["left"]["broken_rules"]
    assert rules[0]["rule"] == "memory" and rules[0]["found"] > rules[0]["limit"] == most
    text = pipecut("explain", plan, scenario, *limited).out
    assert "breaks memory" in text and "the tightest" in text


@pytest.mark.slow
def test_an_instance_without_a_plan_is_explained_by_what_clashes(pipecut: Command, scenario: Path) -> None:
    asked = ("--set", "cluster.devices.card.memory=1 KiB")
    found = pipecut("explain", scenario, "--json", *asked)
    assert found.code == 1 and found.json["reasons"] is None and found.json["explanation"]["clashes"]
    assert "because" in pipecut("explain", scenario, *asked).out


def test_a_neighbour_refutes_a_false_proof(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nobody else was asked about the proof."""
    monkeypatch.setattr(catalogue, "SOLVERS", instead_of("cpsat", wrong_proof))
    monkeypatch.setattr("pipecut.solvers.choices.trainings.checked_by_others", lambda *_: ())
    ran = pipecut("explain", scenario, "--set", "solver.name=cpsat")
    assert ran.code == 4 and "is better" in ran.err


def test_effects_add_up_to_the_difference(pipecut: Command, scenario: Path) -> None:
    one = written("one.json", (LAYERS[:2], {"node0": 2}), (LAYERS[2:], {"node1": 2}))
    other = written(
        "other.json", (LAYERS[:3], {"node0": 1}), (LAYERS[3:4], {"node0": 1}), (LAYERS[4:], {"node1": 1})
    )
    found = pipecut("diff", one, other, scenario, "--json").json
    total = [sum(change["effects"][at] for change in found["changes"]) for at in range(len(found["measures"]))]
    assert total == [b - a for a, b in zip(found["before"], found["after"], strict=True)]
    assert [change["of"] for change in found["changes"]][:2] == ["stages", "cut"]
    for change in found["changes"]:
        assert values_of(scenario, change["stages"]) == change["values"][0]
    text = pipecut("diff", one, other, scenario).out
    assert text.startswith("from ") and "\nsum " in text
    assert "no effect" in pipecut("diff", one, one, scenario).out


def test_options_may_stand_between_plan_and_scenario(pipecut: Command, scenario: Path) -> None:
    plan = written("hand.json", (LAYERS[:2], {"node0": 1}), (LAYERS[2:], {"node1": 2}))
    found = pipecut("explain", plan, "--json", scenario)
    assert found.json["plan"] == str(plan)
    wrong = pipecut("explain", plan, scenario, "another")
    assert wrong.code == 2 and "unrecognized arguments: another" in wrong.err


def test_a_plan_of_another_model_is_refused(pipecut: Command, scenario: Path) -> None:
    plan = written("hand.json", (["nothing"], {"node0": 1}))
    good = written("good.json", (LAYERS, {"node0": 1}))
    for words in (("explain", plan), ("diff", good, plan), ("diff", plan, good)):
        ran = pipecut(*words, scenario)
        assert ran.code == 2 and "hand.json" in ran.err


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "shown"), EXAMPLES)
def test_the_examples_of_the_page_are_real(
    arguments: str,
    shown: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("pipecut.commands.explain.UNLIMITED_S", 600.0)  # on a machine that does other things too
    best = str(tmp_path / "best.json")
    assert main(["plan", "scenarios/pipepar/vgg16.yaml", "--out", best]) == 0
    capsys.readouterr()
    main([best if word == "best.json" else word for word in arguments.split()])
    assert shown in capsys.readouterr().out
    assert len(EXAMPLES) == 2
