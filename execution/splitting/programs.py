"""The program of one stage: an ``fx`` module of tensors in, tensors out, which holds no weights itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from execution.splitting.again import computed_again
from execution.splitting.crossing import PartNodes
from execution.splitting.effects import Effects
from execution.splitting.flat import FlatGraph, Region
from execution.splitting.writes import Replaced, functional

_OUTSIDE = Region()


@dataclass(frozen=True, slots=True)
class Again:
    """The runs of layers that are computed again, by layer; ``where`` names the stage in messages."""

    layers: Mapping[int, int] = field(default_factory=dict)
    where: str = ""


@dataclass(frozen=True, slots=True)
class HandedTensor:
    """A tensor that a stage takes or gives: name, shape, format, and whether a gradient comes back for it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    differentiable: bool

    @property
    def bytes(self) -> int:
        """Bytes of all elements."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class StageProgram:
    """What a stage computes for one size of batch.

    ``module`` takes the tensors of ``takes`` and ``inputs``, then the ``attributes`` by name, all by position, and
    returns a tuple of those of ``gives``. A pass changes the attributes in ``written``.
    """

    module: fx.GraphModule
    takes: tuple[HandedTensor, ...]
    inputs: tuple[HandedTensor, ...]
    gives: tuple[HandedTensor, ...]
    attributes: tuple[str, ...]
    written: tuple[str, ...]


def stage_program(flat: FlatGraph, part: PartNodes, effects: Effects, again: Again = Again()) -> StageProgram:
    """Return the program of a stage.

    Where it computes layers ``again`` in its backward pass, it writes nothing in place that they could read.
    Raises StagesError where that cannot be. Cost: linear in its nodes.
    """
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for node in (*part.takes, *part.inputs, *part.attributes):
        values[node] = graph.placeholder(node.name)
    changed = changed_in(part, effects)
    for node in part.copied:
        values[node] = graph.call_function(torch.ops.aten.clone.default, (values[node],))
    replaced, marked = Replaced(part, effects, again.where), dict[fx.Node, int]()

    def value(node: fx.Node) -> fx.Node:
        return values[replaced.newest(node)]

    regions = Regions(graph)
    for node in part.nodes:
        regions.enter(flat.region[node])
        values[node] = made = graph.node_copy(node, value)
        if again.layers and replaced.operands(node):
            made.target = functional(node)
            replaced.note(node)
        run = again.layers.get(flat.layer.get(node, -1))
        if run is not None and not replaced.keeps(node):
            marked[made] = run
    regions.enter(_OUTSIDE)
    graph.output(tuple(value(node) for node in part.gives))
    memory = set[int]().union(*(effects.storages[node] for node in changed))
    graph = computed_again(graph, marked, [one for node, one in values.items() if effects.storages[node] & memory])

    def handed(nodes: Sequence[fx.Node]) -> tuple[HandedTensor, ...]:
        return tuple(handed_tensor(node, node in effects.differentiable) for node in nodes)

    return StageProgram(
        module=fx.GraphModule(nn.Module(), graph),
        takes=handed(part.takes),
        inputs=handed(part.inputs),
        gives=handed(part.gives),
        attributes=tuple(str(node.target) for node in part.attributes),
        written=tuple(str(node.target) for node in changed),
    )


def changed_in(part: PartNodes, effects: Effects) -> list[fx.Node]:
    """Return the parameters and buffers of a stage that a pass changes."""
    return [node for node in part.attributes if str(node.target) in effects.written]


def handed_tensor(node: fx.Node, differentiable: bool) -> HandedTensor:
    """Return what is said of a tensor that crosses a cut."""
    value: Any = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return HandedTensor(node.name, (), torch.get_default_dtype(), differentiable=False)
    floating = value.is_floating_point() or value.is_complex()
    return HandedTensor(node.name, tuple(value.shape), value.dtype, differentiable and floating)


class Regions:
    """Writes the calls that switch gradients and autocast between nodes of different regions."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._now = _OUTSIDE
        self._outer: fx.Node | None = None
        self._entered: fx.Node | None = None

    def enter(self, region: Region) -> None:
        """Switch to a region, if the nodes before were of another."""
        if region.gradients is not self._now.gradients:
            if self._outer is None:
                self._outer = self._graph.call_function(torch.is_grad_enabled, ())
            wanted = self._outer if region.gradients is None else region.gradients
            self._graph.call_function(torch._C._set_grad_enabled, (wanted,))
        if region.autocast != self._now.autocast:
            if self._entered is not None:
                self._graph.call_function(torch.amp.autocast_mode._exit_autocast, (self._entered,))
            self._entered = None
            if region.autocast is not None:
                enter = torch.amp.autocast_mode._enter_autocast
                self._entered = self._graph.call_function(enter, region.autocast)
        self._now = region
