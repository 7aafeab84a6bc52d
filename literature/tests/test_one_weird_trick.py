from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings

from pipecut.formulation.outcome import Proof, checked
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.training import Training
from pipecut.solvers.reference import line_dp
from pipecut_literature.baselines import data_parallel
from pipecut_literature.one_weird_trick import planner as one_weird_trick
from pipecut_literature.one_weird_trick.planner import fully_connected
from tests.examples import chain, instance_of, matrix, mesh, vgg16
from tests.generators import instances
from tests.laws import so_many

SLOW_DRAWS = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=so_many(60))


def matrix_forms(instance, outcome):
    (stage,) = outcome.plan.stages
    return [stage.form(at) for at, layer in enumerate(instance.layers) if layer.split is Split.MATRIX]


def test_vgg16_is_data_parallel_up_to_its_classifier():
    instance = instance_of(vgg16(), mesh(2, 2), training=Training(global_batch=64))
    outcome = checked(instance, one_weird_trick.solve(instance))
    assert matrix_forms(instance, outcome) == [0] * 13 + [2] * 3
    assert outcome.notes == ("3 of 16 matrix layers are fully connected",)
    assert (outcome.proof, outcome.bound) == (Proof.FEASIBLE, None)


def test_what_a_layer_is_follows_from_its_work():
    # 100 weights of 4 bytes and 100 multiply-accumulates: each weight is used once. One more use, and it is not.
    assert fully_connected(matrix("fc", 100, weights=400), 4)
    assert not fully_connected(matrix("conv", 101, weights=400), 4)
    assert fully_connected(matrix("fc", 200, weights=400), 2)
    assert not fully_connected(replace(matrix("pool", 0, weights=400), split=Split.JOIN), 4)


def test_forbidden_forms_are_replaced_by_the_next_best():
    layers = [
        matrix("conv", 1000, weights=4, allowed=(1, 2)),
        matrix("fc", 1, weights=4, allowed=(0, 1)),
        matrix("last", 1, weights=4, allowed=(0,)),
    ]
    instance = instance_of(chain(layers, [8, 8]), mesh(4))
    forms = matrix_forms(instance, checked(instance, one_weird_trick.solve(instance)))
    assert forms[0] in (1, 2)
    assert forms[1:] == [1, 0]


def test_it_beats_data_parallelism_where_the_classifier_holds_the_weights():
    instance = instance_of(vgg16(), mesh(4), training=Training(global_batch=32))
    trick = checked(instance, one_weird_trick.solve(instance)).objective
    plain = checked(instance, data_parallel.solve(instance)).objective
    assert trick is not None and plain is not None
    assert trick < plain


@SLOW_DRAWS
@given(instances())
def test_its_plan_keeps_the_rules_and_is_never_better_than_the_optimum(instance):
    outcome = checked(instance, one_weird_trick.solve(instance))
    assert outcome.proof is Proof.FEASIBLE
    assert outcome.objective is not None
    best = line_dp.solve(instance)
    assert best.proof is Proof.OPTIMAL
    assert best.objective is not None
    assert outcome.objective >= best.objective
