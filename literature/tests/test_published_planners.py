"""Laws for the planners of other papers: whatever limits an instance, what they claim of their plans holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.constraints import Constraints, Placement, Recompute
from pipecut.formulation.problem.layers import Across, Axis
from pipecut.formulation.problem.training import Training
from pipecut.solvers.catalogue import all_names, find_any
from pipecut.solvers.reference import line_dp
from pipecut_literature.alpa import planner as alpa
from pipecut_literature.baselines import naive_model_parallel
from pipecut_literature.gpipe import planner as gpipe
from pipecut_literature.pipedream import planner as pipedream
from tests.examples import chain, instance_of, matrix, mesh
from tests.generators import cluster_graphs, divisible, instances, layer_graphs
from tests.laws import so_many

PLANNERS = {
    "alpa": alpa.solve,
    "gpipe": gpipe.solve,
    "naive_model_parallel": naive_model_parallel.solve,
    "pipedream": pipedream.solve,
    "pipedream_code": pipedream.solve_code,
}
limits = st.builds(
    Constraints,
    memory=st.booleans(),
    max_servers=st.sampled_from([None, 1, 2]),
    tensor_parallel_degrees=st.sampled_from([(), (1,), (2,), (1, 2)]),
    recompute=st.sampled_from(Recompute),
    placement=st.sampled_from(Placement),
    stages_at_most=st.sampled_from([None, 1, 2]),
)


@pytest.mark.parametrize("name", PLANNERS)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=so_many(60))
@given(instance=instances(layer_graphs(5), cluster_graphs(5)).filter(divisible), constraints=limits)
def test_only_rules_that_a_planner_is_blind_to_are_broken(name, instance, constraints):
    """``checked`` raises for any other broken rule, and for a price that is not the evaluator's."""
    limited = replace(instance, constraints=constraints)
    outcome = checked(limited, PLANNERS[name](limited))
    assert outcome.solver == name
    assert outcome.plan is not None and outcome.bound is None
    assert outcome.proof in (Proof.FEASIBLE, Proof.UNKNOWN)


@pytest.mark.parametrize("name", PLANNERS)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=so_many(60))
@given(instance=instances(layer_graphs(6), cluster_graphs(5)).filter(divisible))
def test_no_planner_beats_the_optimum(name, instance):
    outcome, best = checked(instance, PLANNERS[name](instance)), checked(instance, line_dp.solve(instance))
    assert best.proof is Proof.OPTIMAL
    assert outcome.objective is not None and best.bound is not None
    assert outcome.objective >= best.bound


@pytest.mark.parametrize("name", all_names())
def test_a_layer_without_a_form_is_told_by_its_name(name: str) -> None:
    """Attention of one sample, whose rows may be parts of a sequence, has no form 0 on four devices."""
    attention = replace(matrix("attention", 10), across=Across(Axis.CONTEXT, 4, 10))
    instance = instance_of(chain([attention, matrix("b", 20)], [5]), mesh(4), training=Training(1))
    instance = replace(instance, constraints=Constraints(splits=(Axis.CONTEXT,)))
    entry = find_any(name)
    if not entry.accepts(instance).takes:
        return
    try:
        outcome = entry.load()(instance, Limits(time_limit_s=20.0))
    except ValueError as error:
        assert "layer attention has" in str(error)
    else:
        assert outcome.plan is not None
