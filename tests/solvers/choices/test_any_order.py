"""Orders of branching models: held against every order there is, each searched exhaustively."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings

from pipecut.formulation.outcome import Limits, Outcome, Proof, checked
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Goal
from pipecut.formulation.problem.cuts import AtomGraph
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import Layer, Split, layer_graph
from pipecut.formulation.problem.options import Combine, CostModel
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers import exhaustive
from pipecut.solvers.choices.any_order import AnyOrder, any_order, has_other_orders, in_order
from pipecut.solvers.reference import line_dp
from tests.generators import cluster_graphs, instances, layer_graphs
from tests.laws import so_many

SLOW = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=so_many(60))


def ask(instance: Instance, limits: Limits) -> Outcome:
    return checked(instance, exhaustive.solve(instance, limits))


def ask_line(instance: Instance, limits: Limits) -> Outcome:
    return checked(instance, line_dp.solve(instance, limits))


def orders(atoms: AtomGraph) -> Iterator[tuple[int, ...]]:
    return (order for order in itertools.permutations(range(len(atoms))) if atoms.keeps(order))


def block(name: str, macs: int, size: int = 1000, split: Split = Split.JOIN) -> Layer:
    return Layer(name, "block", split, 1000, size, size, size, macs, allowed_forms=(0,))


def towers(*branches: Sequence[int]) -> nx.DiGraph:
    """Branches of blocks of so many million multiply-accumulates, one after another in the list, and a join."""
    names = [[f"b{at}.{depth}" for depth in range(len(row))] for at, row in enumerate(branches)]
    layers = [
        block(name, macs * 10**6)
        for row, work in zip(names, branches, strict=True)
        for name, macs in zip(row, work, strict=True)
    ]
    edges = [(one, other, 1000) for row in names for one, other in itertools.pairwise(row)]
    edges += [(row[-1], "join", 1000) for row in names]
    return layer_graph("towers", [*layers, block("join", 0)], edges)


def one_device_a_stage(
    graph: nx.DiGraph, devices: int, bits_per_second: int = 10**12, **constraints: object
) -> Instance:
    card = DeviceClass("card", 1 << 30, 10**12)
    cluster = cluster_graph("c", [Server("s", card, devices, Link(bits_per_second))], [])
    limits = Constraints(devices_per_stage=(1,), **constraints)  # type: ignore[arg-type]
    return build_instance(graph, cluster, Training(8, 8), CostModel(), limits)


@SLOW
@given(
    instances(
        layer_graphs(max_layers=5, places=True),
        cluster_graphs(max_devices=3),
    )
)
def test_no_order_has_anything_below_the_bound(instance: Instance) -> None:
    found = any_order(instance, ask, Limits())
    least = [ask(in_order(instance, order), Limits()).objective for order in orders(AtomGraph.of(instance))]
    best = min(value for value in least if value is not None)
    assert found.outcome.objective is not None
    assert found.bound <= best <= found.outcome.objective
    assert checked(found.instance, found.outcome) == found.outcome
    if found.proved:
        assert found.outcome.objective == best


def test_a_tensor_that_an_atom_reads_twice_crosses_once() -> None:
    """Two residual branches: a block reads the one before it twice, which crosses a cut once.

    One after the other the best is 9 and 17 million operations, 102 us; side by side 13 and 13, 78 us, with two
    tensors of 30 us each at the boundary. Counted twice, these would seem to exclude the better order.
    """
    size, link = 187_500, Link(10**11)
    layers, edges = list[Layer](), list[tuple[str, str, int]]()
    for branch, macs in (("a", 9 * 10**6), ("b", 4 * 10**6)):
        for depth in (0, 1):
            names = [f"{branch}{depth}.{part}" for part in ("norm", "add")]
            layers += [block(name, work, size=size) for name, work in zip(names, (macs, 0), strict=True)]
            edges.append((names[0], names[1], size))
            if depth:
                edges += [(f"{branch}0.add", name, size) for name in names]
    layers.append(block("join", 0))
    edges += [(f"{branch}1.add", "join", 1000) for branch in ("a", "b")]
    graph = layer_graph("residual", layers, edges, cuts=["a1.norm", "b0.norm", "b1.norm", "join"])
    card = DeviceClass("card", 1 << 30, 10**12)
    cluster = cluster_graph("c", [Server("s", card, 2, link)], [])
    instance = build_instance(graph, cluster, Training(8, 8), CostModel(), Constraints(devices_per_stage=(1,)))
    found = any_order(instance, ask, Limits())
    assert (found.first.objective, found.outcome.objective, found.bound) == (102_000, 78_000, 78_000)


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_two_towers_need_not_run_one_after_another(devices: int) -> None:
    """Unequal towers: the traced order cuts badly, another balances, and no order does better."""
    instance = one_device_a_stage(towers([7, 7, 7, 7], [5, 5, 5, 5, 5]), devices)
    found = any_order(instance, ask_line, Limits())
    least = min(ask_line(in_order(instance, order), Limits()).objective or 0 for order in _some_orders(instance))
    assert found.proved and found.outcome.objective == least
    assert found.first.objective is not None and least <= found.first.objective


def _some_orders(instance: Instance) -> Iterator[tuple[int, ...]]:
    """Every merge of two towers of 4 and 5 atoms, with the join behind them."""
    for front in itertools.combinations(range(9), 4):
        one, other = iter(range(4)), iter(range(4, 9))
        yield (*(next(one) if at in front else next(other) for at in range(9)), 9)


def test_a_chain_has_one_order_and_is_asked_once() -> None:
    instance = one_device_a_stage(towers([3, 4, 5]), 2)
    assert not has_other_orders(instance)
    found = any_order(instance, ask, Limits())
    assert (found.asked, found.proved, found.instance) == (1, True, instance)


def test_what_may_not_be_cut_moves_as_one() -> None:
    instance = one_device_a_stage(towers([4, 4], [3, 3]), 2, no_cut=("b0.1",))
    atoms = AtomGraph.of(instance)
    assert atoms.starts == (0, 2, 3, 4, 5) and atoms.before == ((), (), (1,), (0, 2))
    assert atoms.layers((1, 0, 2, 3)) == (2, 0, 1, 3, 4)
    assert [layer.name for layer in in_order(instance, (1, 0, 2, 3)).layers] == [
        "b1.0",
        "b0.0",
        "b0.1",
        "b1.1",
        "join",
    ]
    with pytest.raises(ValueError, match="against the execution order"):
        in_order(instance, (2, 1, 0, 3))
    with pytest.raises(ValueError, match="each of 5 layers once"):
        instance.model.in_order((0, 0, 1, 2, 3))


@pytest.mark.slow
def test_other_goals_and_sums_try_interleavings_only() -> None:
    instance = one_device_a_stage(towers([7, 7], [5, 5, 5]), 3)
    for other in (
        replace(instance, goals=(Goal.ITERATION_TIME,)),
        replace(instance, cost=replace(instance.cost, combine=Combine.SUM)),
    ):
        found = any_order(other, ask, Limits())
        best = min(ask(in_order(other, order), Limits()).objective or 0 for order in orders(AtomGraph.of(other)))
        assert found.outcome.objective is not None and found.first.objective is not None
        assert found.bound <= best <= found.outcome.objective <= found.first.objective


def test_limits_that_are_over_leave_the_order_that_was_asked() -> None:
    instance = one_device_a_stage(towers([7, 7, 7, 7], [5, 5, 5, 5, 5]), 3)
    asked = list[Instance]()

    def once(one: Instance, limits: Limits) -> Outcome:
        asked.append(one)
        return ask(one, limits)

    found = any_order(instance, once, replace(Limits(), stopped=lambda: bool(asked)))
    assert isinstance(found, AnyOrder) and asked == [instance] and found.instance is instance
    assert found.outcome.proof is not Proof.INFEASIBLE and found.bound > 0
