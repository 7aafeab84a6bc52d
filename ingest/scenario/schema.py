"""The shape of a scenario file: sections, keys, units and limits, as pydantic models.

A model here says what may be *written*; what it *means* together with the rest of the file (does this device
class exist, does the batch divide) is checked in ``ingest.scenario.checks``. Types are strict: a text is never
taken for a number nor a number for a text. Defaults come from ``formulation.problem.options``, where they are
explained. Every field has a description, which messages and the JSON schema for editors repeat.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from formulation.problem.options import (
    AllReduce,
    Boundary,
    BoundaryCharge,
    Combine,
    Constraints,
    CostModel,
    Count,
    Goal,
    Placement,
    Recompute,
    Schedule,
    Sharing,
    StageTime,
    Synchronisation,
    Training,
)
from ingest.scenario.fields import (
    Bandwidth,
    Byname,
    Duration,
    Glob,
    Goals,
    Memory,
    Name,
    Places,
    Price,
    Ratio,
    Speed,
    Whole,
    builder,
    graph_file,
)

__all__ = ["ScenarioFile", "schema_text"]

MOST_DEVICES = 4096
"""Most devices of one server."""
MOST_SERVERS = 1024
"""Most servers of a cluster; a full mesh of them has half a million links."""
MOST_SAMPLES = 10**9
"""Most samples of one optimiser step."""

_TRAINING = Training(global_batch=1)
_COST = CostModel()
_CONSTRAINTS = Constraints()


class Section(BaseModel):
    """A part of a scenario file: strict types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class ModelSection(Section):
    """Where the layer graph comes from: exactly one of the two."""

    build: Annotated[str, AfterValidator(builder)] | None = Field(
        default=None,
        description="a Python function 'module:function' that builds the model (importing runs its code)",
    )
    graph: Annotated[str, AfterValidator(graph_file)] | None = Field(
        default=None, description="a traced layer graph, a JSON file; the path is relative to the scenario file"
    )
    cuts: Places | None = Field(
        default=None,
        description="where stages may start: blocks (what the model repeats), modules, operators (any layer), or"
        " globs on layers and modules; without it the places that the graph names, else blocks",
    )


class DeviceSection(Section):
    """A class of accelerators."""

    memory: Memory = Field(description="memory of one device, like '11 GiB'")
    peak: Speed = Field(description="peak speed of one device, like '13.4 TFLOP/s'")
    price_per_hour: Price = Field(
        default=0, description="price of one device for an hour, like 2.48, any currency"
    )


class LinkSection(Section):
    """A connection between two devices."""

    bandwidth: Bandwidth = Field(description="bandwidth in one direction, like '10 Gbit/s' or '15.75 GB/s'")
    latency: Duration = Field(default=0, description="latency of one message, like '5 us'")


