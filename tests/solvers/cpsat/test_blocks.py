"""Blocks that are computed again alone: the declarative model agrees with brute force."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.commands.parts.tables import stage_in_words
from pipecut.exchange.whole_blocks import TargetError, runs_of
from pipecut.formulation import outcome as claims
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, checked
from pipecut.formulation.problem.cluster import DeviceClass
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement, Recompute
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import BoundaryCharge, Combine, CostModel, StageTime
from pipecut.formulation.problem.plan import Plan, Span
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.ingest.graphs.runtimes import RUNTIMES
from pipecut.ingest.plans.plan_file import plan_of, plan_to_dict
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.catalogue import SOLVERS
from pipecut.solvers.cpsat import cpsat as layered
from tests.enumerator import truth
from tests.examples import GIGA, chain, instance_of, matrix, mesh, on_servers
from tests.generators import (
    OF_SINGLE_STAGES,
    cluster_graphs,
    cost_models,
    hosts,
    instances,
    layer_graphs,
    sharded_kinds,
    whole_passes,
)
from tests.laws import so_many
from tests.solvers.cpsat.demanded import SLOW
from tests.solvers.cpsat.test_freedoms import degrees, has_groups, modelled
from tests.solvers.priced import FEW, few_plans

ONE = Limits(workers=1)


whole_stages = cost_models.map(
    lambda one: replace(one, combine=Combine.MAX, boundary_charge=BoundaryCharge.LINK, stage_time=StageTime.ADD)
)
"""Readings of the cost model in which the time of a stage is its own, and a sum."""


@st.composite
def choosing(
    draw: st.DrawFn,
    *,
    max_layers: int = 5,
    goals: st.SearchStrategy[Goal] = modelled,
    costs: st.SearchStrategy[CostModel] = cost_models,
    schedules: st.SearchStrategy[Schedule] = whole_passes,
) -> Instance:
    """Small instances whose stages choose blocks, some of several layers, under memory that mostly binds."""
    schedule = draw(schedules)
    goal = draw(st.just(Goal.BOTTLENECK) if schedule.in_halves else st.one_of(st.just(Goal.BOTTLENECK), goals))
    if goal is Goal.ITERATION_TIME:
        costs = costs.map(lambda one: replace(one, combine=Combine.MAX))
    layers = layer_graphs(max_layers=max_layers, places=True)
    instance = draw(instances(layers=layers, clusters=cluster_graphs(max_devices=2), costs=costs))
    training = replace(instance.training, schedule=schedule)
    constraints = Constraints(
        memory=True,
        placement=draw(st.sampled_from(Placement)),
        tensor_parallel_degrees=draw(degrees),
        recompute=Recompute.BLOCKS,
        sharded=draw(sharded_kinds),
        optimizer_on_host=draw(hosts),
    )
    instance = replace(replace(instance, training=training, goals=(goal,)), constraints=constraints)
    assume(has_groups(instance) and few_plans(instance))
    return with_memory(instance, draw(st.integers(0, FEW)), draw(st.integers(90, 105)))


def with_memory(instance: Instance, number: int, share: int) -> Instance:
    """The same instance with so many hundredths of what some plan needs that computes blocks again."""
    choosing = [plan for plan in brute_force.plans(instance) if any(stage.again for stage in plan.stages)]
    assume(choosing)
    stages = evaluate(instance, choosing[number % len(choosing)]).stages
    room = max(1, max(stage.memory_bytes for stage in stages) * share // 100)
    servers = (replace(one, device_class=replace(one.device_class, memory_bytes=room)) for one in instance.servers)
    return on_servers(instance, tuple(servers))


@settings(max_examples=so_many(120), deadline=None, suppress_health_check=SLOW)
@given(choosing())
def test_the_declarative_model_chooses_as_brute_force_does(instance: Instance) -> None:
    best = brute_force.solve(instance)
    found = checked(instance, layered.solve(instance, ONE))
    assert (found.proof, found.objective) == (best.proof, best.objective)


@settings(max_examples=so_many(40), deadline=None, suppress_health_check=SLOW)
@given(choosing(max_layers=4), st.data())
def test_no_block_is_computed_again_for_nothing(instance: Instance, data: st.DataObject) -> None:
    """Whichever of the best plans a method returns, none of its runs can be left out at the same values."""
    best = brute_force.solve(instance)
    assume(best.plan is not None)
    equal = [
        plan
        for plan in brute_force.plans(instance)
        if (found := evaluate(instance, plan)).feasible and found.objective == best.objective
    ]
    plan = checked(instance, replace(best, plan=data.draw(st.sampled_from(equal)))).plan
    assert plan is not None
    assert (now := evaluate(instance, plan)).feasible and now.objective == best.objective
    for run in [run for stage in plan.stages for run in stage.again]:
        less = evaluate(instance, plan.keeping(run))
        assert not less.feasible or less.objective != best.objective


@settings(max_examples=so_many(40), deadline=None, suppress_health_check=SLOW)
@given(choosing(max_layers=4, schedules=st.sampled_from(OF_SINGLE_STAGES)))
def test_brute_force_tries_every_choice(instance: Instance) -> None:
    values = truth(instance).values
    assert brute_force.solve(instance).objective == (None if values is None else values[0])


def test_what_is_computed_again_for_nothing_is_looked_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stage has all the time that the second one takes, and memory for both of its blocks."""
    layers = chain([matrix("a", 10, 4), matrix("b", 10, 4), matrix("c", 1000, 4)], [2, 2])
    constraints = Constraints(memory=True, recompute=Recompute.BLOCKS, devices_per_stage=(1,))
    instance = replace(instance_of(layers, mesh(2)), constraints=constraints)
    best = brute_force.solve(instance)
    assert best.plan is not None
    first, *others = best.plan.stages
    assert first.span == Span(0, 2)
    chosen = Plan((replace(first, again=(Span(0, 1), Span(1, 2))), *others))
    outcome = replace(best, plan=chosen)
    found = checked(instance, outcome).plan
    assert found is not None and not found.stages[0].again
    monkeypatch.setattr(claims, "PLAIN_S", 0.0)  # one look may take long
    assert checked(instance, outcome).plan == chosen


