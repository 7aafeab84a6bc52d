"""PipeDream's optimiser as the paper states it (Narayanan et al., SOSP 2019, section 3.1), level by level.

Layers 0..N-1 in a row, of time T, output a and weights w; level k joins m_k components of level k - 1 over
bandwidth B_k, lowest level first::

    A^0(i->j, 1)  =  sum of T over i..j
    T^k(i->j, m)  =  1/m max( A^{k-1}(i->j, m_{k-1}),  2 (m-1) sum of w over i..j / B_k )
    A^k(i->j, 1)  =  A^{k-1}(i->j, m_{k-1})
    A^k(i->j, m)  =  min( T^k(i->j, m),
                          min over i <= s < j, 1 <= m' < m of
                              max( A^k(i->s, m-m'), 2 a_s / B_k, T^k(s+1->j, m') ) )

The answer is A^L(0->N-1, m_L). This differs from the program (:mod:`pipecut_literature.pipedream.code`): compute
and all-reduce overlap, the all-reduce moves 2(m-1) instead of 4(m-1)/m, and a transfer is not shared by replicas.
The paper prints its formulas as images; these closed forms agree with its text and its complexity,
O(sum over k of N^3 m_k^2), which is also the cost here. a_s counts everything that crosses the cut behind layer
s, which is the output of s in a plain chain.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.limits import NEVER, Deadline, in_time
from pipecut_literature.common.downsets import bits, masks, topological
from pipecut_literature.pipedream.code import MachineLevel, PipeDreamStage
from pipecut_literature.pipedream.profile import ProfiledModel

Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LayerRow:
    """Layers in a row: seconds forward and backward, bytes of weights, bytes that cross the cut behind each."""

    names: tuple[str, ...]
    compute_s: tuple[float, ...]
    weight_bytes: tuple[int, ...]
    crossing_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PaperPlan:
    """Stages of the top level (layers ``first`` up to ``stop``, nested below) and seconds per minibatch."""

    stages: tuple[PipeDreamStage, ...]
    period_s: float


@dataclass(frozen=True, slots=True)
class _Solved:
    """``period[i, j, m]`` and, where it ends in a split, the last layer before it and the replicas behind it."""

    machines: int
    period: Reals
    split: NDArray[np.int64]


def row(profile: ProfiledModel) -> LayerRow:
    """Return what PipeDream plans of a profile as layers in a row.

    Raises ValueError, naming the place, unless the layers have only one possible order: the paper's recurrence
    knows no branches. An edge that skips layers is kept as bytes that cross every cut under it.
    """
    model = profile.planned()
    size = len(model.layers)
    consumers = masks(size, model.edges)
    order = topological(masks(size, [(b, a) for a, b in model.edges]))
    for before, after in itertools.pairwise(order):
        if not consumers[before] >> after & 1:
            names = model.layers[before].name, model.layers[after].name
            raise ValueError(f"layers {names[0]} and {names[1]} have no order; the paper plans layers in a row")
    layers = [model.layers[node] for node in order]
    position = {node: place for place, node in enumerate(order)}
    last = [max((position[to] for to in bits(consumers[node])), default=-1) for node in order]
    crossing = [
        sum(layers[one].activation_bytes for one in range(s + 1) if last[one] > s) for s in range(len(layers))
    ]
    return LayerRow(
        tuple(layer.name for layer in layers),
        tuple((layer.forward_ns + layer.backward_ns) / 1e9 for layer in layers),
        tuple(layer.parameter_bytes for layer in layers),
        tuple(crossing),
    )


def optimise(layers: LayerRow, levels: Sequence[MachineLevel], deadline: Deadline = NEVER) -> PaperPlan:
    """Return the best pipeline of a row of layers; smallest s, then smallest m', among equals.

    Raises StoppedError after the deadline.
    """
    if not layers.names or not levels:
        raise ValueError("expected at least one layer and one level of machines")
    below = _spans(layers.compute_s)
    weights = _spans(layers.weight_bytes)
    crossing = np.array(layers.crossing_bytes, dtype=np.float64)
    solved: list[_Solved] = []
    for level in levels:
        solved.append(_level(below, weights, 2 * crossing / level.bytes_per_second, level, deadline))
        below = solved[-1].period[:, :, level.machines]
    return PaperPlan(_walk(solved, 0, len(layers.names)), float(below[0, -1]))


def _spans(values: Sequence[float]) -> Reals:
    """Return ``[i, j]``: the sum of the values i to j, infinite where j < i."""
    start = np.concatenate([[0.0], np.cumsum(values)])
    return np.where(np.tri(len(values), dtype=bool).T, start[None, 1:] - start[:-1, None], np.inf)


def _level(below: Reals, weights: Reals, transfer: Reals, level: MachineLevel, deadline: Deadline) -> _Solved:
    """Solve one level for every span of layers, by number of machines."""
    size = len(below)
    alone = np.full((size, size, level.machines + 1), np.inf)
    for machines in range(1, level.machines + 1):
        reduce = 2 * (machines - 1) * np.where(np.isinf(weights), 0.0, weights) / level.bytes_per_second
        alone[:, :, machines] = np.maximum(below, reduce) / machines
    period = alone.copy()
    split = np.full((size, size, level.machines + 1, 2), -1)
    for machines in range(2, level.machines + 1):
        for s in in_time(range(size - 1), deadline):
            for behind in range(1, machines):
                front = np.maximum(period[:, s, machines - behind], transfer[s])
                found = np.maximum(front[:, None], alone[s + 1, :, behind][None, :])
                better = found < period[:, :, machines]
                period[better, machines] = found[better]
                split[better, machines] = (s, behind)
    return _Solved(level.machines, period, split)


def _walk(solved: Sequence[_Solved], first: int, stop: int) -> tuple[PipeDreamStage, ...]:
    """Follow the splits from the back; inside each stage follow those of the level below."""
    if not solved:
        return ()
    top, machines, stages = solved[-1], solved[-1].machines, []
    while True:
        s, behind = (int(value) for value in top.split[first, stop - 1, machines])
        begin = first if s < 0 else s + 1
        inner = _walk(solved[:-1], begin, stop)
        stages.append(PipeDreamStage(begin, stop, machines if s < 0 else behind, inner))
        if s < 0:
            return tuple(reversed(stages))
        stop, machines = begin, machines - behind


def price(layers: LayerRow, levels: Sequence[MachineLevel], stages: Sequence[PipeDreamStage]) -> float:
    """Return the period of a plan from the equations alone, without the search. ValueError: layers missing."""
    if not levels:
        return sum(layers.compute_s[stages[0].first : stages[-1].stop])
    level, period = levels[-1], 0.0
    for stage in stages:
        span = slice(stage.first, stage.stop)
        inner = stage.inner or (PipeDreamStage(stage.first, stage.stop, 1),)
        reduce = 2 * (stage.replicas - 1) * sum(layers.weight_bytes[span]) / level.bytes_per_second
        period = max(period, max(price(layers, levels[:-1], inner), reduce) / stage.replicas)
    for before, after in itertools.pairwise(stages):
        if before.stop != after.first:
            raise ValueError(f"a stage ends before layer {before.stop}, the next begins with {after.first}")
        period = max(period, 2 * layers.crossing_bytes[before.stop - 1] / level.bytes_per_second)
    return period
