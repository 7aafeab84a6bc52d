"""Parts that several outputs share. Times are whole ns, sizes whole bytes, gaps shares of the objective."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

ProofName = Literal["optimal", "feasible", "infeasible", "unknown"]


class Part(BaseModel):
    """An object of which every key is known."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class MessagePart(Part):
    """One line of what went wrong, with its place in a user's file where that is known."""

    message: str
    file: str | None = None
    line: int | None = Field(default=None, ge=1)
    column: int | None = Field(default=None, ge=1)


class ErrorPart(Part):
    """What went wrong: the exit code, its kind, and a message for each mistake."""

    code: Literal[2, 4, 70, 130]
    kind: Literal["bad input", "false claim", "defect", "aborted"]
    messages: list[MessagePart] = Field(min_length=1)


class Output(Part):
    """What a command found; ``error`` is there if it ended with exit code 2, 4, 70 or 130 all the same."""

    error: ErrorPart | None = None


class Failure(Part):
    """What any command writes that ended in an error without a result."""

    error: ErrorPart


class GoalClaimPart(Part):
    """What is claimed of a goal: value and bound in ``unit``; it is looked at once all before it are proved."""

    goal: str
    unit: str
    value: int
    bound: int | None
    gap: float | None
    status: Literal["proved", "open", "not looked at"]


class ScopePart(Part):
    """Among which plans a claim holds (``formulation.scope.Scope``), and the same in words.

    ``searched`` is in few words what plans may differ in, ``not_searched`` what they may not though it might pay.
    ``at_most`` are limits by goal, in the goal's unit.
    """

    layers: int
    cuts: int
    devices: int
    placement: str
    max_servers: int | None
    devices_per_stage: list[int]
    tensor_parallel_degrees: list[int]
    forms: list[int]
    restricted_layers: int
    samples: str
    recompute: str
    recompute_layers: int
    sharded: list[str]
    optimizer_on_host: str
    memory_limited: bool
    memory_margin: float
    schedule: str
    warm_up: str | list[int]
    chunks: int
    micro_batches: int
    free_order: bool
    micro_batch_choices: list[int]
    schedule_choices: list[str]
    chunk_choices: list[int]
    dealt: list[int]
    demands: list[str]
    at_most: dict[str, int]
    words: list[str]
    searched: list[str]
    not_searched: list[str]


class PricePart(Part):
    """Where a stage's time goes for one micro-batch, and its memory (``formulation.costs.prices.StageCost``)."""

    compute_ns: int
    inside_ns: int
    between_ns: int
    received_ns: int
    total_ns: int
    boundary_ns: int
    memory_bytes: int
    capacity_bytes: int


class MeasurePart(Part):
    """A number of the timeline beside what a formula says of it."""

    key: str
    name: str
    unit: Literal["ns", "share"]
    timeline: int | float | None
    relation: str
    formula: int | float | None
    source: str


class CriticalPart(Part):
    """Events of one sort on the critical chain; all times add up to the makespan."""

    stage: int
    name: str
    transfer: bool
    events: int
    time_ns: int


class StagePart(Part):
    """A stage as plan files write it; its prices are left out where the plan has none."""

    layers: list[str]
    devices: dict[str, int]
    forms: list[int]
    replicas: int
    recompute: bool | Literal["layers"] | list[tuple[str, str]]
    sharded: str
    optimizer_on_host: bool
    grid: int | None = None
    warm_up: int | None = None
    compute_ns: int | None = None
    inside_ns: int | None = None
    between_ns: int | None = None
    received_ns: int | None = None
    total_ns: int | None = None
    boundary_ns: int | None = None
    memory_bytes: int | None = None
    capacity_bytes: int | None = None
    communication_ns: int | None = None
    optimizer_ns: int | None = None
