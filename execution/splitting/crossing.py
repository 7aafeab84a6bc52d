"""What every stage runs, and which tensors cross every cut.

A tensor that a later stage needs is handed on from stage to stage, which is what ``cut_bytes`` prices: stages
exchange with their neighbours only. The model's inputs go to every stage that reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from execution.errors import StagesError
from execution.splitting.effects import Effects
from execution.splitting.flat import FlatGraph
from execution.splitting.homes import homes_of


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
