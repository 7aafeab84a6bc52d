"""The dynamic programme over device states: it finds what brute force finds, and what CP-SAT proves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.costs.tables import build_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Outcome, Progress, Proof, checked
from pipecut.formulation.problem.cluster import Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement
from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.options import (
    AllReduce,
    Boundary,
    BoundaryCharge,
    Combine,
    CostModel,
    Sharing,
    Synchronisation,
)
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.problem.units import Link
from pipecut.formulation.suffixes import alike_servers
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.cpsat import cpsat as layered
from pipecut.solvers.dynamic.states import state_dp as solver
from pipecut.solvers.dynamic.states.states import state_space
from tests.examples import chain, instance_of, matrix, mesh, on_servers, vgg16
from tests.generators import (
    CLASSES,
    hosts,
    instances,
    layer_graphs,
    links,
    priced,
    recomputation,
    sharded_kinds,
    sharings,
    whole_passes,
)
from tests.laws import so_many
from tests.solvers.cpsat.test_freedoms import degrees, freed, has_groups
from tests.solvers.priced import few_plans

QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much]
OWN_TIMES = st.builds(
    priced,
    sharings,
    all_reduce=st.sampled_from(AllReduce),
    boundary=st.sampled_from(Boundary),
    sharing=st.sampled_from(Sharing),
    synchronisation=st.sampled_from(
        [Synchronisation.CHARGED, Synchronisation.CHARGED, Synchronisation.OVERLAPPED]
    ),
)
"""Cost models under which a stage's time is its own."""


@st.composite
def clusters(draw: st.DrawFn, max_devices: int = 4):
    """Two or three servers, often alike."""
    one = draw(st.sampled_from(CLASSES))
    inside, between = draw(links), draw(links)
    servers: list[Server] = []
    left, shared = max_devices, draw(st.sampled_from([None, None, 1, 3]))
    for index in range(draw(st.integers(1, 3))):
        count = draw(st.sampled_from([size for size in (1, 1, 2, 3) if size <= max(1, left)]))
        if left < count:
            break
        unlike = draw(st.integers(0, 3)) == 0
        device = draw(st.sampled_from(CLASSES)) if unlike else one
        adapters = 0 if shared is None else min(count, shared)
        servers.append(Server(f"server{index}", device, count, inside if count > 1 else None, adapters))
        left -= count
    names = [server.name for server in servers]
    pairs = [(a, b) for at, a in enumerate(names) for b in names[:at]]
    odd = draw(links)
    return cluster_graph(
        "mesh", servers, [(*pair, odd if draw(st.integers(0, 3)) == 0 else between) for pair in pairs]
    )


@st.composite
def cases(draw: st.DrawFn, *, max_layers: int = 4, max_devices: int = 3) -> Instance:
    """Instances of the kind that states can plan; memory often binds."""
    graphs = layer_graphs(max_layers=max_layers)
    instance = draw(instances(layers=graphs, clusters=clusters(max_devices=max_devices), costs=OWN_TIMES))
    schedule = draw(whole_passes | st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.ASYNC_ONE_F_ONE_B]))
    instance = replace(instance, training=replace(instance.training, schedule=schedule))
    most = draw(st.sampled_from([None, None, 1, 2]))
    constraints = Constraints(
        placement=draw(st.sampled_from(Placement)),
        max_servers=most,
        devices_per_stage=draw(st.sampled_from([(), (), (), (1,), (2,), (1, 2), (1, 3)])),
        tensor_parallel_degrees=draw(degrees),
        **draw(recomputation),
        sharded=draw(sharded_kinds),
        optimizer_on_host=draw(hosts),
    )
    instance = replace(instance, constraints=constraints)
    assume(solver.reason_against(instance) is None and has_groups(instance))
    return short_of_memory(draw, instance, solver.solve(instance).plan) if draw(st.integers(0, 3)) else instance


