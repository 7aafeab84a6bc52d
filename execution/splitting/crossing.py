"""What every stage runs, and which tensors cross every cut.

A tensor that a later stage needs is handed on from stage to stage, which is what ``cut_bytes`` prices: stages
exchange with their neighbours only. The model's inputs go to every stage that reads them.

Which stage every node of a flat graph runs in.

=========================================  ===========================================================
node                                       runs in
=========================================  ===========================================================
with a layer                               the stage of its layer
picks one of several results               where these are made
writes a buffer                            the latest stage that it needs; else that of its module call, or where
                                           its result is used
random, and depends on no input            the first stage that needs it: all others must get the same
any other that depends on no input         every stage that needs it, so it has no home
that nothing needs                         nowhere
=========================================  ===========================================================

Writes in place done otherwise: into a new tensor, which all later readers of the old one get.

What lies in the memory of a parameter or buffer is written in place all the same, or the model would not keep it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pipecut.execution.errors import StagesError
from pipecut.execution.splitting.flat import Effects, FlatGraph, is_random, written_by


def homes_of(flat: FlatGraph, effects: Effects, stage_of_layer: Sequence[int]) -> dict[fx.Node, int]:
    """Return the stage of every live node that runs in one stage only. Cost: linear in nodes.

    Raises StagesError where a node would have to run before what it needs, or write into what a later stage reads
    as it was.
    """
    by_call: dict[str, int] = {}
    for node, layer in flat.layer.items():
        by_call.setdefault(flat.call[node], stage_of_layer[layer])
    homes: dict[fx.Node, int] = {}
    readers: dict[int, int] = {}
    latest = 0
    for node in flat.nodes:
        if node not in effects.live or node.op != "call_function":
            continue
        before = [homes[one] for one in effects.needs[node] if one in homes]
        if node in flat.layer:
            homes[node] = latest = stage_of_layer[flat.layer[node]]
        elif node.target is operator.getitem:
            homes.update((node, homes[one]) for one in node.all_input_nodes if one in homes)
        elif node in effects.batched or _keeps(flat, node, effects):
            homes[node] = max(before, default=by_call.get(flat.call[node], latest))
        if node not in homes:
            continue
        before += [readers.get(storage, 0) for storage in effects.writes.get(node, ())]
        if max(before, default=0) > homes[node]:
            raise StagesError(
                f"stage {homes[node]}: {node.name} has to run after what stage {max(before)} does; "
                "keep the two in one stage"
            )
        for storage in set[int]().union(*(effects.storages[one] for one in node.all_input_nodes)):
            readers[storage] = max(homes[node], readers.get(storage, 0))
    _move_to_users(flat, effects, homes)
    return homes | _random(flat, effects, homes)


def _move_to_users(flat: FlatGraph, effects: Effects, homes: dict[fx.Node, int]) -> None:
    """Move what writes into a buffer and depends on no input to the stage that goes on with its result."""
    for node in reversed(flat.nodes):
        if node in homes and node not in flat.layer and node not in effects.batched:
            stages = {homes[user] for user in node.users if user in homes}
            if len(stages) == 1 and min(stages) > homes[node]:
                homes[node] = stages.pop()


def _keeps(flat: FlatGraph, node: fx.Node, effects: Effects) -> bool:
    """Tell whether a node writes into a parameter or buffer."""
    memory = effects.writes.get(node)
    if not memory:
        return False
    kept = (one for one in flat.nodes if one.op == "get_attr")
    return any(memory & effects.storages[one] for one in kept)


def _random(flat: FlatGraph, effects: Effects, homes: dict[fx.Node, int]) -> dict[fx.Node, int]:
    """Return the homes of random nodes that depend on no input: the first stage that needs each."""
    first: dict[fx.Node, int] = {}
    for node in reversed(flat.nodes):
        stage = homes.get(node, first.get(node))
        if stage is not None:
            for one in effects.needs[node]:
                first[one] = min(stage, first.get(one, stage))
    return {node: stage for node, stage in first.items() if node not in homes and is_random(node)}


@dataclass(frozen=True, slots=True)
class PartNodes:
    """What one stage runs: nodes of the flat graph, in order.

    ``nodes`` are its operators; ``attributes`` the parameters, buffers and constants that it uses; ``inputs`` the
    model's inputs that it reads; ``takes`` comes from the stage before, ``gives`` goes to the next one. The last
    stage gives the model's outputs. ``copied`` are the arriving tensors that it writes into.
    """

    nodes: tuple[fx.Node, ...]
    attributes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    takes: tuple[fx.Node, ...]
    gives: tuple[fx.Node, ...]
    copied: tuple[fx.Node, ...]


def nodes_of_stages(flat: FlatGraph, effects: Effects, stage_of_layer: Sequence[int]) -> tuple[PartNodes, ...]:
    """Divide a graph among stages.

    Raises StagesError where a buffer that changes is used by two stages, or a stage writes into a tensor of which
    it gets a view beside. Cost: linear in nodes for each stage that repeats them.
    """
    homes = homes_of(flat, effects, stage_of_layer)
    return _Dividing(flat, effects, homes, max(stage_of_layer) + 1).parts()


class _Dividing:
    """Divides the nodes of a graph among stages by their homes."""

    def __init__(self, flat: FlatGraph, effects: Effects, homes: dict[fx.Node, int], stages: int) -> None:
        self._flat = flat
        self._effects = effects
        self._homes = homes
        self._stages = stages
        self._place = {node: at for at, node in enumerate(flat.nodes)}
        self._changed = self._changed_inputs()
        self._run = [self._closure(stage) for stage in range(stages)]

    def parts(self) -> tuple[PartNodes, ...]:
        """Return what every stage runs, takes and gives."""
        self._check_buffers()
        cuts = self._cuts()
        outputs = tuple(dict.fromkeys(one for one in self._flat.outputs if isinstance(one, fx.Node)))
        gives = [*cuts, outputs]
        return tuple(
            self._part(stage, (() if stage == 0 else cuts[stage - 1]), gives[stage])
            for stage in range(self._stages)
        )

    def _part(self, stage: int, takes: tuple[fx.Node, ...], gives: tuple[fx.Node, ...]) -> PartNodes:
        run = self._run[stage]
        nodes = tuple(node for node in run if node.op == "call_function" and self._homes.get(node, stage) == stage)
        inputs = tuple(node for node in run if node.op == "placeholder" and node not in takes)
        return PartNodes(
            nodes=nodes,
            attributes=tuple(node for node in run if node.op == "get_attr"),
            inputs=inputs,
            takes=takes,
            gives=gives,
            copied=self._copied(stage, nodes, (*takes, *inputs)),
        )

    def _closure(self, stage: int) -> list[fx.Node]:
        """Return the nodes that a stage runs or reads, in order."""
        waiting = [node for node, home in self._homes.items() if home == stage]
        if stage == self._stages - 1:
            waiting += self._effects.of_outputs(self._flat)
        found: set[fx.Node] = set()
        while waiting:
            node = waiting.pop()
            if node in found:
                continue
            found.add(node)
            if self._homes.get(node, stage) == stage:
                waiting += [one for one in self._effects.needs[node] if self._reads(node, one, stage)]
        return sorted(found, key=self._place.__getitem__)

    def _reads(self, node: fx.Node, needed: fx.Node, stage: int) -> bool:
        """Tell whether a stage needs a node for another one; who wrote in an earlier stage is behind it."""
        return self._homes.get(needed, stage) == stage or needed in node.all_input_nodes

    def _changed_inputs(self) -> dict[fx.Node, int]:
        """Return the model's inputs that are written in place, with the stage that does so first."""
        found: dict[fx.Node, int] = {}
        inputs = [node for node in self._flat.inputs if self._effects.storages[node]]
        for writer, memory in self._effects.writes.items():
            for node in inputs:
                if memory & self._effects.storages[node] and writer in self._homes:
                    found.setdefault(node, self._homes[writer])
        return found

    def _cuts(self) -> list[tuple[fx.Node, ...]]:
        """Return what crosses every cut: all that is made before it and needed behind it."""
        made = {**self._homes, **self._changed}
        last = {node: stage for stage, run in enumerate(self._run) for node in run if node in made}
        crossing = sorted(last, key=self._place.__getitem__)
        return [
            tuple(node for node in crossing if made[node] <= cut < last[node] and self._is_tensor(node, cut))
            for cut in range(self._stages - 1)
        ]

    def _is_tensor(self, node: fx.Node, cut: int) -> bool:
        if isinstance(node.meta.get("val"), torch.Tensor):
            return True
        raise StagesError(f"the cut before stage {cut + 1}: {node.name} crosses it and is no tensor")

    def _copied(self, stage: int, nodes: Sequence[fx.Node], arriving: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
        """Return the arriving tensors that a stage writes into. Raises StagesError where two share memory."""
        memory = set[int]().union(*(self._effects.writes.get(node, set()) for node in nodes))
        copied = [node for node in arriving if self._effects.storages[node] & memory]
        for at, node in enumerate(copied):
            for other in copied[:at]:
                if self._effects.storages[node] & self._effects.storages[other]:
                    raise StagesError(
                        f"stage {stage} writes into {node.name}, which shares its memory with {other.name}, and "
                        "both come from the stage before; cut elsewhere, or write into a copy"
                    )
        return tuple(copied)

    def _check_buffers(self) -> None:
        storages = self._effects.storages
        for kept in (one for one in self._flat.nodes if one.op == "get_attr"):
            name = str(kept.target)
            if name not in self._effects.written:
                continue
            # Views of it and results of writes into it are the buffer, too: behind a cut they would be a copy.
            using = [
                stage
                for stage, run in enumerate(self._run)
                if any(node is kept or storages[node] & storages[kept] for node in run)
            ]
            if len(using) > 1:
                raise StagesError(
                    f"stages {', '.join(map(str, using))} use buffer {name}, which the model changes in every "
                    "pass: keep the layers that use it in one stage"
                )


class Replaced:
    """Who has written into what: ``newest`` is the node that a reader of a node gets."""

    def __init__(self, part: PartNodes, effects: Effects, where: str) -> None:
        """Keep the nodes of a stage; ``where`` names it in messages."""
        self._part, self._effects, self._where = part, effects, where
        self._place = {one: at for at, one in enumerate(part.nodes)}
        self._kept = set[int]().union(*(effects.storages[one] for one in part.attributes))
        self._newest: dict[fx.Node, fx.Node] = {}

    def newest(self, node: fx.Node) -> fx.Node:
        """Return who wrote last into what a node made; itself if nobody did."""
        while node in self._newest:
            node = self._newest[node]
        return node

    def keeps(self, node: fx.Node) -> bool:
        """Tell whether a node writes into a parameter or buffer, be it through views or other writes."""
        return bool(self._effects.writes.get(node, set()) & self._kept)

    def operands(self, node: fx.Node) -> list[fx.Node]:
        """Return what a node writes into, of what depends on the inputs and lies in no parameter or buffer."""
        found = [one for one in written_by(node) if one in self._effects.batched]
        return [one for one in found if not self._effects.storages[one] & self._kept]

    def note(self, node: fx.Node) -> None:
        """Note that a node has written. Raises StagesError where a view of what it writes into is read later."""
        for operand in self.operands(node):
            self._check_seen(node, operand)
            self._newest[operand] = node

    def _check_seen(self, node: fx.Node, operand: fx.Node) -> None:
        memory, place = self._effects.storages[operand], self._place
        for other in (*self._part.nodes[: place[node]], *self._part.takes):
            if other in (operand, node) or other in self._newest or not memory & self._effects.storages[other]:
                continue
            if any(place.get(user, -1) > place[node] for user in other.users) or other in self._part.gives:
                raise StagesError(
                    f"{self._where}: {node.name} writes into a tensor that {other.name} is a view of, which "
                    "cannot be done where tensors are divided or layers computed again: write into a copy"
                )


def functional(node: fx.Node) -> Any:  # noqa: ANN401 (an operator)
    """Return the operator that makes what a node writes into its operand. Raises StagesError if there is none."""
    target: Any = node.target
    namespace, _, name = target._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name.rstrip("_"), None)
    overload = target._schema.overload_name or "default"
    if not name.endswith("_") or packet is None or overload not in packet.overloads():
        raise StagesError(f"operator {target} writes in place and has no form that does not: replace it")
    return getattr(packet, overload)
