"""A backward pass in two halves: the gradients of a stage's inputs now, those of its weights later.

Qi et al., "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241). The operators between outputs and inputs run in
the first half; at an operator where a path to a weight leaves them, the gradients that arrive are kept. The second
half takes these through that operator again, to its weights only, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

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
