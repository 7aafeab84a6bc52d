"""Piper's cost model and its plans, priced from the definition (Tarnawski et al., NeurIPS 2021; ``algo.cpp``).

A stage S with d replicas on tensor-parallel groups of t devices, one alternative for each layer, y micro-batches
in flight, bandwidth B and N micro-batches in a batch::

    time(S)   = sum of time / d
              + ( sum over edges (u, v) across the border of S, v or u in S, of 2 (c_uv + extra bytes) / d
                  + sum of 4 (d-1) w / (d N) ) / B
    memory(S) = sum of (in-flight bytes * y + fixed bytes),     y = ceil( replicas of this and later stages / d )

Each edge across the border is paid for separately, also where several carry the same tensor; edges inside S are
free. d divides N, the d * t sum to at most the devices, the d to at most min(N, devices). The value of a plan is
its largest stage time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planners.piper.problem import Alternative, PiperProblem

__all__: list[str] = []

RECOMPUTE = "activation recomp"
"""Name of the alternative that recomputes activations, as Piper's files write it."""


@dataclass(frozen=True, slots=True)
class PiperStage:
    """Layers by number, replicas (data parallelism), tensor-parallel degree, and an alternative for each layer."""

    layers: tuple[int, ...]
    replicas: int
    tensor_parallel_degree: int
    alternatives: tuple[str, ...]

    @property
    def recomputed(self) -> int:
        """Number of layers that recompute their activations."""
        return self.alternatives.count(RECOMPUTE)


@dataclass(frozen=True, slots=True)
class PiperPlan:
    """Stages in pipeline order and the seconds between two micro-batches in the steady state."""

    stages: tuple[PiperStage, ...]
    period_s: float


def price(problem: PiperProblem, stages: Sequence[PiperStage]) -> tuple[float, float]:
    """Return the largest stage time in seconds and the largest memory of a device in bytes.

    Raises ValueError for stages that are no plan: layers missing or twice, an edge against the order of the
    stages, more devices than there are, replicas that do not divide the micro-batches, unknown alternatives.
    """
    _check(problem, stages)
    time = memory = 0.0
    for number, stage in enumerate(stages):
        later = sum(one.replicas for one in stages[number:])
        in_flight = -(-later // stage.replicas)
        chosen = {node: _alternative(problem, stage, place) for place, node in enumerate(stage.layers)}
        time = max(time, _stage_time(problem, chosen, stage.replicas))
        memory = max(memory, sum(one.in_flight_bytes * in_flight + one.fixed_bytes for one in chosen.values()))
    return time, memory


def _alternative(problem: PiperProblem, stage: PiperStage, place: int) -> Alternative:
    layer = problem.layers[stage.layers[place]]
    for one in layer.alternatives.get(stage.tensor_parallel_degree, ()):
        if one.name == stage.alternatives[place]:
            return one
    raise ValueError(
        f"layer {layer.name} has no alternative '{stage.alternatives[place]}' "
        f"of tensor-parallel degree {stage.tensor_parallel_degree}"
    )


def _stage_time(problem: PiperProblem, chosen: dict[int, Alternative], replicas: int) -> float:
    moved = 0.0
    for producer, consumer, size in problem.edges:
        if consumer in chosen and producer not in chosen:
            moved += 2 * (size + chosen[consumer].bytes_in[producer])
        elif producer in chosen and consumer not in chosen:
            moved += 2 * (size + chosen[producer].bytes_out[consumer])
    weights = sum(one.parameter_bytes for one in chosen.values())
    reduced = 4 * (replicas - 1) * weights / replicas / problem.micro_batches
    compute = sum(one.time_s for one in chosen.values())
    return compute / replicas + (moved / replicas + reduced) / problem.bytes_per_second


def _check(problem: PiperProblem, stages: Sequence[PiperStage]) -> None:
    stage_of = {node: number for number, stage in enumerate(stages) for node in stage.layers}
    listed = [node for stage in stages for node in stage.layers]
    problems = []
    if sorted(listed) != list(range(len(problem.layers))):
        problems.append(f"the stages hold layers {sorted(listed)}, expected each of {len(problem.layers)} once")
    else:
        problems += [
            f"edge {a} -> {b} goes from stage {stage_of[a]} back to stage {stage_of[b]}"
            for a, b, _ in problem.edges
            if stage_of[a] > stage_of[b]
        ]
    for number, stage in enumerate(stages):
        if stage.replicas < 1 or problem.micro_batches % stage.replicas:
            problems.append(f"stage {number}: {stage.replicas} replicas do not divide {problem.micro_batches}")
        if len(stage.alternatives) != len(stage.layers):
            problems.append(f"stage {number}: {len(stage.alternatives)} alternatives, {len(stage.layers)} layers")
    used = sum(stage.replicas * stage.tensor_parallel_degree for stage in stages)
    if used > problem.devices:
        problems.append(f"the stages take {used} devices, the cluster has {problem.devices}")
    if problems:
        raise ValueError("; ".join(problems))