class NameSection(Section):
    """What one server, or ``count`` alike ones, are called."""

    name: Name = Field(description="the server's name; alike servers get it with a number: node0, node1, ...")
    count: Annotated[int, Field(ge=1, le=MOST_SERVERS)] | None = Field(
        default=None, description="how many alike servers; without it one server, named without a number"
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the servers that this entry stands for."""
        return (self.name,) if self.count is None else tuple(f"{self.name}{n}" for n in range(self.count))


class ServerSection(NameSection):
    """One server, or ``count`` alike ones."""

    device: Name = Field(description="the name of a device class of this file")
    devices: Annotated[int, Field(ge=1, le=MOST_DEVICES)] = Field(description="how many devices a server holds")
    link: LinkSection | None = Field(default=None, description="what joins every two devices inside the server")


class PairSection(LinkSection):
    """A link between two servers or switches."""

    between: Annotated[list[Name], Field(min_length=2, max_length=2)] = Field(
        description="two servers or switches; the name of alike servers stands for each of them"
    )


class ClusterSection(Section):
    """Devices, servers, and the links between servers."""

    devices: Annotated[dict[Name, DeviceSection], Field(min_length=1)] = Field(
        description="the device classes, by name"
    )
    servers: Annotated[list[ServerSection], Field(min_length=1)] = Field(
        description="the servers, in the order of the line of devices"
    )
    between_servers: LinkSection | None = Field(
        default=None, description="a link between every two servers (full mesh)"
    )
    links: list[PairSection] = Field(default=[], description="single links; they override between_servers")
    switches: list[Name] = Field(default=[], description="names of switches that links may use")


class TrainingSection(Section):
    """One optimiser step."""

    global_batch: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] = Field(description="samples of one optimiser step")
    micro_batches: Whole = Field(
        default=_TRAINING.micro_batches, description="equal parts that the batch is cut into"
    )
    bytes_per_element: Annotated[int, Field(ge=1, le=64)] = Field(
        default=_TRAINING.bytes_per_element, description="bytes of one weight, gradient or activation element"
    )
    optimizer_bytes_per_parameter: Annotated[int, Field(ge=0, le=1024)] = Field(
        default=_TRAINING.optimizer_bytes_per_parameter,
        description="what the optimiser keeps beside weight and gradient",
    )
    schedule: Annotated[Schedule, Byname] = Field(default=_TRAINING.schedule, description="order of the passes")


class CostSection(Section):
    """The readings of the cost model (``formulation.problem.options.CostModel``)."""

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
    synchronisation: Annotated[Synchronisation, Byname] = Field(
        default=_COST.synchronisation, description="whether the sum of weight gradients takes time"
    )
    sharing: Annotated[Sharing, Byname] = Field(
        default=_COST.sharing, description="whether devices of a stage share equally or in proportion to speed"
    )


class StagesSection(Section):
    """How many stages a plan may have."""

    at_least: Whole | None = Field(default=None, description="fewest stages of a plan")
    at_most: Whole | None = Field(default=None, description="most stages of a plan")


class PinSection(Section):
    """Where layers must run: exactly one of server, device and stage."""

    layers: Glob = Field(description="layers by name, like 'features.*'")
    server: Name | None = Field(
        default=None, description="their stages have devices of this server only (of alike servers: any of them)"
    )
    device: Name | None = Field(default=None, description="their stages have devices of this class only")
    stage: int | None = Field(default=None, description="their stage: 0, 1, ... from the front, -1 is the last")


class FormsSection(Section):
    """Which parallel forms layers may take."""

    layers: Glob = Field(description="layers by name, like 'classifier.*'")
    allowed: Annotated[list[Annotated[int, Field(ge=0, le=2)]], Field(min_length=1)] = Field(
        description="the forms that they may take, of 0, 1 and 2"
    )


class AtMostSection(Section):
    """Limits on what plans are judged by."""

    bottleneck: Duration | None = Field(
        default=None, description="steady-state time of a micro-batch, like '20 ms'"
    )
    iteration_time: Duration | None = Field(default=None, description="time of an optimiser step, like '2 s'")
    cost: Price | None = Field(default=None, description="price of all devices for an hour: a budget, like 24.8")
    memory: Memory | None = Field(default=None, description="largest peak of any device, like '9 GiB'")
    devices: Whole | None = Field(default=None, description="how many devices a plan takes")
    stages: Whole | None = Field(default=None, description="how many stages a plan has")


class ConstraintsSection(Section):
    """Limits that a plan must keep (``formulation.problem.constraints.Constraints``)."""

    memory: bool = Field(default=True, description="every stage fits into the memory of its devices")
    placement: Annotated[Placement, Byname] = Field(
        default=_CONSTRAINTS.placement, description="which devices a stage may have: the next of the line, or any"
    )
    max_servers: Whole | None = Field(default=None, description="over how many servers one stage may stretch")
    stages: StagesSection = Field(default_factory=StagesSection, description="how many stages a plan may have")
    pin: list[PinSection] = Field(default=[], description="layers that must run in a certain place or stage")
    together: list[Annotated[list[Glob], Field(min_length=1)]] = Field(
        default=[], description="each entry: globs whose layers share one stage"
    )
    apart: list[Annotated[list[Glob], Field(min_length=2)]] = Field(
        default=[], description="each entry: globs of which no two have layers in the same stage"
    )
    no_cut: list[Glob] = Field(default=[], description="layers at which no stage may start")
    forms: list[FormsSection] = Field(default=[], description="parallel forms that layers may take")
    devices_per_stage: Annotated[list[Whole], Field(min_length=1)] | None = Field(
        default=None, description="how many devices a stage may have, like [1, 2, 4]"
    )
    tensor_parallel_degrees: Annotated[list[Whole], Field(min_length=1)] | None = Field(
        default=None,
        description="how many devices one replica of a stage may have, like [1, 2, 4]; the rest are more replicas",
    )
    recompute: Annotated[Recompute, Byname] = Field(
        default=_CONSTRAINTS.recompute, description="whether stages may drop activations and compute them again"
    )
    at_most: AtMostSection = Field(default_factory=AtMostSection, description="limits on what plans are judged by")
    reserve: dict[Name, Memory] = Field(
        default={}, description="by server: memory that each of its devices keeps for something else"
    )


class SolverSection(Section):
    """How the plan is searched."""

    name: Name = Field(default="cpsat", description="the solver's name")
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
    model: ModelSection = Field(description="where the layer graph comes from: build or graph")
    cluster: ClusterSection = Field(description="devices, servers and links")
    training: TrainingSection = Field(description="batch, number format and schedule")
    cost: CostSection = Field(default_factory=CostSection, description="readings of the cost model")
    objective: Goals = Field(
        default=(Goal.BOTTLENECK,), description="what is minimised; of several goals the first counts first"
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
