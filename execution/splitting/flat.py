"""The exported program of a model as one flat graph, every node with the layer that it belongs to.

Regions of ``no_grad`` and ``autocast``, which ``torch.export`` keeps as graphs of their own, are inlined: a cut
may lead through them. Every node remembers its regions instead. Parameters, buffers and constants become
``get_attr`` nodes under the first of their names in the model, so that tied weights are one.

What the nodes of a flat graph depend on beyond their arguments: writes in place, buffers, and chance.

In-place operators stay in an exported graph, and later readers still name the tensor before the change. So a
reader depends on every earlier write to the memory that it reads.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from pipecut.execution.errors import StagesError

NO_GRAD = "wrap_with_set_grad_enabled"
AUTOCAST = "wrap_with_autocast"


@dataclass(frozen=True, slots=True)
class Region:
    """What holds inside a region: gradients are recorded or not (None: as outside), and the autocast there."""

    gradients: bool | None = None
    autocast: tuple[Any, ...] | None = None


@dataclass(slots=True)
class FlatGraph:
    """Nodes in execution order, and what is known of them.

    ``layer`` is the layer of each node that has one, ``call`` the module call it happened in, ``region`` its
    region. ``attributes`` holds the parameters, buffers and constants by name, ``outputs`` what the model returns:
    nodes, and values that are the same in every call.
    """

    graph: fx.Graph
    layer: dict[fx.Node, int] = field(default_factory=dict)
    call: dict[fx.Node, str] = field(default_factory=dict)
    region: dict[fx.Node, Region] = field(default_factory=dict)
    attributes: dict[str, torch.Tensor] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)

    @property
    def nodes(self) -> list[fx.Node]:
        """The nodes in execution order."""
        return list(self.graph.nodes)

    @property
    def inputs(self) -> list[fx.Node]:
        """The inputs of the model, in the order of its flattened arguments; numbers and None among them."""
        return [node for node in self.graph.nodes if node.op == "placeholder"]


def flattened(
    program: ExportedProgram, module: nn.Module, canonical: Mapping[str, str], layer: Mapping[fx.Node, int]
) -> FlatGraph:
    """Return the flat graph of a program.

    ``canonical`` maps each name of a parameter to the first name of the same parameter, ``layer`` gives the layers
    of the program's nodes. Raises StagesError for what cannot be flattened. Cost: linear in nodes.
    """
    return _Flattening(program, module, canonical, layer).flat


class _Flattening:
    """One pass over a program; ``values`` holds what each of its nodes became."""

    def __init__(
        self,
        program: ExportedProgram,
        module: nn.Module,
        canonical: Mapping[str, str],
        layer: Mapping[fx.Node, int],
    ) -> None:
        self.flat = FlatGraph(fx.Graph())
        self._layer = layer
        self._canonical = canonical
        self._constants = {**program.constants, **dict(module.named_buffers(remove_duplicate=False))}
        self._parameters = dict(module.named_parameters(remove_duplicate=False))
        self._first_buffer = _first_names(dict(module.named_buffers(remove_duplicate=False)))
        self._values: dict[fx.Node, Any] = {}
        self._attributes: dict[str, fx.Node] = {}
        specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        for node in program.graph.nodes:
            if node.op == "placeholder":
                self._values[node] = self._input(node, specs[node.name].kind.name, specs[node.name].target)
        results = self._region(program.graph_module, program.graph, Region())
        self.flat.outputs = list(results)

    def _input(self, node: fx.Node, kind: str, target: str | None) -> fx.Node:
        if kind == "USER_INPUT" or target is None:
            placed = self.flat.graph.placeholder(node.name)
            placed.meta["val"] = node.meta.get("val")
            return placed
        if kind not in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            raise StagesError(
                f"the model reads {target}, which is no tensor ({kind.lower()}): take it out of forward"
            )
        name = self._canonical.get(target, self._first_buffer.get(target, target))
        found = self._parameters.get(name)
        tensor = self._constants[name] if found is None else found
        return self._attribute(name, node.name, tensor, node.meta.get("val"))

    def _attribute(self, name: str, node_name: str, tensor: torch.Tensor, value: object) -> fx.Node:
        if name not in self._attributes:
            placed = self.flat.graph.create_node("get_attr", name, name=node_name)
            placed.meta["val"] = value
            self._attributes[name] = placed
            self.flat.attributes[name] = tensor
        return self._attributes[name]

    def _region(self, owner: object, graph: fx.Graph, region: Region) -> Any:  # noqa: ANN401 (any structure)
        """Copy the nodes of a (sub)graph and return its outputs."""
        result: Any = ()
        for node in graph.nodes:
            if node.op == "get_attr":
                self._values[node] = self._constant(node, owner)
            elif node.op == "call_function":
                self._values[node] = self._called(node, region)
            elif node.op == "output":
                result = fx.map_arg(node.args[0], lambda one: self._values[one])
        return result

    def _constant(self, node: fx.Node, owner: object) -> Any:  # noqa: ANN401 (a graph of its own, or a tensor)
        found = operator.attrgetter(str(node.target))(owner)
        if isinstance(found, torch.Tensor):
            return self._attribute(str(node.target), node.name, found, found)
        return found

    def _called(self, node: fx.Node, region: Region) -> Any:  # noqa: ANN401 (a node, or what a region returned)
        name = getattr(node.target, "__name__", "")
        if name in (NO_GRAD, AUTOCAST):
            return self._inlined(node, name, region)
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            raise StagesError(f"operator {name} holds a graph of its own and cannot be split: replace it")
        if node.target is operator.getitem:
            source = node.args[0]
            held = self._values[source] if isinstance(source, fx.Node) else None
            if isinstance(held, (list, tuple)):
                return held[node.args[1]]  # type: ignore[index]
        placed = self.flat.graph.node_copy(node, self._value)
        placed.meta = {"val": node.meta.get("val")}
        self._note(node, placed, region)
        return placed

    def _value(self, node: fx.Node) -> fx.Node:
        return self._values[node]

    def _note(self, node: fx.Node, placed: fx.Node, region: Region) -> None:
        if node in self._layer:
            self.flat.layer[placed] = self._layer[node]
        stack = list((node.meta.get("nn_module_stack") or {}).items())
        self.flat.call[placed] = stack[-1][0] if stack else ""
        self.flat.region[placed] = region

    def _inlined(self, node: fx.Node, name: str, region: Region) -> Any:  # noqa: ANN401 (what it returns)
        """Copy a region, whose graph stands among the arguments with its inputs behind it."""
        given: list[Any] = [self._values.get(one, one) if isinstance(one, fx.Node) else one for one in node.args]
        at = next(index for index, one in enumerate(given) if isinstance(one, fx.GraphModule))
        if name == NO_GRAD:
            inner = Region(gradients=bool(given[0]), autocast=region.autocast)
        else:
            inner = Region(gradients=region.gradients, autocast=tuple(given[:at]))
        inputs = iter(given[at + 1 :])
        for one in given[at].graph.nodes:
            if one.op == "placeholder":
                self._values[one] = next(inputs)
        return self._region(given[at], given[at].graph, inner)


def _first_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Map every name of a tensor to the first name of the same tensor."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}


def storages_of(node: fx.Node) -> set[int]:
    """Return the memory that the results of a node lie in, as numbers."""
    found = pytree.tree_leaves(node.meta.get("val"))
    return {one.untyped_storage()._cdata for one in found if isinstance(one, torch.Tensor)}


_STATISTICS = ("running_mean", "running_var")
"""Arguments of normalisations that are written although the schema does not say so."""


@dataclass(slots=True)
class Effects:
    """What the nodes of a graph read and write.

    ``needs`` holds for each node those that must have run before it; ``storages`` the memory of its results;
    ``writes`` the memory that it writes into; ``batched`` the nodes that depend on the model's inputs;
    ``differentiable`` those that a gradient may flow through (never fewer than there are); ``live`` those that an
    output or a buffer depends on; ``written`` the names of the parameters and buffers that a pass changes.
    """

    needs: dict[fx.Node, list[fx.Node]] = field(default_factory=dict)
    storages: dict[fx.Node, set[int]] = field(default_factory=dict)
    writes: dict[fx.Node, set[int]] = field(default_factory=dict)
    batched: set[fx.Node] = field(default_factory=set)
    differentiable: set[fx.Node] = field(default_factory=set)
    live: set[fx.Node] = field(default_factory=set)
    written: set[str] = field(default_factory=set)

    def of_outputs(self, flat: FlatGraph) -> list[fx.Node]:
        """Return the nodes that the model's outputs need: themselves, and who wrote into them."""
        outputs = [one for one in flat.outputs if isinstance(one, fx.Node)]
        memory = set[int]().union(*(self.storages[one] for one in outputs))
        return [*outputs, *(node for node, written in self.writes.items() if written & memory)]


