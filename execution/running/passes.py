"""The passes of one stage in one process: forward, backward, and its two halves, of micro-batches in any order.

A backward pass in two halves: the gradients of a stage's inputs now, those of its weights later.

Qi et al., "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241). The operators between outputs and inputs run in
the first half; at an operator where a path to a weight leaves them, the gradients that arrive are kept. The second
half takes these through that operator again, to its weights only, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from pipecut.execution.splitting.flat import draw_by
from pipecut.execution.splitting.stages import StageModule

_Arrived = tuple[torch.Tensor | None, ...]


@dataclass(slots=True)
class Postponed:
    """The second half of a backward pass; :meth:`run` adds the gradients of the weights to their ``grad``.

    ``leaving`` holds for each operator that both halves need the edges on which the second half leaves it,
    ``arrived`` the gradients that the first half brought there. From an operator in ``meeting`` a way leads over
    others of them to where it leaves: a weight that is used twice.
    """

    weights: Sequence[torch.Tensor]
    leaving: dict[Node, list[GradientEdge]] = field(default_factory=dict)
    arrived: dict[Node, _Arrived] = field(default_factory=dict)
    meeting: set[Node] = field(default_factory=set)

    def run(self) -> None:
        """Do it; the graph behind it is let go."""
        edges: list[GradientEdge] = []
        gradients: list[torch.Tensor] = []
        for node, arrived in self.arrived.items():
            given = [(GradientEdge(node, at), one) for at, one in enumerate(arrived) if one is not None]
            for edge, one in self._through(node, given):
                edges.append(edge)
                gradients.append(one)
        if edges:
            torch.autograd.backward(edges, gradients, inputs=list(self.weights))
        self.leaving.clear()
        self.arrived.clear()

    def _through(
        self, node: Node, given: Sequence[tuple[GradientEdge, torch.Tensor]]
    ) -> list[tuple[GradientEdge, torch.Tensor]]:
        """Take what arrived at an operator through it, and nothing else; return what leaves it to the weights."""
        if not given:
            return []
        others = [one for one in self.leaving if one is not node] if node in self.meeting else []
        hooks = [one.register_prehook(_nothing) for one in others]
        edges, gradients = [edge for edge, _ in given], [one for _, one in given]
        wanted = self.leaving[node]
        try:
            found = torch.autograd.grad(edges, wanted, gradients, retain_graph=True, allow_unused=True)
        finally:
            for hook in hooks:
                hook.remove()
        return [(edge, one) for edge, one in zip(wanted, found, strict=True) if one is not None]


def input_gradients(
    outputs: Sequence[GradientEdge],
    gradients: Sequence[torch.Tensor | None],
    inputs: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
) -> Postponed:
    """Do the first half: add the gradients of the inputs to their ``grad``, and return the second half.

    Where a path leads from an output to a weight past all inputs the halves cannot be told apart: both are done
    now. A gradient of None stands for 1. Cost: that of the operators on the way, and linear in the graph.
    """
    users = _users(edge.node for edge in outputs)
    between, _ = _above((get_gradient_edge(one).node for one in inputs), users, set())
    beside, shared = _above((get_gradient_edge(one).node for one in weights), users, between)
    if any(edge.node in beside for edge in outputs):
        torch.autograd.backward(outputs, gradients, inputs=[*inputs, *weights])
        return Postponed(weights)
    leaving = {
        node: [GradientEdge(one, at) for one, at in node.next_functions if one is not None and one in beside]
        for node in shared
    }
    later = Postponed(weights, leaving, meeting=_meeting(leaving))
    hooks = [node.register_prehook(_keeping(later, node)) for node in shared]
    try:
        torch.autograd.backward(outputs, gradients, inputs=list(inputs), retain_graph=True)
    finally:
        for hook in hooks:
            hook.remove()
    return later


def _keeping(later: Postponed, node: Node) -> Callable[[_Arrived], None]:
    def keep(arriving: _Arrived) -> None:
        later.arrived[node] = tuple(arriving)

    return keep


def _nothing(arriving: _Arrived) -> _Arrived:
    return tuple(None if one is None else torch.zeros_like(one) for one in arriving)


def _meeting(leaving: dict[Node, list[GradientEdge]]) -> set[Node]:
    """Return the operators that leave to where another one leads, too."""
    reached: dict[Node, set[Node]] = {}
    for node, edges in leaving.items():
        waiting = [edge.node for edge in edges]
        while waiting:
            one = waiting.pop()
            if node not in reached.setdefault(one, set()):
                reached[one].add(node)
                waiting += [needed for needed, _ in one.next_functions if needed is not None]
    return {node for node, edges in leaving.items() if any(len(reached[edge.node]) > 1 for edge in edges)}


def _users(roots: Iterable[Node]) -> dict[Node, list[Node]]:
    """Return for each operator of a graph those that its gradient comes from."""
    waiting = list(dict.fromkeys(roots))
    users: dict[Node, list[Node]] = {root: [] for root in waiting}
    while waiting:
        node = waiting.pop()
        for needed, _ in node.next_functions:
            if needed is not None:
                if needed not in users:
                    users[needed] = []
                    waiting.append(needed)
                users[needed].append(node)
    return users


def _above(starts: Iterable[Node], users: dict[Node, list[Node]], stop: set[Node]) -> tuple[set[Node], set[Node]]:
    """Return all operators between some and the outputs, and those of ``stop`` where the way ends."""
    waiting = [node for node in starts if node in users]
    passed, met = set(waiting), set[Node]()
    while waiting:
        for user in users[waiting.pop()]:
            if user in stop:
                met.add(user)
            elif user not in passed:
                passed.add(user)
                waiting.append(user)
    return passed, met


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
            draw_by(*self.seed, self.module.index, number)
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
