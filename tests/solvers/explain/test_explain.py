"""Explanations of instances without a plan: exactly the limits that clash, and exactly the least change."""

from __future__ import annotations

import time
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipecut.formulation.constraints.constraint import Violation
from pipecut.formulation.constraints.devices.memory import enough_bytes, more_memory
from pipecut.formulation.constraints.devices.reserve import Reserve
from pipecut.formulation.constraints.layers.forms import FormLimit
from pipecut.formulation.constraints.layers.pin import Pin
from pipecut.formulation.constraints.plans.own import Own
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import StoppedError
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.constraints import Constraints, Placement, Recompute
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.problem.units import Link
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.auto.solve import plan as best_plan
from pipecut.solvers.choices.trainings import decide
from pipecut.solvers.explain import (
    Clash,
    Explanation,
    Possible,
    explain,
    least_total_bytes,
    limits_of,
    opened,
    openings,
    without,
)
from tests.examples import UNIT, chain, instance_of, matrix, mesh, on_servers
from tests.generators import OF_SINGLE_STAGES, cluster_graphs, instances, layer_graphs
from tests.laws import so_many
from tests.solvers.cpsat.demanded import SLOW, constraints
from tests.solvers.search.test_fitting import blocks

ONE_WORKER = Limits(workers=1)
LAYERS = chain([matrix("a", 10), matrix("b", 10), matrix("c", 10)], [1, 1])


def constrained(*devices: int, **demands: object) -> Instance:
    return replace(instance_of(LAYERS, mesh(*devices)), constraints=Constraints(**demands))  # type: ignore[arg-type]


def only_clash(instance: Instance) -> Clash:
    """Return the clash of an instance that has one."""
    found = explain(instance, ONE_WORKER)
    assert found.complete and len(found.clashes) == 1 and found.clashes[0].minimal
    return found.clashes[0]


def paths(clash: Clash) -> set[str]:
    return {limit.path for limit in clash.limits}


def amounts(clash: Clash) -> dict[tuple[str, ...], int | None]:
    return {way.paths: way.amount for way in clash.ways_out}


@pytest.mark.slow
def test_two_pins_that_clash_are_named_and_nothing_else() -> None:
    clash = only_clash(
        constrained(
            1, 1, 1,
            pins=(Pin("a", stage=0), Pin("b", servers=("s0",)), Pin("b", servers=("s1", "s2"))),
            no_cut=("c",), stages_at_most=3,
        )
    )  # fmt: skip
    assert paths(clash) == {"constraints.pin[1]", "constraints.pin[2]"}
    assert [limit.words for limit in clash.limits] == ["b on devices of s0 only", "b on devices of s1 and s2 only"]
    assert amounts(clash) == {("constraints.pin[1]",): None, ("constraints.pin[2]",): None}


def test_places_to_cut_that_are_too_few_are_named_with_the_word_that_opens_more() -> None:
    whole = constrained(1, 1, stages_at_least=2)
    clash = only_clash(replace(whole, model=replace(whole.model, cuts=())))
    assert paths(clash) == {"constraints.stages.at_least", "model.cuts"}
    assert "stages start at the 0 places to cut of the model only, of 2 layers" in [
        limit.words for limit in clash.limits
    ]
    assert "cut between any two layers: model.cuts: operators" in [way.words for way in clash.ways_out]


@pytest.mark.slow
def test_more_stages_than_devices() -> None:
    clash = only_clash(constrained(1, 1, stages_at_least=5, together=(("a",),)))
    assert [limit.words for limit in clash.limits] == [
        "at least 5 stages (the model has 3 layers, the cluster 2 devices)"
    ]
    assert amounts(clash) == {("constraints.stages.at_least",): 3}
    assert clash.ways_out[0].words == "ask for 3 stages fewer"


