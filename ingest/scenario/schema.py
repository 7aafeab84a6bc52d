"""The shape of a scenario file: sections, keys, units and limits, as pydantic models.

A model here says what may be *written*; what it *means* together with the rest of the file (does this device
class exist, does the batch divide) is checked in ``ingest.scenario.checks``. Types are strict: a text is never
taken for a number nor a number for a text. Defaults come from ``formulation.problem.options``, where they are
explained. Every field has a description, which messages and the JSON schema for editors repeat.

The shape of ``cluster:`` in a scenario file: devices, servers, whole machines of the library, links.

A cluster that names machines or devices of the library is completed first (``ingest.scenario.machines``): what
these sections demand is there by then, so memory, peak, devices and servers are needed here and may still be left
out in a file.

The section ``constraints`` of a scenario, made from the keys of all constraints there are.

A constraint says what may be written in words of its own (``formulation.problem.constraints``); here these become
the models that read a file and that the schema for editors is made from.

The section of a scenario file that says which model is cut.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    create_model,
)

from pipecut.formulation.problem.constraints import (
    ByServer,
    Constraints,
    Key,
    Keyed,
    Listed,
    Names,
    Shape,
    Written,
    kinds,
)
from pipecut.formulation.problem.layers import EVERY_FORM
from pipecut.formulation.problem.options import (
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
from pipecut.formulation.problem.training import Training
from pipecut.ingest.mistakes import shown
from pipecut.ingest.scenario.fields import (
    CHOOSE,
    LIST,
    WORD,
    Bandwidth,
    Byname,
    Chunks,
    Duration,
    Elements,
    Glob,
    Goals,
    InputShape,
    Memory,
    MicroBatches,
    Name,
    NeededMemory,
    NumberFormat,
    Places,
    Price,
    Ratio,
    Schedules,
    Section,
    Speed,
    WarmUp,
    Whole,
    builder,
    configuration,
    exported_file,
    graph_file,
    times_file,
)

MOST_DEVICES = 4096
"""Most devices of one server."""
MOST_SERVERS = 2048
"""Most servers of a cluster; a full mesh of them has half a million links."""


def _needs_nothing(schema: dict[str, Any]) -> None:
    """Tell editors that any key may be left out: the library may have it."""
    schema.pop("required", None)


def _or_a_number(schema: dict[str, Any]) -> None:
    """Tell editors that a bare number may stand for the section."""
    section = dict(schema)
    schema.clear()
    schema["anyOf"] = [{"type": "integer", "minimum": 1}, section]


class LinkSection(Section):
    """A connection between two devices, or of a device with its host."""

    bandwidth: Bandwidth = Field(description="bandwidth in one direction, like '10 Gbit/s' or '15.75 GB/s'")
    latency: Duration = Field(default=0, description="latency of one message, like '5 us'")


class DeviceSection(Section):
    """A class of accelerators; what is left out of a device of the library is the library's."""

    model_config = ConfigDict(json_schema_extra=_needs_nothing)

    memory: Memory = Field(description="memory of one device, like '11 GiB'")
    kept: NeededMemory = Field(
        default=0,
        description="memory of one device that no plan gets, like '2 GiB': the driver's context, buffers of"
        " communicators, the allocator's rest; with the library's memory the library's, else 0",
    )
    peak: Speed = Field(description="peak speed of one device, like '13.4 TFLOP/s'")
    memory_bandwidth: Bandwidth | None = Field(
        default=None,
        description="bandwidth of a device's memory, like '616 GB/s'; without it moving bytes takes no time",
    )
    price_per_hour: Price = Field(
        default=0, description="price of one device for an hour, like 2.48, any currency"
    )
    host_link: LinkSection | None = Field(
        default=None,
        description="what joins each device to the memory of its host, like PCIe: {bandwidth: 32 GB/s}",
    )

    @property
    def usable(self) -> int:
        """The bytes of one device that plans may fill."""
        return self.memory - self.kept


