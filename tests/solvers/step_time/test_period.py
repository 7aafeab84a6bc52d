"""The programme for the executed period against pricing every plan, and the plan that made it worth writing."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.tables import all_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.executed import PipelinePasses, period_ns
from pipecut.formulation.limits import NEVER, TooLargeError
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement, Recompute
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import GroupKind
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.options import BoundaryCharge, Samples, StageTime, Synchronisation
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers import exhaustive
from pipecut.solvers.auto.solve import plan as planned
from pipecut.solvers.dynamic.states.states import state_space
from pipecut.solvers.step_time.bounds.columns import Period
from pipecut.solvers.step_time.bounds.pass_tables import stage_parts
from pipecut.solvers.step_time.bounds.rest import Rest, rest_of
from pipecut.solvers.step_time.bounds.spans import spans_of
from pipecut.solvers.step_time.bounds.ways import ways_of
from pipecut.solvers.step_time.responses import responses
from pipecut.solvers.step_time.step_dp import accepts, solve
from tests.examples import BYTE_LINK, PLAIN, chain, instance_of, matrix, mesh
from tests.formulation.page.evaluator import evaluate_page
from tests.generators import cluster_graphs, cost_models, hosts, layer_graphs, recomputation
from tests.laws import so_many
from tests.solvers.priced import few_plans
from tests.solvers.step_time.test_fronts import keeps_what_is_worth_having
from tests.solvers.step_time.test_step_dp import pipelines

SHIPPED = "scenarios/pipepar/vgg13.yaml"
FILTERED = [HealthCheck.filter_too_much, HealthCheck.too_slow]
TRAINING = Training(global_batch=1, schedule=Schedule.ASYNC_ONE_F_ONE_B)


by_links, added = st.just(BoundaryCharge.LINK), st.just(StageTime.ADD)
stage_times = st.sampled_from([StageTime.ADD, StageTime.ADD, StageTime.OVERLAP])


@st.composite
def judged_by_period(
    draw: st.DrawFn,
    *,
    charges: st.SearchStrategy[BoundaryCharge] = by_links,
    stage_times: st.SearchStrategy[StageTime] = added,
    most_charged: int = 1,
) -> Instance:
    """Small instances: weights tied and not, memory with and without forms, stages that recompute and not.

    Where synchronisation is charged up to so many micro-batches.
    """
    constraints = Constraints(
        memory=draw(st.booleans()),
        placement=draw(st.sampled_from(Placement)),
        tensor_parallel_degrees=draw(st.sampled_from([(), (), (1, 2), (1,)])),
        **draw(recomputation),
        optimizer_on_host=draw(hosts),
    )
    cost = replace(draw(cost_models), boundary_charge=draw(charges))
    stage_time = draw(stage_times)
    if stage_time is StageTime.OVERLAP:
        cost = replace(cost, expert_load=Fraction(1), inside=Synchronisation.CHARGED, samples=Samples.FRACTIONS)
    cost = replace(cost, stage_time=stage_time)
    overlapped = cost.synchronisation is Synchronisation.OVERLAPPED
    size = draw(st.integers(1, 3 if overlapped else most_charged))
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


@st.composite
def in_rounds(draw: st.DrawFn) -> Instance:
    """Chains of which several stages are the best, and whose synchronisation takes about as long as passes."""
    count = draw(st.integers(3, 6))
    spent, bytes_each = st.integers(10, 100), st.one_of(st.just(0), st.integers(20, 300))
    layers = [matrix(f"layer{at}", draw(spent), draw(bytes_each), taken=9, made=9) for at in range(count)]
    graph = chain(layers, [draw(st.integers(0, 40)) for _ in layers[1:]])
    if layers[0].parameter_bytes and draw(st.booleans()):
        tied = ("layer0", f"layer{draw(st.integers(1, count - 1))}")
        graph.graph["ties"] = ((tied, layers[0].parameter_bytes, layers[0].parameter_bytes),)
    devices = draw(st.sampled_from([(1, 1), (1, 1, 1), (2, 1), (2, 2), (1, 1, 1, 1)]))
    cost = replace(PLAIN, boundary_charge=draw(st.sampled_from(BoundaryCharge)), stage_time=draw(stage_times))
    found = instance_of(
        graph, mesh(*devices, between=draw(st.sampled_from([BYTE_LINK, Link(2 * 10**9, 3)]))), cost
    )
    size = draw(st.integers(1, 6))
    training = replace(TRAINING, global_batch=size, micro_batches=size)
    degrees = draw(st.sampled_from([(1,), (1,), (1, 2)])) if count < 5 else (1,)
    constraints = Constraints(tensor_parallel_degrees=degrees, placement=draw(st.sampled_from(Placement)))
    return replace(found, training=training, constraints=constraints, goals=(Goal.PERIOD,))


def agrees(instance: Instance) -> None:
    """Hold the programme against pricing every plan, and its plan against both evaluators."""
    assume(accepts(instance).proves and few_plans(instance))
    found, truth = solve(instance), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (truth.proof, truth.objective)
    if found.plan is not None:
        assert evaluate(instance, found.plan).objective == found.objective
        assert evaluate_page(instance, found.plan).goals == (found.objective,)


@pytest.mark.slow
@settings(max_examples=so_many(200), deadline=None, suppress_health_check=FILTERED)
@given(judged_by_period())
def test_it_finds_what_pricing_every_plan_finds(instance: Instance) -> None:
    agrees(instance)


@pytest.mark.slow
@settings(max_examples=so_many(60), deadline=None, suppress_health_check=FILTERED)
@given(judged_by_period())
def test_it_sees_weights_that_several_layers_share(instance: Instance) -> None:
    assume(any(instance.copies))
    agrees(instance)


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=FILTERED)
@given(judged_by_period())
def test_it_chooses_forms_by_memory_and_of_stages_that_recompute(instance: Instance) -> None:
    degrees = instance.constraints.tensor_parallel_degrees
    assume(instance.devices > 1 and degrees != (1,))
    assume(instance.constraints.memory or instance.constraints.recompute is not Recompute.NEVER)
    agrees(instance)


@pytest.mark.slow
@settings(max_examples=so_many(100), deadline=None, suppress_health_check=FILTERED)
@given(judged_by_period(charges=st.just(BoundaryCharge.RECEIVER)))
def test_it_sees_receivers_that_fetch(instance: Instance) -> None:
    assume(instance.devices > 1)
    agrees(instance)


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=FILTERED)
@given(judged_by_period(stage_times=st.just(StageTime.OVERLAP), charges=st.sampled_from(BoundaryCharge)))
def test_it_sees_communication_that_hides_behind_the_computation_of_its_pass(instance: Instance) -> None:
    agrees(instance)


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=FILTERED)
@given(judged_by_period(charges=st.sampled_from(BoundaryCharge), stage_times=stage_times, most_charged=4))
def test_it_sees_synchronisation_that_is_charged_once_in_several_micro_batches(instance: Instance) -> None:
    assume(instance.cost.synchronisation is Synchronisation.CHARGED and instance.devices > 1)
    agrees(instance)


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=FILTERED)
@given(in_rounds())
def test_it_sees_several_stages_that_wait_for_the_synchronisation_of_each_other(instance: Instance) -> None:
    agrees(instance)


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=FILTERED)
@given(judged_by_period(stage_times=stage_times, charges=st.sampled_from(BoundaryCharge), most_charged=4))
def test_of_every_span_all_stages_are_known(instance: Instance) -> None:
    assume(accepts(instance).proves)
    keeps_what_is_worth_having(instance)


@settings(max_examples=so_many(300), deadline=None)
@given(pipelines(), st.integers(1, 5), st.booleans(), st.integers(-3, 3))
def test_answers_composed_keep_to_a_period_as_executed(
    passes: PipelinePasses, many: int, charged: bool, more: int
) -> None:
    period, alone = period_ns(passes, many, overlapped=not charged), max(passes.sync_ns)
    limit = max(0, period + more) if charged else max(period + more, -(-alone // many))
    answers = responses(Period(many, charged), passes.stages, limit)
    own = np.array([passes.forward_ns, passes.backward_ns, passes.sync_ns]).T[:, None, :]
    sent = np.array([passes.activation_ns, passes.gradient_ns]).T[:, None, :]
    rows = answers.last(own[-1])
    for slot in range(1, passes.stages):
        rows = answers.before(rows, slot, own[-1 - slot], sent[-slot])
    assert (int(answers.ended(rows)[0]) <= limit) == (period <= limit)


@settings(max_examples=so_many(100), deadline=None, suppress_health_check=FILTERED)
@given(
    judged_by_period(stage_times=stage_times, charges=st.sampled_from(BoundaryCharge), most_charged=4)
    | in_rounds().filter(lambda one: len(one.layers) < 5),
    st.integers(0, 60),
)
def test_no_plan_within_a_limit_breaks_a_bound(instance: Instance, more: int) -> None:
    """By places and by blocks of them; stages of such plans may all be looked at."""
    assume(accepts(instance).proves and few_plans(instance))
    priced = [(evaluate(instance, plan), plan) for plan in exhaustive.plans(instance)]
    kept = [(one.objective, plan) for one, plan in priced if one.feasible and one.objective is not None]
    assume(kept)
    limit = min(value for value, _ in kept) * (100 + more) // 100
    tables, space = all_tables(instance), CutSpace.of(instance)
    spans = spans_of(tables, stage_parts(tables, space).passes, space)
    ways = ways_of(tables, state_space(tables))
    rest, coarse = rest_of(spans, ways, limit, NEVER), Rest(spans.blocks(spans.evenly(2)), ways, limit, NEVER)
    for value, plan in kept:
        if value <= limit:
            assert coarse.best <= rest.best <= value
            for at, stage in enumerate(plan.stages):
                kind, slot = tables.kinds.index(GroupKind.of(instance, stage.group)), len(plan) - 1 - at
                start, stop = space.places.index(stage.span.first), space.places.index(stage.span.stop)
                assert rest.useful[spans.rules[slot]][kind, start, stop]


def chain_without_a_flush(micro_batches: int, *, tied: bool = False) -> Instance:
    """Four layers on three devices, two of them in one server."""
    layers = [matrix(f"layer{at}", 30 + at, 100, taken=9, made=9) for at in range(4)]
    graph = chain(layers, [9, 9, 9])
    graph.graph["ties"] = ((("layer0", "layer3"), 100, 100),) if tied else ()
    training = replace(TRAINING, global_batch=micro_batches, micro_batches=micro_batches)
    return replace(instance_of(graph, mesh(2, 1), training=training), goals=(Goal.PERIOD,))


RECEIVED = replace(PLAIN, boundary_charge=BoundaryCharge.RECEIVER)


@pytest.mark.parametrize(
    "instance",
    [
        chain_without_a_flush(1, tied=True),
        replace(chain_without_a_flush(1), cost=replace(PLAIN, stage_time=StageTime.OVERLAP)),
        replace(chain_without_a_flush(1), constraints=Constraints(memory=True, recompute=Recompute.ALLOWED)),
        chain_without_a_flush(8),
        replace(chain_without_a_flush(3), cost=RECEIVED),
    ],
    ids=["tied", "overlap", "memory", "several", "receivers"],
)
def test_it_is_asked_where_nobody_else_is_named(instance: Instance) -> None:
    found = planned(instance, Limits(workers=1))
    assert (found.proof, found.solver) == (Proof.OPTIMAL, "step_dp")


def test_more_micro_batches_than_answers_are_kept_of_are_refused_with_both_numbers() -> None:
    instance = chain_without_a_flush(65)
    support = accepts(instance)
    assert support.too_large and "65" in support.reason and "at most 64" in support.reason
    with pytest.raises(TooLargeError, match="at most 64"):
        solve(instance)
    overlapped = replace(instance, cost=replace(PLAIN, synchronisation=Synchronisation.OVERLAPPED))
    assert accepts(overlapped).proves


@pytest.mark.slow
def test_vgg13_executes_in_190_ms_and_the_bottleneck_optimum_in_242() -> None:
    instance = load_scenario(Path(__file__).parents[3] / SHIPPED).load()
    judged = replace(instance, goals=(Goal.PERIOD,))
    by_formula = planned(instance, Limits()).plan
    assert by_formula is not None
    assert evaluate(judged, by_formula).objective == 242_468_654
    best = planned(judged, Limits())
    assert (best.proof, best.objective, best.solver) == (Proof.OPTIMAL, 190_356_279, "step_dp")