@pytest.mark.slow
def test_too_few_stages_for_layers_that_are_to_be_apart() -> None:
    clash = only_clash(constrained(2, 2, stages_at_most=1, apart=(("a", "b", "c"),), no_cut=("a",)))
    assert paths(clash) == {"constraints.stages.at_most", "constraints.apart[0]"}
    assert amounts(clash) == {("constraints.stages.at_most",): 2, ("constraints.apart[0]",): None}


def small(memory: int, *devices: int, weights: int = 100, **demands: object) -> Instance:
    """Two layers, each with three times its weights to hold (gradients, optimiser), on devices of ``memory``."""
    rows = [matrix(name, 10, weights=weights) for name in "ab"]
    cluster = mesh(*devices, kind=replace(UNIT, memory_bytes=memory))
    return replace(instance_of(chain(rows, [0]), cluster), constraints=Constraints(memory=True, **demands))  # type: ignore[arg-type]


def needed(instance: Instance) -> int:
    """The least memory of all devices with which an instance has a plan: found by trying every amount."""
    return next(more for more in range(2000) if feasible(more_memory(instance, ["unit"], more)))


def feasible(instance: Instance) -> bool:
    return brute_force.solve(instance).proof is Proof.OPTIMAL


@pytest.mark.few("290")
@pytest.mark.parametrize("memory", [1, 50, 130, 290])
def test_memory_is_too_small_by_a_known_amount(memory: int) -> None:
    instance = small(memory, 1, 1)
    clash = only_clash(instance)
    assert paths(clash) == {"cluster.devices.unit.memory"}
    # One layer on each device, or both shared by both: weights, their gradients and the optimiser's 4 bytes each.
    assert amounts(clash) == {("cluster.devices.unit.memory",): 300 - memory}
    assert needed(instance) == 300 - memory
    assert clash.limits[0].words == f"each of the 2 devices of unit has {memory} bytes of memory"


def test_lists_that_leave_nothing_out_are_no_limits() -> None:
    assert not limits_of(constrained(2, devices_per_stage=(1, 2), tensor_parallel_degrees=(1, 2, 3)))
    some = constrained(2, 1, devices_per_stage=(1, 2), tensor_parallel_degrees=(1, 2))
    named = {"placement", "devices_per_stage", "tensor_parallel_degrees"}
    assert {limit.kind for limit in limits_of(some)} == named


@pytest.mark.slow
def test_what_is_too_hard_to_tell_is_kept_and_a_way_out_is_looked_for_all_the_same() -> None:
    instance, searched = blocks(3, 9 * 2**20, recompute=Recompute.BLOCKS), Possible._searched

    def without_hard_ones(asked: Possible, one: Instance, **how: bool) -> Plan | None:
        if one.model.cuts is None:
            raise StoppedError
        return searched(asked, one, **how)

    with mock.patch.object(Possible, "_searched", without_hard_ones):
        found = explain(instance, ONE_WORKER, {one.key for one in openings(instance)})
    (clash,) = found.clashes
    assert not found.complete and not clash.minimal
    assert paths(clash) == {"cluster.devices.card.memory", "model.cuts"}
    amount = amounts(clash)["cluster.devices.card.memory",]
    assert amount is not None
    proofs = [best_plan(more_memory(instance, ["card"], more), ONE_WORKER).proof for more in (amount, amount - 1)]
    assert proofs == [Proof.OPTIMAL, Proof.INFEASIBLE]


def test_a_reserve_is_told_from_the_memory_that_it_is_taken_of() -> None:
    clash = only_clash(small(400, 1, 1, stages_at_least=2, reserve=(Reserve("s1", 150), Reserve("s0", 1))))
    assert paths(clash) == {
        "cluster.devices.unit.memory",
        "constraints.reserve.s1",
    }
    assert amounts(clash)["constraints.reserve.s1",] == 50
    assert amounts(clash)["cluster.devices.unit.memory",] == 50


def test_forms_that_copy_what_only_fits_in_parts() -> None:
    instance = small(320, 2, forms=(FormLimit("*", (0,)),), stages_at_most=1)
    clash = only_clash(instance)
    assert paths(clash) == {"cluster.devices.unit.memory", "constraints.forms[0]", "constraints.stages.at_most"}
    assert amounts(clash) == {
        ("cluster.devices.unit.memory",): 280,
        ("constraints.forms[0]",): None,
        ("constraints.stages.at_most",): 1,
    }


