from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from pipecut.commands.parts.task import Task
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.ingest.plans.plan_file import read_plan_as_made
from pipecut.solvers import catalogue
from pipecut.solvers.choices.trainings import Decision
from tests.command_line import Command
from tests.commands.fakes import instead_of, wrong_excluded, wrong_proof

LAYERS = ["conv1", "relu1", "conv2", "relu2", "fc[3]"]


def write_plan(*stages: tuple[list[str], dict[str, int]]) -> Path:
    content = {"stages": [{"layers": layers, "devices": devices} for layers, devices in stages]}
    path = Path("some-plan.json")
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def evaluated(pipecut: Command, plan: Path, scenario: Path, code: int, *more: str) -> dict[str, Any]:
    ran = pipecut("evaluate", plan, scenario, "--json", *more)
    assert ran.code == code, ran.err
    return ran.json


def test_the_plan_that_plan_wrote_is_optimal(pipecut: Command, scenario: Path) -> None:
    pipecut("plan", scenario, "--out", "best.json")
    found = evaluated(pipecut, Path("best.json"), scenario, 0)
    assert found["gap"] == 0 and found["feasible"] is True and found["optimum"]["proof"] == "optimal"
    assert found["objective"] == found["optimum"]["objective"] == 866_400
    assert found["stages"][0]["compute_ns"] == 612_000


def test_formula_and_timeline_stand_side_by_side(pipecut: Command, scenario: Path) -> None:
    plan = write_plan((LAYERS[:3], {"node0": 1}), (LAYERS[3:], {"node0": 1}))
    more = ("--no-optimum", "--set", "training.micro_batches=4")
    found = evaluated(pipecut, plan, scenario, 0, *more)
    ran = found["timeline"]
    simulated = pipecut("simulate", scenario, "--plan", plan, "--json", *more[1:]).json
    assert ran["measures"] == simulated["measures"] and ran["makespan_ns"] == simulated["makespan_ns"]
    assert [rank["peak_bytes"] for rank in ran["ranks"]] == [row["memory_bytes"] for row in found["stages"]]
    rows = {(row["key"], row["relation"]): row for row in ran["measures"]}
    assert rows["makespan", "≥"]["formula"] <= ran["makespan_ns"] <= rows["makespan", "≤"]["formula"]
    assert found["objective"] in [row["formula"] for row in ran["measures"] if row["key"] == "period"]
    text = pipecut("evaluate", plan, scenario, *more).out
    assert "formula and timeline: one_f_one_b, 4 micro-batches, 2 stages" in text
    for words in ("lower bound", "upper bound", "1F1B, far from both ends", "bubble", "peak, timeline"):
        assert words in text, words


