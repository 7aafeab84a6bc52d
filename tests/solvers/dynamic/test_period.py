"""The programme for the executed period against pricing every plan, and the plan that made it worth writing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from formulation.evaluate import evaluate
from formulation.outcome import Limits, Proof
from formulation.problem.instance import Instance, build_instance
from formulation.problem.options import (
    BoundaryCharge,
    Constraints,
    Goal,
    Placement,
    Schedule,
    StageTime,
    Synchronisation,
    Training,
)
from ingest.scenario.load import load_scenario
from solvers import exhaustive
from solvers.auto.solve import plan as planned
from solvers.dynamic.period.solver import accepts, solve
from tests.generators import cluster_graphs, cost_models, hosts, layer_graphs, recomputation

SHIPPED = "scenarios/pipepar/vgg13.yaml"
TRAINING = Training(global_batch=1, schedule=Schedule.ASYNC_ONE_F_ONE_B)


@st.composite
def judged_by_period(draw: st.DrawFn, *, receiver: bool = False) -> Instance:
    """Small instances that the programme sees; with ``receiver`` those where receivers pay for boundaries."""
    memory = draw(st.booleans())
    whole = memory or draw(st.booleans())
    constraints = Constraints(
        memory=memory,
        placement=draw(st.sampled_from(Placement)),
        tensor_parallel_degrees=(1,) if whole else draw(st.sampled_from([(), (), (1, 2)])),
        **(draw(recomputation) if whole else {}),
        optimizer_on_host=draw(hosts),
    )
    cost = replace(draw(cost_models), boundary_charge=BoundaryCharge.LINK, stage_time=StageTime.ADD)
    if receiver:
        cost = replace(cost, boundary_charge=BoundaryCharge.RECEIVER, synchronisation=Synchronisation.OVERLAPPED)
    overlapped = cost.synchronisation is Synchronisation.OVERLAPPED
    size = draw(st.integers(1, 3)) if overlapped else 1
    found = build_instance(
        draw(layer_graphs(max_layers=4, places=True)), draw(cluster_graphs(max_devices=3)), TRAINING, cost
    )
    training = replace(
        TRAINING,
        global_batch=size,
        micro_batches=size,
        schedule=draw(st.sampled_from([Schedule.ASYNC_ONE_F_ONE_B, Schedule.DOUBLE_BUFFERED])),
    )
    return replace(found, training=training, constraints=constraints, goals=(Goal.PERIOD,))


@settings(max_examples=200, deadline=None)
@given(judged_by_period())
def test_it_finds_what_pricing_every_plan_finds(instance: Instance):
    assume(accepts(instance).proves and exhaustive.accepts(instance).proves)
    found, truth = solve(instance), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (truth.proof, truth.objective)
    assert found.plan is None or evaluate(instance, found.plan).objective == found.objective


@settings(max_examples=100, deadline=None)
@given(judged_by_period(receiver=True))
def test_it_sees_receivers_that_fetch(instance: Instance):
    assume(accepts(instance).proves and exhaustive.accepts(instance).proves and instance.devices > 1)
    found, truth = solve(instance), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (truth.proof, truth.objective)


def test_vgg13_executes_in_190_ms_and_the_bottleneck_optimum_in_242():
    instance = load_scenario(Path(__file__).parents[3] / SHIPPED).load()
    judged = replace(instance, goals=(Goal.PERIOD,))
    by_formula = planned(instance, Limits()).plan
    assert by_formula is not None
    assert evaluate(judged, by_formula).objective == 242_468_654
    best = planned(judged, Limits())
    assert (best.proof, best.objective, best.solver) == (Proof.OPTIMAL, 190_356_279, "period_dp")
