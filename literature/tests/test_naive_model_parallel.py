"""Naive model parallelism: the same number of layers on every device."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipecut.formulation.outcome import Proof, checked
from pipecut.formulation.problem.plan import Span
from pipecut.solvers.reference import line_dp
from pipecut_literature.baselines import naive_model_parallel
from tests.examples import chain, instance_of, matrix, mesh
from tests.generators import instances, layer_graphs
from tests.laws import so_many


def work(*macs):
    return chain([matrix(f"m{at}", one) for at, one in enumerate(macs)], [0] * (len(macs) - 1))


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=so_many(60))
@given(instances(layer_graphs(7)))
def test_plans_hold_on_any_instance(instance):
    outcome = checked(instance, naive_model_parallel.solve(instance))
    assert (outcome.proof, outcome.bound) == (Proof.FEASIBLE, None)
    assert outcome.plan is not None and outcome.objective is not None
    sizes = [len(stage.span) for stage in outcome.plan.stages]
    assert len(sizes) == min(instance.devices, len(instance.layers))
    assert max(sizes) - min(sizes) <= 1
    optimum = line_dp.solve(instance).objective
    assert optimum is not None and outcome.objective >= optimum


@given(st.integers(1, 60), st.integers(1, 60))
def test_parts_are_equal_up_to_one(total, parts):
    found = naive_model_parallel.equal_parts(total, parts)
    assert (len(found), sum(found)) == (parts, total)
    assert max(found) - min(found) <= 1
    assert list(found) == sorted(found, reverse=True)


def test_layers_are_counted_and_not_weighed():
    """7 layers on 3 devices: 3, 2 and 2 of them, though the first alone is half of the work."""
    outcome = naive_model_parallel.solve(instance_of(work(60, 10, 10, 10, 10, 10, 10), mesh(2, 1)))
    assert outcome.plan is not None
    assert [stage.span for stage in outcome.plan.stages] == [Span(0, 3), Span(3, 5), Span(5, 7)]
    assert [stage.group.counts for stage in outcome.plan.stages] == [((0, 1),), ((0, 1),), ((1, 1),)]
    assert outcome.objective == 3 * 80


def test_devices_without_a_layer_stay_idle():
    outcome = naive_model_parallel.solve(instance_of(work(5, 5), mesh(4)))
    assert outcome.plan is not None
    assert [stage.span for stage in outcome.plan.stages] == [Span(0, 1), Span(1, 2)]
