"""A finer network out of a coarse one: blocks of cuts halved, or slots told apart by their memory rules."""

from __future__ import annotations

import numpy as np

from pipecut.solvers.dynamic.iteration_time.blocks import Blocks, Index
from pipecut.solvers.dynamic.iteration_time.network import Drawn, Layout, Network, assemble


def halved(network: Network, finer: Blocks, most_ns: int) -> Network:
    """Return the network over finer blocks: every arc becomes the arcs between the parts of its blocks.

    Cost: O(arcs) in numpy, at most four for each stage and two for each bridge.
    """
    old = network.layout
    new = Layout(old.steps, finer, old.ranks)
    low, parts = network.blocks.children(finer)
    ways = range(int(parts.max(initial=1)))
    suffixes, gaps = old.split(network.suffixes), old.split(network.gaps)

    def moved(vertex: tuple[Index, Index, Index, Index], at: Index, part: int) -> Index:
        rank, state, joins, block = (column[at] for column in vertex)
        return new.key(rank, state, joins, low[block] + part)

    one, other = network.stages, network.bridges
    rows: list[tuple[Index, Index, Index]] = []
    for first in ways:
        for second in ways:
            chosen = (parts[suffixes[3]] > first)[one.head] & (parts[gaps[3]] > second)[one.tail]
            head, tail = one.head[chosen], one.tail[chosen]
            rows.append((moved(suffixes, head, first), moved(gaps, tail, second), one.step[chosen]))
    pairs: list[tuple[Index, Index]] = []
    for part in ways:
        chosen = (parts[gaps[3]] > part)[other.head]
        pairs.append((moved(gaps, other.head[chosen], part), moved(suffixes, other.tail[chosen], part)))
    suffix, gap, step = (np.concatenate(column) for column in zip(*rows, strict=True))
    before, behind = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return assemble(new, Drawn(suffix, gap, step, before, behind), most_ns)


def ranked(network: Network, ranks: int, most_ns: int) -> Network:
    """Return the network with a vertex for every rank: a stage of rank r stands before one of rank r - 1.

    The last rank stands before itself as well. Suffixes of rank r take at least r + 1 devices.
    """
    old = network.layout
    new = Layout(old.steps, old.blocks, ranks)
    _, state, joins, block = old.split(network.suffixes)
    _, gap_state, gap_joins, gap_block = old.split(network.gaps)
    one, other = network.stages, network.bridges
    taken, last = old.steps.taken, len(old.blocks) - 1
    rows: list[tuple[Index, Index, Index]] = []
    pairs: list[tuple[Index, Index]] = []
    for rank in range(ranks):
        suffix, gap = new.key(rank, state, joins, block), new.key(rank, gap_state, gap_joins, gap_block)
        ending = (gap_block == last)[one.tail]
        chosen = (ending == (rank == 0)) & (taken[state] > rank)[one.head]
        rows.append((suffix[one.head[chosen]], gap[one.tail[chosen]], one.step[chosen]))
        behind = [rank - 1] * (rank > 0) + [rank] * (rank == ranks - 1 and rank > 0)
        for lower in behind:
            chosen = (taken[state] > lower)[other.tail]
            tail = new.key(lower, state, joins, block)[other.tail[chosen]]
            pairs.append((gap[other.head[chosen]], tail))
    suffix, gap, step = (np.concatenate(column) for column in zip(*rows, strict=True))
    before, behind_ = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return assemble(new, Drawn(suffix, gap, step, before, behind_), most_ns)
