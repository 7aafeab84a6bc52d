"""A transformer block on tensor-parallel devices: Megatron-LM's pairs, by hand, and the best of all splits.

Shoeybi et al., arXiv 1909.08053, section 3: two sums of ``b s h`` elements forwards and two backwards, and nothing
sent between the two matrices of a pair, attention by heads and GELU among them. Korthikanti et al., arXiv
2205.05198, §4.2.2: with sequence parallelism as many bytes, in halves of sums. Llama's two pairs are the same.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.constraints.layers.forms import FormLimit
from pipecut.formulation.costs.megatron_forms import as_megatron, megatron_forms
from pipecut.formulation.costs.prices import stage_costs
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.constraints import Constraints
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Across, Axis, Layer, Split, layer_graph
from pipecut.formulation.problem.modes import modes
from pipecut.formulation.problem.options import Synchronisation
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Training
from pipecut.solvers.cpsat import cpsat as layered
from pipecut.solvers.dynamic.states import state_dp as states
from tests.examples import BYTE_LINK, PLAIN, UNIT, instance_of, mesh

BSH, HEADS = 720, 4
"""Bytes of an activation between blocks, of one micro-batch, and how many heads there are."""
ONE = Limits(workers=1)
BLOCK: tuple[tuple[str, Split, int, str, tuple[int, ...]], ...] = (
    ("embed", Split.MATRIX, 1, "", (0, 1, 2)),
    ("norm1", Split.JOIN, 1, "embed", (0, 1)),
    ("qkv", Split.MATRIX, 3, "norm1", (0, 1, 2)),
    ("attention", Split.JOIN, 1, "qkv", (0, 1, 2)),
    ("projection", Split.MATRIX, 1, "attention", (0, 1, 2)),
    ("add1", Split.JOIN, 1, "projection embed", (0, 1, 2)),
    ("norm2", Split.JOIN, 1, "add1", (0, 1)),
    ("up", Split.MATRIX, 4, "norm2", (0, 1, 2)),
    ("gelu", Split.FOLLOW, 4, "up", (0, 1, 2)),
    ("down", Split.MATRIX, 1, "gelu", (0, 1, 2)),
    ("add2", Split.JOIN, 1, "down add1", (0, 1, 2)),
)
"""Name, kind, width of the output in ``b s h``, what is read, and the forms that it may have."""
MATRICES = ("qkv", "projection", "up", "down")


def block(devices: int, axes: tuple[Axis, ...] = (), weights: int = 0, keys_and_values: int = 2 * BSH) -> Instance:
    """The block on so many devices, all of them one replica, with micro-batches of one sample."""
    width = {name: size for name, _, size, _, _ in BLOCK}
    layers = []
    for name, split, size, reads, allowed in BLOCK:
        taken = sum(BSH * width[one] for one in reads.split())
        held = weights * size if split is Split.MATRIX else 0
        layer = Layer(name, name, split, held, taken, BSH * size, taken, 0, 0, allowed)
        attention = Across(Axis.CONTEXT, HEADS, keys_and_values) if name == "attention" else None
        layers.append(replace(layer, across=attention))
    edges = [(one, name, BSH * width[one]) for name, _, _, reads, _ in BLOCK for one in reads.split()]
    cost = replace(PLAIN, synchronisation=Synchronisation.OVERLAPPED)
    cluster = mesh(devices, kind=replace(UNIT, memory_bytes=10**9), inside=BYTE_LINK)
    found = instance_of(layer_graph("block", layers, edges), cluster, cost, Training(1, 1))
    limits = Constraints(devices_per_stage=(devices,), tensor_parallel_degrees=(devices,), splits=axes)
    return replace(found, constraints=limits)


def plan_of(instance: Instance, forms: tuple[int, ...]) -> Plan:
    devices = instance.devices
    return Plan((Stage(Span(0, len(BLOCK)), Group(((0, devices),)), forms),))


def with_rows(forms: tuple[int, ...]) -> tuple[int, ...]:
    """Megatron's forms with sequence parallelism: 3 and 4 of matrices, and rows between the pairs."""
    pairs = zip(BLOCK, forms, strict=True)
    kept = {Split.MATRIX: {1: 3, 2: 4}, Split.JOIN: {1: 0}, Split.FOLLOW: {}}
    return tuple(kept[row[1]].get(form, form) for row, form in pairs)


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("rows", [False, True])
def test_a_pair_sums_twice_a_pass_and_sends_nothing_inside(devices: int, rows: bool) -> None:
    """A sum over n devices moves 2 (n - 1) / n of its bytes, at one ns a byte: 720 is divisible by all of them."""
    instance = block(devices, (Axis.SEQUENCE,) if rows else ())
    forms = megatron_forms(instance, Span(0, len(BLOCK)))
    assert dict(zip((row[0] for row in BLOCK), forms, strict=True)) == {
        **{"embed": 1, "norm1": 1, "qkv": 2, "attention": 2, "projection": 1, "add1": 1},
        **{"norm2": 1, "up": 2, "gelu": 0, "down": 1, "add2": 1},
    }
    plan = plan_of(instance, with_rows(forms) if rows else forms)
    (cost,) = stage_costs(instance, plan)
    summed = Fraction(2 * (devices - 1), devices) * BSH
    embedding = summed  # of its partial sums; with sequence parallelism half of it comes back in the backward pass
    assert evaluate(instance, plan).feasible
    assert (cost.inside_ns, cost.between_ns) == (4 * summed + embedding, 0)
    assert as_megatron(instance, plan).endswith("sequence parallelism" if rows else "then summed")


