"""Free placement: CP-SAT against every plan on every group, alike servers, and what the line costs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipecut.formulation.constraints.devices.placement import can_be_free
from pipecut.formulation.constraints.rules import check_devices
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.cluster import Cluster, Wiring
from pipecut.formulation.problem.constraints import Constraints, Placement
from pipecut.formulation.problem.groups import Group, forms_on
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.units import Link
from pipecut.solvers.cpsat import cpsat as layered
from pipecut.solvers.cpsat.constraints.symmetry import alike_servers
from tests.examples import chain, instance_of, joined, matrix, mesh
from tests.generators import cluster_graphs, instances, layer_graphs
from tests.laws import so_many

ONE_WORKER = Limits(workers=1)


def free(instance: Instance, max_servers: int | None = None) -> Instance:
    return replace(instance, constraints=Constraints(placement=Placement.FREE, max_servers=max_servers))


def every_plan(instance: Instance, first: int = 0, before: tuple[Stage, ...] = ()) -> Iterator[Plan]:
    """All plans whose groups are possible; too many devices are for the rules to notice."""
    total = len(instance.layers)
    if first == total:
        yield Plan(before)
        return
    if any(violation.rule == "devices" for violation in check_devices(instance, Plan(before))):
        return
    for stop in range(first + 1, total + 1):
        for group in Group.possible(instance):
            for forms in itertools.product(*(_choices(instance, i, group) for i in range(first, stop))):
                yield from every_plan(instance, stop, (*before, Stage(Span(first, stop), group, forms)))


def _choices(instance: Instance, layer: int, group: Group) -> tuple[int, ...]:
    row = instance.layers[layer]
    return (0,) if row.split is Split.FOLLOW else forms_on(row, group)


small = instances(layers=layer_graphs(max_layers=3), clusters=cluster_graphs(max_devices=4, max_servers=3))


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(small, st.sampled_from([None, 1, 2]))
def test_finds_the_best_of_all_plans(instance: Instance, max_servers: int | None) -> None:
    instance = free(instance, max_servers)
    found = checked(instance, layered.solve(instance, ONE_WORKER))
    priced = (evaluate(instance, plan) for plan in every_plan(instance))
    best = min(price.objective for price in priced if price.feasible and price.objective is not None)
    assert found.proof is Proof.OPTIMAL
    assert found.objective == best


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(layers=layer_graphs(max_layers=5)))
def test_freedom_never_hurts(instance: Instance) -> None:
    on_line = layered.solve(instance, ONE_WORKER).objective
    anywhere = layered.solve(free(instance), ONE_WORKER).objective
    assert anywhere is not None and on_line is not None
    assert anywhere <= on_line


@settings(max_examples=so_many(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(layers=layer_graphs(max_layers=4)), st.randoms())
def test_the_order_of_servers_does_not_matter(instance: Instance, random) -> None:
    order = list(range(len(instance.servers)))
    random.shuffle(order)
    servers, wiring = instance.cluster.servers, instance.cluster.wiring
    wiring = Wiring(tuple(wiring.names[one] for one in order), wiring.switches, wiring.drawn)
    cluster = Cluster("shuffled", tuple(servers[one] for one in order), wiring)
    shuffled = replace(instance, cluster=cluster)
    one = layered.solve(free(instance), ONE_WORKER).objective
    assert layered.solve(free(shuffled), ONE_WORKER).objective == one


def test_the_line_is_provably_worse_than_free_placement() -> None:
    dear = matrix("b", 10, weights=1000, taken=1000, made=1000)
    layers = chain([matrix("a", 20, weights=4, taken=4, made=4), dear], [0])
    instance = instance_of(layers, mesh(1, 2, between=Link(80_000_000)))
    on_line, anywhere = layered.solve(instance), layered.solve(free(instance))
    assert on_line.proof is anywhere.proof is Proof.OPTIMAL
    assert (on_line.objective, anywhere.objective) == (60, 34)


def test_servers_are_alike_only_if_nothing_tells_them_apart() -> None:
    alike = instance_of(chain([matrix("a", 1)], []), mesh(2, 2, 1, 2))
    assert alike_servers(alike) == [[0, 1, 3], [2]]
    links = [list(row) for row in alike.links]
    links[0][2] = links[2][0] = Link(1)
    assert alike_servers(joined(alike, links)) == [[0], [1, 3], [2]]


@pytest.mark.parametrize("servers", [6, 100])
def test_too_many_groups_are_refused_with_a_way_out(servers: int) -> None:
    """At once: of a hundred servers there are more sets than anybody could count."""
    instance = free(instance_of(chain([matrix("a", 1)], []), mesh(*[8] * servers)))
    with pytest.raises(ValueError, match=rf"set constraints\.max_servers to less than {servers}"):
        Group.possible(instance)
    assert not can_be_free(instance)
    few = replace(instance, constraints=replace(instance.constraints, max_servers=1))
    assert len(Group.possible(few)) == 8 * servers


@pytest.mark.parametrize("most", [None, 1, 2, 3])
def test_as_many_groups_are_taken_as_there_may_be(most: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = free(instance_of(chain([matrix("a", 1)], []), mesh(3, 1, 2, 4)))
    instance = replace(instance, constraints=replace(instance.constraints, max_servers=most))
    many = len(Group.possible(instance))
    monkeypatch.setattr("pipecut.formulation.problem.groups.MAX_GROUPS", many)
    assert len(Group.possible(instance)) == many
    monkeypatch.setattr("pipecut.formulation.problem.groups.MAX_GROUPS", many - 1)
    with pytest.raises(ValueError, match="free placement allows more than"):
        Group.possible(instance)
