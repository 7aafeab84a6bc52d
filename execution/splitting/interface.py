"""How a split model is called and what it returns: its inputs by name, its outputs in the form of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from execution.errors import StagesError
from execution.splitting.flat import FlatGraph


@dataclass(frozen=True, slots=True)
class ModelInterface:
    """``names`` are the inputs in the order of the flattened arguments, ``taken`` their structure.

    ``returned`` says for each output which of the tensors of the last stage it is (None: the value beside it),
    ``given`` the structure of the outputs.
    """

    names: tuple[str, ...]
    taken: pytree.TreeSpec | None
    returned: tuple[tuple[int | None, Any], ...]
    given: pytree.TreeSpec | None

    def named(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model's arguments by name. Raises StagesError for another structure than the example's."""
        leaves, found = pytree.tree_flatten((tuple(args), dict(keywords)))
        if self.taken is not None and found != self.taken:
            raise StagesError(f"the model was split for arguments {self.taken}, got {found}")
        return dict(zip(self.names, leaves, strict=True))

    def outputs(self, tensors: Sequence[torch.Tensor]) -> Any:  # noqa: ANN401 (what the model returns)
        """Return what the model returns, from what the last stage gives."""
        leaves = [value if at is None else tensors[at] for at, value in self.returned]
        return leaves if self.given is None else pytree.tree_unflatten(leaves, self.given)


def interface_of(flat: FlatGraph, taken: pytree.TreeSpec | None, given: pytree.TreeSpec | None) -> ModelInterface:
    """Return how a model is called, by its graph and the structures of its arguments and outputs."""
    nodes = [one for one in flat.outputs if isinstance(one, fx.Node)]
    place = {node: at for at, node in enumerate(dict.fromkeys(nodes))}
    returned = tuple((place[one], None) if isinstance(one, fx.Node) else (None, one) for one in flat.outputs)
    return ModelInterface(tuple(node.name for node in flat.inputs), taken, returned, given)
