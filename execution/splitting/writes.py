"""Writes in place done otherwise: into a new tensor, which all later readers of the old one get.

What lies in the memory of a parameter or buffer is written in place all the same, or the model would not keep it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from execution.errors import StagesError
from execution.splitting.crossing import PartNodes
from execution.splitting.effects import Effects, written_by


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