@pytest.mark.slow
def test_the_time_limit_is_one_for_the_whole_command(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, began_s, ends = write_plan((LAYERS, {"node0": 1})), time.monotonic(), list[float | None]()
    decided = Task.decided

    def followed(task: Task) -> tuple[Task, Decision]:
        ends.append(task.limits.end_s)
        return decided(task)

    def slowly(path: Path, instance: Instance) -> tuple[Instance, Plan]:
        time.sleep(0.5)
        return read_plan_as_made(path, instance)

    monkeypatch.setattr("pipecut.commands.parts.task.read_plan_as_made", slowly)
    monkeypatch.setattr(Task, "decided", followed)
    evaluated(pipecut, plan, scenario, 0, "--time-limit", "60 s")
    (end_s,) = ends
    assert end_s is not None and end_s <= time.monotonic() + 59.5 and end_s >= began_s + 60
    evaluated(pipecut, plan, scenario, 0)
    assert ends[-1] is not None, "the optimum has a limit where none is given, too"
    ran = pipecut("evaluate", plan, scenario, "--time-limit", "0.1 s")
    assert ran.code == 3 and "objective" in ran.out


def test_devices_that_nobody_has_are_refused_before_they_are_written_out(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("evaluate", write_plan((LAYERS, {"node0": 2**31 - 1})), scenario)
    assert ran.code == 2 and "devices.node0: expected 1 to 4 devices" in ran.err and "2147483647" in ran.err


def test_too_many_passes_are_priced_and_not_run(pipecut: Command, scenario: Path) -> None:
    plan, many = write_plan((LAYERS, {"node0": 1})), 2_000_001
    more = ("--no-optimum", *(f"--set=training.{key}={many}" for key in ("micro_batches", "global_batch")))
    found = evaluated(pipecut, plan, scenario, 0, *more)
    assert found["objective"] > 0 and found["timeline"] is None
    said = f"1 stages with {many} micro-batches make {2 * many} passes, and at most 4000000"
    text = " ".join(pipecut("evaluate", plan, scenario, *more).out.split())
    assert "not run on the timeline" in text and said in text
    for order in ((), ("--schedule", "zero_bubble_h1"), ("--schedule", "interleaved", "--chunks", "1")):
        ran = pipecut("simulate", scenario, "--plan", plan, *order, *more[1:])
        assert ran.code == 2 and said in ran.err, order


def test_a_worse_plan_shows_its_gap(pipecut: Command, scenario: Path) -> None:
    plan = write_plan((LAYERS, {"node0": 1}))
    found = evaluated(pipecut, plan, scenario, 0)
    assert found["gap"] == pytest.approx(1 - 866_400 / found["objective"])
    text = pipecut("evaluate", plan, scenario).out
    assert "the plan keeps every rule" in text and "proved (cpsat" in text and "gap" in text


@pytest.mark.parametrize("many", [1, 2, 4])
def test_a_micro_batch_is_held_against_others_of_its_size(pipecut: Command, scenario: Path, many: int) -> None:
    """Smaller ones take less each, and that refutes nothing."""
    own = (f"--set=training.micro_batches={many}", "--set=training.global_batch=4")
    best = pipecut("plan", scenario, *own, "--out", "best.json", "--json")
    plan = json.loads(Path("best.json").read_text()) | {"micro_batches": many}
    Path("best.json").write_text(json.dumps(plan))
    found = evaluated(pipecut, Path("best.json"), scenario, 0, own[1], "--set=training.micro_batches=[1, 2, 4]")
    assert (found["gap"], found["objective"]) == (0, best.json["objective"])


def test_broken_rules_are_said_in_words(pipecut: Command, scenario: Path) -> None:
    plan = write_plan((LAYERS[:3], {"node1": 3}), (LAYERS[3:], {"node0": 1}))
    found = evaluated(pipecut, plan, scenario, 1)
    assert found["feasible"] is False and found["gap"] is None and found["objective"] > 0
    assert {row["rule"] for row in found["broken_rules"]} == {"devices", "line"}
    text = pipecut("evaluate", plan, scenario).out
    assert "breaks     devices: stages take 3 devices of server node1, which has 2" in text


def test_what_is_no_plan_has_no_price(pipecut: Command, scenario: Path) -> None:
    plan = write_plan((LAYERS[:3], {"node0": 1}))
    found = evaluated(pipecut, plan, scenario, 1, "--no-optimum")
    assert found["timeline"] is None
    assert found["objective"] is None and found["optimum"] is None and len(found["stages"]) == 1
    text = pipecut("evaluate", plan, scenario, "--no-optimum").out
    assert "conv1 to conv2 (3 layers)" in text and "breaks     cover: the last stage ends before layer 3" in text


def test_without_a_proof_the_gap_is_an_upper_limit(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.commands.fakes import slow

    monkeypatch.setattr(catalogue, "SOLVERS", instead_of("cpsat", slow))
    plan = write_plan((LAYERS, {"node0": 1}))
    ran = pipecut("evaluate", plan, scenario, "--time-limit", "0.05")
    assert ran.code == 3 and "not proved: not below 1 ns" in ran.out and "at most" in ran.out


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        (wrong_proof, "the plan file has a plan of 866.4 us (866,400 ns)"),
        (wrong_excluded, "cpsat: claimed infeasible, but a plan keeps every rule"),
    ],
)
def test_a_plan_that_beats_a_proof_refutes_it(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch, fake: catalogue.Solve, words: str
) -> None:
    pipecut("plan", scenario, "--out", "best.json")
    both = [one for name in ("cpsat", "line_dp") for one in instead_of(name, fake) if one.name == name]
    monkeypatch.setattr(catalogue, "SOLVERS", tuple(both))  # the second method agrees with the first
    ran = pipecut("evaluate", "best.json", scenario)
    assert ran.code == 4 and ran.out == "" and words in ran.err
