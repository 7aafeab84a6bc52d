"""From paths to plans: the devices of the stages on a path, alike servers exchanged back, and corrected arcs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipecut.formulation.costs.tables import Tables
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.dynamic.iteration_time.blocks import Index
from pipecut.solvers.dynamic.iteration_time.network import Network
from pipecut.solvers.dynamic.iteration_time.steps import FlatSteps


def groups_on(steps: FlatSteps, chosen: Sequence[int], tables: Tables) -> tuple[Group, ...]:
    """Return the device groups of the stages that these steps put one before another, from the front."""
    space = steps.space
    real = tuple(range(len(tables.instance.servers)))
    groups: list[Group] = []
    for step in chosen:
        place = int(steps.place[step])
        moved = space.step(int(steps.state[step]), place).moved
        real = tuple(real[moved[server]] for server in range(len(real)))
        ways = space.suffixes.places[place].groups
        group = tables.groups[next(way for way in ways if tables.kind_of[way] == steps.kind[step])]
        counts = tuple(sorted((real[server], count) for server, count in group.counts))
        groups.append(replace(group, counts=counts))
    return tuple(groups)


@dataclass(frozen=True, slots=True)
class CutPath:
    """A plan as steps of :class:`FlatSteps` from the front, its cuts, what stages take by tables, and its sums."""

    steps: tuple[int, ...]
    cuts: tuple[int, ...]
    times: tuple[int, ...]
    latency_ns: int
    bottleneck_ns: int

    @staticmethod
    def of(network: Network, path: list[int], latency_ns: int) -> CutPath:
        """Return a path over single cuts."""
        blocks, layout, stages = network.blocks, network.layout, network.stages
        starts = layout.split(network.suffixes[stages.head[path]])[3]
        _, _, own, block = layout.split(network.gaps[stages.tail[path]])
        first = layout.split(network.suffixes[stages.head[path]])[2]
        crossing = blocks.crossing[layout.steps.link[own[:-1], first[1:]], block[:-1]]
        return CutPath(
            tuple(stages.step[path].tolist()),
            (*blocks.first[starts].tolist(), int(blocks.first[-1])),
            tuple(stages.time[path].tolist()),
            latency_ns,
            int(max(stages.time[path].max(), crossing.max(initial=0))),
        )


def plan_of(groups: tuple[Group, ...], cuts: tuple[int, ...]) -> Plan:
    """Return the plan of atoms with these groups and cuts, form 0 everywhere."""
    rows = zip(groups, cuts[:-1], cuts[1:], strict=True)
    return Plan(tuple(Stage(Span(first, stop), group, (0,) * (stop - first)) for group, first, stop in rows))


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


def potential_of(spans: list[Span], times: list[int], tables: Tables, kinds: list[int]) -> Index:
    """Spread the times of stages over their atoms as computation is spread; return the sums before cuts."""
    spent = np.zeros(tables.rows + 1, dtype=np.int64)
    for span, time, kind in zip(spans, times, kinds, strict=True):
        sums = np.cumsum(tables.compute[kind, span.first : span.stop]).astype(np.float64)
        share = sums / sums[-1] if sums[-1] else np.ones(len(sums))
        before = spent[span.first]
        spent[span.first + 1 : span.stop + 1] = before + np.rint(share * time).astype(np.int64)
    return spent