def short_of_memory(draw: st.DrawFn, instance: Instance, plan: Plan | None) -> Instance:
    """Give every device class a part of the memory that a plan needs, or a little more."""
    assume(plan is not None)
    assert plan is not None
    needed = max(stage.memory_bytes for stage in evaluate(instance, plan).stages)
    room = max(1, needed * draw(st.integers(20, 110)) // 100)
    instance = replace(instance, constraints=replace(instance.constraints, memory=True))
    resized = {one: replace(one, memory_bytes=room) for one in instance.device_classes}
    servers = tuple(replace(row, device_class=resized[row.device_class]) for row in instance.servers)
    return on_servers(instance, servers)


def agree(found: Outcome, best: Outcome) -> None:
    assert (found.proof, found.objective) == (best.proof, best.objective)
    assert found.proof in (Proof.OPTIMAL, Proof.INFEASIBLE)


@settings(max_examples=so_many(150), deadline=None, suppress_health_check=QUIET)
@given(cases())
def test_states_agree_with_brute_force(instance: Instance) -> None:
    assume(few_plans(instance))
    agree(checked(instance, solver.solve(instance)), brute_force.solve(instance))


@pytest.mark.slow
@settings(max_examples=so_many(400), deadline=None, suppress_health_check=QUIET)
@given(cases())
def test_states_agree_with_brute_force_often(instance: Instance) -> None:
    assume(few_plans(instance))
    agree(checked(instance, solver.solve(instance)), brute_force.solve(instance))


@pytest.mark.slow
@settings(max_examples=so_many(60), deadline=None, suppress_health_check=QUIET)
@given(cases(max_layers=7, max_devices=5))
def test_states_agree_with_the_declarative_model(instance: Instance) -> None:
    found = checked(instance, layered.solve(instance, Limits(workers=1, time_limit_s=60)))
    assume(found.proof in (Proof.OPTIMAL, Proof.INFEASIBLE))
    agree(checked(instance, solver.solve(instance)), found)


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=QUIET)
@given(cases())
def test_no_optimal_plan_placed_freely_takes_fewer_devices(instance: Instance) -> None:
    instance = replace(instance, constraints=replace(instance.constraints, placement=Placement.FREE))
    assume(few_plans(instance))
    found = solver.solve(instance)
    assume(found.plan is not None)
    assert found.plan is not None
    rows = ((plan, evaluate(instance, plan)) for plan in brute_force.plans(instance))
    best = [plan for plan, row in rows if row.feasible and row.objective == found.objective]
    assert devices(found.plan) == min(map(devices, best))


def devices(plan: Plan) -> int:
    return sum(stage.group.devices for stage in plan.stages)


def told_apart(instance: Instance) -> Instance:
    """The same problem with servers that differ in a number that does not count: memory that is not limited."""
    servers = tuple(
        replace(
            row, device_class=replace(row.device_class, name=f"{row.device_class.name}{at}", memory_bytes=at + 1)
        )
        for at, row in enumerate(instance.servers)
    )
    return on_servers(instance, servers)


@settings(max_examples=so_many(100), deadline=None, suppress_health_check=QUIET)
@given(cases(max_layers=6, max_devices=5))
def test_to_tell_alike_servers_apart_changes_no_optimum(instance: Instance) -> None:
    instance = replace(instance, constraints=replace(instance.constraints, placement=Placement.FREE, memory=False))
    assume(has_groups(instance))
    other = told_apart(instance)
    assert solver.solve(instance).objective == checked(other, solver.solve(other)).objective


def test_alike_servers_share_their_states() -> None:
    instance = replace(
        instance_of(chain([matrix("a", 1), matrix("b", 2)], [3]), mesh(2, 2, 2, 2)),
        constraints=Constraints(placement=Placement.FREE),
    )
    counted = [
        len(state_space(build_tables(one, Group.possible(one))).states) for one in (instance, told_apart(instance))
    ]
    assert counted == [15, 81]


def test_servers_whose_exchange_changes_how_replicas_lie_are_not_alike() -> None:
    """As 1 + 2 + 1 devices both replicas stretch over two servers, as 1 + 1 + 2 or 2 + 1 + 1 one lies in one."""
    slow = Link(1_000_000)
    instance = instance_of(chain([matrix("a", 1)], []), mesh(2, 2, 2, inside=slow))
    free = Constraints(placement=Placement.FREE)
    whole = replace(instance, constraints=free)
    split = replace(instance, constraints=replace(free, tensor_parallel_degrees=(2,)))
    assert alike_servers(whole, Group.possible(whole)) == [[0, 1, 2]]
    assert alike_servers(split, Group.possible(split)) == [[0, 2], [1]]
    a, b = (Group(counts, Mode(2)) for counts in (((0, 1), (1, 2), (2, 1)), ((0, 1), (1, 1), (2, 2))))
    assert GroupKind.of(split, a) != GroupKind.of(split, b)


def vgg(*servers: int) -> Instance:
    instance = instance_of(vgg16(), mesh(*servers, inside=Link(10**13), between=Link(10**12)))
    return replace(instance, constraints=Constraints(placement=Placement.FREE, max_servers=1))


