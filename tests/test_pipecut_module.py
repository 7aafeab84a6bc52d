from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import pipecut
from solvers import catalogue
from tests.commands.fakes import entries


def test_every_name_is_there_and_no_other() -> None:
    assert all(getattr(pipecut, name) is not None for name in pipecut.__all__)
    assert dir(pipecut) == sorted(pipecut.__all__)
    with pytest.raises(AttributeError, match="module 'pipecut' has no attribute 'train'"):
        _ = pipecut.train  # pyright: ignore


def test_plan_takes_a_path_a_scenario_or_an_instance(scenario: Path) -> None:
    loaded = pipecut.load_scenario(scenario, ["solver.name=line_dp"])
    outcomes = [
        pipecut.plan(scenario),
        pipecut.plan(str(scenario)),
        pipecut.plan(loaded),
        pipecut.plan(loaded.load()),
        pipecut.plan(loaded, solver="brute_force", limits=pipecut.Limits(time_limit_s=60)),
    ]
    assert {outcome.objective for outcome in outcomes} == {866_400}
    assert [outcome.solver for outcome in outcomes] == ["cpsat", "cpsat", "line_dp", "cpsat", "brute_force"]
    assert all(outcome.proof is pipecut.Proof.OPTIMAL for outcome in outcomes)


def test_evaluate_takes_a_plan_or_its_file(scenario: Path) -> None:
    instance = pipecut.load_scenario(scenario).load()
    outcome = pipecut.plan(instance)
    assert outcome.plan is not None
    assert pipecut.evaluate(instance, outcome.plan).objective == outcome.objective
    Path("plan.json").write_text('{"stages": [{"layers": {"span": [0, 5]}, "devices": {"node0": 1}}]}')
    assert pipecut.evaluate(instance, "plan.json").feasible
    with pytest.raises(ValueError, match=r"absent\.json"):
        pipecut.evaluate(instance, Path("absent.json"))


def test_false_claims_are_raised(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "SOLVERS", entries())
    with pytest.raises(pipecut.FalseClaimError, match="wrong_price"):
        pipecut.plan(scenario, solver="wrong_price")
    with pytest.raises(ValueError, match="no solver 'magic'"):
        pipecut.plan(scenario, solver="magic")


def test_a_search_can_be_stopped_through_its_limits(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "SOLVERS", entries())
    wish = threading.Event()
    limits = pipecut.Limits(stopped=wish.is_set, progress=lambda _: wish.set())
    assert pipecut.plan(scenario, solver="slow", limits=limits).proof is pipecut.Proof.FEASIBLE


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_stops_the_search_and_is_raised(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "SOLVERS", entries())
    monkeypatch.setattr("commands.terminal.interrupt.signal.getsignal", lambda _: signal.default_int_handler)
    limits = pipecut.Limits(progress=lambda _: os.kill(os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            pipecut.plan(scenario, solver="slow", limits=limits)
    finally:
        signal.signal(signal.SIGINT, before)


class TestListing1:
    """The functions of the paper's Listing 1 on the tiny scenario."""

    def test_the_calls_of_the_listing_find_the_plan(self, scenario: Path) -> None:
        inputs = pipecut.load_running_envs(scenario)
        model = pipecut.load_model("tiny.json")
        op_costs, op_configs = pipecut.profile_model(inputs, model)
        time_ns, split, configuration = pipecut.trial_run(model, op_costs, op_configs)
        assert time_ns == 866_400
        assert split == (("conv1", "relu1", "conv2", "relu2", "fc[3]"),)
        assert configuration == (({"node0": 2, "node1": 2}, (0, 0, 0, 0, 1)),)

    def test_costs_are_those_of_one_device(self, scenario: Path) -> None:
        op_costs, op_configs = pipecut.profile_model(
            pipecut.load_running_envs(scenario), pipecut.load_model("tiny.json")
        )
        assert list(op_costs) == list(op_configs) and len(op_costs) == 5
        cost = op_costs["conv1"]
        assert cost.forward_ns == {"card": 2 * 9_000_000 * 8 // 1000} and cost.backward_ns == {"card": 288_000}
        assert cost.parameter_bytes == 4_000 and cost.output_bytes == 8 * 80_000

    def test_forms_that_are_taken_away_are_not_used(self, scenario: Path) -> None:
        model = pipecut.load_model("tiny.json")
        op_costs, op_configs = pipecut.profile_model(pipecut.load_running_envs(scenario), model)
        free = pipecut.trial_run(model, op_costs, op_configs)
        op_configs["fc[3]"] = (0,)
        bound = pipecut.trial_run(model, op_costs, op_configs, solver="line_dp")
        assert bound.time_ns is not None and free.time_ns is not None and bound.time_ns > free.time_ns
        assert all(forms[-1] == 0 for _, forms in bound.configuration)

    def test_wrong_configurations_are_refused(self, scenario: Path) -> None:
        model = pipecut.load_model("tiny.json")
        op_costs, op_configs = pipecut.profile_model(pipecut.load_running_envs(scenario), model)
        with pytest.raises(ValueError, match="no layer conv7"):
            pipecut.trial_run(model, op_costs, {"conv7": (0,)})
        for forms in ((), (3,)):
            with pytest.raises(ValueError, match="conv1: forms"):
                pipecut.trial_run(model, op_costs, op_configs | {"conv1": forms})
        other = model.copy()
        other.remove_node("fc[3]")
        with pytest.raises(ValueError, match="another model"):
            pipecut.trial_run(other, op_costs, op_configs)
        with pytest.raises(KeyError):
            op_costs["conv7"]

    def test_a_model_may_be_a_function_or_a_pair(self) -> None:
        torch = pytest.importorskip("torch")

        def mlp() -> tuple[object, tuple[object]]:
            return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), (torch.empty(2, 8),)

        pipecut.init()
        assert list(pipecut.load_model(mlp)) == list(pipecut.load_model(mlp())) == ["0", "1"]

    def test_init_says_what_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        with pytest.raises(ImportError, match=r"pip install 'pipecut\[torch\]'"):
            pipecut.init()


def test_limits_are_kept_while_planning(scenario: Path) -> None:
    limits = replace(pipecut.Limits(), workers=1, seed=3)
    assert pipecut.plan(scenario, limits=limits).objective == 866_400
