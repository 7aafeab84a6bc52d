"""Where programs that train pipelines can start a stage: torchtitan and Megatron-LM, between whole blocks.

A *block* is a numbered module of a list (``layers.17``), with all layers below it; what stands in no list is a
block by itself. An operation between modules (an addition) has no module, and stays with the layer before it.
Megatron-LM has one list of blocks; what stands before it belongs to the first stage, what stands behind it to the
last.
"""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx

from ingest.errors import ModelError

__all__ = ["block_of", "is_numbered", "is_operation"]

TORCHTITAN, MEGATRON = "torchtitan", "megatron"
"""Programs whose limits are known: how plans are written for them is in ``exchange.exports``."""


def cut_for(graph: nx.DiGraph, runtime: str) -> nx.DiGraph:
    """Return a layer graph that can be cut where a program can start a stage, and nowhere else.

    Raises ModelError for a model that Megatron-LM does not run: one that has not exactly one list of blocks.
    """
    names = list(graph)
    operators = [graph.nodes[name]["layer"].operator for name in names]
    places = _places(names, operators, runtime)
    chosen = graph.copy()
    chosen.graph["cuts"] = tuple(names[place] for place in places)
    return chosen


def block_of(name: str) -> str:
    """Return the block of a layer: its name up to the first number, or the whole of it."""
    parts = name.split(".")
    at = next((at for at, part in enumerate(parts) if part.isdecimal()), len(parts) - 1)
    return ".".join(parts[: at + 1])


def is_numbered(name: str) -> bool:
    """Tell whether a layer is in a numbered block."""
    return block_of(name) != name or name.rpartition(".")[2].isdecimal()


def is_operation(name: str, operator: str) -> bool:
    """Tell whether a layer is an operation outside all blocks that no module stands for."""
    return not is_numbered(name) and name.rpartition(".")[2].partition(":")[0] == operator


def _places(names: Sequence[str], operators: Sequence[str], runtime: str) -> list[int]:
    """Return the layers, beside the first, at which a stage may start."""
    last = {block_of(name): at for at, name in enumerate(names)}
    reach, whole, begun = -1, [], False
    for at, (name, operator) in enumerate(zip(names, operators, strict=True)):
        module = not is_operation(name, operator)
        if reach < at and module and begun:  # a stage needs a module of its own, the first one too
            whole.append(at)
        begun |= module
        reach = max(reach, last[block_of(name)])
    if runtime == TORCHTITAN:
        return whole
    return _around_one_list(names, operators, whole)


def _around_one_list(names: Sequence[str], operators: Sequence[str], whole: Sequence[int]) -> list[int]:
    """Return those of the places that start a numbered block, and the first behind all of these."""
    numbered = [at for at, name in enumerate(names) if is_numbered(name)]
    lists = sorted({block_of(names[at]).rpartition(".")[0] for at in numbered})
    if len(lists) != 1:
        found = ", ".join(lists) or "none"
        raise ModelError(
            f"model.runtime: Megatron-LM takes one list of equal blocks; the model's lists are: {found}"
        )
    inside, held = range(numbered[0], numbered[-1]), set(numbered)
    between = [names[at] for at in inside if at not in held and not is_operation(names[at], operators[at])]
    if between:
        raise ModelError(f"model.runtime: in Megatron-LM nothing stands between two blocks, as {between[0]} does")
    behind = next((at for at in whole if at > numbered[-1]), None)
    return [at for at in whole if at in held or at == behind]
