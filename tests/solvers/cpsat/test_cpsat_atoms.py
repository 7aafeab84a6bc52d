"""The model on atoms against every plan there is, and what it does not see."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from benchmarks.size.llama import Shape, llama, two_servers
from pipecut.formulation.costs.tables import all_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER
from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement, Recompute
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import Instance, with_servers
from pipecut.formulation.problem.options import BoundaryCharge, Combine, CostModel, StageTime
from pipecut.solvers.atoms.stages import AtomStages, ends_of
from pipecut.solvers.cpsat.on_atoms import solver
from pipecut.solvers.cpsat.on_atoms.charges import Charges
from pipecut.solvers.cpsat.on_atoms.families import within
from pipecut.solvers.cpsat.on_atoms.prices import DevicePrices
from pipecut.solvers.cpsat.on_atoms.support import accepts
from pipecut.solvers.dynamic.states import solver as states
from pipecut.solvers.goals import solve_in_order
from tests.enumerator import every_plan, more_plans_than, truth
from tests.examples import PLAIN, chain, instance_of, matrix, mesh, on_servers
from tests.laws import so_many
from tests.problems import problems
from tests.solvers.cpsat.test_freedoms import has_groups

ONE = Limits(workers=1)
SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
SMALL = Shape(blocks=6, hidden=256, key_value=64, inner=688, heads=8, vocabulary=1000, sequence=128)


def decided_by_atoms(instance: Instance, data: st.DataObject) -> Instance:
    """Return a like instance that atoms decide: memory near what a plan needs, cuts closed, modes as they come."""
    by_itself = instance.cost.stage_time is StageTime.ADD
    charge = data.draw(st.sampled_from(BoundaryCharge)) if by_itself else BoundaryCharge.LINK
    cost = replace(instance.cost, combine=Combine.MAX, boundary_charge=charge)
    names = [layer.name for layer in instance.layers]
    closed = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=len(names) - 1))
    rest = replace(instance.constraints, at_most=(), own=(), pins=(), apart=(), no_cut=tuple(closed))
    try:
        open_ = replace(instance, cost=cost, constraints=rest, goals=(Goal.BOTTLENECK,))
        free = replace(open_, constraints=replace(rest, memory=False))
    except ValueError:
        assume(False)
        raise
    assume(has_groups(free) and accepts(free).takes)
    best = truth(free)
    if best.plan is not None and data.draw(st.booleans()):
        needed = max(stage.memory_bytes for stage in evaluate(free, best.plan).stages)
        share = data.draw(st.integers(30, 105))
        sizes = [max(1, needed * share // 100)] * len(free.servers)
        kept = dict(free.demands.reserve)
        servers = [
            replace(server, device_class=replace(server.device_class, memory_bytes=size + kept.get(at, 0)))
            for at, (server, size) in enumerate(zip(free.servers, sizes, strict=True))
        ]
        free = with_servers(replace(free, constraints=replace(rest, memory=True)), servers)
        assume(accepts(free).takes)  # under ZB-H1 what a stage keeps follows from how many there are
    return free


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=SLOW)
@given(problems(), st.data())
def test_optima_are_those_of_all_plans(instance: Instance, data: st.DataObject) -> None:
    free = decided_by_atoms(instance, data)
    expected, found = truth(free), checked(free, solver.solve(free, ONE))
    if expected.values is None:
        assert found.proof is Proof.INFEASIBLE
    else:
        assert found.proof is Proof.OPTIMAL and found.objective == expected.values[0]


@pytest.mark.slow
@settings(max_examples=so_many(60), deadline=None, suppress_health_check=SLOW)
@given(problems(), st.data())
def test_no_plan_pays_less_than_the_cheapest_ways(instance: Instance, data: st.DataObject) -> None:
    """At any prices and any threshold, every stage of every plan within it and all stages around it."""
    free = decided_by_atoms(instance, data)
    assume(not more_plans_than(free, 300))
    plans = [plan for plan in every_plan(free) if evaluate(free, plan).feasible]
    assume(plans)
    tables = all_tables(free, NEVER)
    stages, slots = AtomStages(tables, CutSpace.of(free)), min(len(CutSpace.of(free).places) - 1, free.devices)
    limit = evaluate(free, data.draw(st.sampled_from(plans))).objective or 0
    rules = stages.rules(slots)
    charges = Charges.of(tables, stages.space)
    reach = [
        np.maximum.accumulate(
            [ends_of(within(limit, stages.least(slot, c), charges.least(c))) for c in range(len(tables.kinds))],
            axis=1,
        )
        for slot in rules
    ]
    prices = DevicePrices(tables)
    prices._weights = np.array(
        data.draw(st.lists(st.floats(0.01, 100), min_size=len(prices._owned), max_size=len(prices._owned)))
    )
    ways = data.draw(st.sampled_from([prices.dearest, partial(prices._at, prices._weights)]))(reach)
    before = ways.before(reach)
    at = {place: index for index, place in enumerate(CutSpace.of(free).places)}
    for plan in plans:
        if (evaluate(free, plan).objective or 0) > limit:
            continue
        paid = [int(ways.of_group[tables.groups.index(stage.group)]) for stage in plan.stages]
        for index, stage in enumerate(plan.stages):
            slot, start, stop = len(plan) - 1 - index, at[stage.span.first], at[stage.span.stop]
            assert sum(paid[index:]) >= ways.behind[slot + 1][start]
            assert sum(paid[:index]) >= before[slot + 1][start]
            assert sum(paid) <= ways.total
            assert before[slot + 1][start] + paid[index] + ways.behind[slot][stop] <= ways.total


@pytest.mark.slow
@pytest.mark.parametrize("memory_bytes", [1 << 30, 8_000_000, 5_500_000])
def test_a_small_llama_has_the_optimum_of_the_states(memory_bytes: int) -> None:
    instance = two_servers(llama(SMALL), memory_bytes, degrees=(1, 2, 4), recompute=Recompute.ALLOWED)
    expected, found = states.solve(instance, ONE), checked(instance, solver.solve(instance, ONE))
    assert found.proof is expected.proof and found.objective == expected.objective


def test_several_goals_are_decided_on_atoms() -> None:
    layers = chain([matrix(name, 6, allowed=(0,)) for name in "abcd"], [1, 1, 1])
    instance = replace(instance_of(layers, mesh(2, 2), PLAIN), goals=(Goal.BOTTLENECK, Goal.DEVICES, Goal.STAGES))
    expected, found = truth(instance), checked(instance, solve_in_order(instance, solver.solve, ONE))
    assert expected.values is not None and found.proof is Proof.OPTIMAL
    assert (found.objective, *(one.value for one in found.further)) == expected.values


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"cost": CostModel(combine=Combine.SUM)}, "combine is 'sum'"),
        (
            {"cost": replace(PLAIN, boundary_charge=BoundaryCharge.RECEIVER, stage_time=StageTime.OVERLAP)},
            "boundary_charge is 'receiver' with stage_time 'overlap'",
        ),
        ({"goals": (Goal.MEMORY,)}, "do not see the memory of a plan"),
        ({"constraints": Constraints(apart=(("a", "b"),))}, "do not see the constraints apart"),
    ],
)
def test_what_whole_stages_do_not_decide_is_not_taken(changed: dict[str, object], reason: str) -> None:
    instance = replace(instance_of(chain([matrix("a", 1), matrix("b", 1)], [1]), mesh(1, 1), PLAIN), **changed)
    assert reason in accepts(instance).reason
    with pytest.raises(ValueError, match=reason.replace("(", r"\(")):
        solver.solve(instance, ONE)


def test_what_is_refused_is_not_proposed_again() -> None:
    """The reach of a stage that was refused ends before it, in its slot and in all before it in the pipeline."""
    instance = two_servers(llama(SMALL), 5_500_000)
    from pipecut.formulation.costs.tables import all_tables
    from pipecut.formulation.problem.cuts import CutSpace
    from pipecut.formulation.problem.groups import Group
    from pipecut.formulation.problem.plan import Plan, Span, Stage

    tables, space = all_tables(instance), CutSpace.of(instance)
    stages = AtomStages(tables, space)
    group = Group(((0, 4),))
    kind = tables.kind_of[tables.groups.index(group)]
    refused = [
        (threshold, stop)
        for threshold in (10**6, 2 * 10**6, 4 * 10**6)
        for stop in range(1, space.stops + 1)
        if stages.ends(0, kind, threshold)[0] >= stop
        and stages.with_forms(Plan((Stage(Span(0, stop), group, ()),)), [threshold]) is None
        and stages.ends(0, kind, threshold)[0] >= stop
    ]
    assert refused == []


def test_placement_is_free_or_on_the_line() -> None:
    for placement in Placement:
        layers = chain([matrix(name, 6, allowed=(0,)) for name in "abc"], [1, 1])
        instance = replace(instance_of(layers, mesh(1, 2), PLAIN), constraints=Constraints(placement=placement))
        expected, found = truth(instance), checked(instance, solver.solve(instance, ONE))
        assert expected.values is not None and found.objective == expected.values[0]


def test_a_kind_costs_what_its_cheapest_group_does() -> None:
    """Three devices of two types are one kind, whichever of the types has two of them."""
    layers = chain([matrix(name, 6) for name in "abc"], [1, 1])
    open_ = replace(instance_of(layers, mesh(2, 2), PLAIN), constraints=Constraints(placement=Placement.FREE))
    fast, slow = open_.servers
    unlike = replace(slow.device_class, name="other")
    tables = all_tables(on_servers(open_, [fast, replace(slow, device_class=unlike)]), NEVER)
    prices = DevicePrices(tables)
    ways = prices._at(np.array([1.0, 100.0]), [np.full((len(tables.kinds), 4), 3)])
    rows = [
        [price for price, kind in zip(ways.of_group, tables.kind_of, strict=True) if kind == c]
        for c in range(len(tables.kinds))
    ]
    assert any(len(set(row)) > 1 for row in rows)
    assert [min(row) for row in rows] == list(ways.of_kind)
