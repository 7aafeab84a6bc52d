"""The one layout of Megatron-LM's forms: pairs of matrices, the ends of a model, and the ends of a stage."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from pipecut.formulation.costs.megatron_forms import megatron_forms
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.constraints import Constraints
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.layers import layer_graph
from pipecut.formulation.problem.plan import Plan, Span, Stage
from tests.examples import chain, follow, instance_of, join, matrix, mesh


@pytest.mark.parametrize(("matrices", "forms"), [(1, (1,)), (2, (2, 1)), (3, (2, 1, 2)), (4, (2, 1, 2, 1))])
def test_of_two_matrices_the_first_is_split_by_columns(matrices, forms):
    instance = instance_of(chain([matrix(f"m{at}") for at in range(matrices)], [4] * (matrices - 1)), mesh(2))
    assert megatron_forms(instance, Span(0, matrices)) == forms


def test_columns_first_costs_less_than_rows_first():
    """Four matrices of 8 bytes in and out, 32 between the halves of a pair, on 2 devices, 1 byte a ns.

    (2, 1): every pair sums 8 bytes forwards and 8 backwards. (1, 2): it sums 32 and 32, and turns rows.
    """
    pair = [("a", 8, 32), ("b", 32, 8), ("c", 8, 32), ("d", 32, 8)]
    layers = chain([matrix(name, taken=taken, made=made) for name, taken, made in pair], [32, 8, 32])
    instance = replace(instance_of(layers, mesh(2)), constraints=Constraints(tensor_parallel_degrees=(2,)))

    def price(forms):
        found = evaluate(instance, Plan((Stage(Span(0, 4), Group(((0, 2),)), forms),)))
        assert found.feasible and found.objective is not None
        return found.objective

    assert megatron_forms(instance, Span(0, 4)) == (2, 1, 2, 1)
    assert price((2, 1, 2, 1)) == 2 * (8 + 8)
    assert price((1, 2, 1, 2)) > price((2, 1, 2, 1))


def attention_block():
    """The shape of a Transformer block: norm, columns, attention, rows, add; norm, columns, gelu, rows, add."""
    layers = [
        *[matrix("embed"), join("h.0.norm", (0, 1)), matrix("h.0.qkv"), join("h.0.attend"), matrix("h.0.proj")],
        *[join("h.0.add"), join("h.0.norm2", (0, 1)), matrix("h.0.up"), follow("h.0.gelu"), matrix("h.0.down")],
        *[join("h.0.add2"), matrix("head")],
    ]
    rows = [replace(layer, output_bytes=8) for layer in layers]
    names = [layer.name for layer in rows]
    pairs = [*itertools.pairwise(names), ("embed", "h.0.add"), ("h.0.add", "h.0.add2")]
    return layer_graph("block", rows, [(*pair, 8) for pair in pairs])


def test_the_forms_of_a_transformer_block_are_those_of_megatron():
    instance = instance_of(attention_block(), mesh(2))
    found = dict(zip(instance.layer_graph, megatron_forms(instance, Span(0, 12)), strict=True))
    assert found == {
        **{"embed": 1, "h.0.norm": 1, "h.0.qkv": 2, "h.0.attend": 2, "h.0.proj": 1, "h.0.add": 1},
        **{"h.0.norm2": 1, "h.0.up": 2, "h.0.gelu": 0, "h.0.down": 1, "h.0.add2": 1, "head": 2},
    }


def test_a_pair_ends_inside_its_stage():
    """Cut between up and down: up has no partner left, so it sums. Behind the cut down finds one in the head."""
    instance = instance_of(attention_block(), mesh(2))
    assert megatron_forms(instance, Span(6, 9)) == (1, 1, 0)
    assert megatron_forms(instance, Span(9, 11)) == (1, 1)
    assert megatron_forms(instance, Span(9, 12)) == (2, 2, 1)


def test_layers_that_may_not_take_their_form_work_on_rows():
    instance = instance_of(chain([matrix("a", allowed=(0,)), matrix("b", allowed=(2,))], [4]), mesh(2))
    assert megatron_forms(instance, Span(0, 2)) == (0, 2)
