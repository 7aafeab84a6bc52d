"""The shape of a scenario file: sections, keys, units and limits, as pydantic models.

A model here says what may be *written*; what it *means* together with the rest of the file (does this device
class exist, does the batch divide) is checked in ``ingest.scenario.checks``. Types are strict: a text is never
taken for a number nor a number for a text. Defaults come from ``formulation.problem.options``, where they are
explained. Every field has a description, which messages and the JSON schema for editors repeat.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from formulation.problem.options import (
    AllReduce,
    Boundary,
    BoundaryCharge,
    Combine,
    Compute,
    CostModel,
    Count,
    Samples,
    Sharing,
    StageTime,
    Synchronisation,
)
from formulation.problem.training import Training
from ingest.scenario.cluster_section import ClusterSection
from ingest.scenario.constraints_section import constraints_section
from ingest.scenario.fields import (
    CHOOSE,
    Byname,
    Chunks,
    Duration,
    Elements,
    Goals,
    MicroBatches,
    Name,
    Ratio,
    Schedules,
    Section,
    WarmUp,
)
from ingest.scenario.model_section import ModelSection

MOST_SAMPLES = 10**9
"""Most samples of one optimiser step."""

_TRAINING = Training(global_batch=1)
_COST = CostModel()


class TrainingSection(Section):
    """One optimiser step."""

    global_batch: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] = Field(description="samples of one optimiser step")
    micro_batches: MicroBatches = Field(
        default=CHOOSE,
        description="equal parts that the batch is cut into: a number, a list to choose among, or 'choose', any of"
        " those that divide it, as without it",
    )
    bytes_per_element: Annotated[int, Field(ge=1, le=64)] | None = Field(
        default=None, description="bytes of one weight, gradient or activation element; without it the model's own"
    )
    optimizer_bytes_per_parameter: Annotated[int, Field(ge=0, le=1024)] = Field(
        default=_TRAINING.optimizer_bytes_per_parameter,
        description="what the optimiser keeps beside weight and gradient",
    )
    precision: Elements | None = Field(
        default=None,
        description="bytes of weights, gradients, activations and optimiser apart: a preset, or all four numbers;"
        " in place of bytes_per_element and optimizer_bytes_per_parameter",
    )
    schedule: Schedules = Field(
        default=(_TRAINING.schedule,),
        description="order of the passes: one, a list to choose among, or 'choose', any with a flush",
    )
    chunks: Chunks = Field(
        default=(_TRAINING.chunks,),
        description="stages that each group of devices holds: more than 1 under one_f_one_b, in interleaved order;"
        " a number, or a list to choose among",
    )
    warm_up: WarmUp = Field(
        default=_TRAINING.warm_up,
        description="forward passes of a stage before its first backward pass under one_f_one_b: 'classic' (one"
        " more than stages behind it), 'eager' (one more than twice as many), a list by stage, or 'choose'",
    )


class RooflineSection(Section):
    """The constants of a roofline (``formulation.predictor.roofline.Roofline``)."""

    largest: Ratio = Field(
        default_factory=lambda: _COST.roofline.largest,
        description="share of the peak that the largest products reach, above 0 and at most 1",
    )
    outer: Annotated[int, Field(ge=0, le=10**6)] = Field(
        default=_COST.roofline.outer,
        description="by how many rows, and columns, a product counts larger than it is",
    )
    inner: Annotated[int, Field(ge=0, le=10**6)] = Field(
        default=_COST.roofline.inner, description="the same along the dimension that is summed"
    )
    unsized: Ratio = Field(
        default_factory=lambda: _COST.roofline.unsized,
        description="share of the peak of products whose sizes are not known",
    )
    memory: Ratio = Field(
        default_factory=lambda: _COST.roofline.memory,
        description="share of the memory bandwidth that kernels reach",
    )
    kernel: Duration = Field(default=_COST.roofline.kernel_ns, description="the shortest kernel, like '5 us'")
    update: Ratio = Field(
        default_factory=lambda: _COST.roofline.update,
        description="how many times as many bytes as it must the optimiser moves, 1 or more",
    )


class CostSection(Section):
    """The readings of the cost model (``formulation.problem.options.CostModel``)."""

    compute: Annotated[Compute, Byname] | None = Field(
        default=None,
        description="how the time of a layer is predicted: multiply-accumulates over the peak, or a roofline;"
        " without it a roofline where every device says its memory_bandwidth",
    )
    roofline: RooflineSection = Field(default_factory=RooflineSection, description="constants of a roofline")
    count: Annotated[Count, Byname] = Field(default=_COST.count, description="which operations are counted")
    flops_per_mac: Annotated[int, Field(ge=1, le=2)] = Field(
        default=_COST.flops_per_mac, description="FLOPs of a multiply-accumulate"
    )
    backward_factor: Ratio = Field(
        default_factory=lambda: _COST.backward_factor, description="backward work as a multiple of forward (2)"
    )
    all_reduce: Annotated[AllReduce, Byname] = Field(
        default=_COST.all_reduce, description="volume of a sum over devices"
    )
    stage_time: Annotated[StageTime, Byname] = Field(
        default=_COST.stage_time, description="computing and communicating"
    )
    boundary: Annotated[Boundary, Byname] = Field(default=_COST.boundary, description="charged boundary transfers")
    boundary_charge: Annotated[BoundaryCharge, Byname] = Field(
        default=_COST.boundary_charge, description="who pays for a boundary"
    )
    combine: Annotated[Combine, Byname] = Field(default=_COST.combine, description="what stage times add up to")
    inside: Annotated[Synchronisation, Byname] = Field(
        default=_COST.inside,
        description="whether backward sums of a product's input take time beside the product for its weights",
    )
    synchronisation: Annotated[Synchronisation, Byname] = Field(
        default=_COST.synchronisation,
        description="whether devices wait for sums of weight gradients, or as far as these exceed its passes",
    )
    sharing: Annotated[Sharing, Byname] = Field(
        default=_COST.sharing, description="whether devices of a stage share equally or in proportion to speed"
    )
    samples: Annotated[Samples, Byname] | None = Field(
        default=None,
        description="whether devices that share a micro-batch have whole samples, the fullest setting the pace"
        " (whole; with stage_time overlap fractions)",
    )
    expert_load: Ratio = Field(
        default_factory=lambda: _COST.expert_load,
        description="tokens of the experts of the fullest device, over the mean of all devices (1)",
    )

    @property
    def means_peak(self) -> bool:
        """Whether a key is written that only counts, or is only allowed, where layers are priced by the peak."""
        written = self.model_fields_set & {"count", "flops_per_mac", "backward_factor"}
        return bool(written) or self.stage_time is StageTime.OVERLAP


if TYPE_CHECKING:
    ConstraintsSection = Section
else:
    ConstraintsSection = constraints_section()


class SolverSection(Section):
    """How the plan is searched."""

    name: Name = Field(default="auto", description="the solver's name")
    time_limit: Annotated[Duration, Field(gt=0)] | None = Field(
        default=None, description="longest search, like '60 s'"
    )
    workers: Annotated[int, Field(ge=1, le=1024)] = Field(default=2, description="parallel search workers")
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(default=0, description="seed of the search")


class ExpectSection(Section):
    """What is known about the scenario; tests hold pipecut to it."""

    objective: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="the proved optimum (of a time: in ns)"
    )


class ScenarioFile(Section):
    """A pipecut scenario: one model, one cluster, one training set-up."""

    name: Name = Field(description="the scenario's name")
    model: ModelSection = Field(description="which model: build, graph, exported or transformers")
    cluster: ClusterSection = Field(description="devices, servers and links")
    training: TrainingSection = Field(description="batch, number format and schedule")
    cost: CostSection = Field(default_factory=CostSection, description="readings of the cost model")
    objective: Goals | None = Field(
        default=None,
        description="what is minimised; of several goals the first counts first; without it the executed time:"
        " step_time, under a schedule without a flush period, and with cost.combine sum the bottleneck",
    )
    constraints: ConstraintsSection = Field(
        default_factory=ConstraintsSection, description="limits that a plan must keep"
    )
    solver: SolverSection = Field(default_factory=SolverSection, description="how to search")
    expect: ExpectSection = Field(default_factory=ExpectSection, description="what is known about the result")


def schema_text() -> str:
    """Return the JSON schema of scenario files, for editors; ``scenarios/scenario.schema.json`` holds it."""
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    schema |= ScenarioFile.model_json_schema()
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"