def test_the_bound_rises_and_the_plan_improves_until_they_meet() -> None:
    seen: list[Progress] = []
    found = checked(vgg(2, 1, 1), solver.solve(vgg(2, 1, 1), Limits(progress=seen.append)))
    assert found.proof is Proof.OPTIMAL
    bounds = [one.bound or 0 for one in seen]
    values = [one.objective for one in seen if one.objective is not None]
    assert bounds == sorted(bounds) and bounds[-1] == found.objective
    assert values == sorted(values, reverse=True) and values[-1] == found.objective
    assert bounds[0] == lower_bound(vgg(2, 1, 1)) > 0 and len(set(bounds)) > 3


@pytest.mark.parametrize("questions", [0, 1, 5, 20, 60])
def test_stopped_at_any_time_the_claim_is_honest(questions: int) -> None:
    instance, asked = vgg(2, 1, 1), 0
    best = solver.solve(instance).objective
    assert best is not None

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        return asked > questions

    found = checked(instance, solver.solve(instance, Limits(stopped=stopped)))
    assert found.proof in (Proof.FEASIBLE, Proof.OPTIMAL) and found.plan is not None
    assert found.objective is not None and found.bound is not None
    assert found.bound <= best <= found.objective
    assert checked(instance, solver.solve(instance, Limits(time_limit_s=0))).proof is Proof.FEASIBLE


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"goals": (Goal.ITERATION_TIME,)}, "first goal is iteration_time"),
        ({"cost": CostModel(combine=Combine.SUM)}, "combine is 'sum'"),
        ({"cost": CostModel(boundary_charge=BoundaryCharge.RECEIVER)}, "boundary_charge is 'receiver'"),
    ],
)
def test_says_what_it_cannot_plan(changed: dict, reason: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=reason):
        solver.solve(replace(vgg(1, 1), **changed))


@pytest.mark.parametrize(
    ("demand", "name"),
    [
        ({"stages_at_most": 1}, "stages"),
        ({"devices_per_stage": (3,)}, "devices_per_stage"),
        ({"at_most": (GoalLimit(Goal.DEVICES, 1),)}, "at_most"),
    ],
)
def test_demands_are_not_overlooked(demand: dict, name: str) -> None:  # type: ignore[type-arg]
    instance = vgg(1, 1)
    with pytest.raises(ValueError, match=f"do not see the constraints {name}"):
        solver.solve(replace(instance, constraints=replace(instance.constraints, **demand)))


def test_too_many_states_are_refused() -> None:
    with pytest.raises(ValueError, match="362880 ways to take devices"):
        solver.solve(vgg(1, 2, 3, 4, 5, 6, 7, 8))


def test_a_stage_that_no_forms_fit_is_refused_once_and_the_optimum_is_still_found() -> None:
    """Fast forms copy the weights, small ones are slow: each limit alone can be kept, both together cannot."""
    one, other = (matrix(name, macs, 100, taken=150, made=150) for name, macs in (("a", 1000), ("b", 10)))
    layers = chain([one, other], [150])
    instance = replace(instance_of(layers, mesh(2)), constraints=Constraints(placement=Placement.FREE))
    rows = [(evaluate(instance, plan), plan) for plan in brute_force.plans(instance)]
    refusals = 0
    for room in sorted({max(stage.memory_bytes for stage in row.stages) for row, _ in rows}):
        device = replace(instance.servers[0].device_class, memory_bytes=room)
        servers = (replace(instance.servers[0], device_class=device),)
        limited = on_servers(instance, servers)
        limited = replace(limited, constraints=replace(instance.constraints, memory=True))
        found = checked(limited, solver.solve(limited))
        agree(found, brute_force.solve(limited))
        refusals += "stages fit in no way of splitting" in found.notes[0]
    assert refusals > 0


@pytest.mark.slow
@settings(max_examples=so_many(60), deadline=None, suppress_health_check=QUIET)
@given(freed(max_layers=5), st.data())
def test_places_where_nothing_may_be_cut_are_seen(instance: Instance, data: st.DataObject) -> None:
    """Runs of layers stand for layers; brute force knows nothing of that."""
    total = len(instance.layers)
    names = [f"layer{at}" for at in range(total)]
    chosen = data.draw(st.sets(st.sampled_from(names), max_size=3))
    pair = data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=2))
    cost = replace(instance.cost, combine=Combine.MAX, boundary_charge=BoundaryCharge.LINK)
    constraints = replace(instance.constraints, no_cut=tuple(sorted(chosen)), together=(tuple(sorted(pair)),))
    limited = replace(replace(instance, cost=cost), constraints=constraints)
    assume(has_groups(limited) and few_plans(limited))
    best = brute_force.solve(limited)
    found = checked(limited, solver.solve(limited))
    assert (found.proof, found.objective) == (best.proof, best.objective)