def test_classes_too_small_one_by_one_and_together() -> None:
    instance = small(100, 1, 1)
    tiny = replace(instance.device_classes[0], name="tiny", memory_bytes=50)
    servers = (instance.servers[0], replace(instance.servers[1], device_class=tiny))
    found = amounts(only_clash(on_servers(instance, servers)))
    assert found["cluster.devices.unit.memory",] == 500, "all on the first device"
    both = found["cluster.devices.unit.memory", "cluster.devices.tiny.memory"]
    assert both == 250, "one layer on each"


@pytest.mark.slow
def test_the_line_is_a_limit_as_well() -> None:
    clash = only_clash(constrained(1, 1, stages_at_least=2, pins=(Pin("a", servers=("s1",)),)))
    assert paths(clash) == {"constraints.placement", "constraints.pin[0]"}
    assert clash.limits[0].words == "each stage takes the next devices of the line (1 of s0, 1 of s1)"
    free = constrained(1, 1, placement=Placement.FREE, pins=(Pin("a", servers=("s1",)),))
    assert explain(free, ONE_WORKER).clashes == ()


def test_a_user_s_own_constraint_is_named() -> None:
    broken = Violation("never", "plan", 1, 0, "plans", "no plan is good enough")
    never = Own("never", lambda *_: iter([broken]), lambda v: iter([((0,), v.model.add_bool_or([]))]))
    clash = only_clash(constrained(1, own=(never,)))
    assert [limit.words for limit in clash.limits] == ["the user's own constraint never"]


def test_independent_clashes_are_found_apart_and_each_gets_a_way_out() -> None:
    found = explain(constrained(1, 1, stages_at_least=3, together=(("a", "b"),), apart=(("a", "b"),)), ONE_WORKER)
    assert {frozenset(paths(clash)) for clash in found.clashes} == {
        frozenset({"constraints.stages.at_least"}),
        frozenset({"constraints.together[0]", "constraints.apart[0]"}),
    }
    assert found.notes == ("2 independent clashes: each needs a way out",)
    ways = {way.paths[0]: way.amount for clash in found.clashes for way in clash.ways_out}
    assert ways == {
        "constraints.stages.at_least": 1,
        "constraints.together[0]": None,
        "constraints.apart[0]": None,
    }


def test_where_there_is_a_plan_nothing_clashes() -> None:
    found = explain(constrained(1, 1), ONE_WORKER)
    assert found.complete and found.clashes == () and found.notes == ("there is a plan, so nothing clashes",)


def test_stopped_early_it_says_so() -> None:
    instance = small(50, 1, 1)
    for limits in (replace(ONE_WORKER, time_limit_s=0.0), replace(ONE_WORKER, stopped=lambda: True)):
        found = explain(instance, limits)
        assert not found.complete and found.clashes == ()
        assert found.notes == ("stopped early: not every question was answered",)


@pytest.mark.parametrize("answers", range(1, 14))
def test_stopped_after_some_answers_it_claims_no_more_than_these(answers: int) -> None:
    instance = small(50, 1, 1, pins=(Pin("a", stage=0),), no_cut=("a",))
    asked = 0

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        return asked > answers

    found = explain(instance, replace(ONE_WORKER, stopped=stopped))
    for clash in found.clashes:
        assert "cluster.devices.unit.memory" in paths(clash)
        assert not clash.minimal or paths(clash) == {"cluster.devices.unit.memory"}
        for way in clash.ways_out:
            assert way.least is not None and way.amount is not None and way.least <= 250 <= way.amount
    assert found.complete == (found.notes == ())
    assert not found.complete or amounts(found.clashes[0]) == {("cluster.devices.unit.memory",): 250}


