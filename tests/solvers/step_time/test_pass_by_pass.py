"""Suffixes told by their passes: composed they are the step as executed, and searches by them find the best."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.executed import PipelinePasses
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.training import Training
from pipecut.solvers import exhaustive
from pipecut.solvers.step_time import asking
from pipecut.solvers.step_time import responses as answering
from pipecut.solvers.step_time.responses import PassByPass
from pipecut.solvers.step_time.step_dp import accepts, solve
from tests.generators import warm_ups
from tests.laws import so_many
from tests.solvers.priced import few_plans
from tests.solvers.step_time.test_step_dp import given_warm_ups, judged_by_step, pipelines, step_given_ns


@settings(max_examples=so_many(300), deadline=None)
@given(st.lists(pipelines(4), min_size=1, max_size=3), st.integers(1, 9), given_warm_ups)
def test_passes_composed_are_the_step_as_executed(
    drawn: list[PipelinePasses], size: int, warm_up: tuple[int, ...]
):
    training = Training(size, size, warm_up=warm_up)
    known = PassByPass(training, 4)
    own = np.array([[one.forward_ns, one.backward_ns, one.sync_ns] for one in drawn])
    sent = np.array([[one.activation_ns, one.gradient_ns] for one in drawn])
    rows = known.last(own[:, :, -1])
    for slot in range(1, 4):
        rows = known.before(rows, slot, own[:, :, -1 - slot], sent[:, :, -slot])
    assert known.ended(rows).tolist() == [step_given_ns(training, one) for one in drawn]
    alone = [replace(one, sync_ns=(0,) * one.stages) for one in drawn]
    assert known.leaving(rows).tolist() == [step_given_ns(training, one) for one in alone]


@settings(max_examples=so_many(100), deadline=None)
@given(judged_by_step(), warm_ups)
def test_it_finds_what_pricing_every_plan_finds(instance: Instance, warm_up: str | tuple[int, ...]):
    if instance.training.warms_up:
        instance = replace(instance, training=replace(instance.training, warm_up=warm_up))
    assume(accepts(instance).proves and few_plans(instance))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answering, "MOST_MICRO_BATCHES", 0)
        found, truth = solve(instance), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (truth.proof, truth.objective)
    assert found.plan is None or evaluate(instance, found.plan).objective == found.objective


@settings(max_examples=so_many(10), deadline=None)
@given(judged_by_step(max_layers=3), st.integers(65, 130))
def test_many_micro_batches_are_proved(instance: Instance, many: int):
    training = replace(instance.training, global_batch=many, micro_batches=many)
    instance = replace(instance, training=training)
    assume(accepts(instance).proves and few_plans(instance))
    found, truth = solve(instance), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (truth.proof, truth.objective)


@settings(max_examples=so_many(40), deadline=None)
@given(judged_by_step(), st.integers(1, 400))
def test_few_suffixes_leave_a_gap_and_nothing_false(instance: Instance, numbers: int):
    assume(accepts(instance).proves and few_plans(instance))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answering, "MOST_MICRO_BATCHES", 0)
        patch.setattr(asking, "MOST_NUMBERS", numbers)
        found, truth = solve(instance, Limits(time_limit_s=20.0)), exhaustive.solve(instance)
    if truth.objective is None:
        assert found.objective is None and found.proof is not Proof.OPTIMAL
        return
    assert found.bound is not None and found.bound <= truth.objective
    assert found.proof is not Proof.OPTIMAL or found.objective == truth.objective
