"""The search for the executed step against the price of every plan, its bounds too, and shipped models."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.passes import pipeline_passes
from pipecut.formulation.costs.tables import Tables, all_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.executed import PipelinePasses, step_ns, step_of_training_ns
from pipecut.formulation.limits import NEVER
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement, Recompute
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import GroupKind
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import layer_graph
from pipecut.formulation.problem.options import BoundaryCharge, CostModel, StageTime, Synchronisation
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers import exhaustive
from pipecut.solvers.atoms.unbeaten import unbeaten
from pipecut.solvers.auto.solve import plan as planned
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.dynamic.states.states import state_space
from pipecut.solvers.step_time.bounds.pass_tables import stage_parts
from pipecut.solvers.step_time.bounds.rest import Rest, rest_of
from pipecut.solvers.step_time.bounds.spans import Spans, spans_of
from pipecut.solvers.step_time.bounds.ways import Ways, ways_of
from pipecut.solvers.step_time.responses import responses
from pipecut.solvers.step_time.step_dp import accepts, solve
from tests.examples import matrix
from tests.generators import cluster_graphs, cost_models, layer_graphs, warm_ups
from tests.laws import so_many
from tests.solvers.priced import few_plans

SCENARIOS = Path(__file__).parents[3] / "scenarios"
FLUSHING = (Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.NAIVE)
given_warm_ups = warm_ups.filter(lambda one: one != "choose")
CHARGED = CostModel(synchronisation=Synchronisation.CHARGED, boundary_charge=BoundaryCharge.LINK)
STEP = ("training.schedule=one_f_one_b", "training.micro_batches=8")


@st.composite
def judged_by_step(draw: st.DrawFn, max_layers: int = 4) -> Instance:
    """Small instances that the search sees: both schedules, all forms, memory, recomputation, either charge."""
    constraints = Constraints(
        memory=draw(st.booleans()),
        placement=draw(st.sampled_from(Placement)),
        tensor_parallel_degrees=draw(st.sampled_from([(), (1,), (1, 2)])),
        recompute=draw(st.sampled_from([one for one in Recompute if not one.by_blocks])),
    )
    cost = replace(draw(cost_models), stage_time=StageTime.ADD)
    schedule, size = draw(st.sampled_from(FLUSHING)), draw(st.integers(1, 5))
    warm_up = draw(given_warm_ups) if schedule is Schedule.ONE_F_ONE_B else "classic"
    training = Training(global_batch=size, micro_batches=size, schedule=schedule, warm_up=warm_up)
    layers = draw(layer_graphs(max_layers=max_layers, places=True))
    found = build_instance(layers, draw(cluster_graphs(max_devices=3)), training, cost)
    return replace(found, constraints=constraints, goals=(Goal.STEP_TIME,))


@settings(max_examples=so_many(150), deadline=None)
@given(judged_by_step())
def test_it_finds_what_pricing_every_plan_finds(instance: Instance):
    assume(accepts(instance).proves and few_plans(instance))
    found, truth = solve(instance), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (truth.proof, truth.objective)
    assert found.plan is None or evaluate(instance, found.plan).objective == found.objective


@st.composite
def with_much_to_synchronise(draw: st.DrawFn) -> Instance:
    """Stages on several devices whose synchronisation takes about as long as all passes."""
    numbers = range(draw(st.integers(2, 3)))
    sizes = st.sampled_from([0, 10, 1000, 20_000, 100_000])
    macs, once = st.sampled_from([100, 1000, 5000]), {"allowed_forms": (0,)}
    layers = [replace(matrix(f"l{at}", draw(macs)), parameter_bytes=draw(sizes), **once) for at in numbers]
    edges = [(f"l{at}", f"l{at + 1}", draw(st.sampled_from([10, 1000, 5000]))) for at in numbers[:-1]]
    rates = st.sampled_from([10**8, 10**9, 10**10])
    card = DeviceClass("card", 1 << 40, 10**9)
    servers = [Server(f"s{at}", card, draw(st.integers(1, 2)), Link(draw(rates), 0)) for at in range(2)]
    cluster = cluster_graph("two", servers, [("s0", "s1", Link(draw(rates), 0))])
    count = draw(st.integers(1, 4))
    training = Training(4 * count, count, schedule=draw(st.sampled_from(FLUSHING)))
    graph = layer_graph("heavy", layers, edges)
    return build_instance(graph, cluster, training, CHARGED, goals=(Goal.STEP_TIME,))


@settings(max_examples=so_many(150), deadline=None)
@given(with_much_to_synchronise())
def test_a_synchronisation_is_not_taken_to_delay_the_drain(instance: Instance):
    found, truth = solve(instance), exhaustive.solve(instance)
    assert (found.proof, found.objective, found.bound) == (Proof.OPTIMAL, truth.objective, truth.objective)


times = st.integers(0, 20)


@st.composite
def pipelines(draw: st.DrawFn, stages: int = 0) -> PipelinePasses:
    """Passes of so many stages, or of up to five."""
    stages = stages or draw(st.integers(1, 5))
    rows = [tuple(draw(times) for _ in range(stages)) for _ in range(5)]
    return PipelinePasses(*rows[:3], *(row[1:] for row in rows[3:]))


@st.composite
def trainings_given(draw: st.DrawFn) -> Training:
    """Trainings of up to seven micro-batches, with given warm-ups."""
    schedule, size = draw(st.sampled_from(FLUSHING)), draw(st.integers(1, 7))
    warm_up = draw(given_warm_ups) if schedule is Schedule.ONE_F_ONE_B else "classic"
    return Training(global_batch=size, micro_batches=size, schedule=schedule, warm_up=warm_up)


def step_given_ns(training: Training, passes: PipelinePasses) -> int:
    return step_of_training_ns(training, passes, overlapped=False)


@settings(max_examples=so_many(300), deadline=None)
@given(pipelines(), trainings_given())
def test_answers_composed_are_the_step_as_executed(passes: PipelinePasses, training: Training):
    answers = responses(training, passes.stages)
    own = np.array([passes.forward_ns, passes.backward_ns, passes.sync_ns]).T[:, None, :]
    sent = np.array([passes.activation_ns, passes.gradient_ns]).T[:, None, :]
    rows = answers.last(own[-1])
    for slot in range(1, passes.stages):
        rows = answers.before(rows, slot, own[-1 - slot], sent[-slot])
    assert int(answers.ended(rows)[0]) == step_given_ns(training, passes)
    alone = step_given_ns(training, replace(passes, sync_ns=(0,) * passes.stages))
    assert int(answers.leaving(rows)[0]) == alone


@given(st.integers(2, 6), st.lists(st.lists(st.integers(0, 6), min_size=7, max_size=7), max_size=40))
def test_what_is_kept_is_beaten_by_nothing_and_beats_all_else(columns: int, drawn: list[list[int]]):
    rows = np.array(drawn, dtype=np.int64).reshape(len(drawn), 7)
    table, group = rows[:, :columns], rows[:, 6] % 3
    kept = unbeaten(table, group, NEVER).tolist()
    for at in range(len(table)):
        better = [one for one in kept if group[one] == group[at] and (table[one] <= table[at]).all()]
        assert better == ([at] if at in kept else better) and better


def _parts(instance: Instance) -> tuple[Tables, CutSpace, Spans, Ways]:
    tables, space = all_tables(instance), CutSpace.of(instance)
    parts = stage_parts(tables, space)
    return tables, space, spans_of(tables, parts.passes, space), ways_of(tables, state_space(tables))


def keeps_the_bounds(rest: Rest, instance: Instance, tables: Tables, space: CutSpace, plan: Plan):
    """Hold a plan within the limit against what is ahead of its stages, behind them, and useful."""
    passes = pipeline_passes(instance, plan)
    paces = list(map(sum, zip(passes.forward_ns, passes.backward_ns, strict=True)))
    crossed = [*map(sum, zip(passes.activation_ns, passes.gradient_ns, strict=True)), 0]
    ahead = list(accumulate(map(sum, zip(paces, crossed, strict=True)), initial=0))
    for at, stage in enumerate(plan.stages):
        slot, kind = len(plan.stages) - 1 - at, tables.kinds.index(GroupKind.of(instance, stage.group))
        start, stop = space.places.index(stage.span.first), space.places.index(stage.span.stop)
        assert rest.useful[rest.spans.rules[slot]][kind, start, stop]
        assert rest.ahead[slot, :, start].min() <= ahead[at]
        own = {name: getattr(passes, name)[at:] for name in ("forward_ns", "backward_ns")}
        sent = {name: getattr(passes, name)[at:] for name in ("activation_ns", "gradient_ns")}
        suffix = PipelinePasses(**own, **sent, sync_ns=(0,) * (len(plan) - at))
        training = instance.training
        alone = step_ns(training.schedule, suffix, training.micro_batches, plan.warm_ups(training)[at:])
        assert rest.behind[slot, :, start].min() <= alone


@settings(max_examples=so_many(60), deadline=None)
@given(judged_by_step(max_layers=3), st.integers(0, 100))
def test_no_plan_within_a_limit_breaks_a_bound(instance: Instance, more: int):
    assume(accepts(instance).proves and few_plans(instance))
    tables, space, spans, ways = _parts(instance)
    plans = list(exhaustive.plans(instance))
    values = [evaluate(instance, plan) for plan in plans]
    kept = [
        (one.objective, plan) for one, plan in zip(values, plans, strict=True) if one.feasible and one.objective
    ]
    assume(kept)
    limit = min(value for value, _ in kept) * (100 + more) // 100
    rest = rest_of(spans, ways, limit, NEVER)
    for value, plan in kept:
        if value <= limit:
            assert rest.best <= value
            keeps_the_bounds(rest, instance, tables, space, plan)


@given(judged_by_step())
def test_what_is_useful_by_places_is_useful_by_blocks(instance: Instance):
    assume(accepts(instance).proves)
    _, _, spans, ways = _parts(instance)
    limit = int(spans.whole[spans.whole < 1 << 50].max())
    fine, coarse = Rest(spans, ways, limit, NEVER), Rest(spans.blocks(spans.evenly(2)), ways, limit, NEVER)
    assert coarse.best <= fine.best
    for rule, useful in fine.useful.items():
        assert (useful <= spans.inside(coarse.useful[rule], coarse.spans.place)).all()


def _shipped(name: str, *overrides: str) -> Instance:
    return replace(load_scenario(SCENARIOS / name, overrides).load(), goals=(Goal.STEP_TIME,))


@pytest.mark.slow
def test_the_bound_ahead_of_labels_bites_on_a_shipped_model():
    _, _, spans, ways = _parts(_shipped("pipepar/vgg13.yaml", *STEP))
    rest = rest_of(spans, ways, 195_236_609, NEVER)
    assert rest.best == 162_002_054
    kinds = rest.useful[0].sum(axis=(1, 2))
    assert kinds.sum() < spans.roomy[0].sum() // 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "best", "formula"),
    [("pipepar/vgg13.yaml", 195_236_610, 196_579_370), ("pipepar/resnet50.yaml", 98_241_984, 109_873_109)],
)
def test_plans_are_proved_that_the_formula_does_not_find(name: str, best: int, formula: int):
    instance = _shipped(name, *STEP)
    found = planned(instance, Limits(), cross_check=False)
    assert (found.proof, found.objective, found.solver) == (Proof.OPTIMAL, best, "step_dp")
    by_formula = planned(replace(instance, goals=(Goal.ITERATION_TIME,)), Limits(), cross_check=False).plan
    assert by_formula is not None
    assert evaluate(instance, by_formula).objective == formula


def test_what_is_not_seen_is_named():
    instance = _shipped("pipepar/vgg13.yaml", *STEP)
    several = replace(instance, training=replace(instance.training, chunks=2))
    assert "chunks is 2" in find_any("step_dp").accepts(several).reason


@pytest.mark.slow
def test_a_search_that_is_stopped_says_its_gap():
    found = solve(_shipped("pipepar/resnet50.yaml", *STEP), Limits(time_limit_s=0.0))
    assert found.proof is Proof.FEASIBLE
    assert found.bound is not None and found.objective is not None and found.bound <= 98_241_984 <= found.objective
