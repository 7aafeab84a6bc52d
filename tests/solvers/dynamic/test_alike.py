"""Servers that are alike: the programme finds what every plan says, and tells them apart as little as it can."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.outcome import checked
from pipecut.formulation.problem.cluster import Cluster, Server
from pipecut.formulation.problem.constraints import Constraints, Placement
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.shares import same_servers
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.problem.units import Link
from pipecut.formulation.suffixes import alike_servers
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.dynamic.states import state_dp as solver
from pipecut.solvers.dynamic.states.states import state_space
from tests.examples import BYTE_LINK, UNIT, chain, instance_of, matrix, mesh
from tests.generators import CLASSES, instances, layer_graphs, links, recomputation, whole_passes
from tests.laws import so_many
from tests.solvers.cpsat.test_freedoms import degrees, has_groups
from tests.solvers.dynamic.test_states import OWN_TIMES, QUIET, agree, short_of_memory


@st.composite
def alike_clusters(draw: st.DrawFn, classes: int, most: int = 5) -> Cluster:
    """Servers of so many classes, those of a class next to one another, all joined by one link."""
    servers: list[Server] = []
    for one in range(classes):
        width = draw(st.integers(1, 3 if classes == 1 else 2))
        inside = draw(links) if width > 1 else None
        adapters = draw(st.sampled_from([0, 0, 1, width]))
        room = (most - sum(server.devices for server in servers)) // width
        for _ in range(draw(st.integers(1, max(1, min(3, room))))):
            servers.append(Server(f"s{len(servers)}", CLASSES[one % len(CLASSES)], width, inside, adapters))
    return Cluster.mesh("alike", servers, draw(links))


@st.composite
def alike_cases(draw: st.DrawFn, placement: Placement, classes: int) -> Instance:
    """Instances some of whose servers are alike; memory often binds."""
    graphs = layer_graphs(max_layers=4, places=draw(st.booleans()))
    instance = draw(instances(layers=graphs, costs=OWN_TIMES))
    instance = replace(instance, cluster=draw(alike_clusters(classes)))
    schedule = draw(whole_passes | st.just(Schedule.ONE_F_ONE_B))
    instance = replace(instance, training=replace(instance.training, schedule=schedule))
    free = placement is Placement.FREE
    constraints = Constraints(
        placement=placement,
        max_servers=1 if free else draw(st.sampled_from([None, None, 1, 2])),
        devices_per_stage=draw(st.sampled_from([(), (), (1,), (2,), (1, 2), (1, 3)])),
        tensor_parallel_degrees=draw(degrees),
        **draw(recomputation),
    )
    instance = replace(instance, constraints=constraints)
    assume(solver.reason_against(instance) is None and has_groups(instance))
    assume(brute_force.count_plans(instance) <= brute_force.MAX_PLANS)
    if draw(st.booleans()):
        return instance
    return short_of_memory(draw, instance, brute_force.solve(instance).plan)


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=QUIET)
@given(alike_cases(Placement.LINE, 1))
def test_on_a_line_it_finds_what_every_plan_says(instance: Instance) -> None:
    agree(checked(instance, solver.solve(instance)), brute_force.solve(instance))


@pytest.mark.slow
@settings(max_examples=so_many(12), deadline=None, suppress_health_check=QUIET)
@given(st.integers(1, 3).flatmap(lambda classes: alike_cases(Placement.FREE, classes)))
def test_under_free_placement_it_finds_what_every_plan_says(instance: Instance) -> None:
    agree(checked(instance, solver.solve(instance)), brute_force.solve(instance))


def on_cluster(layers: nx.DiGraph, servers: list[Server], between: Link) -> Instance:
    return replace(instance_of(layers, mesh(1)), cluster=Cluster.mesh("mesh", servers, between))


def three_pairs(devices: int) -> Instance:
    """Three equal layers, one or two servers of so many devices; a stage has two, within one server."""
    layers = chain([matrix(name, 12) for name in "abc"], [1, 1])
    servers = [Server(f"s{at}", UNIT, devices, BYTE_LINK) for at in range(2)]
    instance = on_cluster(layers, servers, BYTE_LINK)
    return replace(
        instance, constraints=Constraints(placement=Placement.FREE, max_servers=1, devices_per_stage=(2,))
    )


@pytest.mark.slow
def test_stages_within_servers_are_counted_by_server() -> None:
    """Six devices in two servers of three hold three pairs by number, and only two within servers."""
    split, whole = three_pairs(3), three_pairs(4)
    best, wide = brute_force.solve(split), brute_force.solve(whole)
    assert best.objective is not None and wide.objective is not None and wide.objective < best.objective
    for instance, found in ((split, best), (whole, wide)):
        agree(checked(instance, solver.solve(instance)), found)


def test_two_stages_of_one_server_are_joined_by_its_link() -> None:
    """Between servers the tensor takes far too long, so both stages lie in one of them."""
    slow = Link(1)
    servers = [Server(f"s{at}", UNIT, 2, BYTE_LINK) for at in range(2)]
    for placement in Placement:
        instance = on_cluster(chain([matrix("a", 60), matrix("b", 60)], [1000]), servers, slow)
        limits = Constraints(placement=placement, max_servers=1, devices_per_stage=(1,))
        instance = replace(instance, constraints=limits)
        agree(checked(instance, solver.solve(instance)), brute_force.solve(instance))


@settings(max_examples=so_many(30), deadline=None, suppress_health_check=QUIET)
@given(instances(layers=layer_graphs(max_layers=2)))
def test_a_mesh_is_what_its_pairs_say(instance: Instance) -> None:
    """Servers are told apart alike, with a link for every two or one for all of them."""
    wide = Link(7_000_000_000, 3)
    meshed = Cluster.mesh("mesh", instance.servers, wide)
    names = [server.name for server in instance.servers]
    pairs = tuple((one, other, wide) for at, one in enumerate(names) for other in names[:at])
    drawn = Cluster("mesh", instance.servers, replace(meshed.wiring, drawn=pairs, mesh=None if pairs else wide))
    assert meshed.links == drawn.links and meshed.slowest == drawn.slowest
    some = replace(instance, cluster=meshed), replace(instance, cluster=drawn)
    assert same_servers(some[0]) == same_servers(some[1])
    groups = Group.possible(some[0])
    assert alike_servers(some[0], groups) == alike_servers(some[1], groups)
    assert Cluster.of(meshed.graph()) == meshed


def test_a_link_that_is_drawn_stands_before_the_mesh() -> None:
    near = Link(9_000_000_000)
    servers = [Server(f"s{at}", UNIT, 1) for at in range(3)]
    meshed = Cluster.mesh("mesh", servers, BYTE_LINK)
    drawn = Cluster("mesh", meshed.servers, replace(meshed.wiring, drawn=(("s0", "s2", near),)))
    assert drawn.links == ((None, BYTE_LINK, near), (BYTE_LINK, None, BYTE_LINK), (near, BYTE_LINK, None))
    layers = chain([matrix("a"), matrix("b")], [1])
    instance = replace(on_cluster(layers, servers, BYTE_LINK), cluster=drawn)
    assert same_servers(instance) == [[0, 2], [1]]
    assert len(state_space(solver.all_tables(instance)).states) == 4