def effects_of(flat: FlatGraph) -> Effects:
    """Return what the nodes of a graph read and write. Cost: linear in nodes, for few writes to one memory."""
    found = Effects()
    writers: dict[int, list[fx.Node]] = {}
    for node in flat.nodes:
        found.storages[node] = storages_of(node)
        inputs = list(node.all_input_nodes)
        memory = set[int]().union(*(found.storages[one] for one in inputs))
        earlier = {writer: None for storage in memory for writer in writers.get(storage, ())}
        found.needs[node] = list(dict.fromkeys([*inputs, *earlier]))
        written = set[int]().union(*(found.storages[one] for one in written_by(node)))
        if written:
            found.writes[node] = written
            for storage in written:
                writers.setdefault(storage, []).append(node)
        _note_flow(flat, node, found)
    _note_live(flat, found)
    return found


def _note_flow(flat: FlatGraph, node: fx.Node, found: Effects) -> None:
    """Note whether a node depends on the inputs, and whether a gradient may flow through it."""
    value = node.meta.get("val")
    needs = found.needs[node]
    if node.op == "placeholder" and isinstance(value, torch.Tensor):
        found.batched.add(node)
    if node.op == "get_attr" and flat.attributes[str(node.target)].requires_grad:
        found.differentiable.add(node)
    if any(one in found.batched for one in needs):
        found.batched.add(node)
    records = flat.region.get(node) is None or flat.region[node].gradients is not False
    if records and "detach" not in str(node.target) and any(one in found.differentiable for one in needs):
        found.differentiable.add(node)
        changed = found.writes.get(node, set())
        found.differentiable |= {one for one in found.needs if changed & found.storages[one]} if changed else set()


