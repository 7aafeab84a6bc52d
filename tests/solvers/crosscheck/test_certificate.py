"""Certificates: they prove what the exact methods find, and nothing more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.certificates.check import Certificate, certifiable, fingerprint, verify
from pipecut.formulation.certificates.labels import CertificateError, FormSearch, Labels, StageFits, verify_labels
from pipecut.formulation.costs.least import StagePrices
from pipecut.formulation.costs.tables import build_tables, line_groups
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Proof
from pipecut.formulation.problem.cluster import Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Placement, Recompute
from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import Combine, CostModel, StageTime
from pipecut.formulation.problem.plan import Plan, Span
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.formulation.suffixes import slots_matter, suffixes
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.certifying import certify, labels_below, search_of
from pipecut.solvers.dynamic.states import state_dp as solver
from pipecut.solvers.dynamic.states.reach import reach_at
from pipecut.solvers.dynamic.states.states import StateSpace
from pipecut.solvers.reference import line_dp
from pipecut.solvers.reference.algorithm_1 import StageTimes
from tests.examples import BYTE_LINK, UNIT, chain, instance_of, matrix, mesh, on_servers, vgg16
from tests.generators import instances, layer_graphs
from tests.laws import so_many
from tests.one_stage import with_layers
from tests.solvers.dynamic.test_states import QUIET, cases
from tests.solvers.priced import few_plans


def optimum(instance: Instance) -> tuple[Plan, int]:
    found = solver.solve(instance)
    if found.proof is Proof.INFEASIBLE:
        assume(False)
    assert found.proof is Proof.OPTIMAL and found.plan is not None and found.objective is not None
    return found.plan, found.objective


def proves_optimality(instance: Instance) -> None:
    plan, objective = optimum(instance)
    certificate = certify(instance, plan, objective)
    assert certificate.optimal
    verify(instance, certificate)


@settings(max_examples=so_many(120), deadline=None, suppress_health_check=QUIET)
@given(cases(max_layers=5, max_devices=4))
def test_every_optimum_of_the_states_has_a_certificate(instance: Instance) -> None:
    proves_optimality(instance)


@pytest.mark.slow
@settings(max_examples=so_many(250), deadline=None, suppress_health_check=QUIET)
@given(cases(max_layers=7, max_devices=5))
def test_every_optimum_of_the_states_has_a_certificate_often(instance: Instance) -> None:
    proves_optimality(instance)


@st.composite
def cut_at_places(draw: st.DrawFn) -> Instance:
    """A case whose model may be cut before some layers only."""
    instance = draw(cases(max_layers=6, max_devices=4))
    inner = range(1, len(instance.layers))
    places = sorted(draw(st.sets(st.sampled_from(inner)))) if inner else []
    return replace(instance, model=replace(instance.model, cuts=tuple(places)))


@settings(max_examples=so_many(120), deadline=None, suppress_health_check=QUIET)
@given(cut_at_places())
def test_every_optimum_of_a_model_that_is_cut_at_places_has_a_certificate(instance: Instance) -> None:
    proves_optimality(instance)


@settings(max_examples=so_many(25), deadline=None, suppress_health_check=QUIET)
@given(cut_at_places(), st.data())
def test_no_labels_prove_more_of_a_model_that_is_cut_at_places(instance: Instance, data: st.DataObject) -> None:
    no_labels_prove_more(instance, data)


def no_labels_prove_more(instance: Instance, data: st.DataObject) -> None:
    """Whatever the labels: at a threshold that some plan keeps, none passes the checker."""
    assume(few_plans(instance))
    best = brute_force.solve(instance)
    assume(best.objective is not None)
    assert best.objective is not None
    search = search_of(instance)
    below = labels_below(search, best.objective - 1)
    exact = labels_below(search, best.objective, closed=False)
    clipped = {key: tuple((max(1, a), b) for a, b in runs if b > 0) for key, runs in exact.items()}
    keys = sorted({*below, *exact})
    everything = tuple([(1, len(instance.layers) - 1)] if len(instance.layers) > 1 else [])
    drawn: Labels = {}
    for key in keys:
        ends = sorted(data.draw(st.lists(st.integers(0, len(instance.layers) - 1), min_size=2, max_size=2)))
        drawn[key] = ((ends[0], ends[1]),)
    for labels in (below, clipped, dict.fromkeys(keys, everything), dict.fromkeys(keys, ()), drawn, {}):
        with pytest.raises(CertificateError):
            verify_labels(instance, best.objective, labels)


@settings(max_examples=so_many(120), deadline=None, suppress_health_check=QUIET)
@given(cases(), st.data())
def test_no_labels_whatever_prove_a_bound_above_the_optimum(instance: Instance, data: st.DataObject) -> None:
    no_labels_prove_more(instance, data)


@pytest.mark.slow
@settings(max_examples=so_many(300), deadline=None, suppress_health_check=QUIET)
@given(cases(), st.data())
def test_no_labels_whatever_prove_a_bound_above_the_optimum_often(instance: Instance, data: st.DataObject) -> None:
    no_labels_prove_more(instance, data)


@pytest.mark.slow
@settings(max_examples=so_many(120), deadline=None, suppress_health_check=QUIET)
@given(cases(), st.data())
def test_a_label_that_leaves_out_what_is_reached_is_noticed(instance: Instance, data: st.DataObject) -> None:
    """Exact labels list what some suffix really reaches, so to leave out any one layer is a lie."""
    _, objective = optimum(instance)
    search = search_of(instance)
    assert search.ask(objective - 1) is False
    exact = labels_below(search, objective - 1, closed=False)
    verify_labels(instance, objective - 1, exact)
    reached = [(key, layer) for key, runs in exact.items() for a, b in runs for layer in range(a, b + 1)]
    assume(reached)
    key, layer = data.draw(st.sampled_from(reached))
    left = [other for a, b in exact[key] for other in range(a, b + 1) if other != layer]
    # Where memory binds, the tables may take for reached what no forms make fit: to leave that out is no lie.
    assume(not instance.constraints.memory)
    with pytest.raises(CertificateError, match="leaves out layer"):
        verify_labels(instance, objective - 1, exact | {key: tuple((one, one) for one in left)})


@settings(max_examples=so_many(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(layers=layer_graphs(max_layers=6)), st.data())
def test_the_checkers_stage_times_are_those_of_the_dynamic_programme(
    instance: Instance, data: st.DataObject
) -> None:
    tables = build_tables(instance, tuple(line_groups(instance).values()))
    times, prices = StageTimes.of(tables), StagePrices(instance)
    index = data.draw(st.integers(0, len(tables.groups) - 1))
    stop = data.draw(st.integers(1, len(instance.layers)))
    start = data.draw(st.integers(0, stop - 1))
    kind = GroupKind.of(instance, tables.groups[index])
    value = int(times.time[tables.kind_of[index], start, stop])
    compute, communicating = prices.floors(kind)[0], prices.communication_ns(kind, start, stop)
    both = compute[stop] - compute[start], communicating
    overlap = instance.cost.stage_time is StageTime.OVERLAP
    assert (max(both) if overlap else sum(both)) == value


def fits_in_some_form(instance: Instance, plan: Plan, threshold_ns: int) -> bool:
    """Tell it the slow way: every plan of one stage on the same devices, priced by the evaluator."""
    rows = (evaluate(instance, one) for one in brute_force.plans(instance) if len(one) == 1
            and one.stages[0].group == plan.stages[0].group)  # fmt: skip
    return any(row.feasible and row.objective is not None and row.objective <= threshold_ns for row in rows)


@settings(max_examples=so_many(120), deadline=None, suppress_health_check=QUIET)
@given(cases(max_layers=3), st.data())
def test_the_checker_knows_whether_a_stage_fits(instance: Instance, data: st.DataObject) -> None:
    """One stage with the whole model, against every choice of its forms."""
    groups = Group.possible(instance)
    whole = [plan for plan in brute_force.plans(instance) if len(plan) == 1 and plan.stages[0].group in groups]
    assume(whole)
    plan = data.draw(st.sampled_from(whole[:40]))
    values = sorted({evaluate(instance, one).objective or 0 for one in whole})
    threshold = data.draw(st.sampled_from(values)) - data.draw(st.integers(0, 1))
    kind, total = GroupKind.of(instance, plan.stages[0].group), len(instance.layers)
    found = StageFits(instance, (kind,), threshold).first_that_fits(0, 0, (0,), total)
    assert (found == 0) == fits_in_some_form(instance, plan, threshold)


def small_memory(percent: int) -> Instance:
    """VGG16 on two pairs and a fast network, placed freely; with so much of the memory that it needs without."""
    instance = instance_of(vgg16(), mesh(2, 2, inside=Link(10**13), between=Link(10**12)))
    training = replace(instance.training, schedule=Schedule.ASYNC_ONE_F_ONE_B)
    instance = replace(
        replace(instance, training=training), constraints=Constraints(placement=Placement.FREE, max_servers=1)
    )
    needed = max(stage.memory_bytes for stage in evaluate(instance, optimum(instance)[0]).stages)
    device = replace(instance.servers[0].device_class, memory_bytes=needed * percent // 100)
    servers = tuple(replace(one, device_class=device) for one in instance.servers)
    limited = on_servers(instance, servers)
    return replace(limited, constraints=replace(instance.constraints, memory=True))


def certificates() -> list[tuple[Instance, Certificate]]:
    on_line = instance_of(vgg16(), mesh(2, 2, inside=Link(10_000_000_000), between=Link(1_000_000_000)))
    found = []
    for instance in (on_line, small_memory(90)):
        plan, objective = optimum(instance)
        found.append((instance, certify(instance, plan, objective)))
    return found


def test_false_claims_are_noticed_one_by_one() -> None:
    for instance, good in certificates():
        verify(instance, good)
        assert good.optimal
        key, runs = next(
            (key, runs) for key, runs in good.labels.items() if len(runs) == 1 and 0 < runs[0][0] < 38
        )
        (first, last), total = runs[0], len(instance.layers)
        states = suffixes(instance)
        whole = next(key for key in good.labels if states.complete(key[1]))
        worse = Plan((replace(good.plan.stages[0], span=Span(0, total), forms=(0,) * total),))
        slower = replace(instance, constraints=replace(instance.constraints, max_servers=2))
        lies = {
            "bound raised by one": replace(good, bound=good.bound + 1, objective=good.objective + 1),
            "bound above objective": replace(good, bound=good.bound + 1),
            "objective lowered by one": replace(good, objective=good.objective - 1, bound=good.bound - 1),
            "label made later": replace(good, labels=good.labels | {key: ((first + 1, last),)}),
            "label left out": replace(good, labels={one: at for one, at in good.labels.items() if one != key}),
            "label of a whole plan": replace(good, labels=good.labels | {whole: ((0, last),)}),
            "label past the end": replace(good, labels=good.labels | {key: ((first, total),)}),
            "label backwards": replace(good, labels=good.labels | {key: ((last, first),)}),
            "label of no slot": replace(good, labels=good.labels | {(99, *key[1:]): runs}),
            "label of no devices": replace(good, labels=good.labels | {(key[0], (9,) * 7, key[2]): runs}),
            "label of no server": replace(good, labels=good.labels | {(*key[:2], ((7,), 1)): runs}),
            "another plan": replace(good, plan=worse),
            "broken plan": replace(good, plan=Plan(good.plan.stages[:-1])),
            "another instance": replace(good, fingerprint=fingerprint(slower)),
        }
        for what, lie in lies.items():
            with pytest.raises(CertificateError):
                verify(instance, lie)
                pytest.fail(f"not noticed: {what}")
        with pytest.raises(CertificateError, match="fingerprint"):
            verify(slower, good)


def test_labels_go_by_slots_only_where_memory_does() -> None:
    for instance, good in certificates():
        assert slots_matter(instance) == instance.constraints.memory
        assert ({slot for slot, _, _ in good.labels} == {0}) != slots_matter(instance)


def test_a_weaker_bound_is_a_true_claim_too() -> None:
    for instance, good in certificates():
        weaker = replace(good, bound=good.bound - 1)
        verify(instance, weaker)
        assert not weaker.optimal


def test_memory_makes_the_bound_stronger() -> None:
    """The free optimum under memory is slower than without, and the certificate proves the difference."""
    tight, roomy = small_memory(90), small_memory(100)
    (_, slow), (_, fast) = optimum(tight), optimum(roomy)
    assert slow > fast
    proves_optimality(tight)


def test_labels_without_slots_may_have_more_stages_than_there_are_layers() -> None:
    """Four devices, three layers, one device a stage: if every later cut counts as possible, all four are used."""
    layers = chain([matrix("a", 4), matrix("b"), matrix("c")], [0, 0])
    sizes = Constraints(placement=Placement.FREE, devices_per_stage=(1,))
    proves_optimality(replace(instance_of(layers, mesh(3, 1)), constraints=sizes))


def test_plans_with_as_many_stages_as_possible_count_too() -> None:
    """Two layers that fit on two devices only, one each: no label of the last stage alone proves anything."""
    layers = chain([replace(matrix(name, 10), stash_bytes=100) for name in "ab"], [1])
    training = Training(global_batch=2, micro_batches=2, schedule=Schedule.ONE_F_ONE_B)
    instance = instance_of(layers, mesh(1, 1), training=training)
    device = replace(instance.servers[0].device_class, memory_bytes=250)
    servers = tuple(replace(one, device_class=device) for one in instance.servers)
    instance = on_servers(instance, servers)
    instance = replace(instance, constraints=Constraints(memory=True, placement=Placement.FREE, max_servers=1))
    plan, objective = optimum(instance)
    assert len(plan) == 2 and slots_matter(instance)
    exact = labels_below(search_of(instance), objective, closed=False)
    last_alone = {key: runs for key, runs in exact.items() if key[0] == 0}
    with pytest.raises(CertificateError, match="slot 1"):
        verify_labels(instance, objective, last_alone)


def test_labels_list_layers_where_one_number_is_not_enough() -> None:
    """From layer 1 the last two devices can end, from layer 2 they cannot: the middle one is too slow for layer 2.

    The boundary before layer 1 is too dear, so whoever takes all cuts behind 1 for possible believes in a plan of
    60 ns: the first two layers on the first device and the third on the last.
    """
    slow = replace(UNIT, name="slow", flops_per_second=UNIT.flops_per_second // 10)
    servers = [Server(f"s{at}", kind, 1, None) for at, kind in enumerate((UNIT, slow, UNIT))]
    pairs = [(f"s{one}", f"s{other}", BYTE_LINK) for one, other in ((0, 1), (0, 2), (1, 2))]
    layers = chain([matrix("a", 10), matrix("b", 1), matrix("c", 20)], [1000, 1])
    instance = instance_of(layers, cluster_graph("mesh", servers, pairs))
    instance = replace(instance, constraints=Constraints(max_servers=1))
    assert optimum(instance)[1] == 93
    search = search_of(instance)
    assert search.ask(92) is False
    assert isinstance(search.space, StateSpace)
    closed = reach_at(search.space, search.table, 92, closed=True)
    assert closed is not None and closed.depth is not None
    proves_optimality(instance)


def test_fingerprints_see_every_number() -> None:
    instance = instance_of(chain([matrix("a", 1), matrix("b", 2)], [3]), mesh(1, 1))
    others = [
        with_layers(instance, [matrix("a", 1, made=3), matrix("b", 3)]),
        replace(instance, constraints=Constraints(memory=True)),
        replace(instance, cost=replace(instance.cost, flops_per_mac=2)),
    ]
    assert len({fingerprint(one) for one in (instance, *others)}) == 4
    assert fingerprint(instance) == fingerprint(replace(instance))


def test_says_what_cannot_be_certified() -> None:
    instance = replace(instance_of(chain([matrix("a", 1)], []), mesh(1)), cost=CostModel(combine=Combine.SUM))
    assert "combine is 'sum'" in (certifiable(instance) or "")
    found = line_dp.solve(instance)
    assert found.plan is not None and found.objective is not None
    with pytest.raises(ValueError, match="combine is 'sum'"):
        certify(instance, found.plan, found.objective)


@pytest.mark.parametrize("memory", [True, False])
def test_no_label_knows_of_blocks_that_are_computed_again(memory: bool) -> None:
    """Nor where memory is not limited, if each block is, which without a limit none would be that may keep."""
    layers = chain([matrix("a", 1), matrix("b", 1)], [1])
    for recompute in (Recompute.BLOCKS, Recompute.EVERY_BLOCK):
        asked = Constraints(memory=memory, recompute=recompute)
        instance = replace(instance_of(layers, mesh(1, 1)), constraints=asked)
        known = memory or recompute is Recompute.EVERY_BLOCK
        assert (f"recompute is '{recompute}'" in (certifiable(instance) or "")) is known


def test_no_label_knows_what_a_stage_keeps_under_zero_bubble_h1() -> None:
    """With several micro-batches that follows from the number of all stages; searches want it said."""
    layers = chain([matrix("a", 1), matrix("b", 1)], [1])
    training = Training(global_batch=2, micro_batches=2, schedule=Schedule.ZERO_BUBBLE_H1)
    instance = replace(instance_of(layers, mesh(1, 1), training=training), constraints=Constraints(memory=True))
    assert "number of all stages" in (certifiable(instance) or "")
    for name in ("cpsat", "state_dp", "step_dp"):
        assert "the number of stages to be said" in find_any(name).accepts(instance).reason
    said = replace(instance, constraints=Constraints(memory=True, stages_at_least=2, stages_at_most=2))
    assert find_any("cpsat").accepts(said).proves
    assert certifiable(replace(instance, constraints=Constraints())) is None
    alone = replace(instance, training=replace(training, global_batch=1, micro_batches=1))
    assert certifiable(alone) is None and find_any("cpsat").accepts(alone).proves


def test_too_many_states_are_refused() -> None:
    instance = instance_of(vgg16(), mesh(1, 2, 3, 4, 5, 6, 7, 8))
    instance = replace(instance, constraints=Constraints(placement=Placement.FREE, max_servers=1))
    assert "362880 ways to take devices" in (certifiable(instance) or "")


@settings(max_examples=so_many(40), deadline=None, suppress_health_check=QUIET)
@given(cases(), st.sampled_from([1, 2]))
def test_demands_leave_the_bound_true(instance: Instance, stages: int) -> None:
    """A limit on stages only removes plans: the certificate proves the optimum without it."""
    _, objective = optimum(instance)
    demanding = replace(instance, constraints=replace(instance.constraints, stages_at_most=stages))
    assume(few_plans(demanding))
    best = brute_force.solve(demanding)
    assume(best.plan is not None and best.objective is not None)
    assert best.plan is not None and best.objective is not None
    certificate = certify(demanding, best.plan, best.objective)
    assert certificate.bound == objective
    verify(demanding, certificate)


def test_form_search_counts_what_the_stage_received() -> None:
    """One device, one layer of 10 + 10 bytes received twice over: 20 ns, and room for exactly what it holds."""
    layers = chain([matrix("a", 10, taken=4, made=4), matrix("b", 10, taken=10, made=10)], [10])
    instance = instance_of(layers, mesh(1))
    kind = GroupKind.of(instance, next(iter(line_groups(instance).values())))
    search = FormSearch(instance, StagePrices(instance))
    rule = Keeps.in_slot(instance.training, 0)
    needed = 10 * rule.in_flight + 2 * (10 + 10)
    assert search.exist(kind, rule, (1, 2), 0, needed)
    assert not search.exist(kind, rule, (1, 2), 0, needed - 1)


@pytest.mark.slow
def test_a_published_cluster_is_planned_and_certified() -> None:
    """VGG-19 anywhere on HetPipe's sixteen devices of four classes, under asynchronous 1F1B and its memory."""
    path = Path(__file__).parents[3] / "scenarios" / "hetpipe" / "vgg19.yaml"
    free = ["constraints.placement=free", "constraints.max_servers=1", "cost.boundary_charge=link"]
    instance = load_scenario(path, free).load()
    plan, objective = optimum(instance)
    certificate = certify(instance, plan, objective)
    assert certificate.optimal
    verify(instance, certificate)
    with pytest.raises(CertificateError):
        verify_labels(instance, objective, certificate.labels)
