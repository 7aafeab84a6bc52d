"""What the nodes of a flat graph depend on beyond their arguments: writes in place, buffers, and chance.

In-place operators stay in an exported graph, and later readers still name the tensor before the change. So a
reader depends on every earlier write to the memory that it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from execution.splitting.flat import FlatGraph, storages_of

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
