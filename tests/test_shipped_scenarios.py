"""The scenarios that ship: what they expect is proved again, by every exact method.

The paper's larger batch is proved in its study (``literature/tests/pipepar``).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipecut.formulation.certificates.check import verify
from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.constraints import Goal, Recompute
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.certifying import certify
from pipecut.solvers.cpsat import cpsat as layered
from pipecut.solvers.dynamic.states import state_dp as states
from pipecut.solvers.reference import line_dp
from pipecut.solvers.step_time import step_dp as executed

PAPER = Path(__file__).parents[1] / "scenarios" / "pipepar"
GPT2 = PAPER.parent / "gpt" / "gpt2.yaml"
MODELS = ("vgg13", "vgg16", "vgg19", "resnet34", "resnet50", "resnet152")


@pytest.mark.few(1)
@pytest.mark.parametrize("model", MODELS)
def test_the_expected_optimum_is_proved_three_ways_and_certified(model: str) -> None:
    scenario = load_scenario(PAPER / f"{model}.yaml")
    instance = scenario.load()
    assert scenario.expected is not None
    for solve in (layered.solve, states.solve, line_dp.solve):
        found = checked(instance, solve(instance, Limits()))
        assert found.proof is Proof.OPTIMAL
        assert found.objective == found.bound == scenario.expected
    assert found.plan is not None
    certificate = certify(instance, found.plan, scenario.expected)
    assert certificate.optimal
    verify(instance, certificate)


@pytest.mark.slow
def test_llama_between_its_blocks_is_proved() -> None:
    scenario = load_scenario(PAPER.parent / "llama" / "llama7b.yaml")
    instance = scenario.load()
    assert sum(instance.parameter_bytes) == 2 * 6_738_415_616
    assert len(instance.model.cuts or ()) == 34
    assert instance.goals == (Goal.STEP_TIME,), "as it says none"
    outcome = checked(instance, executed.solve(instance, Limits()))
    assert outcome.proof is Proof.OPTIMAL and outcome.objective == outcome.bound == scenario.expected
    formula = replace(instance, goals=(Goal.BOTTLENECK,))
    outcome = checked(formula, states.solve(formula, Limits()))
    assert outcome.proof is Proof.OPTIMAL and outcome.objective == outcome.bound == 145_477_373


@pytest.mark.slow
def test_gpt2_on_small_cards_needs_recomputation_or_splitting() -> None:
    scenario = load_scenario(GPT2)
    instance = scenario.load()
    outcome = checked(instance, plan(instance, Limits()))
    assert outcome.proof is Proof.OPTIMAL and outcome.objective == outcome.bound == scenario.expected
    assert outcome.plan is not None and outcome.objective is not None
    (fewest,) = outcome.further
    assert fewest.value == fewest.bound == sum(stage.group.devices for stage in outcome.plan.stages)
    blind = line_dp.solve(instance).bound
    assert blind is not None and blind < outcome.objective, "without a limit on memory there is a faster plan"
    without = replace(scenario.constraints, recompute=Recompute.NEVER, tensor_parallel_degrees=(1,))
    slower = replace(replace(instance, goals=instance.goals[:1]), constraints=without)
    found = checked(slower, states.solve(slower, Limits()))
    assert found.proof is Proof.OPTIMAL and found.objective == 82_253_449
    assert outcome.objective < 82_253_449, "so the freedoms are worth something here"


def test_the_line_is_provably_worse_on_its_witness() -> None:
    path = PAPER.parent / "witness" / "line.yaml"
    on_line, anywhere = (
        load_scenario(path, [f"constraints.placement={placement}"]).load() for placement in ("line", "free")
    )
    values = [checked(one, layered.solve(one, Limits())) for one in (on_line, anywhere)]
    assert [found.proof for found in values] == [Proof.OPTIMAL, Proof.OPTIMAL]
    assert [found.objective for found in values] == [load_scenario(path).expected, 34_000_000]
