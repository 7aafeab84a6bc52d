"""The programme over downsets: held against every order, each searched exhaustively, and against CP-SAT."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.costs.times import compute_ns
from pipecut.formulation.limits import TooLargeError
from pipecut.formulation.outcome import Limits
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Placement, Recompute
from pipecut.formulation.problem.cuts import AtomGraph
from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import FORMS, Split, layer_graph
from pipecut.formulation.problem.options import BoundaryCharge, Combine, CostModel, Samples, StageTime
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers.choices import any_order as choices
from pipecut.solvers.choices import any_order as downsets
from pipecut.solvers.choices.any_order import any_order, bound_of_all, given_order, in_order, over_downsets
from pipecut.solvers.choices.relaxed import relaxed
from tests.examples import chain, instance_of, matrix, mesh
from tests.generators import cluster_graphs, cost_models, instances, layer_graphs
from tests.laws import so_many
from tests.solvers.choices.test_any_order import ask, ask_line, block, one_device_a_stage, orders, towers

SLOW = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    deadline=None,
    max_examples=so_many(40),
)
CEILING = 1 << 40
CARD = DeviceClass("card", 1 << 30, 10**12)


branching = instances(
    layer_graphs(max_layers=4, places=True, branching=True),
    cluster_graphs(max_devices=3),
    cost_models.map(lambda cost: replace(cost, combine=Combine.MAX)),
)


@pytest.mark.slow
@SLOW
@given(branching, st.sampled_from(Placement), st.sampled_from(Recompute))
def test_no_order_has_anything_below_the_bound(
    instance: Instance, placement: Placement, recompute: Recompute
) -> None:
    atoms = AtomGraph.of(instance)
    assume(not atoms.in_one_order_only)
    limits = replace(instance.constraints, placement=placement, recompute=recompute)
    instance = replace(instance, constraints=limits)
    found = over_downsets(instance, atoms, CEILING, Limits())
    values = (ask(in_order(instance, order), Limits()).objective for order in orders(atoms))
    assert found.bound_ns <= min(value for value in values if value is not None)
    assert found.orders and all(atoms.keeps(order) for order in found.orders)
    # What lies at the limit or above is cut off, and the limit is the bound.
    for below in (found.bound_ns, found.bound_ns + 1):
        assert over_downsets(instance, atoms, below, Limits()).bound_ns == found.bound_ns


def test_frozen_weights_that_layers_share_ask_for_no_more_passes_without_them() -> None:
    """What a layer has is shared and frozen: its backward pass has one product, two where it has no weights."""
    rows = [replace(matrix(name, 1_000, size), trainable_bytes=0) for name, size in (("a", 10), ("b", 0))]
    layers = chain(rows, [40])
    layers.graph["ties"] = ((("a", "b"), 10, 0),)
    instance = instance_of(layers, mesh(1))
    untied, kind = replace(instance, model=instance.model.untied()), GroupKind.of(instance, Group(((0, 1),)))
    for at in range(2):
        assert compute_ns(untied, at, 0, kind) <= compute_ns(instance, at, 0, kind)


@SLOW
@given(branching)
def test_without_what_they_share_layers_take_no_more_in_any_order(instance: Instance) -> None:
    """Also where all that a layer has is shared and frozen: its backward pass has one product then, not two."""
    atoms, untied = AtomGraph.of(instance), replace(instance, model=instance.model.untied())
    for order in orders(atoms):
        layers = atoms.layers(order)
        one, other = in_order(instance, order), replace(untied, model=untied.model.in_order(layers))
        for kind in dict.fromkeys(GroupKind.of(one, group) for group in Group.possible(one)):
            for layer, form in itertools.product(range(len(layers)), FORMS):
                assert compute_ns(other, layer, form, kind) <= compute_ns(one, layer, form, kind)


@pytest.mark.slow
@SLOW
@given(branching, st.sampled_from(Placement))
def test_the_model_of_atoms_is_not_above_it(instance: Instance, placement: Placement) -> None:
    atoms = AtomGraph.of(instance)
    instance = replace(instance, constraints=replace(instance.constraints, placement=placement))
    exact, sums = over_downsets(instance, atoms, CEILING, Limits()), relaxed(instance, atoms, CEILING, Limits())
    assert sums.bound_ns <= exact.bound_ns


def test_stages_of_the_best_chain_are_priced_over_all_their_forms() -> None:
    """Products that are split by their inputs send rows to one another, which no atom pays by itself."""
    split = [block(f"b{at}.{depth}", 10**6, size=10**5, split=Split.MATRIX) for at in (0, 1) for depth in (0, 1)]
    layers = [replace(layer, allowed_forms=(1,)) for layer in split]
    edges = [(f"b{at}.0", f"b{at}.1", 10**5) for at in (0, 1)]
    cluster = cluster_graph("c", [Server("s", CARD, 2, Link(10**11))], [])
    limits = Constraints(devices_per_stage=(2,), tensor_parallel_degrees=(2,))
    graph = layer_graph("split", layers, edges)
    instance = build_instance(graph, cluster, Training(8, 8), CostModel(), limits)
    atoms = AtomGraph.of(instance)
    least = min(ask(in_order(instance, order), Limits()).objective or 0 for order in orders(atoms))
    sums, exact = relaxed(instance, atoms, CEILING, Limits()), over_downsets(instance, atoms, CEILING, Limits())
    assert sums.bound_ns < exact.bound_ns == least


def test_the_boundary_of_a_downset_has_all_that_is_read_behind_it() -> None:
    """Each of three towers sends something over any cut that balances, and waiting for it decides."""
    instance = one_device_a_stage(towers([5, 5], [5, 5], [5, 5]), 2, 10**9)
    found = any_order(instance, ask_line, Limits())
    least = min(
        ask_line(in_order(instance, order), Limits()).objective or 0 for order in orders(AtomGraph.of(instance))
    )
    assert found.proved and found.outcome.objective == least


@pytest.mark.slow
def test_of_what_crosses_each_of_both_stages_pays_the_way_on_which_it_receives() -> None:
    """Computing hides it, so a stage takes no longer than one of the two ways."""
    instance = one_device_a_stage(towers([5, 5], [5, 5], [5, 5]), 2, 10**8)
    cost = CostModel(
        stage_time=StageTime.OVERLAP, samples=Samples.FRACTIONS, boundary_charge=BoundaryCharge.RECEIVER
    )
    instance = replace(instance, cost=cost)
    atoms = AtomGraph.of(instance)
    least = min(ask(in_order(instance, order), Limits()).objective or 0 for order in orders(atoms))
    for bound in (over_downsets, relaxed):
        assert bound(instance, atoms, CEILING, Limits()).bound_ns <= least


def test_where_downsets_are_too_many_the_model_of_atoms_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = one_device_a_stage(towers([9, 9], [4, 4]), 2)
    atoms = AtomGraph.of(instance)
    assert len(atoms.downsets(10)) == 10
    monkeypatch.setattr(downsets, "MOST_DOWNSETS", 9)
    with pytest.raises(TooLargeError, match="more than 9 sets of layers"):
        over_downsets(instance, atoms, CEILING, Limits())
    asked = list[int]()
    monkeypatch.setattr(choices, "relaxed", lambda *given: asked.append(1) or relaxed(*given))
    assert any_order(instance, ask, Limits()).proved and asked


def test_a_programme_that_is_stopped_says_what_it_knows() -> None:
    instance = one_device_a_stage(towers([9, 9], [4, 4]), 2)
    stopped = Limits(stopped=lambda: True)
    found = over_downsets(instance, AtomGraph.of(instance), CEILING, stopped)
    assert (found.bound_ns, found.orders) == (0, ())
    assert bound_of_all(instance, CEILING, stopped).bound_ns == lower_bound(instance)


def test_groups_with_several_stages_have_no_bound_of_this_kind() -> None:
    """Two stages of one group need not follow each other, so chains of downsets say nothing of them.

    Cut once, 2 and 3 make 5 of 8 million operations; in turns, 2 and 2, and 3 and 1, make 4.
    """
    instance = one_device_a_stage(towers([2, 3, 2, 1], [0]), 2)
    chunks = replace(instance, training=Training(8, 8, chunks=2))
    outcome = replace(ask(instance, Limits()), objective=10**9)
    assert given_order(chunks, outcome, Limits()).bound == lower_bound(chunks)
    assert given_order(instance, outcome, Limits()).bound > lower_bound(instance)
