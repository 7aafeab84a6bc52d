"""All plans of an instance as paths of a network, as coarse or as fine as its blocks of cuts.

Two kinds of vertices, each with a rank of slots and a block of cuts: a *suffix*, whose first stage has servers of
a class and starts at the block; and a *gap*, before which a stage of a class is to be put that stops at the block.
An arc of the first kind, a *stage*, leads from a suffix to the gap behind its first stage; one of the second kind,
a *bridge*, from a gap over a boundary to the suffix behind it. A plan is a path from a suffix that takes the first
layer to the gap behind the last one. Coarse vertices stand for many cuts (and, before ranks are told apart, for
all slots), so a coarse path may be no plan, and every plan is a path that costs no more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipecut.formulation.costs.tables import Times
from pipecut.solvers.dynamic.iteration_time.blocks import Bits, Blocks, Index
from pipecut.solvers.dynamic.iteration_time.steps import FlatSteps
from pipecut.solvers.dynamic.iteration_time.windows import Windows

MAX_MARKED = 30_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Arcs:
    """Arcs from vertex ``head`` to vertex ``tail``, sorted by the devices that the head has taken.

    ``cost`` adds up along paths and may be below 0; ``time`` limits the bottleneck from below. ``step`` is that
    of a stage, -1 for bridges. ``levels``: ranges of arcs by devices taken, 0 .. all.
    """

    head: Index
    tail: Index
    cost: Times
    time: Times
    step: Index
    levels: Index

    def __len__(self) -> int:
        return len(self.head)


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Vertices by their keys, stages and bridges. ``suffixes`` and ``gaps`` are keys, see :class:`Layout`."""

    layout: Layout
    suffixes: Index
    gaps: Index
    stages: Arcs
    bridges: Arcs

    @property
    def blocks(self) -> Blocks:
        """The blocks of cuts."""
        return self.layout.blocks

    def sources(self) -> Index:
        """Return the suffixes that a whole plan may end up in."""
        _, state, _, block = self.layout.split(self.suffixes)
        return np.flatnonzero((block == 0) & self.layout.steps.complete[state])

    def sinks(self) -> Index:
        """Return the gaps behind the last layer."""
        return np.flatnonzero(self.layout.split(self.gaps)[3] == len(self.blocks) - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """How vertices are written as numbers: rank, state, class of servers, block. One rank stands for all slots."""

    steps: FlatSteps
    blocks: Blocks
    ranks: int

    def key(self, rank: Index | int, state: Index, joins: Index, block: Index) -> Index:
        """Return the number of a vertex."""
        return ((rank * len(self.steps.taken) + state) * self.steps.classes + joins) * len(self.blocks) + block

    def split(self, key: Index) -> tuple[Index, Index, Index, Index]:
        """Return rank, state, class and block of vertices."""
        rest, block = np.divmod(key, len(self.blocks))
        rest, joins = np.divmod(rest, self.steps.classes)
        rank, state = np.divmod(rest, len(self.steps.taken))
        return rank, state, joins, block

    @property
    def size(self) -> int:
        """One above the largest number."""
        return self.ranks * len(self.steps.taken) * self.steps.classes * len(self.blocks)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Stages (suffix key, gap key, step) and bridges (gap key, suffix key) before they are priced."""

    suffix: Index
    gap: Index
    step: Index
    before: Index
    behind: Index


def assemble(layout: Layout, drawn: Drawn, most_ns: int) -> Network:
    """Price arcs, leave out those that cannot be part of a plan of at most so large a bottleneck, number vertices.

    Cost: O(arcs + vertices) in numpy.
    """
    blocks, steps = layout.blocks, layout.steps
    rank, _, _, start = layout.split(drawn.suffix)
    stop = layout.split(drawn.gap)[3]
    ahead = (start <= stop) & (start < len(blocks) - 1)  # both cuts of a stage may lie in one block
    kind = steps.kind[drawn.step]
    fits = ahead & (blocks.room[rank if layout.ranks > 1 else 0, kind, start] >= blocks.first[stop])
    suffix, gap, step = drawn.suffix[fits], drawn.gap[fits], drawn.step[fits]
    time, cost = blocks.times(kind[fits], start[fits], stop[fits])
    _, _, own, block = layout.split(drawn.before)
    crossing = blocks.crossing[steps.link[own, layout.split(drawn.behind)[2]], block]
    quick, cheap = time <= most_ns, crossing <= most_ns
    before, behind = drawn.before[cheap], drawn.behind[cheap]
    suffixes, heads = _numbered(layout.size, suffix[quick], behind)
    gaps, tails = _numbered(layout.size, gap[quick], before)
    many = int(quick.sum())
    taken = steps.taken[layout.split(suffixes)[1]], steps.taken[layout.split(gaps)[1]]
    most = int(steps.taken.max()) + 1
    zeros = np.full(int(cheap.sum()), -1)
    return Network(
        layout,
        suffixes,
        gaps,
        _sorted(taken[0], most, heads[:many], tails[:many], cost[quick], time[quick], step[quick]),
        _sorted(taken[1], most, tails[many:], heads[many:], crossing[cheap], crossing[cheap], zeros),
    )


def kept(network: Network, stages: Bits, bridges: Bits) -> Network:
    """Return the network with only these arcs and their vertices."""
    one, other = network.stages, network.bridges
    size = max(len(network.suffixes), len(network.gaps), 1)
    numbers, heads = _numbered(size, one.head[stages], other.tail[bridges])
    gap_numbers, tails = _numbered(size, one.tail[stages], other.head[bridges])
    many = int(stages.sum())
    return Network(
        network.layout,
        network.suffixes[numbers],
        network.gaps[gap_numbers],
        _chosen(one, stages, heads[:many], tails[:many]),
        _chosen(other, bridges, tails[many:], heads[many:]),
    )


def first_network(layout: Layout, inside: Windows, most_ns: int) -> Network:
    """Draw every stage between blocks within windows and every bridge. Cost: O(steps x blocks**2)."""
    blocks, steps = layout.blocks, layout.steps
    last = len(blocks) - 1
    empty = np.zeros(len(steps.taken), dtype=bool)
    empty[steps.empty] = True
    rows: list[tuple[Index, Index, Index]] = []
    for kind in range(blocks.spans.kinds):
        start, stop = blocks.pairs(kind, most_ns)
        own = np.flatnonzero(steps.kind == kind)
        state, after = steps.state[own, None], steps.after[own, None]
        open_ = (blocks.last[start] >= inside.least[after]) & (blocks.first[start] <= inside.most[after])
        open_ &= (blocks.last[stop] >= inside.least[state]) & (blocks.first[stop] <= inside.most[state])
        open_ &= (stop < last) | empty[state]
        open_ &= (start > 0) | steps.complete[after]
        row, pair = np.nonzero(open_)
        rows.append((own[row], start[pair], stop[pair]))
    step, start, stop = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    suffix = layout.key(0, steps.after[step], steps.first[step], start)
    gap = layout.key(0, steps.state[step], steps.joins[step], stop)
    return assemble(layout, Drawn(suffix, gap, step, *_bridges(layout, gap, suffix)), most_ns)


def _bridges(layout: Layout, gap: Index, suffix: Index) -> tuple[Index, Index]:
    """Return (gap, suffix) of all bridges between vertices that stages touch."""
    gap, known = np.unique(gap), _set_of(layout, suffix)
    before: list[Index] = []
    behind: list[Index] = []
    _, state, _, block = layout.split(gap)
    inner = block < len(layout.blocks) - 1
    gap, state, block = gap[inner], state[inner], block[inner]
    for joins in range(layout.steps.classes):
        other = layout.key(0, state, np.full(len(state), joins), block)
        found = known[other]
        before.append(gap[found])
        behind.append(other[found])
    return np.concatenate(before), np.concatenate(behind)


def _set_of(layout: Layout, keys: Index) -> Bits:
    """Return a table that tells which keys are among these."""
    known = np.zeros(layout.size, dtype=bool)
    known[keys] = True
    return known


def _numbered(size: int, one: Index, other: Index) -> tuple[Index, Index]:
    """Return the keys in use, ascending, and for the given ones in a row their numbers among them."""
    both = np.concatenate([one, other])
    if size > MAX_MARKED:
        keys, numbers = np.unique(both, return_inverse=True)
        return keys, numbers.reshape(-1)
    used = np.zeros(size, dtype=bool)
    used[both] = True
    keys = np.flatnonzero(used)
    place = np.cumsum(used, dtype=np.int32)
    return keys, (place[both] - 1).astype(np.int64)


def _sorted(taken: Index, most: int, head: Index, tail: Index, cost: Times, time: Times, step: Index) -> Arcs:
    level = taken[head]
    order = np.argsort(level, kind="stable")
    levels = np.searchsorted(level[order], np.arange(most + 1))
    return Arcs(head[order], tail[order], cost[order], time[order], step[order], levels)


def _chosen(arcs: Arcs, chosen: Bits, head: Index, tail: Index) -> Arcs:
    before = np.concatenate([[0], np.cumsum(chosen)])
    return Arcs(head, tail, arcs.cost[chosen], arcs.time[chosen], arcs.step[chosen], before[arcs.levels])