def _note_live(flat: FlatGraph, found: Effects) -> None:
    named = {
        storage: str(node.target)
        for node in flat.nodes
        if node.op == "get_attr"
        for storage in found.storages[node]
    }
    waiting = found.of_outputs(flat)
    for node, written in found.writes.items():
        names = {named[storage] for storage in written if storage in named}
        found.written |= names
        waiting += [node] if names else []
    while waiting:
        node = waiting.pop()
        if node not in found.live:
            found.live.add(node)
            waiting += found.needs[node]
    for node in found.live:
        statistics = [arguments_of(node).get(name) for name in _STATISTICS]
        found.written |= {
            str(one.target) for one in statistics if isinstance(one, fx.Node) and one.op == "get_attr"
        }


def arguments_of(node: fx.Node) -> Mapping[str, Any]:
    """Return the arguments of an operator call by the names in its schema."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {}
    names = [argument.name for argument in schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def written_by(node: fx.Node) -> list[fx.Node]:
    """Return the arguments of a node that its operator writes into."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return []
    arguments = arguments_of(node)
    names = [one.name for one in schema.arguments if one.alias_info and one.alias_info.is_write]
    return [one for name in names if isinstance(one := arguments.get(name), fx.Node)]


def is_random(node: fx.Node) -> bool:
    """Tell whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def draw_by(*numbers: int) -> None:
    """Let what is drawn from here on depend on some numbers alone, on the CPU and on a GPU that is in use.

    ``torch.manual_seed`` also notes, for each kind of device that is not in use, the lines it was called from:
    half a millisecond a pass, and memory that grows with every pass.
    """
    seed = hash(numbers) & 0x7FFF_FFFF_FFFF_FFFF
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
