"""Plans out of reachability: walk back from a node in which a whole plan ends up to the last stage.

Of all such nodes the one with the fewest devices, then the fewest stages; then stage by stage the step whose stage
stops last. Alike servers were exchanged on the way, so the walk translates servers back as it goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pipecut.formulation.costs.tables import Tables
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.dynamic.states.reach import StateReach
from pipecut.solvers.dynamic.states.states import Steps


def path_of(reach: StateReach, tables: Tables) -> Plan | None:
    """Return a plan with form 0 everywhere, or None if no suffix is a whole plan.

    Cost: O(steps into the nodes on the way).
    """
    space = reach.space
    found = [
        (int(space.taken[node]), slot, int(node))
        for slot in range(len(reach.reached))
        for node in reach.complete_nodes(slot)
    ]
    if not found:
        return None
    _, depth, node = min(found)
    real = tuple(range(len(tables.instance.servers)))
    stages: list[Stage] = []
    layer = 0
    for slot in range(depth, -1, -1):
        stop, steps, at, before = _step_back(reach, slot, node, layer)
        place = int(steps.place[at])
        moved = space.step(int(steps.state[at]), place).moved
        real = tuple(real[moved[server]] for server in range(len(real)))
        index = _fitting_group(reach, tables, (slot, place), (layer, stop))
        group = tables.groups[index]
        counts = tuple(sorted((real[server], count) for server, count in group.counts))
        own = replace(group, counts=counts)
        stages.append(Stage(Span(layer, stop), own, (0,) * (stop - layer)))
        node, layer = before, stop
    return Plan(tuple(stages))


def _step_back(reach: StateReach, slot: int, node: int, layer: int) -> tuple[int, Steps, int, int]:
    """Return (layer after the stage, steps, index of the step, node before) of a stage that reaches this node."""
    best: tuple[int, Steps, int, int] | None = None
    for steps in reach.space.steps:
        low, high = np.searchsorted(steps.node, [node, node + 1])
        if low == high:
            continue
        end = max(int(reach.ends(slot)[kind, layer]) for kind in steps.kinds)
        for at in range(low, high):
            for before, stop in _stops(reach, steps, at, slot, layer, end):
                if best is None or stop > best[0]:
                    best = (stop, steps, at, before)
    if best is None:
        raise LookupError(f"slot {slot}: no stage from layer {layer} reaches node {node}")
    return best


def _stops(reach: StateReach, steps: Steps, at: int, slot: int, layer: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (node before, last cut) where a stage of this step can stop."""
    space, state = reach.space, int(steps.state[at])
    if slot == 0:
        if state in space.empty and end >= reach.total:
            yield -1, reach.total
        return
    nodes = np.flatnonzero(space.node_state == state).astype(np.int32)
    crossed = reach.crossings.rows[reach.crossings.joined[steps.servers[at], space.node_servers[nodes]]]
    possible = np.unpackbits(reach.reached[slot - 1][nodes] & crossed, axis=1, count=reach.total + 1)
    possible[:, : layer + 1] = 0
    possible[:, end + 1 :] = 0
    for node, row in zip(nodes, possible, strict=True):
        cuts = np.flatnonzero(row)
        if len(cuts):
            yield int(node), int(cuts[-1])


def _fitting_group(reach: StateReach, tables: Tables, where: tuple[int, int], span: tuple[int, int]) -> int:
    """Return the first way in which the devices of a place hold a span of layers in a slot."""
    slot, place = where
    for index in reach.space.suffixes.places[place].groups:
        if int(reach.ends(slot)[tables.kind_of[index], span[0]]) >= span[1]:
            return index
    raise LookupError(f"slot {slot}: no way of place {place} holds layers {span[0]} to {span[1]}")
