"""Pairs of forms on grids of devices, held against what single forms say, and by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.costs import times
from pipecut.formulation.costs.bounds import ceiling
from pipecut.formulation.costs.forms import ROWS, WHOLE, Fullest
from pipecut.formulation.costs.megatron_forms import as_megatron
from pipecut.formulation.costs.memory import MemoryParts
from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.prices import stage_costs
from pipecut.formulation.costs.tables import build_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.cluster import Cluster
from pipecut.formulation.problem.constraints import Constraints, Goal, Sharded
from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.instance import Instance, longest_ns, most_bytes
from pipecut.formulation.problem.layers import PAIRS, Across, Axis
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.shares import equal_shares
from pipecut.formulation.problem.units import Link, ceil_div
from pipecut.solvers.cpsat import cpsat as layered
from pipecut.solvers.dynamic.states import state_dp as states
from tests.examples import BYTE_LINK, GIGA, mesh
from tests.formulation.costs.test_megatron_block import BLOCK, BSH, ONE, block
from tests.generators import on_grids
from tests.laws import so_many

OF_NUMBER = {pair: number for number, pair in PAIRS.items()}
Prices = tuple[int, int, tuple[int, int], MemoryParts]


def prices(instance: Instance, layer: int, form: int, kind: GroupKind) -> Prices:
    """Return all that a layer costs in one form on one kind of group."""
    copy = instance.copied(layer, layer)
    return (
        times.compute_ns(instance, layer, form, kind),
        times.inside_ns(instance, layer, form, kind, copy),
        times.passes_ns(instance, layer, form, kind),
        MemoryParts.of_layer(instance, kind, layer, form, copy),
    )


@given(on_grids(), st.sampled_from(sorted(PAIRS)), st.sampled_from(sorted(PAIRS)))
def test_with_an_axis_of_one_device_a_pair_is_the_form_of_the_other(
    found: tuple[Instance, tuple[Group, ...]], number: int, other: int
) -> None:
    instance, (_, group) = found
    kind = GroupKind.of(instance, group)
    assume(kind.unequal is None)
    row = replace(kind, mode=replace(kind.mode, grid=kind.tensor_parallel_degree), axes=(kind.inner, None))
    for at, alone in enumerate((row, replace(kind, axes=(None, kind.inner)))):
        form, end = PAIRS[number][at], PAIRS[other][at]
        for layer in range(len(instance.layers)):
            assert prices(instance, layer, number, alone) == prices(instance, layer, form, kind)
        for edge in instance.form_edges:
            expected = times.between_ns(instance, edge, form, end, kind)
            assert times.between_ns(instance, edge, number, other, alone) == expected


WITH_SAMPLES = {number: one for number, (one, other) in PAIRS.items() if other == 0}


@given(on_grids(), st.sampled_from(sorted(WITH_SAMPLES)), st.sampled_from(sorted(WITH_SAMPLES)))
def test_samples_over_the_rows_of_a_grid_are_replicas(
    found: tuple[Instance, tuple[Group, ...]], number: int, other: int
) -> None:
    """A form over neighbours with samples over the rest is that form in more replicas of fewer devices."""
    instance, (group, _) = found
    kind = GroupKind.of(instance, group)
    assert kind.axes is not None
    rows, columns = kind.grid
    mode, shares = replace(kind.mode, grid=1, replicas=kind.replicas * columns), kind.unequal
    assume(shares is None or shares.samples)  # else rows are parts of a sequence, and replicas have whole samples
    if shares is not None:
        samples = instance.training.micro_batch
        shares = equal_shares(kind.devices, mode.replicas, len(kind.classes), samples)
    replicas = replace(kind, mode=mode, inner=kind.axes[0], axes=None, unequal=shares)
    assert replicas.tensor_parallel_degree == rows
    form, end = WITH_SAMPLES[number], WITH_SAMPLES[other]
    for layer in range(len(instance.layers)):
        assert prices(instance, layer, number, kind) == prices(instance, layer, form, replicas)
    for edge in instance.form_edges:
        expected = times.between_ns(instance, edge, form, end, replicas)
        assert times.between_ns(instance, edge, number, other, kind) == expected


@settings(max_examples=so_many(40))
@given(on_grids())
def test_no_pair_takes_more_than_numbers_are_counted_with(found: tuple[Instance, tuple[Group, ...]]) -> None:
    instance, drawn = found
    # Numbers are counted with for modes that the instance allows: nothing is computed again, divided or sent away.
    allowed = {"recompute": False, "sharded": Sharded.NONE, "optimizer_on_host": False}
    groups = tuple(replace(one, mode=replace(one.mode, **allowed)) for one in drawn)
    tables = build_tables(instance, groups)
    held = MemoryTables.of(tables)
    working = held.working_set.max(axis=2, where=held.possible, initial=0).max(axis=1)
    lasting = held.lasting(0, 0).max(axis=1, where=held.possible[0], initial=0).sum()
    assert ceiling(tables, Goal.BOTTLENECK) <= longest_ns(instance)
    assert lasting + working[0] <= most_bytes(instance)


@given(st.integers(1, 64), st.tuples(st.integers(1, 8), st.integers(1, 8)))
def test_rows_along_both_axes_leave_whole_samples(samples: int, sizes: tuple[int, int]) -> None:
    fullest = Fullest(Fraction(1), samples)
    along, across = fullest.along((ROWS, ROWS), sizes)
    assert along * across * samples == ceil_div(samples, sizes[0] * sizes[1])
    assert fullest.along((ROWS, WHOLE), sizes)[0] * samples == ceil_div(samples, sizes[0])


SLOW = Link(8 * GIGA // 10)
"""Ten nanoseconds a byte."""


def on_two_servers(*axes: Axis) -> Instance:
    """A block of eight heads on two servers of eight devices, slow between them, as one replica."""
    small = block(8)
    layers = tuple(
        replace(one, across=Across(Axis.CONTEXT, 8, 2 * BSH)) if one.name == "attention" else one
        for one in small.model.layers
    )
    servers = mesh(8, 8, inside=BYTE_LINK, between=SLOW, kind=small.servers[0].device_class)
    return replace(
        small,
        model=replace(small.model, layers=layers),
        cluster=Cluster.of(servers),
        constraints=Constraints(devices_per_stage=(16,), tensor_parallel_degrees=(16,), splits=axes),
    )


def test_tensor_8_inside_servers_and_context_2_between_them_by_hand() -> None:
    """Each server has half of the sequence, and its devices Megatron's pairs of matrices.

    A sum of ``b s h / 2`` over eight devices moves 7/4 of it: three in the forward pass, one for the
    embedding, and two in the backward pass, at one ns a byte. Of keys and values a device has an eighth, and lacks
    half of that: once round forward and twice backward, at ten ns a byte. Nothing else is sent.
    """
    instance = on_two_servers(Axis.CONTEXT, Axis.PAIRS)
    summed, columns, ring = OF_NUMBER[1, 0], OF_NUMBER[2, 0], OF_NUMBER[2, 5]
    named = {"qkv": columns, "attention": ring, "up": columns, "gelu": 0}
    forms = tuple(named.get(row[0], summed) for row in BLOCK)
    stage = Stage(Span(0, len(BLOCK)), Group(((0, 8), (1, 8)), Mode(grid=8)), forms)
    (cost,) = stage_costs(instance, Plan((stage,)))
    sums, rings = 5 * BSH // 2 * 7 // 4, 10 * 3 * (2 * BSH // 8 // 2)
    assert evaluate(instance, Plan((stage,))).feasible
    assert (cost.inside_ns, cost.between_ns) == (sums + rings, 0) == (3150 + 2700, 0)
    assert "Megatron-LM splits them: matrices by columns, then summed, in rows of a grid" in as_megatron(
        instance, Plan((stage,))
    )
    other = replace(stage, forms=(columns, *forms[1:]))
    assert as_megatron(instance, Plan((other,))) == ""


@pytest.mark.parametrize("solve", [pytest.param(layered.solve, marks=pytest.mark.slow), states.solve])
def test_the_best_of_all_pairs_is_no_worse_than_the_best_without(solve) -> None:
    """Across the slow link the ring is dear, too: samples and parts of the sequence mix with heads as they pay."""
    without, pairs = (
        solve(on_two_servers(Axis.SEQUENCE, Axis.CONTEXT, *more), ONE) for more in ((), (Axis.PAIRS,))
    )
    assert without.objective is not None and pairs.objective is not None
    assert pairs.objective < without.objective
    assert pairs.plan.stages[0].group.mode.grid > 1
    assert any(form in PAIRS for form in pairs.plan.stages[0].forms)
