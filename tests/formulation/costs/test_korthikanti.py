"""Activations of a transformer block on tensor-parallel devices: Korthikanti's formula as a special case.

Korthikanti et al., arXiv 2205.05198, Table 2, in bytes of a block with 16-bit activations and masks of one byte:
``s b h (34 + 5 a s / h)`` on one device, ``s b h (10 + 24 / t + 5 a s / (h t))`` on ``t`` devices, ``2 s b h`` if
everything is computed again, and ``s b h (10 + 24 / t)`` where attention between its projections is (selective).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipecut.formulation.costs.memory import MemoryParts
from pipecut.formulation.problem.constraints import Constraints, Recompute
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Layer, Split, layer_graph
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule, Training
from tests.examples import PLAIN, instance_of, mesh

S, B, H, A = 16, 3, 24, 6
SBH, AS2B = S * B * H, A * S * S * B

BLOCK: tuple[tuple[str, Split, int, int, str], ...] = (
    ("before", Split.MATRIX, 1, 0, ""),
    ("norm1", Split.FOLLOW, 0, 2 * SBH, "before"),
    ("qkv", Split.MATRIX, 2, 2 * SBH, "norm1"),
    ("scores", Split.JOIN, 2, 4 * SBH, "qkv"),
    ("softmax", Split.FOLLOW, 0, 2 * AS2B, "scores"),
    ("drop1", Split.FOLLOW, 0, AS2B, "softmax"),
    ("context", Split.JOIN, 2, 2 * AS2B + 2 * SBH, "drop1 qkv"),
    ("projection", Split.MATRIX, 1, 2 * SBH, "context"),
    ("drop2", Split.FOLLOW, 0, SBH, "projection"),
    ("add", Split.JOIN, 1, 0, "drop2 before"),
    ("norm2", Split.FOLLOW, 0, 2 * SBH, "add"),
    ("up", Split.MATRIX, 2, 2 * SBH, "norm2"),
    ("gelu", Split.FOLLOW, 0, 8 * SBH, "up"),
    ("down", Split.MATRIX, 1, 8 * SBH, "gelu"),
    ("drop3", Split.FOLLOW, 0, SBH, "down"),
)
"""Name, kind, form in Megatron's split, bytes kept for the backward pass, what is read."""


SELECTIVE = ("scores", "softmax", "drop1", "context")
MADE = {"qkv": 6 * SBH, "scores": 2 * AS2B, "softmax": 2 * AS2B, "drop1": 2 * AS2B, "up": 8 * SBH, "gelu": 8 * SBH}
"""Bytes of an output where they are not ``2 s b h``."""
FLOWS = {(one, name): MADE[one] for name, *_, reads in BLOCK for one in reads.split() if one in MADE}
FLOWS |= {("qkv", "scores"): 4 * SBH, ("qkv", "context"): 2 * SBH}
"""Queries and keys, and values."""


def block(devices: int, micro_batches: int = 1) -> Instance:
    layers = [Layer(one, one, split, 0, 0, MADE.get(one, 2 * SBH), kept, 0) for one, split, _, kept, _ in BLOCK]
    flows = [(one, name) for name, *_, reads in BLOCK for one in reads.split()]
    edges = [(*pair, FLOWS.get(pair, 2 * SBH)) for pair in flows]
    training = Training(micro_batches, micro_batches, bytes_per_element=2, schedule=Schedule.GPIPE)
    graph = layer_graph("block", layers, edges)
    graph.graph["element_bytes"] = 2
    found = instance_of(graph, mesh(devices, 1), PLAIN, training)
    again = Constraints(recompute=Recompute.ALLOWED, recompute_layers=SELECTIVE)
    return replace(found, constraints=again)


def forms_on(devices: int) -> tuple[int, ...]:
    return tuple(form if devices > 1 else 0 for _, _, form, _, _ in BLOCK)


def kept(instance: Instance, devices: int, mode: Mode, forms: tuple[int, ...] | None = None) -> tuple[int, int]:
    """Return what a device keeps of a block, and what a stage received that begins with the block."""
    held, total = Group(((0, devices),), mode), len(BLOCK)
    forms = forms_on(devices) if forms is None else forms
    whole = MemoryParts.of_stage(instance, Plan((Stage(Span(0, total), held, forms),)), 0)
    behind = Plan((Stage(Span(0, 1), Group(((1, 1),)), (0,)), Stage(Span(1, total), held, forms[1:])))
    return whole.stash, MemoryParts.of_stage(instance, behind, 1).received


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_a_block_keeps_what_korthikanti_says(devices: int) -> None:
    """Here t divides everything that is divided, so nothing is rounded."""
    stash, received = kept(block(devices), devices, Mode())
    assert stash * devices == SBH * (10 * devices + 24) + 5 * AS2B
    assert received * devices == 2 * SBH  # by rows, as with sequence parallelism: a boundary delivers any layout


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_selective_recomputation_keeps_what_korthikanti_says(devices: int) -> None:
    """For each micro-batch; what attention keeps beside is there for the one alone whose backward pass runs."""
    one, two = (kept(block(devices, count), devices, Mode(recompute="layers"))[0] for count in (1, 2))
    assert (two - one) * devices == SBH * (10 * devices + 24) == one * devices
    stage = Stage(Span(0, len(BLOCK)), Group(((0, devices),), Mode(recompute="layers")), forms_on(devices))
    assert MemoryParts.of_stage(block(devices), Plan((stage,)), 0).recomputed * devices == 6 * SBH + 5 * AS2B


IN_ROWS = {"add": 0, "qkv": 4, "up": 4, "before": 3, "projection": 3, "down": 3}
"""What sequence parallelism changes of the forms: norms and dropouts work on rows."""


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_sequence_parallelism_divides_all_of_it(devices: int) -> None:
    """``s b h (34 + 5 a s / h) / t``, §4.2.2 of the paper; with selective recomputation ``34 s b h / t``."""
    forms = tuple(IN_ROWS.get(name, form) for name, _, form, _, _ in BLOCK)
    stash, _ = kept(block(devices), devices, Mode(), forms)
    assert stash * devices == SBH * 34 + 5 * AS2B
    one, two = (kept(block(devices, count), devices, Mode(recompute="layers"), forms)[0] for count in (1, 2))
    assert (two - one) * devices == SBH * 34 == one * devices


def test_replicas_divide_the_batch() -> None:
    stash, _ = kept(block(4), 4, Mode(replicas=2))
    assert 4 * stash == SBH * (2 * 10 + 24) + 5 * AS2B
