"""Sailor's plans, with what was measured of them where they were run (docs/formats).

A plan holds pipelines; a pipeline holds stages; a stage holds replicas, each with its cards and its own
tensor-parallel degree. The number of micro-batches is not in the file: it is the global batch over micro-batch
times replicas.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from formulation.plan import Span
from ingest.formats.errors import FormatError
from ingest.formats.json_source import Count, Real, Strict, Whole, as_tuple, ns_of_seconds, read_json

LONGEST = 100_000


@dataclass(frozen=True, slots=True)
class SailorReplica:
    """The cards of one replica, as (card, how many, zone), and its tensor-parallel degree: their number."""

    cards: tuple[tuple[str, int, str], ...]
    tensor_parallel_degree: int


@dataclass(frozen=True, slots=True)
class SailorStage:
    """A run of layers and the replicas that hold it."""

    span: Span
    replicas: tuple[SailorReplica, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """One real run: ns of an iteration and of the gradient synchronisation, and peak bytes of the fullest card."""

    iteration_ns: int
    gradient_sync_ns: int
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True)
class SailorPlan:
    """Pipelines (stages in order), samples of a micro-batch and of an iteration, nodes, and the run if any."""

    pipelines: tuple[tuple[SailorStage, ...], ...]
    micro_batch: int
    global_batch: int
    nodes: int | None
    measured: Measured | None

    @property
    def micro_batches(self) -> int:
        """Micro-batches that each replica of a pipeline runs in one iteration."""
        replicas = sum(len(stages[0].replicas) for stages in self.pipelines)
        return self.global_batch // (self.micro_batch * replicas)


_Card = Annotated[tuple[str, Count, str], BeforeValidator(as_tuple)]
_Replica = Annotated[tuple[Annotated[list[_Card], Field(min_length=1)], Count], BeforeValidator(as_tuple)]


class _Pipeline(Strict):
    num_stages: Count
    layers_per_stage: Annotated[list[list[Whole]], Field(max_length=LONGEST)]
    tmp_per_stage: Annotated[list[list[_Replica]], Field(max_length=LONGEST)]
    dp: Annotated[list[Count], Field(max_length=LONGEST)]


class _File(Strict):
    zone: str = ""
    pipeline_list: Annotated[list[_Pipeline], Field(min_length=1, max_length=LONGEST)]
    mbs: Count
    gbs: Count
    real: Real | None = None
    red_grads: Real | None = None
    max_mem: Whole | None = None
    N: Count | None = None


def read_sailor_plan(path: Path) -> SailorPlan:
    """Read one plan. Raises FormatError with every contradiction in it; OSError if the file cannot be read."""
    file = read_json(path, _File)
    problems: list[str] = []
    for index, pipeline in enumerate(file.pipeline_list):
        problems += [f": pipeline_list[{index}]{text}" for text in _contradictions(pipeline)]
    replicas = sum(pipeline.dp[0] for pipeline in file.pipeline_list if pipeline.dp)
    if not problems and file.gbs % (file.mbs * replicas):
        problems.append(
            f": gbs: found {file.gbs}, expected a multiple of {file.mbs} samples x {replicas} replicas"
        )
    run = (file.real, file.red_grads, file.max_mem)
    if any(value is None for value in run) != all(value is None for value in run):
        problems.append(": found some of real, red_grads, max_mem; expected all of them (a run) or none")
    if problems:
        raise FormatError(path, problems)
    return SailorPlan(
        tuple(_stages(pipeline) for pipeline in file.pipeline_list),
        file.mbs,
        file.gbs,
        file.N,
        _measured(file),
    )


def _measured(file: _File) -> Measured | None:
    if file.real is None or file.red_grads is None or file.max_mem is None:
        return None
    return Measured(ns_of_seconds(file.real), ns_of_seconds(file.red_grads), file.max_mem)


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
            if held != degree:
                found.append(f".tmp_per_stage[{stage}][{place}]: found {held} cards, expected {degree}")
    return found


def _stages(pipeline: _Pipeline) -> tuple[SailorStage, ...]:
    return tuple(
        SailorStage(
            Span(layers[0], layers[-1] + 1),
            tuple(SailorReplica(tuple(cards), degree) for cards, degree in replicas),
        )
        for layers, replicas in zip(pipeline.layers_per_stage, pipeline.tmp_per_stage, strict=True)
    )
