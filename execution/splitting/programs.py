"""The program of one stage: an ``fx`` module of tensors in, tensors out, which holds no weights itself.

Layers computed again alone: runs of their operators keep what they take, and nothing between.

A run is called through ``torch.utils.checkpoint``, which notes the state of the random numbers, and runs it once
more when the backward pass comes to it. The second time it works on copies of the buffers that a pass changes, as
the first time found them, so that statistics count once. Operators that write into buffers by themselves are in no
run: it would have to be the same memory in several of them. Devices of a replica exchange the same both times.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

from pipecut.execution.splitting.crossing import PartNodes, Replaced, functional
from pipecut.execution.splitting.flat import Effects, FlatGraph, Region


def computed_again(graph: fx.Graph, marked: Mapping[fx.Node, int], changed: Collection[fx.Node]) -> fx.Graph:
    """Return a graph whose ``marked`` operators run again in the backward pass: neighbours of one number at once.

    ``changed`` are the nodes whose results lie in the memory of buffers that a pass changes. Cost: linear.
    """
    if not marked:
        return graph
    found, values, runs = fx.Graph(), dict[fx.Node, fx.Node](), dict(marked)
    for node in graph.nodes:
        # What takes one of several results is of no layer: it goes with the operator that made them.
        if node.target is operator.getitem and node.args[0] in runs:
            runs[node] = runs[node.args[0]]
    for number, nodes in itertools.groupby(list(graph.nodes), runs.get):
        run = list(nodes)
        if number is not None:
            _add_run(found, values, run, changed)
            continue
        for node in run:
            values[node] = found.node_copy(node, values.__getitem__)
    return found


def _add_run(
    graph: fx.Graph, values: dict[fx.Node, fx.Node], run: Sequence[fx.Node], changed: Collection[fx.Node]
) -> None:
    """Add a run of operators as one call; ``values`` gets its results that others read."""
    inside = set(run)
    taken = list(dict.fromkeys(one for node in run for one in node.all_input_nodes if one not in inside))
    given = [node for node in run if any(user not in inside for user in node.users)]
    own = fx.Graph()
    within = {node: own.placeholder(node.name) for node in taken}
    for node in run:
        within[node] = own.node_copy(node, within.__getitem__)
    own.output(tuple(within[node] for node in given))
    kept = [at for at, node in enumerate(taken) if node in changed]
    called = graph.call_function(
        _again(fx.GraphModule(nn.Module(), own), kept), tuple(values[one] for one in taken)
    )
    values.update((node, graph.call_function(operator.getitem, (called, at))) for at, node in enumerate(given))


def _again(module: nn.Module, kept: Sequence[int]) -> Callable[..., Any]:
    """Return a call of a module that is made again; ``kept`` are the places of the buffers that it changes."""

    def called_again(*given: Any) -> Any:  # noqa: ANN401 (as the module)
        if not torch.is_grad_enabled():
            return module(*given)
        before = {at: given[at].clone() for at in kept}
        calls = itertools.count()

        def called(*again: Any) -> Any:  # noqa: ANN401 (as the module)
            if not next(calls):
                return module(*again)
            return module(*(before[at].clone() if at in before else one for at, one in enumerate(again)))

        return checkpoint(called, *given, use_reentrant=False, early_stop=False)

    return called_again


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
