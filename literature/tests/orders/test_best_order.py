"""``--schedule best``: the order that is shortest, what was proved of it, and what the fixed orders lose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import pipecut as pipecut_module
from pipecut.formulation.outcome import FalseClaimError, Limits, Proof
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.timeline.from_plan import PlanRun
from pipecut.formulation.timeline.timeline import run
from pipecut.ingest.plans.plan_file import read_plan
from pipecut.ingest.scenario.load import load_scenario
from pipecut_literature.orders import best_order
from pipecut_literature.orders.best_order import BestOrder, UnfitError, best_order_of
from pipecut_literature.orders.problem import OrderError
from tests.command_line import Command
from tests.commands.test_evaluate_command import LAYERS, write_plan
from tests.report.test_page import Page

FOUR = ("--set", "training.micro_batches=4")
FREE = ("--set", "constraints.placement=free")


@pytest.fixture
def plan(scenario: Path) -> Path:
    """Two stages on devices of two servers: transfers that 1F1B does not hide."""
    return Path(write_plan((LAYERS[:3], {"node0": 1}), (LAYERS[3:], {"node1": 1})))


def simulated(pipecut: Command, scenario: Path, plan: Path, *more: str) -> dict[str, object]:
    return pipecut("simulate", scenario, "--plan", plan, *FOUR, *FREE, "--json", *more).json


def test_it_is_shorter_than_any_fixed_order_and_proved(pipecut: Command, scenario: Path, plan: Path) -> None:
    found = simulated(pipecut, scenario, plan, "--schedule", "best")
    order = found["order"]
    assert isinstance(order, dict) and found["schedule"] == "best"
    assert order["proof"] == "optimal" and order["gap"] == 0 and order["planned"] == "one_f_one_b"
    assert found["makespan_ns"] == order["makespan_ns"] == order["bound_ns"]
    rows = {row["schedule"]: row for row in order["fixed"]}
    assert set(rows) == {"naive", "gpipe", "one_f_one_b"}
    for name, row in rows.items():
        fixed = simulated(pipecut, scenario, plan, "--schedule", name)
        assert fixed["makespan_ns"] == row["makespan_ns"] > order["makespan_ns"] and row["fits"]
        assert row["loss"] == pytest.approx(row["makespan_ns"] / order["makespan_ns"] - 1)
        assert fixed["order"] is None


def test_the_claim_is_told_in_words_and_beside_the_timeline(pipecut: Command, scenario: Path, plan: Path) -> None:
    arguments = ("--plan", plan, *FOUR, *FREE, "--schedule", "best", "--out", "page.html")
    ran = pipecut("simulate", scenario, *arguments)
    assert ran.code == 0 and "\nbest, 4 micro-batches, 2 stages\n" in ran.out
    assert (
        "order      1.872 ms (1,872,000 ns) for one step, proved: no order of these actions is shorter" in ran.out
    )
    assert "one_f_one_b takes 2.204 ms (2,204,000 ns), 17.7 % longer" in ran.out
    content = Page(Path("page.html").read_text(encoding="utf-8")).json
    makespans = [row for row in content["measures"] if row["key"] == "makespan"]
    assert [(row["relation"], row["formula"]) for row in makespans[1:]] == [("=", 1_872_000), ("≤", 2_204_000)]
    assert any("17.7 % longer" in note for note in content["claim"]["notes"])


def test_memory_that_lacks_is_told_rank_by_rank(pipecut: Command, scenario: Path, plan: Path) -> None:
    small = ("--set", "cluster.devices.card.memory=12000000 B", "--schedule", "best")
    ran = pipecut("simulate", scenario, "--plan", plan, *FOUR, *FREE, *small, "--out", "page.html")
    held = simulated(pipecut, scenario, plan)["ranks"][1]["peak_bytes"]  # type: ignore[index]
    message = f"rank 1 lacks {held - 12_000_000:,} bytes; it has 12,000,000 and holds {held:,} even with one"
    assert ran.code == 1 and message in ran.out and "rank 0 lacks" not in ran.out
    assert not Path("page.html").exists() and "page.html: not written" in ran.err
    found = simulated(pipecut, scenario, plan, *small)
    assert isinstance(found["order"], dict) and found["order"]["proof"] == "infeasible"
    assert message in found["order"]["notes"][-1]
    unlimited = simulated(pipecut, scenario, plan, *small, "--set", "constraints.memory=false")
    assert isinstance(unlimited["order"], dict) and unlimited["order"]["proof"] == "optimal"


def test_where_memory_takes_one_micro_batch_only_the_naive_order_is_left(
    pipecut: Command, scenario: Path, plan: Path
) -> None:
    instance = load_scenario(scenario, [*FOUR[1:], FREE[1]]).load()
    footprint = PlanRun.of(instance, read_plan(plan, instance)).footprint
    left = 2**30 - footprint.static_bytes[0] - footprint.stash_bytes[0]
    text = (
        scenario.read_text(encoding="utf-8") + f"constraints: {{placement: free, reserve: {{node0: {left} B}}}}\n"
    )
    scenario.write_text(text, encoding="utf-8")
    ran = pipecut("simulate", scenario, "--plan", plan, *FOUR, "--schedule", "best")
    assert ran.code == 0 and "breaks" not in ran.out, "what does not fit under 1F1B fits in this order"
    planned = pipecut("simulate", scenario, "--plan", plan, *FOUR)
    assert planned.code == 1 and "breaks     memory: stage 0" in planned.out
    order = simulated(pipecut, scenario, plan, "--schedule", "best")["order"]
    assert isinstance(order, dict)
    rows = {row["schedule"]: row for row in order["fixed"]}
    assert order["proof"] == "optimal" and order["makespan_ns"] == rows["naive"]["makespan_ns"]
    assert not rows["one_f_one_b"]["fits"] and rows["one_f_one_b"]["loss"] is None
    assert "one_f_one_b takes" in ran.out and "but does not fit into memory" in ran.out


def test_a_training_without_a_flush_is_compared_with_1f1b(scenario: Path, plan: Path) -> None:
    loaded = load_scenario(scenario, [*FOUR[1:], FREE[1], "training.schedule=double_buffered"])
    instance = loaded.load()
    best = best_order_of(instance, read_plan(plan, instance), Limits())
    made = PlanRun.of(instance, read_plan(plan, instance))
    fixed = run(one_f_one_b(2, 4), made.durations, made.execution).makespan_ns
    assert best.planned == "one_f_one_b" and best.comparison.fixed[best.planned].makespan_ns == fixed


def test_stopped_at_once_it_claims_no_proof(
    pipecut: Command, scenario: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = best_order.best_order_of

    def at_once(instance: Instance, plan: Plan, limits: Limits) -> best_order.BestOrder:
        return search(instance, plan, replace(limits, end_s=0.0))  # the time was over long ago

    monkeypatch.setattr(best_order, "best_order_of", at_once)
    ran = pipecut("simulate", scenario, "--plan", plan, *FOUR, *FREE, "--schedule", "best")
    assert ran.code == 3 and "not proved: a shorter order may exist" in ran.out
    assert "no order is shorter than" in ran.out


def test_a_question_that_cannot_be_asked_is_bad_input(
    pipecut: Command, scenario: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OrderError("stage 0: FORWARD takes 0 ns")

    monkeypatch.setattr("pipecut_literature.orders.best_order.best_order_of", refuse)
    ran = pipecut("simulate", scenario, "--plan", plan, "--schedule", "best")
    assert ran.code == 2 and "schedule best: stage 0: FORWARD takes 0 ns" in ran.err and "Traceback" not in ran.err


def test_a_false_claim_ends_with_its_own_code(
    pipecut: Command, scenario: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lie(*_: object) -> None:
        raise FalseClaimError("order of actions: claimed 1 ns, the timeline takes 2 ns")

    monkeypatch.setattr("pipecut_literature.orders.best_order.best_order_of", lie)
    ran = pipecut("simulate", scenario, "--plan", plan, "--schedule", "best")
    assert ran.code == 4 and "claimed 1 ns, the timeline takes 2 ns" in ran.err


def test_from_python(scenario: Path, plan: Path) -> None:
    loaded = pipecut_module.load(scenario, [*FOUR[1:], FREE[1]])
    given = pipecut_module.read_plan(plan, loaded)
    ran = pipecut_module.simulate(loaded, given, schedule="best")
    assert isinstance(ran.order, BestOrder) and ran.order.outcome.proof is Proof.OPTIMAL
    assert ran.order.outcome.makespan_ns == ran.makespan_ns
    assert ran.makespan_ns < pipecut_module.simulate(loaded, given).makespan_ns
    assert [measure.key for measure in ran.measures] == [row["key"] for row in ran.content["measures"]]
    assert ran.content["order"]["proof"] == "optimal" and ran.content["schedule"] == "best"
    small = pipecut_module.load(scenario, [*FOUR[1:], FREE[1], "cluster.devices.card.memory=1 MB"])
    with pytest.raises(UnfitError, match="rank 1 lacks"):
        pipecut_module.simulate(small, given, schedule="best")
