"""Demands of users in the searches for executed times, against the price of every plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.constraints.layers.pin import Pin
from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement, Recompute
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.solvers import exhaustive
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.dynamic.tables.demanded import stage_counts
from pipecut.solvers.step_time.demands import unseen_by_executed, with_seen_demands
from tests.examples import chain, instance_of, matrix, mesh
from tests.laws import so_many
from tests.solvers.cpsat.demanded import MADE, SLOW
from tests.solvers.priced import few_plans
from tests.solvers.step_time.test_halves import in_halves
from tests.solvers.step_time.test_period import judged_by_period
from tests.solvers.step_time.test_step_dp import judged_by_step

KINDS = ("stages", "pins", "apart", "equal_stages", "together", "no_cut", "devices_per_stage")


@pytest.mark.parametrize("name", ["step_dp", "cpsat_chunks"])
def test_single_blocks_that_are_computed_again_are_refused_also_where_nobody_asked_before(name: str) -> None:
    instance = instance_of(chain([matrix("a"), matrix("b")], [8]), mesh(1, 1))
    instance = replace(instance, constraints=Constraints(memory=True, recompute=Recompute.BLOCKS))
    with pytest.raises(ValueError, match="computes whole stages again, or nothing"):
        find_any(name).load()(instance, Limits())


@st.composite
def limits(draw: st.DrawFn, instance: Instance) -> dict[str, object]:
    """A limit on devices, on their price, or on stages."""
    goal, devices = draw(st.sampled_from([Goal.DEVICES, Goal.COST, Goal.STAGES])), draw(st.integers(1, 3))
    price = max(one.price_per_hour for one in instance.device_classes)
    return {"at_most": (GoalLimit(goal, devices * price if goal is Goal.COST else devices),)}


@st.composite
def demanding(draw: st.DrawFn, of: st.SearchStrategy[Instance]) -> Instance:
    """An instance with one to three demands of kinds that are seen."""
    instance = draw(of)
    found: dict[str, object] = {}
    for kind in draw(st.lists(st.sampled_from([*KINDS, "at_most"]), min_size=1, max_size=3, unique=True)):
        found |= draw(limits(instance)) if kind == "at_most" else MADE[kind](draw, instance)
    if instance.constraints.stages_at_most is not None:  # how many stages there are has been said
        found = {name: one for name, one in found.items() if name not in ("stages_at_least", "stages_at_most")}
    asked = replace(instance, constraints=replace(instance.constraints, **found))
    assume(unseen_by_executed(asked) is None)
    try:
        Group.possible(asked)
    except ValueError:  # what is asked leaves a stage no devices at all: an error, which says so
        assume(False)
    return asked


def agrees(name: str, instance: Instance) -> None:
    """Hold a search against pricing every plan."""
    search = find_any(name)
    assume(search.accepts(instance).proves and few_plans(instance))
    found, truth = search.load()(instance, Limits()), exhaustive.solve(instance)
    assert (found.proof, found.objective) == (truth.proof, truth.objective)
    assert found.plan is None or evaluate(instance, found.plan).objective == found.objective


@settings(max_examples=so_many(150), deadline=None, suppress_health_check=SLOW)
@given(demanding(judged_by_step()))
def test_the_search_for_the_step_keeps_to_demands(instance: Instance) -> None:
    agrees("step_dp", instance)


@settings(max_examples=so_many(100), deadline=None, suppress_health_check=SLOW)
@given(demanding(in_halves(judged_by_step(max_layers=3))))
def test_so_it_does_of_plans_of_so_many_stages_with_backward_passes_in_halves(instance: Instance) -> None:
    agrees("step_dp", instance)


@settings(max_examples=so_many(150), deadline=None, suppress_health_check=SLOW)
@given(demanding(judged_by_period()))
def test_so_it_does_to_a_period(instance: Instance) -> None:
    agrees("step_dp", instance)


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=SLOW)
@given(demanding(judged_by_step(max_layers=3)))
def test_chosen_warm_ups_keep_to_demands(instance: Instance) -> None:
    chosen = replace(instance.training, schedule=Schedule.ONE_F_ONE_B, warm_up="choose")
    agrees("step_dp", replace(instance, training=chosen))


def asking(**found: object) -> Instance:
    """Three layers on three devices, in two micro-batches, with some demands."""
    layers = chain([matrix(name, 50, taken=90, made=90) for name in "abc"], [10, 10])
    instance = instance_of(layers, mesh(1, 1, 1))
    training = Training(global_batch=2, micro_batches=2, schedule=Schedule.ONE_F_ONE_B)
    return replace(instance, training=training, constraints=Constraints(**found), goals=(Goal.STEP_TIME,))  # type: ignore[arg-type]


UNSEEN = {
    "pin": {"pins": (Pin("b", stage=1), Pin("a", stage=0))},
    "stages_per_server": {"stages_per_server": 2},
    "at_most.bottleneck": {"at_most": (GoalLimit(Goal.BOTTLENECK, 10**9), GoalLimit(Goal.DEVICES, 3))},
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_is_not_seen_is_named_and_left_out_alone(name: str) -> None:
    instance = asking(**UNSEEN[name], stages_at_least=2)
    assert name in (unseen_by_executed(instance) or "")
    loose = with_seen_demands(instance)
    assert unseen_by_executed(loose) is None
    assert loose.constraints.stages_at_least == 2
    assert len(loose.constraints.pins) == (name == "pin")
    assert len(loose.constraints.at_most) == (name == "at_most.bottleneck")


def test_numbers_of_stages_are_limited_in_two_ways() -> None:
    limits = (GoalLimit(Goal.STAGES, 2),)
    assert stage_counts(asking(stages_at_least=2, stages_at_most=3, at_most=limits)) == range(2, 3)
    assert not stage_counts(asking(stages_at_least=3, at_most=limits))
    assert stage_counts(asking()) == range(1, 4)


def test_a_pin_tells_alike_servers_apart() -> None:
    """Of three alike servers one is not for the first layer, and the plan says which."""
    instance = asking(pins=(Pin("a", servers=("s1",)), Pin("c", servers=("s0",))), stages_at_least=3)
    instance = replace(instance, constraints=replace(instance.constraints, placement=Placement.FREE))
    found = find_any("step_dp").load()(instance, Limits())
    assert found.plan is not None and evaluate(instance, found.plan).feasible
    assert [stage.group.counts for stage in found.plan.stages] == [((1, 1),), ((2, 1),), ((0, 1),)]
