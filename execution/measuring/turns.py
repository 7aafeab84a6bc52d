"""A segment of a model run as a stage is, with the clock read at every change of layer.

Three kinds of passes take turns: one with the forward pass read, between its operators; one with the backward pass
read, where it comes to the operators of a layer; and one that nobody reads, against which sums can be held. The
clock is the processor time of the one thread that computes, or a GPU's (``execution.measuring.clocks``).
"""

from __future__ import annotations

import copy
import resource
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from execution.measuring.clocks import PassClock, ThreadClock, probe_ns
from execution.splitting.stage import StageModule
from execution.splitting.stages import ModelProgram, ModelStages
from ingest.torch.export import Inputs

THREAD = ThreadClock()
LIVE = 2
"""Micro-batches that went forward before one goes backward."""
READ_FORWARD, READ_BACKWARD, NOT_READ = range(3)
MICRO_BATCHES = 9
"""Of one turn: three of each kind."""
Marks = list[tuple[str, Any]]
"""Layers, each with the stamp of the clock at which it began."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """A pass of a kind from stamp to stamp, and the marks in it."""

    kind: int
    marks: Marks
    began: Any
    ended: Any


@dataclass(slots=True)
class _Passes:
    """The passes of a turn, forward and backward, to be read when the clock has settled."""

    forward: list[_Pass] = field(default_factory=list)
    backward: list[_Pass] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn of a segment took, in ns for a micro-batch: by layer, and the whole of what nobody read.

    ``probe_ns`` is the time of a small matrix product just then, ``faults`` the pages that the system gave.
    """

    forward: Mapping[str, float]
    backward: Mapping[str, float]
    whole: tuple[float, float]
    probe_ns: float
    faults: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A stage, the layer of each of its operators, what arrives at it, the gradients that come back, a clock."""

    stage: StageModule
    layer_of: Mapping[str, str]
    taken: Sequence[torch.Tensor]
    inputs: Sequence[torch.Tensor]
    gradients: Sequence[torch.Tensor]
    clock: PassClock


def segments_of(
    program: ModelProgram, stages: ModelStages, batch: Inputs, clock: PassClock = THREAD
) -> list[Segment]:
    """Return the stages of a model with what arrives at them. Cost: a forward pass."""
    layer_of = {node.name: program.layers[layer] for node, layer in program.flat.layer.items()}
    keywords = isinstance(batch, Mapping)
    values = stages.inputs(*(() if keywords else batch), **(dict(batch) if keywords else {}))
    found, given = [], ()
    for stage in stages:
        inputs = [values[one.name] for one in stage.inputs]
        taken = [one.detach() for one in given]
        with torch.no_grad():
            given = stage(*(one.clone() for one in taken), *inputs)
        gradients = [torch.randn_like(one) if one.is_floating_point() else one for one in given]
        found.append(Segment(stage, layer_of, taken, inputs, gradients, clock))
    return found


def turn(segment: Segment) -> Turn:
    """Run a turn of a segment, and forget its gradients."""
    clock = segment.clock
    pages, before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, probe_ns(clock)
    passes = _Passes()
    live: deque[tuple[int, Any, Marks]] = deque()
    for number in range(MICRO_BATCHES + LIVE):
        if number < MICRO_BATCHES:
            live.append(_forward(segment, number % 3, passes.forward))
        if number >= LIVE:
            _backward(segment, *live.popleft(), passes.backward)
    clock.settled()
    for one in segment.stage.parameters():
        one.grad = None
    both = (before + probe_ns(clock)) / 2
    faults = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages) / MICRO_BATCHES
    forward = _by_layer([one for one in passes.forward if one.kind == READ_FORWARD], clock)
    backward = _by_layer([one for one in passes.backward if one.kind == READ_BACKWARD], clock)
    unread = [[one for one in rows if one.kind == NOT_READ] for rows in (passes.forward, passes.backward)]
    whole = [_mean([clock.between(one.began, one.ended) for one in rows]) for rows in unread]
    return Turn(forward, backward, (whole[0], whole[1]), both, faults)


def _forward(segment: Segment, kind: int, passes: list[_Pass]) -> tuple[int, Any, Marks]:
    takes = segment.stage.takes
    both = zip(segment.taken, takes, strict=True)
    leaves = [one.detach().requires_grad_(handed.differentiable) for one, handed in both]
    arguments = segment.stage.arguments(*leaves, *segment.inputs)
    program = segment.stage.program_for([*leaves, *segment.inputs]).module
    marks: Marks = []
    if kind != NOT_READ:
        read = _read_forward if kind == READ_FORWARD else _read_backward
        program = read(program, segment.layer_of, marks, segment.clock)
    began = segment.clock.stamp()
    given = program(*arguments)
    passes.append(_Pass(kind, marks, began, segment.clock.stamp()))
    return kind, given, marks


def _backward(
    segment: Segment,
    kind: int,
    given: Sequence[torch.Tensor],
    marks: Marks,
    passes: list[_Pass],
) -> None:
    pairs = [(one, back) for one, back in zip(given, segment.gradients, strict=True) if one.requires_grad]
    if not pairs:
        return
    began = segment.clock.stamp()
    torch.autograd.backward([one for one, _ in pairs], [back for _, back in pairs])
    passes.append(_Pass(kind, marks, began, segment.clock.stamp()))


def _by_layer(passes: Sequence[_Pass], clock: PassClock) -> dict[str, float]:
    """Return the mean time of every layer in a pass: from each of its marks to the next one of any layer."""
    times: dict[str, list[float]] = defaultdict(list)
    for one in passes:
        spent: dict[str, float] = defaultdict(float)
        starts = [one.began, *(start for _, start in one.marks[1:])]
        for (layer, _), start, stop in zip(one.marks, starts, [*starts[1:], one.ended], strict=True):
            spent[layer] += clock.between(start, stop)
        for layer, taken in spent.items():
            times[layer].append(taken)
    return {layer: _mean(taken) for layer, taken in times.items()}


def _read_forward(
    program: fx.GraphModule, layer_of: Mapping[str, str], marks: Marks, clock: PassClock
) -> fx.GraphModule:
    """Return a program that marks the layer whenever it comes to another one."""

    def mark(layer: str) -> None:
        marks.append((layer, clock.stamp()))

    read, now = copy.deepcopy(program), ""
    for node in list(read.graph.nodes):
        layer = layer_of.get(node.name, now) if node.op == "call_function" else now
        if layer != now:
            with read.graph.inserting_before(node):
                read.graph.call_function(mark, (layer,))
        now = layer
    read.recompile()
    return read


def _read_backward(
    program: fx.GraphModule, layer_of: Mapping[str, str], marks: Marks, clock: PassClock
) -> fx.GraphModule:
    """Return a program whose backward passes mark the layer of every operator that they come to."""

    def hook(found: object, layer: str) -> None:
        for one in pytree.tree_leaves(found):
            if isinstance(one, torch.Tensor) and one.grad_fn is not None:
                one.grad_fn.register_prehook(lambda _: marks.append((layer, clock.stamp())))

    read = copy.deepcopy(program)
    for node in list(read.graph.nodes):
        if node.op == "call_function" and node.name in layer_of:
            with read.graph.inserting_after(node):
                read.graph.call_function(hook, (node, layer_of[node.name]))
    read.recompile()
    return read


def _mean(values: Iterable[float]) -> float:
    rows = list(values)
    return sum(rows) / len(rows) if rows else 0.0