def test_where_attention_may_only_be_by_heads_no_stage_has_a_degree_that_does_not_divide_them() -> None:
    """Four heads on three devices; a plan with such a stage is told so; on two it is found."""
    heads = (FormLimit("attention", (2,)),)
    three = block(3)
    three = replace(three, constraints=replace(three.constraints, forms=heads))
    assert modes(three, 3) == ()
    broken = evaluate(three, plan_of(three, megatron_forms(three, Span(0, len(BLOCK))))).violations
    assert any(one.rule == "forms" and "attention of 4 heads" in one.message for one in broken)
    two = block(2)
    two = replace(two, constraints=replace(two.constraints, forms=heads))
    found = layered.solve(two, ONE)
    assert found.proof is Proof.OPTIMAL and found.plan is not None and found.plan.stages[0].forms[3] == 2


def test_other_splits_are_not_called_megatrons() -> None:
    instance = block(2, (Axis.SEQUENCE, Axis.CONTEXT))
    forms = megatron_forms(instance, Span(0, len(BLOCK)))
    assert as_megatron(instance, plan_of(instance, (*forms[:7], 1, 0, 2, 1))) == ""
    assert as_megatron(instance, Plan(())) == ""


@pytest.mark.parametrize("solve", [layered.solve, states.solve])
def test_without_weights_to_sum_rows_are_free_and_parts_of_a_sequence_are_not(solve) -> None:
    """One sample on two devices. By samples alone nothing would be sent, but no device has half a sample.

    Heads get queries, keys and values, of 3 b s h, by an all-to-all, and give back b s h by another; gradients go
    the other way (Ulysses, arXiv 2309.14509). In a ring half of keys and values goes round once forward and twice
    backward: of grouped queries, where they are an eighth of b s h, that is less.
    """
    assert solve(block(2), ONE).objective == 0
    heads = 2 * (3 + 1) * BSH // 4
    found = solve(block(2, (Axis.CONTEXT,)), ONE)
    assert found.objective == heads
    grouped = solve(block(2, (Axis.CONTEXT,), keys_and_values=BSH // 8), ONE)
    assert grouped.plan is not None and grouped.plan.stages[0].forms[3] == 5
    assert grouped.objective == 3 * BSH // 16 < heads


axes = st.sampled_from([(), (Axis.SEQUENCE,), (Axis.SEQUENCE, Axis.CONTEXT), (Axis.CONTEXT,)])


@given(st.sampled_from([2, 4]), axes, st.integers(0, 5_000), st.booleans())
def test_the_best_of_all_splits_is_at_least_as_good_as_megatrons(
    devices: int, allowed: tuple[Axis, ...], weights: int, charged: bool
) -> None:
    instance = block(devices, allowed, weights)
    how = Synchronisation.CHARGED if charged else Synchronisation.OVERLAPPED
    instance = replace(instance, cost=replace(instance.cost, synchronisation=how))
    forms = megatron_forms(instance, Span(0, len(BLOCK)))
    plans = [plan_of(instance, forms)] + [plan_of(instance, with_rows(forms))] * (Axis.SEQUENCE in allowed)
    priced = [evaluate(instance, plan) for plan in plans]
    assert all(one.feasible for one in priced)
    found = states.solve(instance, ONE)
    assert found.proof is Proof.OPTIMAL and found.objective is not None
    assert all(one.objective is not None and found.objective <= one.objective for one in priced)


def test_where_weights_are_heavy_the_best_of_all_splits_is_megatrons() -> None:
    """Sums of gradients of whole weights cost more than sums of activations, so every matrix is divided.

    Four sums of b s h in two passes are the least for two pairs, so no split is better than Megatron's, priced as
    above; that a pair may begin with either kind of rows leaves other plans that are as good.
    """
    instance = block(2, weights=10**6)
    instance = replace(instance, cost=replace(instance.cost, synchronisation=Synchronisation.CHARGED))
    best = evaluate(instance, plan_of(instance, megatron_forms(instance, Span(0, len(BLOCK)))))
    for solve in (layered.solve, states.solve):
        found = solve(instance, ONE)
        assert found.proof is Proof.OPTIMAL and found.objective == best.objective
