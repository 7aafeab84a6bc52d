"""From paths to plans: the devices of the stages on a path, alike servers exchanged back, and corrected arcs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from formulation.costs.tables import Tables
from formulation.problem.groups import Group
from formulation.problem.plan import Plan, Span, Stage
from solvers.dynamic.step_time.blocks import Index
from solvers.dynamic.step_time.network import Network

__all__: list[str] = []


def groups_on(network: Network, path: list[int], tables: Tables) -> tuple[Group, ...]:
    """Return the device groups of the stages on a path, from the front."""
    steps = network.layout.steps
    space = steps.space
    real = tuple(range(len(tables.instance.servers)))
    groups: list[Group] = []
    for step in network.stages.step[path].tolist():
        place = int(steps.place[step])
        moved = space.step(int(steps.state[step]), place).moved
        real = tuple(real[moved[server]] for server in range(len(real)))
        ways = space.suffixes.places[place].groups
        group = tables.groups[next(way for way in ways if tables.kind_of[way] == steps.kind[step])]
        counts = tuple(sorted((real[server], count) for server, count in group.counts))
        groups.append(replace(group, counts=counts))
    return tuple(groups)


def cuts_on(network: Network, path: list[int]) -> tuple[int, ...]:
    """Return the first cuts of the blocks on a path, from 0 to N."""
    blocks, layout = network.blocks, network.layout
    starts = layout.split(network.suffixes[network.stages.head[path]])[3]
    return (*blocks.first[starts].tolist(), int(blocks.first[-1]))


def plan_of(groups: tuple[Group, ...], cuts: tuple[int, ...]) -> Plan:
    """Return the plan with these groups and cuts, form 0 everywhere."""
    rows = zip(groups, cuts[:-1], cuts[1:], strict=True)
    return Plan(tuple(Stage(Span(first, stop), group, (0,) * (stop - first)) for group, first, stop in rows))


def bottleneck_on(network: Network, path: list[int]) -> int:
    """Return the slowest stage or boundary on a path over single cuts, in ns."""
    layout, stages = network.layout, network.stages
    _, _, own, block = layout.split(network.gaps[stages.tail[path]])
    first = layout.split(network.suffixes[stages.head[path]])[2]
    crossing = network.blocks.crossing[layout.steps.link[own[:-1], first[1:]], block[:-1]]
    return int(max(stages.time[path].max(), crossing.max(initial=0)))


@dataclass(frozen=True, slots=True)
class Correction:
    """Stages of a kind from ``start`` to ``stop`` or further, in this rank or later, take at least ``time_ns``.

    The tables know less: within memory they need slower forms. FORBIDDEN: no forms fit at all.
    """

    rank: int
    kind: int
    start: int
    stop: int
    time_ns: int


def corrected(network: Network, corrections: list[Correction]) -> Network:
    """Return a network over single cuts whose stages take what the corrections say."""
    layout, stages = network.layout, network.stages
    if not corrections:
        return network
    rank, _, _, start = layout.split(network.suffixes)
    stop = layout.split(network.gaps)[3][stages.tail]
    rank, start, kind = rank[stages.head], start[stages.head], layout.steps.kind[stages.step]
    time = stages.time.copy()
    for one in corrections:
        hit = (rank >= one.rank) & (kind == one.kind) & (start == one.start) & (stop >= one.stop)
        time[hit] = np.maximum(time[hit], one.time_ns)
    return replace(network, stages=replace(stages, cost=stages.cost + time - stages.time, time=time))


def potential_of(plan: Plan, times: list[int], tables: Tables, kinds: list[int]) -> Index:
    """Spread the times of stages over their layers as computation is spread; return the sums before cuts."""
    spent = np.zeros(len(tables.instance.layers) + 1, dtype=np.int64)
    for stage, time, kind in zip(plan.stages, times, kinds, strict=True):
        sums = np.cumsum(tables.compute[kind, stage.span.first : stage.span.stop]).astype(np.float64)
        share = sums / sums[-1] if sums[-1] else np.ones(len(sums))
        before = spent[stage.span.first]
        spent[stage.span.first + 1 : stage.span.stop + 1] = before + np.rint(share * time).astype(np.int64)
    return spent