class NameSection(Section):
    """What one server, or ``count`` alike ones, are called."""

    name: Name = Field(
        description="the server's name; alike servers get it with a number: node0, node1 (after a digit: a1-0)"
    )
    count: Annotated[int, Field(ge=1, le=MOST_SERVERS)] | None = Field(
        default=None, description="how many alike servers; without it one server, named without a number"
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the servers that this entry stands for."""
        if self.count is None:
            return (self.name,)
        stem = f"{self.name}-" if self.name[-1].isdigit() else self.name
        return tuple(f"{stem}{number}" for number in range(self.count))


class ServerSection(NameSection):
    """One server, or ``count`` alike ones."""

    device: Name = Field(description="the name of a device class of this file, or of a device of the library")
    devices: Annotated[int, Field(ge=1, le=MOST_DEVICES)] = Field(description="how many devices a server holds")
    link: LinkSection | None = Field(default=None, description="what joins every two devices inside the server")
    adapters: Whole | None = Field(
        default=None,
        description="how many transfers to other servers at once have the whole bandwidth of the link to them,"
        " shared by the devices; without it every transfer has",
    )


class PairSection(LinkSection):
    """A link between two servers or switches."""

    between: Annotated[list[Name], Field(min_length=2, max_length=2)] = Field(
        description="two servers or switches; the name of alike servers stands for each of them"
    )


class PartialLinkSection(Section):
    """What replaces the numbers of a machine's own link."""

    bandwidth: Bandwidth | None = Field(default=None, description="bandwidth in one direction, like '450 GB/s'")
    latency: Duration = Field(default=0, description="latency of one message, like '5 us'")


class MachineSection(Section):
    """How many machines of one kind of the library, and what is different about them."""

    model_config = ConfigDict(json_schema_extra=_or_a_number)

    count: Annotated[int, Field(ge=1, le=MOST_SERVERS)] = Field(description="how many machines")
    name: Name | None = Field(
        default=None, description="what the servers are called, with a number; default: as the machine"
    )
    devices: Annotated[int, Field(ge=1, le=MOST_DEVICES)] | None = Field(
        default=None, description="how many of its devices are used; default: all of them"
    )
    link: PartialLinkSection | None = Field(
        default=None, description="own numbers for the link inside the machine"
    )
    adapters: Whole | None = Field(
        default=None,
        description="how many of its adapters the devices use; default: all of them",
    )


def _machine(value: object) -> object:
    """Take a bare number as the count. Raises ValueError for what is neither a number nor a section."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"count": value}
    if not isinstance(value, dict):
        raise ValueError(f"expected how many, like 4, or a section like {{count: 4}}, got {shown(value)}")
    return value


Machines = dict[Name, Annotated[MachineSection, BeforeValidator(_machine)]]


class ClusterSection(Section):
    """Devices, servers, machines, and the links between servers."""

    model_config = ConfigDict(json_schema_extra=_needs_nothing)

    devices: Annotated[dict[Name, DeviceSection], Field(min_length=1)] = Field(
        description="the device classes, by name"
    )
    servers: Annotated[list[ServerSection], Field(min_length=1)] = Field(
        description="the servers, in the order of the line of devices"
    )
    machines: Machines = Field(
        default={},
        description="machines of the library, and how many of each: {dgx-h100: 4}; they follow the servers",
    )
    arithmetic: Annotated[NumberFormat, Byname] | None = Field(
        default=None,
        description="the number format whose peak the library gives; default: by the size of an element",
    )
    between_servers: LinkSection | None = Field(
        default=None, description="a link between every two servers (full mesh)"
    )
    links: list[PairSection] = Field(default=[], description="single links; they override between_servers")
    switches: list[Name] = Field(default=[], description="names of switches that links may use")


def machine_row(name: str, raw: object) -> MachineSection | None:
    """Return an entry of ``machines`` if it keeps its schema."""
    try:
        return TypeAdapter(Machines).validate_python({name: raw}, strict=True)[name]
    except ValidationError:
        return None


_TYPES: Mapping[Written, Any] = MappingProxyType(
    {
        Written.FLAG: bool,
        Written.WHOLE: Whole,
        Written.INDEX: int,
        Written.FORM: Annotated[int, Field(ge=0, le=len(EVERY_FORM) - 1)],
        Written.NAME: Name,
        Written.GLOB: Glob,
        Written.MEMORY: Memory,
        Written.NEEDED: NeededMemory,
        Written.DURATION: Duration,
        Written.PRICE: Price,
        Written.RATIO: Ratio,
    }
)
LAST = 99
"""Where keys are listed that have neither a place nor a number."""


def constraints_section() -> type[Section]:
    """Return the model of the whole section."""
    words = "Limits that a plan must keep (``formulation.problem.constraints.Constraints``)."
    written = [(kind.key.place or kind.number or LAST, kind.key) for kind in kinds() if kind.key is not None]
    ordered = tuple(key for _, key in sorted(written, key=lambda row: row[0]))
    return _model(Keyed("ConstraintsSection", words, ordered))


def read_constraints(found: Section, names: Names) -> Constraints:
    """Return what a section says. Raises ValueError as Constraints does."""
    fields: dict[str, Any] = {}
    for kind in kinds():
        if kind.key is not None:
            fields |= kind.read(getattr(found, kind.key.name), names)
    return Constraints(**fields)


def sound_parts(shape: Shape, raw: object) -> Any:  # noqa: ANN401 (whatever the shape says)
    """Return what is written as the shape says, with None for the parts that are written otherwise."""
    if isinstance(shape, Listed):
        return [sound_parts(shape.of, row) for row in raw] if isinstance(raw, list) else []
    if isinstance(shape, ByServer):
        return {name: sound_parts(shape.of, one) for name, one in raw.items()} if isinstance(raw, dict) else {}
    try:
        return TypeAdapter(_annotation(shape)).validate_python(raw)
    except ValidationError:
        return None


@functools.cache
def _model(shape: Keyed) -> type[Section]:
    fields: dict[str, Any] = {key.name: _field(key) for key in shape.keys}
    return create_model(shape.name, __base__=Section, __doc__=shape.help, **fields)


def _annotation(shape: Shape) -> Any:  # noqa: ANN401 (a type with its limits)
    if isinstance(shape, Listed):
        entries = list[_annotation(shape.of)]
        return Annotated[entries, Field(min_length=shape.least)] if shape.least else entries
    if isinstance(shape, ByServer):
        return dict[Name, _annotation(shape.of)]
    if isinstance(shape, Keyed):
        return _model(shape)
    if isinstance(shape, tuple):
        word, listed = map(_annotation, shape)
        return Annotated[
            Annotated[word, Tag(WORD)] | Annotated[listed, Tag(LIST)],
            Discriminator(lambda found: LIST if isinstance(found, list | dict | Section) else WORD),
        ]
    return _TYPES[shape] if isinstance(shape, Written) else Annotated[shape, Byname]


def _field(key: Key) -> tuple[Any, Any]:
    """Return the type and the rest of a field: its default and its description."""
    kind, shape = _annotation(key.shape), key.shape
    if key.required:
        return kind, Field(description=key.help)
    if key.default is not None:
        return kind, Field(default=key.default, description=key.help)
    if isinstance(shape, Keyed):
        return kind, Field(default_factory=kind, description=key.help)
    if isinstance(shape, ByServer) or (isinstance(shape, Listed) and not shape.least):
        return kind, Field(default=[] if isinstance(shape, Listed) else {}, description=key.help)
    return kind | None, Field(default=None, description=key.help)


class ModelSection(Section):
    """Where the layer graph comes from: exactly one of build, graph, exported and transformers."""

    build: Annotated[str, AfterValidator(builder)] | None = Field(
        default=None,
        description="a Python function 'module:function' that builds the model (importing runs its code)",
    )
    graph: Annotated[str, AfterValidator(graph_file)] | None = Field(
        default=None, description="a traced layer graph, a JSON file; the path is relative to the scenario file"
    )
    exported: Annotated[str, AfterValidator(exported_file)] | None = Field(
        default=None, description="a model that torch.export.save has written, a .pt2 file; nothing in it is run"
    )
    transformers: Annotated[str, AfterValidator(configuration)] | None = Field(
        default=None,
        description="the config.json of a Hugging Face model, or its folder; nothing is downloaded, no weights",
    )
    task: str | None = Field(
        default=None, description="what the Hugging Face model is for; without it the class that its config names"
    )
    sequence: Whole | None = Field(default=None, description="tokens of one sample of the Hugging Face model")
    inputs: dict[Name, InputShape] = Field(
        default={},
        description="shapes of one sample's inputs of the Hugging Face model, like {pixel_values: [3, 512, 512]},"
        " in place of those that are made",
    )
    operators: dict[Glob, Glob] = Field(
        default={}, description="operators without a formula, each with a known one that counts the same"
    )
    cuts: Places | None = Field(
        default=None,
        description="where stages may start: blocks (what the model repeats), modules, operators (any layer), or"
        " globs on layers and modules; without it the places that the graph names, else blocks",
    )
    profile: Annotated[str, AfterValidator(times_file)] | None = Field(
        default=None,
        description="times of layers: a JSON file that pipecut profile wrote, or a CSV table with the columns"
        " layer, forward_ms, backward_ms; relative to the scenario file",
    )
    runtime: Literal["torchtitan", "megatron", "deepspeed"] | None = Field(
        default=None,
        description="the program that shall run the plan: stages start where it can start them, in the traced"
        " order, and have equally many devices and replicas",
    )
    order: Literal["any", "traced"] = Field(
        default="any",
        description="any: the best order of layers with producers before consumers is searched; traced: as it ran."
        " Without it traced for an executed time of a large model that is cut between blocks, under"
        " search: standard; else any",
    )


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
        " a number, or a list to choose among; without it 1, and under search: standard plain grids of more",
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
    search: Literal["paper", "standard", "everything"] = Field(
        default="standard",
        description="what is open where constraints do not say it: paper, what the plan of one paper leaves open;"
        " standard, what people use as far as there is a use for it: replicas, degrees within a server, splits by"
        " sequence, experts and vocabulary, sharded states, recomputation, stages of whole servers or parts;"
        " everything, also context parallelism, free placement and any order of layers",
    )
    solver: SolverSection = Field(default_factory=SolverSection, description="how to search")
    expect: ExpectSection = Field(default_factory=ExpectSection, description="what is known about the result")


def schema_text() -> str:
    """Return the JSON schema of scenario files, for editors; ``scenarios/scenario.schema.json`` holds it."""
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    schema |= ScenarioFile.model_json_schema()
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"
