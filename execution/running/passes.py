"""The passes of one stage in one process: forward, backward, and its two halves, of micro-batches in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from execution.running.two_halves import Postponed, input_gradients
from execution.splitting.stage import StageModule

Loss = Callable[[Sequence[torch.Tensor], int], torch.Tensor]
"""From what the last stage gives for a micro-batch, and its number, to its part of the loss of the step."""


@dataclass(slots=True)
class _Kept:
    """What is kept of a micro-batch between its passes.

    ``taken`` came from the stage before; ``edges`` are where the gradients of ``gives`` enter (None: where none
    do), not the tensors themselves. With recomputation there are no edges yet: ``inputs`` and ``buffers`` are
    what the forward pass began with.
    """

    taken: Sequence[torch.Tensor]
    edges: Sequence[GradientEdge | None] | None
    inputs: Sequence[torch.Tensor] = ()
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    arrived: Sequence[torch.Tensor | None] | None = None
    later: Postponed | None = None


class StageRunner:
    """Runs a stage. ``loss`` is there for the last one; losses add up in ``total``.

    Before every forward pass the random numbers are seeded by ``seed``, the stage and the micro-batch, so that a
    run can be repeated whatever its order, and a recomputed pass draws what the first one drew. Give another
    ``seed`` for every step, and to every replica.
    """

    def __init__(
        self, module: StageModule, *, recompute: bool = False, loss: Loss | None = None, seed: tuple[int, ...] = ()
    ) -> None:
        """Keep the stage; nothing runs yet."""
        self.module = module
        self.seed = seed
        self.total: torch.Tensor | None = None
        self.recomputes = recompute
        self._loss = loss
        self._kept: dict[int, _Kept] = {}
        self._weights = [one for one in module.parameters() if one.requires_grad]

    @property
    def in_flight(self) -> int:
        """Number of micro-batches that went forward and are not done with."""
        return len(self._kept)

    def forward(
        self, number: int, taken: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Run a micro-batch forward; return what the stage gives, detached (nothing from the last stage)."""
        leaves = [
            one.requires_grad_(handed.differentiable) for one, handed in zip(taken, self.module.takes, strict=True)
        ]
        if not self.recomputes:
            given, edges = self._run(number, leaves, inputs, count=True)
            self._kept[number] = _Kept(leaves, edges)
            return given
        buffers = {name: self.module.get_buffer(name).clone() for name in self.module.written}
        with torch.no_grad():
            given, _ = self._run(number, leaves, inputs, count=True)
        self._kept[number] = _Kept(leaves, None, inputs, buffers)
        return given

    def backward(self, number: int, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Run a micro-batch backward, both halves; return the gradients of what the stage took.

        ``gradients`` are those of what it gives, in order (None where there is none); the last stage needs none.
        """
        kept = self._kept.pop(number)
        edges, arrived = self._arrive(number, kept, gradients)
        if edges:
            torch.autograd.backward(edges, arrived)
        return _taken_gradients(kept)

    def input_gradient(self, number: int, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Run the first half of a backward pass; return the gradients of what the stage took."""
        kept = self._kept[number]
        taken = [one for one in kept.taken if one.requires_grad]
        if not taken:
            kept.arrived = gradients
            return [None] * len(kept.taken)
        edges, arrived = self._arrive(number, kept, gradients)
        kept.later = input_gradients(edges, arrived, taken, self._weights) if edges else None
        found = _taken_gradients(kept)
        kept.taken, kept.edges = (), ()
        return found

    def weight_gradient(self, number: int) -> None:
        """Run the second half of a backward pass."""
        kept = self._kept[number]
        if kept.arrived is not None:
            self.backward(number, kept.arrived)
            return
        del self._kept[number]
        if kept.later is not None:
            kept.later.run()

    def _run(
        self, number: int, taken: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], *, count: bool
    ) -> tuple[tuple[torch.Tensor, ...], list[GradientEdge | None]]:
        """Run the stage; return what it gives, detached, and where gradients enter."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(hash((*self.seed, self.module.index, number)) & 0x7FFF_FFFF_FFFF_FFFF)
            given = self.module(*taken, *inputs)
            if self._loss is not None:
                given = (self._loss(given, number),)
        edges = [get_gradient_edge(one) if one.requires_grad else None for one in given]
        if self._loss is None:
            return tuple(one.detach() for one in given), edges
        if count:
            self.total = given[0].detach() + (0 if self.total is None else self.total)
        return (), edges

    def _arrive(
        self, number: int, kept: _Kept, gradients: Sequence[torch.Tensor | None]
    ) -> tuple[list[GradientEdge], list[torch.Tensor | None]]:
        """Return where gradients enter the graph, and those gradients; a dropped graph is computed again."""
        edges = kept.edges
        if edges is None:
            edges = self._again(number, kept)
        if self._loss is not None:
            return [one for one in edges if one is not None], [None for one in edges if one is not None]
        pairs = [
            (edge, one) for edge, one in zip(edges, gradients, strict=True) if edge is not None and one is not None
        ]
        return [edge for edge, _ in pairs], [one for _, one in pairs]

    def _again(self, number: int, kept: _Kept) -> Sequence[GradientEdge | None]:
        """Run the forward pass once more, on copies of the buffers as the first time found them."""
        with self.module.buffers_as(kept.buffers), torch.enable_grad():
            _, edges = self._run(number, kept.taken, kept.inputs, count=False)
        kept.inputs, kept.buffers = (), {}
        return edges


def _taken_gradients(kept: _Kept) -> list[torch.Tensor | None]:
    """Return the gradients of what a stage took: zeros where none arrived, None where none is wanted."""
    found = []
    for one in kept.taken:
        if not one.requires_grad:
            found.append(None)
        else:
            found.append(torch.zeros_like(one) if one.grad is None else one.grad)
            one.grad = None
    return found
