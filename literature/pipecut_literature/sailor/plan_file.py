"""Sailor's plans, with what was measured of them where they were run (docs/formats).

A plan holds pipelines; a pipeline holds stages; a stage holds replicas, each with its nodes and its own
tensor-parallel degree; a node may hold more cards than the replica uses. The number of micro-batches is not in the
file: it is the global batch over micro-batch times replicas. What a planner estimated is not read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from pipecut.formulation.problem.plan import Span
from pipecut.ingest.graphs.foreign import FormatError
from pipecut_literature.common.json_source import Count, Real, Strict, Whole, as_tuple, ns_of_seconds, read_json
from pipecut_literature.sailor.profile import SailorMeasurement, SailorPlan, SailorReplica, SailorStage

LONGEST = 100_000

_Card = Annotated[tuple[str, Count, str], BeforeValidator(as_tuple)]
_Replica = Annotated[tuple[Annotated[list[_Card], Field(min_length=1)], Count], BeforeValidator(as_tuple)]


class _Pipeline(Strict):
    num_stages: Count
    layers_per_stage: Annotated[list[list[Whole]], Field(max_length=LONGEST)]
    tmp_per_stage: Annotated[list[list[_Replica]], Field(max_length=LONGEST)]
    dp: Annotated[list[Count], Field(max_length=LONGEST)]
    sender_zone: str = ""
    receiver_zone: str = ""


class _File(Strict):
    zone: str = ""
    pipeline_list: Annotated[list[_Pipeline], Field(min_length=1, max_length=LONGEST)]
    mbs: Count
    gbs: Count | None = None
    real: Real | None = None
    red_grads: Real | None = None
    max_mem: Whole | None = None
    N: Count | None = None
    estimated_throughput: Real | None = None
    estimated_cost: Real | None = None
    iter_time: Real | None = None
    used_gpus: dict[str, Whole] | None = None


def read_sailor_plan(path: Path, global_batch: int | None = None) -> SailorPlan:
    """Read one plan. ``global_batch`` stands in for ``gbs`` where the file has none, as planners write it.

    Raises FormatError with every contradiction in it; OSError if the file cannot be read.
    """
    file = read_json(path, _File)
    samples = global_batch if file.gbs is None else file.gbs
    problems: list[str] = []
    for index, pipeline in enumerate(file.pipeline_list):
        problems += [f": pipeline_list[{index}]{text}" for text in _contradictions(pipeline)]
    replicas = sum(pipeline.dp[0] for pipeline in file.pipeline_list if pipeline.dp)
    if samples is None:
        problems.append(": gbs: found nothing, expected this key")
    elif not problems and (samples < 1 or samples % (file.mbs * replicas)):
        problems.append(f": gbs: found {samples}, expected a multiple of {file.mbs} samples x {replicas} replicas")
    if problems or samples is None:
        raise FormatError(path, problems)
    return SailorPlan(
        tuple(_stages(pipeline) for pipeline in file.pipeline_list), file.mbs, samples, file.N, _measured(file)
    )


def _measured(file: _File) -> SailorMeasurement:
    iteration, sync = (None if one is None else ns_of_seconds(one) for one in (file.real, file.red_grads))
    return SailorMeasurement(iteration, sync, file.max_mem)


def _contradictions(pipeline: _Pipeline) -> list[str]:
    """Name what does not fit together in one pipeline."""
    found = []
    lengths = {"layers_per_stage": len(pipeline.layers_per_stage), "tmp_per_stage": len(pipeline.tmp_per_stage)}
    for key, length in {**lengths, "dp": len(pipeline.dp)}.items():
        if length != pipeline.num_stages:
            found.append(f".{key}: found {length} entries, expected num_stages = {pipeline.num_stages}")
    listed = [layer for stage in pipeline.layers_per_stage for layer in stage]
    if listed != list(range(len(listed))) or not all(pipeline.layers_per_stage):
        found.append(".layers_per_stage: expected layers 0, 1, ... in order, some in every stage")
    for stage, (replicas, count) in enumerate(zip(pipeline.tmp_per_stage, pipeline.dp, strict=False)):
        if len(replicas) != count:
            found.append(f".tmp_per_stage[{stage}]: found {len(replicas)} replicas, expected dp = {count}")
        for place, (cards, degree) in enumerate(replicas):
            held = sum(card[1] for card in cards)
            if held < degree:
                found.append(f".tmp_per_stage[{stage}][{place}]: found {held} cards, expected at least {degree}")
    return found


def _stages(pipeline: _Pipeline) -> tuple[SailorStage, ...]:
    return tuple(
        SailorStage(
            Span(layers[0], layers[-1] + 1),
            tuple(SailorReplica(tuple(cards), degree) for cards, degree in replicas),
        )
        for layers, replicas in zip(pipeline.layers_per_stage, pipeline.tmp_per_stage, strict=True)
    )
