"""The baseline that Piper compares itself with: equal stages, in the manner of PipeDream-2BW (``algo.cpp``).

The transformer layers are dealt out evenly, the last stages taking one more where they do not divide; everything
before them joins the first stage, everything behind them the last, or each gets a stage of its own. All stages
have the same replicas and tensor-parallel degree, and recompute everything or nothing. All such plans are tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planners.common.downsets import bits, masks, reachable, topological
from planners.common.errors import NothingFitsError
from planners.piper.price import RECOMPUTE, PiperPlan, PiperStage, price
from planners.piper.problem import PiperProblem

__all__: list[str] = []

TRANSFORMER = "ParallelTransformerLayer"
"""Name of the layers that are dealt out, as Piper's files write it."""
VANILLA = "vanilla"
"""Name of the alternative that keeps its activations."""


def equi_split(problem: PiperProblem) -> PiperPlan:
    """Return the fastest plan of equal stages; the first one found among equals.

    Raises NothingFitsError, and ValueError for a graph without transformer layers. Cost: devices^2 plans, each
    priced once.
    """
    best: PiperPlan | None = None
    for split in _splits(problem):
        for replicas, degree in _degrees(problem, len(split)):
            for name in (VANILLA, RECOMPUTE):
                stages = tuple(PiperStage(one, replicas, degree, (name,) * len(one)) for one in split)
                period, memory = price(problem, stages)
                if memory <= problem.memory_bytes and (best is None or period < best.period_s):
                    best = PiperPlan(stages, period)
    if best is None:
        raise NothingFitsError(f"no plan of equal stages fits into {problem.memory_bytes:.0f} bytes a device")
    return best


def _degrees(problem: PiperProblem, stages: int) -> Iterator[tuple[int, int]]:
    """Yield replicas and tensor-parallel degrees that the devices and the batch allow."""
    offered = set.intersection(*(set(layer.alternatives) for layer in problem.layers))
    for replicas in range(1, min(problem.devices, problem.micro_batches) // stages + 1):
        if problem.micro_batches % replicas == 0:
            for degree in sorted(offered):
                if stages * replicas * degree <= problem.devices:
                    yield replicas, degree


def _splits(problem: PiperProblem) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield the layers of each stage, for every number of stages, ends joined and then ends apart."""
    before, middle, behind = _parts(problem)
    for apart in (False, True):
        for stages in range(1, min(problem.devices - 2 * apart, len(middle)) + 1):
            dealt = _dealt(middle, stages)
            if apart:
                yield (before, *dealt, behind)
            else:
                dealt[0] = before + dealt[0]
                dealt[-1] = dealt[-1] + behind
                yield tuple(dealt)


def _dealt(layers: Sequence[int], stages: int) -> list[tuple[int, ...]]:
    each, more = divmod(len(layers), stages)
    found, start = [], 0
    for stage in range(stages):
        stop = start + each + (stage >= stages - more)
        found.append(tuple(layers[start:stop]))
        start = stop
    return found


def _parts(problem: PiperProblem) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the layers before the transformer layers, these in order, and the layers behind them."""
    size = len(problem.layers)
    producers = masks(size, [(b, a) for a, b, _ in problem.edges])
    order = topological(producers)
    past = reachable(order, producers)
    middle = [node for node in order if problem.layers[node].name == TRANSFORMER]
    if not middle:
        raise ValueError(f"no layer is called {TRANSFORMER}")
    before = past[middle[0]]
    for node in order:
        if not before >> node & 1 and node not in middle and not past[node] & 1 << middle[0]:
            # Neither before nor behind: an input of later layers only, which the program puts in front.
            before |= 1 << node
    behind = tuple(node for node in order if not before >> node & 1 and node not in middle)
    return tuple(bits(before)), tuple(middle), behind
