"""Layers computed again alone: runs of their operators keep what they take, and nothing between.

A run is called through ``torch.utils.checkpoint``, which notes the state of the random numbers, and runs it once
more when the backward pass comes to it. The second time it works on copies of the buffers that a pass changes, as
the first time found them, so that statistics count once. Operators that write into buffers by themselves are in no
run: it would have to be the same memory in several of them. Devices of a replica exchange the same both times.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils.checkpoint import checkpoint


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
