"""What stands beside a claim: its goals, its scope, its units, and few words where many rules are broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipecut.formulation.outcome import Limits, Outcome, Proof
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers import catalogue
from pipecut.solvers.crosscheck import contradiction
from pipecut.solvers.reference import line_dp
from tests.command_line import Command
from tests.commands.fakes import instead_of
from tests.commands.test_evaluate_command import LAYERS, evaluated, write_plan


def stopped_at_devices(instance: Instance, limits: Limits) -> Outcome:
    """Prove the first goal, and be out of time for the second."""
    if instance.goals[0] is Goal.DEVICES:
        return Outcome("cpsat", Proof.UNKNOWN)
    return line_dp.solve(instance, limits)


def ordered(scenario: Path) -> Path:
    goals = "objective: [bottleneck, devices, stages]"
    text = scenario.read_text(encoding="utf-8").replace("objective: bottleneck", goals)
    scenario.write_text(text + "constraints: {memory: false}\n", encoding="utf-8")
    return scenario


def test_goals_that_are_open_are_said_and_the_code_is_not_done(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered(scenario)
    monkeypatch.setattr(catalogue, "SOLVERS", instead_of("cpsat", stopped_at_devices))
    monkeypatch.setattr(catalogue, "SOLVERS", instead_of("cpsat_types", lambda *_: Outcome("", Proof.UNKNOWN)))
    ran = pipecut("plan", scenario, "--json", "--no-cross-check")
    assert ran.code == 3
    found = ran.json
    assert (found["proof"], found["objective"]) == ("feasible", found["bound"])
    rows = {row["goal"]: row for row in found["goals"]}
    assert [row["status"] for row in found["goals"]] == ["proved", "open", "not looked at"]
    assert rows["devices"]["bound"] >= 1 and rows["devices"]["unit"] == "devices"
    assert found["gap"] == rows["devices"]["gap"] > 0
    text = pipecut("plan", scenario, "--no-cross-check").out
    assert "proof      not proved in full: bottleneck proved, devices open, stages not looked at" in text
    assert "that stages take, open: not below " in text and "no plan is better" not in text
    assert "gap        0 %" not in text


@pytest.mark.slow
def test_goals_that_are_all_proved_are_optimal(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("plan", ordered(scenario), "--json")
    assert (ran.code, ran.json["proof"]) == (0, "optimal")
    assert [row["status"] for row in ran.json["goals"]] == ["proved"] * 3


def test_a_claim_about_servers_that_are_not_alike_says_that_they_keep_their_order(pipecut: Command) -> None:
    words = "proof      optimal, proved: no plan is better"
    asked = ("plan", "witness/line", "--no-cross-check", "--set")
    on_line, free = (pipecut(*asked, f"constraints.placement={one}").out.splitlines() for one in ("line", "free"))
    assert f"{words} with servers in this order" in on_line and words not in on_line
    assert words in free


def test_every_claim_says_its_scope_in_a_narrow_terminal(pipecut: Command, scenario: Path) -> None:
    text = pipecut("plan", scenario, "--set", "constraints.memory=false").out
    lines = text.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("scope "))
    last = next(at for at, line in enumerate(lines) if line.startswith("searched "))
    said = " ".join(line[11:] for line in lines[first:last])
    assert said == (
        "4 cuts of the traced order of 5 layers; 4 devices on the line; layers split by samples, input features,"
        " output features; one replica a stage; no recomputation; memory not limited; 1F1B, 1 micro-batch"
    )
    assert max(len(line) for line in lines[first:last]) <= 80
    assert lines[last : last + 2] == [
        "searched   tp 1-4",
        "unsearched replicas, interleaved stages, other micro-batches, 3 more",
    ]
    free = ("--set", "constraints.placement=free", "--set", "constraints.memory=true")
    scope = pipecut("plan", scenario, "--json", *free).json["scope"]
    assert (scope["placement"], scope["memory_limited"], scope["cuts"]) == ("free", True, 4)
    assert scope["searched"] == ["tp 1-4", "free placement"] and scope["not_searched"][0] == "replicas"
    assert "4 devices placed freely" in scope["words"] and "memory limited" in scope["words"]
    compared = pipecut("compare", scenario, "--solvers", "line_dp")
    assert "scope      4 cuts of the traced order of 5 layers;" in compared.out


def test_a_plan_that_does_not_fit_says_so_where_it_keeps_every_rule(pipecut: Command, scenario: Path) -> None:
    plan = write_plan((LAYERS, {"node0": 1}))
    small = ("--set", "cluster.devices.card.memory=6 MB", "--no-optimum", "--set")
    lines = pipecut("evaluate", plan, scenario, *small, "constraints.memory=false").out.splitlines()
    at = lines.index("rules      the plan keeps every rule")
    assert lines[at + 1].strip() == "but memory is not limited (constraints.memory), and the plan does not fit:"
    assert lines[at + 2].strip().startswith("stage 0 needs ") and " on a device of 5.722 MiB" in lines[at + 2]
    limited = pipecut("evaluate", plan, scenario, *small, "constraints.memory=true")
    assert limited.code == 1 and "not limited" not in limited.out


def test_many_broken_rules_are_told_by_stage_and_kept_in_json(pipecut: Command, scenario: Path) -> None:
    plan = write_plan((LAYERS, {"node0": 1}))
    pins = [f"{{layers: '{layer}', server: node1}}" for layer in LAYERS[:4]]
    text = scenario.read_text(encoding="utf-8") + f"constraints: {{memory: false, pin: [{', '.join(pins)}]}}\n"
    scenario.write_text(text, encoding="utf-8")
    found = evaluated(pipecut, plan, scenario, 1, "--no-optimum")
    assert len(found["broken_rules"]) == 4
    shown = [
        line for line in pipecut("evaluate", plan, scenario, "--no-optimum").out.splitlines() if "pin" in line
    ]
    assert len(shown) == 4 and shown[-1] == "breaks     pin: stage 0: and 1 more of the same rule"


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        (Goal.COST, "b claims that no plan is below 3 per hour, but a has a plan of 2 per hour"),
        (Goal.MEMORY, "below 2.861 MiB (3,000,000 bytes), but a has a plan of 1.907 MiB (2,000,000 bytes)"),
        (Goal.BOTTLENECK, "below 3.000 ms (3,000,000 ns), but a has a plan of 2.000 ms (2,000,000 ns)"),
    ],
)
def test_a_contradiction_is_in_the_unit_of_the_goal(goal: Goal, words: str) -> None:
    one = Outcome("a", Proof.FEASIBLE, objective=2_000_000, goals=(goal,))
    other = Outcome("b", Proof.UNKNOWN, bound=3_000_000, goals=(goal,))
    assert words in (contradiction(one, other) or "")