@st.composite
def hopeless(draw: st.DrawFn) -> Instance:
    """Small instances with demands, most of them too many."""
    instance = draw(instances(layers=layer_graphs(max_layers=3), clusters=cluster_graphs(max_devices=3)))
    return replace(instance, constraints=draw(constraints(instance, most=5)))


@settings(max_examples=so_many(80), deadline=None, suppress_health_check=SLOW)
@given(hopeless())
def test_clashes_are_clashes_minimal_and_all_that_stands_in_the_way(instance: Instance) -> None:
    found: Explanation = explain(instance, ONE_WORKER, {one.key for one in openings(instance)})
    assert found.complete and found.left_out == ()
    assert feasible(instance) == (not found.clashes)
    every = limits_of(instance)
    assert feasible(without(instance, [limit for clash in found.clashes for limit in clash.limits]))
    for clash in found.clashes:
        rest = [limit for limit in every if limit not in clash.limits]
        assert not feasible(without(instance, rest))
        assert all(feasible(without(instance, [*rest, limit])) for limit in clash.limits)


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=SLOW)
@given(hopeless())
def test_the_least_change_is_enough_and_one_less_is_not(instance: Instance) -> None:
    found = explain(instance, ONE_WORKER, {one.key for one in openings(instance)})
    slack_of = {limit.path: limit.slack for limit in limits_of(instance)}
    for at, clash in enumerate(found.clashes):
        others = [limit for clash in (*found.clashes[:at], *found.clashes[at + 1 :]) for limit in clash.limits]
        base = without(instance, others)
        for way in clash.ways_out:
            slack = slack_of[way.paths[0]]
            if len(way.paths) == 1 and way.amount is not None and slack is not None:
                assert feasible(slack.by(base, way.amount))
                assert not feasible(slack.by(base, way.amount - 1))


@settings(max_examples=so_many(40), deadline=None, suppress_health_check=SLOW)
@given(
    instances(layers=layer_graphs(max_layers=3), clusters=cluster_graphs(max_devices=3)),
    st.sampled_from(OF_SINGLE_STAGES),
)
def test_enough_memory_is_enough_for_every_plan(instance: Instance, schedule: Schedule) -> None:
    instance = replace(instance, training=replace(instance.training, schedule=schedule))
    most = enough_bytes(instance)
    for plan in brute_force.plans(instance):
        costs = evaluate(instance, plan).stages
        assert all(cost.memory_bytes <= most for cost in costs)
        held = sum(cost.memory_bytes * row.group.devices for cost, row in zip(costs, plan.stages, strict=True))
        assert least_total_bytes(instance) <= held


def test_time_is_looked_at() -> None:
    began = time.monotonic()
    explain(small(50, 2, 2, 2), replace(ONE_WORKER, time_limit_s=0.2))
    assert time.monotonic() - began < 2


def test_links_play_no_part() -> None:
    slow = replace(instance_of(LAYERS, mesh(1, 1, between=Link(1))), constraints=Constraints(stages_at_least=2))
    assert explain(slow, ONE_WORKER).clashes == ()


def feasible_somehow(instance: Instance) -> bool:
    """Whether any choice of the training has a plan, by pricing every plan."""
    return any(feasible(replace(instance, training=one)) for one in instance.training.choices)


@st.composite
def cramped(draw: st.DrawFn) -> Instance:
    """Small instances that leave the micro-batches open, with about as much memory as some plan needs."""
    made = draw(instances(layers=layer_graphs(max_layers=3), clusters=cluster_graphs(max_devices=2)))
    batch, schedule = draw(st.sampled_from([2, 4, 6])), draw(st.sampled_from(OF_SINGLE_STAGES))
    numbers = tuple(one for one in (1, 2, 3, 4, 6) if batch % one == 0)
    order = draw(st.permutations(numbers)) if schedule.flushes else numbers[:1]
    choices = tuple(order[: draw(st.integers(1, len(order)))])
    training = replace(
        made.training,
        global_batch=batch,
        micro_batches=choices[0],
        micro_batch_choices=choices if len(choices) > 1 else (),
        schedule=schedule,
    )
    made = replace(replace(made, training=training), constraints=Constraints(memory=True))
    roomy = on_servers(
        made, [replace(row, device_class=replace(row.device_class, memory_bytes=10**12)) for row in made.servers]
    )
    needs = sorted(
        {cost.memory_bytes for plan in brute_force.plans(roomy) for cost in evaluate(roomy, plan).stages}
    )
    size = max(1, draw(st.sampled_from(needs)) - draw(st.integers(0, 3)))
    return on_servers(
        made, [replace(row, device_class=replace(row.device_class, memory_bytes=size)) for row in made.servers]
    )


