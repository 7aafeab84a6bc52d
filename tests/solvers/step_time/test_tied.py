"""Weights that several layers share, in the search for the executed step: as good as pricing every plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.memory import MemoryParts
from pipecut.formulation.costs.tables import all_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Goal, OnHost, Placement, Recompute, Sharded
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group, forms_on
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import Layer, Tie, layer_graph
from pipecut.formulation.problem.options import BoundaryCharge, CostModel, Synchronisation
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers import exhaustive
from pipecut.solvers.auto.solve import plan as planned
from pipecut.solvers.dynamic.states.states import state_space
from pipecut.solvers.step_time.bounds.pass_tables import stage_parts
from pipecut.solvers.step_time.bounds.rest import rest_of
from pipecut.solvers.step_time.bounds.spans import spans_of
from pipecut.solvers.step_time.bounds.ways import ways_of
from pipecut.solvers.step_time.step_dp import accepts, solve
from tests.examples import follow, matrix
from tests.formulation.page.evaluator import evaluate_page
from tests.generators import hosts, sharded_kinds, warm_ups
from tests.laws import so_many
from tests.solvers.priced import few_plans
from tests.solvers.step_time.test_further import looking_ahead
from tests.solvers.step_time.test_mixtures import no_plan_breaks_the_bounds
from tests.solvers.step_time.test_step_dp import FLUSHING, judged_by_step, keeps_the_bounds

SCENARIOS = Path(__file__).parents[3] / "scenarios"
FILTERED = [HealthCheck.filter_too_much, HealthCheck.too_slow]
RATES = (10**8, 10**9, 10**10)


@st.composite
def language_models(draw: st.DrawFn, max_layers: int = 4) -> tuple[list[Layer], tuple[object, ...]]:
    """An embedding, blocks and a head that shares its weights, or a part of them; often a third user between."""
    shared = draw(st.sampled_from([1_000, 4_000, 20_000]))
    numbers = range(draw(st.integers(1, max_layers - 2)))
    forms = st.sampled_from([(0,), (0, 1, 2), (1, 2)])
    macs = st.sampled_from([100, 1_000, 5_000])
    blocks = [matrix(f"b{at}", draw(macs), 400, taken=40, made=40) for at in numbers]
    if draw(st.booleans()):
        blocks[-1] = follow(blocks[-1].name, 400)
    part, frozen = draw(st.sampled_from([shared, shared // 2])), draw(st.sampled_from([False, False, True]))
    first = matrix("embedding", 0, shared + draw(st.sampled_from([0, 600])), made=40)
    first = replace(first, trainable_bytes=first.parameter_bytes - part if frozen else None)
    last = matrix("head", draw(st.sampled_from([100, 3_000])), draw(st.sampled_from([0, 800])), taken=40, made=40)
    layers = [
        replace(layer, allowed_forms=draw(forms), stash_bytes=draw(st.sampled_from([0, 300])))
        if layer.operator == "matrix"
        else layer
        for layer in (first, *blocks, last)
    ]
    users = ["embedding", *(["b0"] if draw(st.booleans()) else []), "head"]
    return layers, ((tuple(users), part, 0 if frozen else part),)


@st.composite
def tied_steps(draw: st.DrawFn, max_layers: int = 4) -> Instance:
    """Small language models: divided weights, replicas, hosts, recomputation, any warm-ups, memory that binds."""
    layers, ties = draw(language_models(max_layers))
    names, sizes = [layer.name for layer in layers], st.sampled_from([10, 1_000, 5_000])
    graph = layer_graph("tied", layers, [(*ends, draw(sizes)) for ends in pairwise(names)])
    graph.graph["ties"] = ties
    count, schedule = draw(st.integers(1, 4)), draw(st.sampled_from(FLUSHING))
    warm_up = draw(warm_ups) if schedule is Schedule.ONE_F_ONE_B else "classic"
    cost = CostModel(
        synchronisation=draw(st.sampled_from(Synchronisation)),
        boundary_charge=draw(st.sampled_from(BoundaryCharge)),
    )
    constraints = Constraints(
        memory=draw(st.booleans()),
        placement=draw(st.sampled_from(Placement)),
        sharded=draw(sharded_kinds),
        optimizer_on_host=draw(st.sampled_from([OnHost.NEVER, OnHost.ALLOWED])),
        tensor_parallel_degrees=draw(st.sampled_from([(), (1,), (1, 2)])),
        recompute=draw(st.sampled_from([Recompute.NEVER, Recompute.ALLOWED, Recompute.ALWAYS])),
    )
    training = Training(count, count, schedule=schedule, warm_up=warm_up)
    devices, rates = draw(st.sampled_from([(1, 1), (2,), (2, 1), (1, 1, 1)])), st.sampled_from(RATES)
    servers = [
        Server(f"s{at}", DeviceClass("card", 1 << 40, 10**9, 0, Link(10**9, 0), 0), many, Link(draw(rates), 0))
        for at, many in enumerate(devices)
    ]
    joined = [(f"s{at}", f"s{to}", Link(draw(rates), 3)) for at in range(len(devices)) for to in range(at)]
    return with_memory_of_a_stage(draw, graph, (servers, joined), training, cost, constraints)


def with_memory_of_a_stage(
    draw: st.DrawFn,
    graph: nx.DiGraph,
    cluster: tuple[list[Server], list[tuple[str, str, Link]]],
    training: Training,
    cost: CostModel,
    constraints: Constraints,
) -> Instance:
    """Return an instance whose devices have about as much memory as some stage of it needs."""
    (servers, joined), goals = cluster, (Goal.STEP_TIME,)
    made = build_instance(graph, cluster_graph("few", servers, joined), training, cost, constraints, goals)
    group, total = draw(st.sampled_from(Group.possible(made))), len(made.layers)
    first = draw(st.sampled_from([0, *[*range(1, total)] * 2]))
    span = Span(first, draw(st.integers(first + 1, total)))
    allowed = [forms_on(row, group) or row.allowed_forms for row in made.layers[span.first : span.stop]]
    stage = Stage(span, group, tuple(draw(st.sampled_from(one)) for one in allowed))
    held = MemoryParts.of_stage(made, Plan((stage,) * draw(st.integers(1, 3))), 0).total
    room = max(1, held - draw(st.sampled_from([0, 0, 1])))
    servers = [replace(one, device_class=replace(one.device_class, memory_bytes=room)) for one in servers]
    return build_instance(graph, cluster_graph("few", servers, joined), training, cost, constraints, goals)


def agrees(instance: Instance) -> None:
    """Hold what the search proves against the price of every plan, and its plan against the page."""
    found, truth = solve(instance), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (truth.proof, truth.objective)
    if found.plan is not None:
        page = evaluate_page(instance, found.plan)
        assert (page.goals, page.broken) == ((found.objective,), frozenset())


def _seen(instance: Instance) -> None:
    assume(any(instance.copies) and accepts(instance).proves and few_plans(instance))


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=FILTERED)
@given(tied_steps())
def test_of_language_models_it_finds_what_pricing_every_plan_finds(instance: Instance):
    _seen(instance)
    agrees(instance)


@pytest.mark.slow
@settings(max_examples=so_many(40), deadline=None, suppress_health_check=FILTERED)
@given(judged_by_step(), hosts, sharded_kinds, st.sampled_from(["given", "choose"]))
def test_it_does_so_with_everything_that_it_sees(
    instance: Instance, on_host: OnHost, sharded: tuple[Sharded, ...], warm_up: str
):
    _seen(instance)
    constraints = replace(instance.constraints, optimizer_on_host=on_host, sharded=sharded)
    if warm_up == "choose" and instance.training.schedule is Schedule.ONE_F_ONE_B:
        instance = replace(instance, training=replace(instance.training, warm_up="choose"))
    instance = replace(instance, constraints=constraints)
    _seen(instance)
    agrees(instance)


@pytest.mark.slow
@settings(max_examples=so_many(40), deadline=None, suppress_health_check=FILTERED)
@given(tied_steps(), st.integers(1, 4))
def test_looking_ahead_loses_no_plan(instance: Instance, stops: int):
    _seen(instance)
    with pytest.MonkeyPatch.context() as patch:
        looking_ahead(patch, stops)
        agrees(instance)


@settings(max_examples=so_many(30), deadline=None, suppress_health_check=FILTERED)
@given(tied_steps(max_layers=3), st.integers(0, 100))
def test_no_plan_within_a_limit_breaks_a_bound(instance: Instance, more: int):
    instance = replace(instance, training=replace(instance.training, warm_up="classic"))
    _seen(instance)
    no_plan_breaks_the_bounds(instance, more)
    tables, space = all_tables(instance), CutSpace.of(instance)
    spans = spans_of(tables, stage_parts(tables, space).passes, space)
    priced = [(evaluate(instance, plan), plan) for plan in exhaustive.plans(instance)]
    kept = [(one.objective, plan) for one, plan in priced if one.feasible and one.objective is not None]
    limit = min(value for value, _ in kept) * (100 + more) // 100
    rest = rest_of(spans, ways_of(tables, state_space(tables)), limit, NEVER)
    for value, plan in kept:
        if value <= limit:
            assert rest.best <= value
            keeps_the_bounds(rest, instance, tables, space, plan)


def two_stages(instance: Instance, cut: int) -> Plan:
    """One device a stage, all layers by samples."""
    spans = (Span(0, cut), Span(cut, len(instance.layers)))
    return Plan(tuple(Stage(one, Group.on_line(instance, at, 1), (0,) * len(one)) for at, one in enumerate(spans)))


def test_a_copy_decides_which_plan_is_best():
    """Without it two stages are best; its sum once a step takes longer than what the second device is worth."""
    layers = [
        matrix("embedding", 0, 40_000, made=8),
        matrix("block", 1_000, made=8),
        matrix("head", 1_000, taken=8),
    ]
    objectives, alone = list[tuple[int, int]](), Constraints(devices_per_stage=(1,))
    for ties in ((), ((("embedding", "head"), 40_000, 40_000),)):
        graph = layer_graph("tied", layers, [("embedding", "block", 8), ("block", "head", 8)])
        graph.graph["ties"] = ties
        servers = [Server(f"s{at}", DeviceClass("card", 1 << 40, 10**9), 1, None) for at in range(2)]
        cluster = cluster_graph("two", servers, [("s0", "s1", Link(8 * 10**9, 0))])
        cost = CostModel(boundary_charge=BoundaryCharge.LINK)
        instance = build_instance(graph, cluster, Training(4, 4), cost, alone, (Goal.STEP_TIME,))
        found = solve(instance)
        assert found.plan is not None and found.objective is not None and found.proof is Proof.OPTIMAL
        best = min(evaluate(instance, two_stages(instance, cut)).objective or 0 for cut in (1, 2))
        objectives.append((len(found.plan), best - found.objective))
    assert objectives[0] == (2, 0)
    assert objectives[1][0] == 1 and objectives[1][1] > 0


def with_tied_head(instance: Instance) -> Instance:
    """Return a language model whose head, the last layer, uses the weights of its first layer."""
    rows, last = instance.model.layers, len(instance.layers) - 1
    size = rows[0].parameter_bytes
    assert rows[last].parameter_bytes == size
    head = replace(rows[last], parameter_bytes=0, trainable_bytes=None)
    return replace(
        instance, model=replace(instance.model, layers=(*rows[:-1], head), ties=(Tie((0, last), size, size),))
    )


@pytest.mark.slow
def test_gpt2_with_a_tied_head_is_proved():
    instance = replace(load_scenario(SCENARIOS / "gpt/gpt2.yaml").load(), goals=(Goal.STEP_TIME,))
    found = planned(with_tied_head(instance), Limits(), cross_check=False)
    assert (found.proof, found.solver) == (Proof.OPTIMAL, "step_dp")
