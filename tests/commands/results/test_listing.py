"""The functions of the PipePar paper's Listing 1 on the tiny scenario."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipecut import listing
from pipecut.formulation.problem.layers import Layer, Split, layer_graph


def test_the_calls_of_the_listing_find_the_plan(scenario: Path) -> None:
    inputs = listing.load_running_envs(scenario)
    model = listing.load_model("tiny.json")
    op_costs, op_configs = listing.profile_model(inputs, model)
    time_ns, split, configuration = listing.trial_run(model, op_costs, op_configs)
    assert time_ns == 866_400
    assert split == (("conv1", "relu1", "conv2", "relu2", "fc[3]"),)
    assert configuration == (({"node0": 2, "node1": 2}, (0, 0, 0, 0, 1)),)


def test_costs_are_those_of_one_device(scenario: Path) -> None:
    op_costs, op_configs = listing.profile_model(
        listing.load_running_envs(scenario), listing.load_model("tiny.json")
    )
    assert list(op_costs) == list(op_configs) and len(op_costs) == 5
    cost = op_costs["conv1"]
    assert cost.forward_ns == {"card": 2 * 9_000_000 * 8 // 1000} and cost.backward_ns == {"card": 288_000}
    assert cost.parameter_bytes == 4_000 and cost.output_bytes == 8 * 80_000


def test_forms_that_are_taken_away_are_not_used(scenario: Path) -> None:
    model = listing.load_model("tiny.json")
    op_costs, op_configs = listing.profile_model(listing.load_running_envs(scenario), model)
    free = listing.trial_run(model, op_costs, op_configs)
    op_configs["fc[3]"] = (0,)
    bound = listing.trial_run(model, op_costs, op_configs, solver="line_dp")
    assert bound.time_ns is not None and free.time_ns is not None and bound.time_ns > free.time_ns
    assert all(forms[-1] == 0 for _, forms in bound.configuration)


def test_wrong_configurations_are_refused(scenario: Path) -> None:
    model = listing.load_model("tiny.json")
    op_costs, op_configs = listing.profile_model(listing.load_running_envs(scenario), model)
    with pytest.raises(ValueError, match="no layer conv7"):
        listing.trial_run(model, op_costs, {"conv7": (0,)})
    for forms in ((), (3,)):
        with pytest.raises(ValueError, match="conv1: forms"):
            listing.trial_run(model, op_costs, op_configs | {"conv1": forms})
    other = model.copy()
    other.remove_node("fc[3]")
    with pytest.raises(ValueError, match="another model"):
        listing.trial_run(other, op_costs, op_configs)
    with pytest.raises(KeyError):
        op_costs["conv7"]


def test_a_model_may_be_a_function_or_a_pair() -> None:
    torch = pytest.importorskip("torch")

    def mlp() -> tuple[object, tuple[object]]:
        return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), (torch.empty(2, 8),)

    listing.init()
    assert list(listing.load_model(mlp)) == list(listing.load_model(mlp())) == ["0", "1"]


def test_init_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"pip install 'pipecut\[torch\]'"):
        listing.init()


def test_the_last_call_runs_what_was_found(scenario: Path) -> None:
    inputs = listing.load_running_envs(scenario)
    model = listing.load_model("tiny.json")
    strategy = listing.trial_run(model, *listing.profile_model(inputs, model))
    ran = listing.simulate(inputs, model, strategy)
    assert ran.content["claim"]["objective"] == strategy.time_ns and ran.name == inputs.name
    other = layer_graph("other", [Layer("one", "linear", Split.MATRIX, 4, 4, 4, 4, 9)], [])
    with pytest.raises(ValueError, match="the strategy is that of another model"):
        listing.simulate(inputs, other, strategy)


def test_a_strategy_without_a_plan_is_not_run(scenario: Path) -> None:
    scenario.write_text(scenario.read_text(encoding="utf-8").replace("1 GiB", "1 KiB"), encoding="utf-8")
    inputs = listing.load_running_envs(scenario)
    model = listing.load_model("tiny.json")
    strategy = listing.trial_run(model, *listing.profile_model(inputs, model))
    with pytest.raises(ValueError, match="there is no plan to run: infeasible"):
        listing.simulate(inputs, model, strategy)