def test_a_plan_says_in_its_file_which_blocks_it_computes_again() -> None:
    """Of two micro-batches three blocks keep 100 bytes each, and one works with 40.

    640 bytes without recomputation. With that of the first block 400, and 100 + 40 while it is computed again; of
    another one 20 more, for what it reads. With that of all as one 300 + 40.
    """
    layers = [replace(matrix(name, 10, taken=10, made=10), stash_bytes=100) for name in "abc"]
    training = Training(global_batch=2, micro_batches=2, schedule=Schedule.GPIPE)
    cluster = mesh(1, kind=DeviceClass("small", 550, GIGA))
    instance = instance_of(chain(layers, [10, 10]), cluster, training=training)
    instance = replace(instance, constraints=Constraints(memory=True, recompute=Recompute.BLOCKS))
    found = checked(instance, layered.solve(instance, ONE))
    assert found.plan is not None
    written = plan_to_dict(instance, found.plan, evaluate(instance, found.plan))
    assert plan_of(written, instance) == (found.plan, [])
    assert evaluate(instance, found.plan).stages[0].memory_bytes == 540
    assert written["stages"][0]["recompute"] == [["a", "a"]]
    assert "recomputes 1 block" in stage_in_words(instance, found.plan, 0)
    with pytest.raises(TargetError, match="stage 0 computes 1 block again, first a to a"):
        runs_of(instance, found.plan, RUNTIMES["torchtitan"])
    for other in SOLVERS:
        if other.exact and other.name not in (
            "cpsat",
            "brute_force",
            "state_dp",
            "reduced_dp",
            "cpsat_types",
        ):
            assert "constraints.recompute is 'blocks'" in other.accepts(instance).reason, other.name