@settings(max_examples=so_many(25), deadline=None, suppress_health_check=SLOW, phases=[Phase.generate])
@given(cramped())
def test_an_explanation_speaks_of_all_that_is_left_open(instance: Instance) -> None:
    """No number of micro-batches has a plan; each amount is enough for one of them, and one less for none."""
    found = explain(instance, ONE_WORKER, {one.key for one in openings(instance)})
    assert found.complete
    assert (not found.clashes) == feasible_somehow(instance)
    slack_of = {limit.path: limit.slack for limit in limits_of(instance)}
    for clash in found.clashes if len(found.clashes) == 1 else ():
        for way in clash.ways_out:
            slack = slack_of[way.paths[0]]
            if len(way.paths) == 1 and way.amount is not None and slack is not None:
                assert way.amount == way.least
                assert feasible_somehow(slack.by(instance, way.amount))
                assert not feasible_somehow(slack.by(instance, way.amount - 1))


@settings(max_examples=so_many(25), deadline=None, suppress_health_check=SLOW, phases=[Phase.generate])
@given(cramped())
def test_a_program_that_runs_the_plan_closes_what_it_does_not_run(instance: Instance) -> None:
    """It is told by the equal samples that it needs, whoever asks: the command line or Python."""
    run = replace(instance, constraints=replace(instance.constraints, equal_stages=True, one_mode=True))
    off = {one.key for one in openings(instance)}
    closed = {"constraints.recompute", "constraints.sharded", "constraints.optimizer_on_host"}
    assert {one.key for one in openings(run)} == off - closed and off & closed


@settings(max_examples=so_many(10), deadline=None, suppress_health_check=SLOW, phases=[Phase.generate])
@given(cramped())
def test_what_is_left_out_is_tried_and_said_with_a_plan(instance: Instance) -> None:
    if feasible_somehow(instance):
        return
    found, off = explain(instance, ONE_WORKER), openings(instance)
    assert found.complete and set(found.left_out) <= {one.words for one in off}
    for way in found.opened:
        some = [one for one in off if one.line in way.lines]
        wider = opened(instance, some)
        assert wider is not None and [one.line for one in some] == list(way.lines)
        assert way.instance.training in wider.training.choices or not wider.training.left_open
        plan, outcome = way.outcome.plan, way.outcome
        assert plan is not None and evaluate(way.instance, plan).feasible
        assert evaluate(way.instance, plan).objective == outcome.objective
        assert evaluate(replace(wider, training=way.instance.training), plan).feasible
        again, replanned = decide(wider, lambda one, within: best_plan(one, within, cross_check=False), ONE_WORKER)
        assert replanned.proof in (Proof.OPTIMAL, Proof.FEASIBLE), (way.lines, replanned.proof, replanned.notes)
        assert replanned.plan is not None and evaluate(again, replanned.plan).feasible
    for wider in (opened(instance, [one]) for one in off if not found.opened):
        rows = () if wider is None else (replace(wider, training=row) for row in wider.training.choices)
        assert not any(brute_force.count_plans(row) <= 500 and feasible(row) for row in rows)
    every = opened(instance, off)
    assert found.opened or found.hopeless
    if found.hopeless and every is not None:
        rows = (replace(every, training=row) for row in every.training.choices)
        assert not any(brute_force.count_plans(row) <= 2_000 and feasible(row) for row in rows)
