"""Outputs about a run on the timeline: ``simulate``, and the summary that ``evaluate`` gives."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipecut.commands.outputs.common import (
    CriticalPart,
    GoalClaimPart,
    MeasurePart,
    Output,
    Part,
    PricePart,
    ProofName,
    ScopePart,
)
from pipecut.commands.outputs.tables import ComparisonPart


class SpentPart(Part):
    """Where the time of a rank goes over the whole run; the parts add up to the makespan."""

    compute_ns: int
    inside_ns: int
    between_ns: int
    boundary_ns: int
    idle_ns: int


class RankSummaryPart(Part):
    """How busy a rank is, its peak memory, and where its time goes."""

    stages: list[int]
    utilisation: float
    utilisation_formula: float | None
    peak_bytes: int
    peak_ns: int
    peak_bytes_formula: int | None
    capacity_bytes: int
    spent: SpentPart


class RankPart(RankSummaryPart):
    """``memory`` are pairs of a time and the bytes held from then on."""

    memory: list[tuple[int, int]]


class ThroughputPart(Part):
    """What a run is worth: ``price`` is that of its devices for its time, null without prices.

    ``tokens_per_second`` is null where nothing looks tokens up.

    FLOPs are those of the model, without what is computed again; their share is of the peaks of all its devices.
    """

    samples_per_second: float | None
    tokens_per_second: float | None
    tflops_per_device: float | None
    model_flops_utilisation: float | None
    price: float | None
    price_of_step: float | None


class SummaryPart(Part):
    """A run in numbers, without what is only drawn."""

    schedule: str
    micro_batches: int
    micro_batch_samples: int
    steps: int
    micro_batches_run: int
    makespan_ns: int
    throughput: ThroughputPart
    measures: list[MeasurePart]
    ranks: list[RankSummaryPart]


class SumsPart(Part):
    """The times of all stages, and of boundaries that are paid for: their sum and the largest of them.

    ``follows`` says how the objective follows from these; null where it is no such time. ``called`` and ``means``
    are what the largest is for the goal, in words.
    """

    sum_ns: int
    largest_ns: int
    follows: str | None
    called: str
    means: str


class ClaimPart(Part):
    """What is said of the plan; ``solver``, ``proof`` and ``seconds`` are null for a given plan."""

    solver: str | None
    proof: ProofName | None
    objective: int | None
    goal: str
    unit: str
    meaning: str
    further: list[GoalClaimPart]
    bound: int | None
    gap: float | None
    seconds: float | None
    scope: ScopePart
    notes: list[str]
    broken_rules: list[str]
    breaks: list[str]
    sums: SumsPart


class ServerPart(Part):
    """A server of the cluster."""

    name: str
    device_class: str
    devices: int


class MemoryByKindPart(Part):
    """Bytes on a stage's fullest device, by kind; they add up to ``memory_bytes`` of its price."""

    weights: int
    gradients: int
    optimizer: int
    stash: int
    received: int
    working_set: int
    recomputed: int
    output_gradients: int


class RunStagePart(Part):
    """A stage as it was run; ``devices`` are pairs of a place in ``servers`` and a number.

    ``shared`` and ``split`` are words: replicas and recomputation, and by what its layers are divided.
    """

    rank: int
    first_layer: str
    last_layer: str
    layers: int
    devices: list[tuple[int, int]]
    replicas: int
    recompute: bool | Literal["layers"] | list[tuple[str, str]]
    sharded: str
    optimizer_on_host: bool
    grid: int | None = None
    warm_up: int | None
    degree: int
    shared: str
    split: str
    forward_ns: int
    backward_ns: int
    recompute_ns: int
    sync_ns: int
    price: PricePart
    memory: MemoryByKindPart
    slowest: bool


class BoundaryPart(Part):
    """What crosses the boundary behind a stage; ``paid``: its time counts beside those of stages."""

    bytes: int
    activation_ns: int
    gradient_ns: int
    price_ns: int
    paid: bool
    slowest: bool


class DrawnPart(Part):
    """Events that are drawn, as rows of ``event_columns``."""

    head_stop_ns: int
    tail_start_ns: int
    whole: bool
    event_columns: list[str]
    events: list[list[int | str]]


class FixedOrderPart(Part):
    """A fixed schedule beside the best order."""

    schedule: str
    makespan_ns: int
    fits: bool
    loss: float | None


class BestOrderPart(Part):
    """The claim of the search for the best order."""

    proof: ProofName
    makespan_ns: int | None
    bound_ns: int | None
    gap: float | None
    seconds: float
    planned: str
    fixed: list[FixedOrderPart]
    notes: list[str]


class RunPart(Part):
    """Everything that a page shows of a plan that was run; ``against`` is another one, shown beside it."""

    format: Literal["pipecut simulation"]
    version: Literal[2]
    scenario: str
    model: str
    plan: str | None
    peak_bytes: int
    devices_used: int
    schedule: str
    micro_batches: int
    micro_batch_samples: int
    steps: int
    micro_batches_run: int
    makespan_ns: int
    throughput: ThroughputPart
    claim: ClaimPart
    measures: list[MeasurePart]
    servers: list[ServerPart]
    stages: list[RunStagePart]
    ranks: list[RankPart]
    boundaries: list[BoundaryPart]
    layers: list[tuple[str, int, int, int, int | None]]
    splits: dict[str, str]
    chain: list[CriticalPart]
    timeline: DrawnPart
    against: RunPart | None
    comparison: ComparisonPart | None
    order: BestOrderPart | None


class SimulateOutput(Output, RunPart):
    """``pipecut simulate``: everything that its page shows."""


class NoClaimPart(Part):
    """Why there is nothing to run: the claim of the search, or what is wrong with the given plan."""

    solver: str | None
    proof: ProofName | None
    objective: None
    bound: int | None
    notes: list[str]
    broken_rules: list[str]


class NothingRunOutput(Output):
    """``pipecut simulate`` where there is no plan to run, or no order of it that fits."""

    format: Literal["pipecut simulation"]
    scenario: str
    claim: NoClaimPart
    order: BestOrderPart | None = Field(default=None)
