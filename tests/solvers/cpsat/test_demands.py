"""A user's demands: CP-SAT against brute force on random ones, and every solver that cannot see them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecut.formulation.constraints.devices.reserve import Reserve
from pipecut.formulation.constraints.layers.forms import FormLimit
from pipecut.formulation.constraints.layers.pin import Pin
from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.constraints.plans.own import Own
from pipecut.formulation.constraints.rules import RULES
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.cpsat import cpsat as layered
from pipecut.solvers.cpsat.constraints.symmetry import alike_servers
from pipecut.solvers.reference import line_dp
from tests.examples import chain, follow, instance_of, matrix, mesh
from tests.generators import cluster_graphs, instances, layer_graphs
from tests.laws import so_many
from tests.one_stage import one_stage
from tests.solvers.cpsat.demanded import SLOW, constraints

ONE_WORKER = Limits(workers=1)


@st.composite
def demanding(draw: st.DrawFn) -> Instance:
    """Small instances with demands that they may not be able to keep."""
    instance = draw(
        instances(layers=layer_graphs(max_layers=4, places=True), clusters=cluster_graphs(max_devices=4))
    )
    return replace(instance, constraints=draw(constraints(instance)))


@settings(max_examples=so_many(200), deadline=None, suppress_health_check=SLOW)
@given(demanding())
def test_finds_what_brute_force_finds_under_demands(instance: Instance) -> None:
    found = checked(instance, layered.solve(instance, ONE_WORKER))
    expected = checked(instance, brute_force.solve(instance))
    assert found.proof is expected.proof
    assert found.objective == expected.objective


@settings(max_examples=so_many(40), deadline=None, suppress_health_check=SLOW)
@given(demanding())
def test_solvers_that_cannot_see_a_demand_claim_nothing_that_it_refutes(instance: Instance) -> None:
    best = checked(instance, brute_force.solve(instance))
    for blind in (line_dp.solve, one_stage):
        found = checked(instance, blind(instance))
        if found.bound is not None and best.objective is not None:
            assert found.bound <= best.objective
        if found.proof is Proof.OPTIMAL:
            assert found.objective == best.objective


DEAR = matrix("c", 10, weights=1000, taken=1000)
LAYERS = chain([replace(DEAR, name="a"), follow("b"), DEAR, replace(DEAR, name="d")], [1, 1, 1])


def constrained(**demands: object) -> Instance:
    return replace(instance_of(LAYERS, mesh(1, 1, 1)), constraints=Constraints(**demands))  # type: ignore[arg-type]


def test_a_pin_tells_alike_servers_apart() -> None:
    pinned = constrained(placement=Placement.FREE, pins=(Pin("a", servers=("s2",)),))
    assert alike_servers(pinned) == [[0, 1], [2]]
    plan = checked(pinned, layered.solve(pinned)).plan
    assert plan is not None and plan.stages[0].group.counts == ((2, 1),)


def test_reserved_memory_tells_alike_servers_apart() -> None:
    assert alike_servers(constrained(memory=True, reserve=(Reserve("s1", 5),))) == [[0, 2], [1]]


def test_with_an_own_constraint_no_two_servers_are_alike() -> None:
    own = Own("any", lambda instance, plan: iter(()), lambda v: iter(()))
    assert alike_servers(constrained(own=(own,))) == [[0], [1], [2]]


def test_an_own_family_must_yield_constraints() -> None:
    with pytest.raises(TypeError, match=r"own constraint slip: yielded 7, expected what v\.model\.add returns"):
        layered.solve(constrained(own=(Own("slip", lambda *_: iter(()), lambda v: iter([((0,), 7)])),)))


def test_no_demand_that_does_not_bind_costs_the_proof() -> None:
    free = constrained()
    loose = constrained(
        stages_at_least=1,
        stages_at_most=3,
        pins=(Pin("a", stage=0), Pin("*", servers=("s0", "s1", "s2")), Pin("d", device="unit")),
        together=(("a", "b"),),
        apart=(("a", "d"),),
        no_cut=("b",),
        devices_per_stage=(1, 2, 3),
    )
    one, other = layered.solve(free), layered.solve(loose)
    assert one.proof is other.proof is Proof.OPTIMAL
    assert one.objective == other.objective == 30


def test_every_demand_is_a_rule_that_the_programme_over_the_line_is_blind_to_but_where_it_closes_places() -> None:
    instance = constrained(
        stages_at_most=1, pins=(Pin("a", stage=0),), together=(("a",),), apart=(("a", "b"),), no_cut=("b",),
        devices_per_stage=(1,), own=(Own("mine", lambda *_: iter(()), lambda v: iter(())),),
        at_most=(GoalLimit(Goal.DEVICES, 1),), stages_per_server=1,
        equal_stages=True,
    )  # fmt: skip
    named = [rule.name for rule in RULES if rule.number >= 8]
    assert {*instance.demands.named(), "own", "at_most"} == set(named)
    unseen = [name for name in named if name not in ("together", "no_cut")]
    assert list(line_dp.solve(instance).blind_to) == [name if name != "own" else "own:mine" for name in unseen]


def test_forms_and_reserves_narrow_what_every_solver_sees() -> None:
    wide = instance_of(chain([matrix("a", 20, weights=400, taken=4, made=4)], []), mesh(2))
    only_rows = replace(wide, constraints=Constraints(forms=(FormLimit("a", (0,)),)))
    assert line_dp.solve(wide).objective == 34 and line_dp.solve(only_rows).objective == 60
    assert layered.solve(only_rows).objective == 60
    assert replace(only_rows, constraints=Constraints()).layers == wide.layers
    less = replace(wide, constraints=Constraints(memory=True, reserve=(Reserve("s0", 1 << 39),)))
    assert less.device_classes[0].memory_bytes == 1 << 39
    assert replace(less, constraints=Constraints()).device_classes == wide.device_classes
    found = line_dp.solve(less)
    assert found.plan is not None and evaluate(less, found.plan).stages[0].capacity_bytes == 1 << 39
    assert replace(less, constraints=Constraints()).demands == wide.demands


@pytest.mark.few(8)
@pytest.mark.parametrize("stage", range(-4, 4))
@pytest.mark.parametrize("glob", ["a", "[ab]", "[bc]", "[cd]", "[a-d]", "d"])
def test_a_pin_to_a_stage_means_its_first_and_its_last_layer(glob: str, stage: int) -> None:
    """Where the pin goes against what is best: three stages are, and the pinned layers lie in two of them."""
    instance = constrained(pins=(Pin(glob, stage=stage),))
    found, expected = checked(instance, layered.solve(instance, ONE_WORKER)), brute_force.solve(instance)
    assert (found.proof, found.objective) == (expected.proof, expected.objective)
