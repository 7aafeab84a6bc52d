"""Communication that hides behind the computing of its pass, in the search for the executed step."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.tables import all_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER
from pipecut.formulation.outcome import Proof
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement, Recompute
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import layer_graph
from pipecut.formulation.problem.options import BoundaryCharge, CostModel, Samples, StageTime, Synchronisation
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers import exhaustive
from pipecut.solvers.dynamic.states.states import state_space
from pipecut.solvers.step_time import growing
from pipecut.solvers.step_time.bounds.columns import Overlapped
from pipecut.solvers.step_time.bounds.pass_tables import stage_parts
from pipecut.solvers.step_time.bounds.rest import rest_of
from pipecut.solvers.step_time.bounds.spans import spans_of
from pipecut.solvers.step_time.bounds.ways import ways_of
from pipecut.solvers.step_time.step_dp import accepts, solve
from tests.examples import matrix
from tests.generators import recomputation, sharded_kinds, warm_ups
from tests.laws import so_many
from tests.solvers.priced import few_plans
from tests.solvers.step_time.test_fronts import keeps_what_is_worth_having
from tests.solvers.step_time.test_further import looking_ahead
from tests.solvers.step_time.test_halves import in_halves
from tests.solvers.step_time.test_mixtures import no_plan_breaks_the_bounds
from tests.solvers.step_time.test_step_dp import FLUSHING, judged_by_step, keeps_the_bounds
from tests.solvers.step_time.test_tied import agrees, tied_steps

FILTERED = [HealthCheck.filter_too_much, HealthCheck.too_slow]
MACS = (100, 1_000, 5_000, 20_000)
SIZES = (0, 100, 1_000, 8_000)


@st.composite
def hiding(draw: st.DrawFn, max_layers: int = 3) -> Instance:
    """Chains whose passes take about as long to compute as to communicate, in one form by far, in others not."""
    size = st.sampled_from(SIZES)
    layers = [
        replace(
            matrix(f"l{at}", draw(st.sampled_from(MACS)), draw(size), taken=draw(size), made=draw(size)),
            stash_bytes=draw(size),
            allowed_forms=draw(st.sampled_from([(0, 1, 2), (0, 1, 2), (0, 2), (1, 2)])),
        )
        for at in range(draw(st.integers(1, max_layers)))
    ]
    names = [layer.name for layer in layers]
    edges = [(*ends, draw(size)) for ends in pairwise(names)]
    rates = st.sampled_from([10**9, 8 * 10**9, 3 * 10**10])
    card = DeviceClass("card", draw(st.sampled_from([20_000, 40_000, 1 << 40])), 10**9)
    servers = [Server(f"s{at}", card, many, Link(draw(rates), 0)) for at, many in enumerate(draw(DEVICES))]
    joined = [(f"s{at}", f"s{to}", Link(draw(rates), 3)) for at in range(len(servers)) for to in range(at)]
    count, schedule = draw(st.integers(1, 4)), draw(st.sampled_from(FLUSHING))
    warm_up = draw(warm_ups) if schedule is Schedule.ONE_F_ONE_B else "classic"
    cost = CostModel(
        stage_time=StageTime.OVERLAP,
        samples=Samples.FRACTIONS,
        synchronisation=draw(st.sampled_from(Synchronisation)),
        boundary_charge=draw(st.sampled_from(BoundaryCharge)),
    )
    constraints = Constraints(
        memory=draw(st.booleans()),
        placement=draw(st.sampled_from(Placement)),
        sharded=draw(sharded_kinds),
        tensor_parallel_degrees=draw(st.sampled_from([(), (1, 2)])),
        **draw(recomputation),
    )
    training = Training(count, count, schedule=schedule, warm_up=warm_up)
    graph, cluster = layer_graph("hiding", layers, edges), cluster_graph("few", servers, joined)
    return build_instance(graph, cluster, training, cost, constraints, (Goal.STEP_TIME,))


DEVICES = st.sampled_from([(2,), (2, 1), (1, 1), (2, 2), (4,)])


@st.composite
def overlapping(draw: st.DrawFn, drawn: st.SearchStrategy[Instance]) -> Instance:
    """The same with communication that hides."""
    found = draw(drawn)
    assume(found.cost.inside is Synchronisation.CHARGED and found.cost.expert_load == 1)
    return replace(found, cost=replace(found.cost, stage_time=StageTime.OVERLAP, samples=Samples.FRACTIONS))


ANY = st.one_of(hiding(), overlapping(judged_by_step()), overlapping(tied_steps()))


def _seen(instance: Instance) -> None:
    assume(accepts(instance).proves and few_plans(instance))


@settings(max_examples=so_many(80), deadline=None, suppress_health_check=FILTERED)
@given(ANY)
def test_it_finds_what_pricing_every_plan_finds(instance: Instance):
    _seen(instance)
    agrees(instance)


@settings(max_examples=so_many(150), deadline=None, suppress_health_check=FILTERED)
@given(ANY)
def test_of_every_span_all_stages_are_known(instance: Instance):
    instance = replace(instance, training=replace(instance.training, warm_up="classic"))
    assume(accepts(instance).proves)
    keeps_what_is_worth_having(instance)


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=FILTERED)
@given(hiding(), st.sampled_from([("*0",), ("*[02]",), ("*",)]))
def test_what_some_layers_compute_again_hides_what_these_send(instance: Instance, named: tuple[str, ...]):
    named_alone = {"recompute": Recompute.ALLOWED, "recompute_layers": named, "tensor_parallel_degrees": ()}
    training = replace(instance.training, warm_up="classic")
    instance = replace(instance, training=training, constraints=replace(instance.constraints, **named_alone))
    assume(accepts(instance).proves)
    keeps_what_is_worth_having(instance)


@settings(max_examples=so_many(80), deadline=None, suppress_health_check=FILTERED)
@given(in_halves(ANY))
def test_backward_passes_in_halves_hide_as_well(instance: Instance):
    _seen(instance)
    agrees(instance)


@settings(max_examples=so_many(400), suppress_health_check=FILTERED)
@given(st.data(), st.integers(1, 5), st.booleans(), st.booleans())
def test_a_row_that_is_no_larger_is_no_worse_however_a_stage_goes_on(
    data: st.DataObject, count: int, halves: bool, more_is_computed: bool
):
    """In halves no run of passes on a device is longer, with up to M - 1 second halves more than first ones."""
    columns = Overlapped(count, halves=halves)
    amounts = st.integers(0, 4)

    def drawn() -> list[int]:
        row = [data.draw(amounts) for _ in range(7)]
        return [*row, *(min(row[at], data.draw(amounts)) for at in (1, 4) if halves)]

    rows = np.array([drawn(), drawn()], dtype=np.int64)
    if not more_is_computed:
        rows[1, [0, 1, 2, 7][: 3 + halves]] = rows[0, [0, 1, 2, 7][: 3 + halves]]
    if (np.diff(columns.compared(rows), axis=0) < 0).any():
        rows = rows[::-1]
    first, second = columns.compared(rows)
    assume((first <= second).all())
    one, other = columns.passes(rows + np.array(drawn(), dtype=np.int64)).tolist()
    assert one[0] <= other[0] and one[1] <= other[1] and one[1] + one[2] <= other[1] + other[2]
    for early in range(count + 2 if halves else 0):
        for late in range(early + count):
            ends = [row[2] * (late >= early) + early * (row[1] - row[3]) + late * row[3] for row in (one, other)]
            assert ends[0] <= ends[1]


@pytest.mark.slow
@settings(max_examples=so_many(60), deadline=None, suppress_health_check=FILTERED)
@given(ANY, st.integers(1, 4))
def test_looking_ahead_loses_no_plan(instance: Instance, stops: int):
    _seen(instance)
    with pytest.MonkeyPatch.context() as patch:
        looking_ahead(patch, stops)
        agrees(instance)


@settings(max_examples=so_many(40), deadline=None, suppress_health_check=FILTERED)
@given(st.one_of(hiding(max_layers=2), overlapping(judged_by_step(max_layers=3))), st.integers(0, 100))
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


@settings(max_examples=so_many(30), deadline=None, suppress_health_check=FILTERED)
@given(hiding())
def test_a_search_that_outgrows_its_memory_says_what_is_known(instance: Instance):
    _seen(instance)
    truth = exhaustive.solve(instance)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing, "MOST_WAYS", 2)
        found = solve(instance)
    if found.proof is Proof.FEASIBLE:
        assert found.bound is not None and found.objective is not None and truth.objective is not None
        assert found.bound <= truth.objective <= found.objective
    if found.proof in (Proof.FEASIBLE, Proof.UNKNOWN):
        assert "2 of one stage at most can be looked at" in found.notes[0]
    else:
        assert (found.proof, found.objective) == (truth.proof, truth.objective)


def test_a_form_is_taken_whose_sums_hide():
    """Added up, samples are split and gradients summed at the end; hidden, features, with sums in every pass."""
    layer = matrix("l", 4_000, 8_000, taken=3_000, made=3_000)
    servers = [Server("s", DeviceClass("card", 1 << 40, 10**9), 2, Link(16 * 10**9, 0))]
    found: list[int] = []
    for stage_time in StageTime:
        cost = CostModel(stage_time=stage_time, samples=Samples.FRACTIONS, boundary_charge=BoundaryCharge.LINK)
        rules = Constraints(devices_per_stage=(2,), tensor_parallel_degrees=(2,))
        graph, cluster = layer_graph("one", [layer], []), cluster_graph("one", servers, [])
        instance = build_instance(graph, cluster, Training(4, 4), cost, rules, (Goal.STEP_TIME,))
        best = solve(instance)
        assert best.plan is not None and best.proof is Proof.OPTIMAL
        found.append(best.plan.stages[0].forms[0])
    assert found == [0, 1]
