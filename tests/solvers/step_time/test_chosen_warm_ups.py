"""Warm-ups chosen with the plan: as good as pricing every plan with every list of them, and bounds that hold."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.tables import all_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.executed import PipelinePasses
from pipecut.formulation.limits import NEVER, StoppedError
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import layer_graph
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers import exhaustive
from pipecut.solvers.search.first_plan import first_plan
from pipecut.solvers.step_time.asking import Search
from pipecut.solvers.step_time.bounds.paths import longest_path
from pipecut.solvers.step_time.step_dp import accepts, solve, warmed
from tests.examples import matrix
from tests.laws import so_many
from tests.solvers.priced import few_plans
from tests.solvers.step_time.test_mixtures import rows_of
from tests.solvers.step_time.test_step_dp import CHARGED, judged_by_step, pipelines, step_given_ns


@st.composite
def with_long_transfers(draw: st.DrawFn) -> Instance:
    """Stages on single devices, transfers up to ten times as long as passes, memory for a few micro-batches."""
    numbers = range(draw(st.integers(3, 4)))
    layers = [
        replace(
            matrix(f"l{at}", draw(st.sampled_from([500, 1000, 2000]))),
            stash_bytes=draw(st.sampled_from([500, 1000, 2000])),
            parameter_bytes=draw(st.sampled_from([0, 300])),
            allowed_forms=(0,),
        )
        for at in numbers
    ]
    edges = [(f"l{at}", f"l{at + 1}", draw(st.sampled_from([100, 1000, 3000]))) for at in numbers[:-1]]
    card = DeviceClass("card", draw(st.sampled_from([6_000, 9_000, 12_000, 1 << 40])), 10**9)
    links = [Link(draw(st.sampled_from([4 * 10**9, 16 * 10**9, 10**11])), 0) for _ in range(3)]
    servers = [Server(f"s{at}", card, 1, None) for at in range(3)]
    joined = [
        (f"s{at}", f"s{other}", link) for (at, other), link in zip(((0, 1), (1, 2), (0, 2)), links, strict=True)
    ]
    count = draw(st.integers(2, 5))
    training = Training(count, count, warm_up="choose")
    constraints = Constraints(memory=True, placement=draw(st.sampled_from(Placement)), devices_per_stage=(1,))
    cluster = cluster_graph("three", servers, joined)
    return build_instance(
        layer_graph("far", layers, edges), cluster, training, CHARGED, constraints, (Goal.STEP_TIME,)
    )


def _agrees(instance: Instance) -> None:
    found, truth = solve(instance), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (truth.proof, truth.objective)
    if found.plan is not None:
        priced = evaluate(instance, found.plan)
        assert priced.feasible and priced.objective == found.objective == found.bound


@settings(max_examples=so_many(8), deadline=None)
@given(with_long_transfers())
def test_it_finds_what_pricing_every_plan_with_every_warm_up_finds(instance: Instance):
    assume(few_plans(instance))
    _agrees(instance)


@settings(max_examples=so_many(25), deadline=None)
@given(judged_by_step(max_layers=3).filter(lambda one: one.training.schedule is Schedule.ONE_F_ONE_B))
def test_it_does_so_with_everything_that_it_sees(instance: Instance):
    instance = replace(instance, training=replace(instance.training, warm_up="choose"))
    assume(accepts(instance).proves and few_plans(instance))
    _agrees(instance)


@pytest.mark.slow
@settings(max_examples=so_many(50), deadline=None)
@given(with_long_transfers())
def test_it_does_so_on_fifty_instances(instance: Instance):
    assume(few_plans(instance))
    _agrees(instance)


@settings(max_examples=so_many(200), deadline=None)
@given(pipelines(), st.integers(1, 4), st.data())
def test_a_path_that_there_always_is_is_no_longer_than_the_step(
    passes: PipelinePasses, size: int, data: st.DataObject
):
    other = data.draw(pipelines(passes.stages))
    training = Training(size, size, warm_up="choose")
    path, rows = longest_path(training, rows_of(other).astype(np.float64)), rows_of(passes)
    assert path.length == (path.often * rows_of(other)).sum()
    for warm_ups in product(range(1, size + 1), repeat=passes.stages):
        if all(one >= after for one, after in pairwise(warm_ups)):
            given_ones = replace(training, warm_up=warm_ups)
            assert (path.often * rows).sum() <= step_given_ns(given_ones, passes)


@settings(max_examples=so_many(200), deadline=None)
@given(pipelines(), st.integers(1, 4))
def test_a_last_stage_that_warms_up_with_one_pass_is_never_slower(passes: PipelinePasses, size: int):
    """The search tries nothing else there; of other stages longer ones may be slower or quicker."""
    for warm_ups in product(range(1, size + 1), repeat=passes.stages):
        if all(one >= after for one, after in pairwise(warm_ups)):
            steps = [
                step_given_ns(Training(size, size, warm_up=(*warm_ups[:-1], last)), passes)
                for last in (1, warm_ups[-1])
            ]
            assert steps[0] <= steps[1]


@settings(max_examples=so_many(40), deadline=None)
@given(with_long_transfers())
def test_warm_ups_for_a_start_keep_the_rules_of_a_plan_and_are_no_slower(instance: Instance):
    plan = first_plan(all_tables(instance))
    if plan is not None and evaluate(instance, plan).feasible:
        priced, start = evaluate(instance, warmed(instance, plan, NEVER)), evaluate(instance, plan)
        assert priced.feasible and priced.objective is not None and start.objective is not None
        assert priced.objective <= start.objective


@settings(max_examples=so_many(20), deadline=None)
@given(with_long_transfers())
def test_a_search_that_is_stopped_at_once_has_no_worse_a_plan_than_with_eager_warm_ups(
    instance: Instance,
):
    eager = solve(replace(instance, training=replace(instance.training, warm_up="eager")))
    assume(eager.plan is not None)
    run = Search.run

    def stopped(search: Search) -> None:
        if search.known.instance.training.chooses_warm_ups:
            raise StoppedError("the time is up")
        run(search)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Search, "run", stopped)
        found = solve(instance)
    assert found.objective is not None and eager.objective is not None and found.objective <= eager.objective
