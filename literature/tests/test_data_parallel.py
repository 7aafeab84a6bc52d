"""Pure data parallelism: form 0 on every device, blind to memory, and always a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Proof, checked
from pipecut.formulation.problem.cluster import DeviceClass
from pipecut.formulation.problem.constraints import Constraints
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut_literature.baselines import data_parallel
from tests.examples import GIGA, TURING, chain, instance_of, join, matrix, mesh, vgg16
from tests.generators import instances

TWO = instance_of(chain([matrix("a", 10), matrix("b", 20)], [5]), mesh(2))


def test_data_parallelism_is_form_0_on_every_device():
    """VGG16 on the paper's cluster: 553 MB of gradients over 1 Gbit/s, 7.7 s and the computation of an eighth."""
    cluster = mesh(2, 2, 2, 2, inside=Link(10 * GIGA), between=Link(GIGA), kind=TURING)
    instance = instance_of(vgg16(), cluster, CostModel(), Training(64))
    outcome = checked(instance, data_parallel.solve(instance))
    assert outcome.plan is not None and outcome.objective is not None
    (stage,) = outcome.plan.stages
    assert (stage.group.devices, set(stage.forms)) == (8, {0})
    sums = 2 * 7 / 8 * 4 * 138_357_544 * 8
    compute = 3 * 2 * 64 * 15_470_264_320 / 8 / 13_400
    assert outcome.objective == pytest.approx(sums + compute, rel=1e-6)
    assert outcome.proof is Proof.FEASIBLE


def test_data_parallelism_takes_the_best_other_form_where_0_is_not_allowed():
    layers = chain([matrix("a", weights=3), matrix("b", taken=9, made=4, allowed=(1, 2)), join("c")], [6, 4])
    instance = instance_of(layers, mesh(2))
    outcome = checked(instance, data_parallel.solve(instance))
    assert outcome.plan is not None
    assert outcome.plan.stages[0].forms == (0, 1, 0)


def test_data_parallelism_does_not_see_memory():
    """All rules but the one that it is blind to hold; its plan then proves nothing."""
    instance = instance_of(chain([matrix("a", 1, weights=80)], []), mesh(2, kind=DeviceClass("small", 1, GIGA)))
    limited = replace(instance, constraints=Constraints(memory=True, max_servers=1))
    claim = data_parallel.solve(limited)
    assert claim.blind_to == ("memory", "devices")
    assert checked(limited, claim).proof is Proof.UNKNOWN
    assert data_parallel.solve(instance).blind_to == ()


@given(instances())
def test_data_parallelism_is_a_plan(instance):
    outcome = checked(instance, data_parallel.solve(instance))
    assert outcome.plan is not None
    assert evaluate(instance, outcome.plan).feasible
    assert len(outcome.plan) == 1
