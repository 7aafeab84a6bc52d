"""Which stage every node of a flat graph runs in.

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
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from torch import fx

from execution.errors import StagesError
from execution.splitting.effects import Effects, is_random
from execution.splitting.flat import FlatGraph


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
