"""Scenarios: one YAML file that says which model is cut, for which cluster, trained how, priced how.

``load_scenario`` goes from text to meaning in five steps: read the YAML with its lines
(``ingest.text.yaml_source``), apply overrides (``ingest.text.overrides``), write out what is left to the library
(``ingest.scenario.machines``), compare with the schema (``ingest.scenario.schema``), check what the parts mean
together (``ingest.scenario.checks``). Mistakes of all five are raised as one ScenarioError. The format is
described in ``docs/formats/scenario.md``.

Of the constraints that a scenario does not write ``search: standard`` opens what it has a use for. Sizes of stages
follow from the machines (:func:`opened_on`). Of the rest what a model does not have, what an order of passes does
not go with, and what cannot make a plan better stays closed (:func:`with_uses`), so that methods which do not know
of it are asked all the same.

Nothing here imports torch or a solver; only :meth:`Scenario.load` runs the code that builds a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from pipecut.formulation.costs.amounts import scaled_size
from pipecut.formulation.predictor.roofline import Roofline
from pipecut.formulation.problem.constraints import Constraints, Goal, Names, Placement, Recompute, Sharded
from pipecut.formulation.problem.layers import Axis
from pipecut.formulation.problem.options import Compute, CostModel, Samples, StageTime, default_goals
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import BITS_PER_BYTE, NS_PER_SECOND, Link
from pipecut.ingest.graphs.runtimes import RUNTIMES
from pipecut.ingest.mistakes import ScenarioError
from pipecut.ingest.scenario.checks import SOURCES, check_meaning, ends_by_name, pairs_of
from pipecut.ingest.scenario.library import Library, with_peaks
from pipecut.ingest.scenario.machines import completed
from pipecut.ingest.scenario.messages import mistakes_of
from pipecut.ingest.scenario.schema import (
    ClusterSection,
    CostSection,
    LinkSection,
    ModelSection,
    ScenarioFile,
    TrainingSection,
    read_constraints,
)
from pipecut.ingest.text.overrides import apply_overrides
from pipecut.ingest.text.yaml_source import Document

if TYPE_CHECKING:
    import networkx as nx

    from pipecut.formulation.outcome import Limits
    from pipecut.formulation.problem.instance import Instance
    from pipecut.ingest.torch.hugging_face import Configured

MANY_SERVERS = 16
"""On more servers than this a stage has a number of them that leaves none over, so that sizes stay few."""
_FREE = "no device has a price, so all plans cost 0: say cluster.devices, price_per_hour"


@dataclass(frozen=True, slots=True)
class SolverChoice:
    """Which solver searches, and how: the time limit in ns (None: until proved), workers, seed."""

    name: str
    time_limit_ns: int | None
    workers: int
    seed: int

    def limits(self) -> Limits:
        """Return the limits of the search, for a solver."""
        from pipecut.formulation.outcome import Limits

        seconds = None if self.time_limit_ns is None else self.time_limit_ns / NS_PER_SECOND
        return Limits(time_limit_s=seconds, workers=self.workers, seed=self.seed)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario that kept every check.

    ``model`` is ``module:function`` or the path of a traced graph or a configuration, as the file says it
    (relative to the file); ``configured`` what to make of a configuration, None where ``model`` is none; ``cuts``
    says where it may be cut (``ingest.graphs.cut_places``), ``profile`` which file has measured times of its
    layers, ``runtime`` which program shall run the plan (``ingest.graphs.cut_places``), ``free_order`` whether
    its layers may run in any order that keeps producers before consumers;
    ``cluster`` the cluster graph; ``expected`` the proved optimum that the file states, if it does.
    ``opened``: the constraints that nobody wrote and ``search`` opened, as far as a model has a use for them.
    ``elements_of_model``: the elements in training are as large as the model's, as the file does not say.
    ``operators`` names for operators without a formula known ones that count the same; ``strict`` refuses others.
    ``open_peaks``: devices of the library whose peak follows from the size of these elements. ``note`` says why
    times are not those of a roofline where the file does not say which they are (empty: it does, or they are);
    ``kept`` which memory of devices no plan gets.
    """

    name: str
    path: Path
    model: str
    configured: Configured | None
    cuts: str | tuple[str, ...] | None
    profile: str | None
    runtime: str | None
    free_order: bool
    cluster: nx.Graph = field(repr=False, compare=False)
    training: Training
    cost: CostModel
    constraints: Constraints
    opened: tuple[str, ...]
    goals: tuple[Goal, ...]
    solver: SolverChoice
    expected: int | None = None
    elements_of_model: bool = False
    operators: tuple[tuple[str, str], ...] = ()
    strict: bool = False
    open_peaks: tuple[str, ...] = ()
    note: str = ""
    kept: str = ""

    def instance(self, layers: nx.DiGraph) -> Instance:
        """Return the numeric problem of a layer graph in this scenario. Raises ValueError if there is none."""
        from pipecut.formulation.counted import with_counted_choices
        from pipecut.formulation.problem.cluster import Cluster
        from pipecut.formulation.problem.instance import build_instance
        from pipecut.formulation.problem.layers import LayerGraph

        layers = layers.copy()
        layers.graph["free_order"] = self.free_order
        whole, size = self.settled(layers), layers.graph["element_bytes"]
        rows, of = [row["layer"] for _, row in layers.nodes(data=True)], whole.training.precision
        said = (self.note,) * (self.note != "" and not any(row.measured for row in rows))
        said += (self.kept,) * bool(self.kept) + (_FREE,) * self._is_free()
        if of and of.frozen is not None and all(row.trained_bytes == row.parameter_bytes for row in rows):
            said += ("training.precision.frozen is not used: all weights are trained",)
        if of is None and whole.training.bytes_per_element != size:
            asked = f"training.bytes_per_element is {whole.training.bytes_per_element}"
            said += (f"{asked}, the model's elements have {size}: all bytes are scaled",)
        layers.graph["notes"] = (*layers.graph.get("notes", ()), *said)

        model, cluster = LayerGraph.of(layers), Cluster.of(whole.cluster)

        def make(training: Training) -> Instance:
            return build_instance(model, cluster, training, self.cost, self.constraints, self.goals)

        found = with_uses(with_counted_choices(make, whole.training), self.opened)
        if self.runtime is None:
            return found
        from pipecut.ingest.graphs.cut_places import divided_by

        return divided_by(found, self.runtime)

    def _is_free(self) -> bool:
        """Tell whether plans are judged by what they cost, and no device costs anything."""
        from pipecut.formulation.problem.cluster import servers_of

        judged = (*self.goals, *(one.goal for one in self.constraints.at_most))
        return Goal.COST in judged and not any(one.device_class.price_per_hour for one in servers_of(self.cluster))

    def settled(self, layers: nx.DiGraph) -> Scenario:
        """Return the scenario with what it leaves to the elements of a layer graph: their size, and open peaks.

        Raises ValueError where the library has no peak of a device for such elements.
        """
        size = layers.graph["element_bytes"]
        training = replace(self.training, bytes_per_element=size) if self.elements_of_model else self.training
        cluster = with_peaks(self.cluster, self.open_peaks, training.elements.activations)
        return replace(self, training=training, cluster=cluster, elements_of_model=False, open_peaks=())

    def layers(self) -> nx.DiGraph:
        """Build or read the model (this runs the code that the scenario names) and return its layer graph.

        Raises ``ingest.errors.ModelError`` if the model cannot be had.
        """
        from pipecut.ingest.errors import told_of_unpriced
        from pipecut.ingest.graphs.cut_places import cut_at, cut_for
        from pipecut.ingest.torch import source

        folder = self.path.parent
        same = dict(self.operators)
        if self.configured is not None:
            graph = source.load_configured_graph(self.model, self.configured, folder, operators=same)
        else:
            graph = source.load_model_graph(self.model, folder, operators=same)
        cut = cut_at(graph, self.cuts) if self.runtime is None else cut_for(graph, self.runtime)
        cut = cut if self.profile is None else self._timed(cut, folder / self.profile)
        return told_of_unpriced(cut, strict=self.strict)

    def _timed(self, graph: nx.DiGraph, path: Path) -> nx.DiGraph:
        from pipecut.formulation.problem.cluster import servers_of
        from pipecut.ingest.graphs.layer_profile import read_profile, with_times
        from pipecut.ingest.graphs.layer_table import with_table

        classes = {server.device_class.name for server in servers_of(self.cluster)}
        numbers = self.training.micro_batch_choices or (self.training.micro_batches,)
        samples = {self.training.global_batch // number for number in numbers}
        if path.suffix == ".csv":
            return with_table(graph, path, classes, samples)
        return with_times(graph, read_profile(path), classes, samples, str(path))

    def load(self) -> Instance:
        """Return the problem of the scenario's own model. Raises as :meth:`layers` and :meth:`instance` do."""
        return self.instance(self.layers())


def load_scenario(path: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """Read a scenario file and apply ``path=value`` overrides. Raises ScenarioError with every mistake."""
    return scenario_of(apply_overrides(Document.read(Path(path)), overrides), Path(path))


def scenario_of(written: Document, path: Path, library: Callable[[], Library] = Library.read) -> Scenario:
    """Return the scenario that a document says; ``path`` is where its models are sought from.

    Raises ScenarioError with every mistake.
    """
    whole = completed(written, library)
    document = whole.document
    mistakes = list(document.mistakes)
    found: ScenarioFile | None = None
    try:
        found = ScenarioFile.model_validate(document.data)
    except ValidationError as error:
        mistakes += mistakes_of(error, document)
    mistakes += check_meaning(document)
    if mistakes or found is None:
        raise ScenarioError(mistakes)
    return replace(_scenario(found, path), open_peaks=whole.open_peaks)


def _scenario(found: ScenarioFile, path: Path) -> Scenario:
    cluster = _cluster(found.name, found.cluster)
    cost, training, opened = _cost(found.cost, cluster), _training(found.training), _opened(found)
    return Scenario(
        name=found.name,
        path=path,
        model=next(spec for key in SOURCES if (spec := getattr(found.model, key))),
        configured=_configured(found.model),
        cuts=found.model.cuts,
        profile=found.model.profile,
        runtime=found.model.runtime,
        free_order=found.model.order == "any" and found.model.runtime is None,
        cluster=cluster,
        training=training,
        cost=cost,
        constraints=_constraints(found, opened),
        opened=(*opened, *_left(found)),
        goals=found.objective or default_goals(training, cost),
        solver=SolverChoice(found.solver.name, found.solver.time_limit, found.solver.workers, found.solver.seed),
        expected=found.expect.objective,
        elements_of_model=found.training.bytes_per_element is None and found.training.precision is None,
        operators=tuple(sorted(found.model.operators.items())),
        note=_note(found.cost, cost, cluster),
        kept=_kept(found),
    )


def _opened(found: ScenarioFile) -> Mapping[str, object]:
    """Return what the search opens of the constraints that are not written: of a program what it can be told."""
    if found.search == "paper":
        return {}
    servers = [row.devices for row in found.cluster.servers for _ in range(row.count or 1)]
    written, program = found.constraints.model_fields_set, found.model.runtime
    opened = opened_on(servers, written, everything=found.search == "everything" and program is None)
    return opened if program is None else RUNTIMES[program].narrowed(opened)


def _left(found: ScenarioFile) -> list[str]:
    """Return which other keys are left to the search, as nobody says them.

    Without ``chunks`` grids are looked at whose groups hold several stages; without ``order`` layers run in any
    order as far as this can be searched.
    """
    training, program = found.training, RUNTIMES.get(found.model.runtime or "")
    plain = training.warm_up == "classic" and training.schedule == (Schedule.ONE_F_ONE_B,)
    deals = plain and (program is None or (Schedule.ONE_F_ONE_B, True) in program.orders)
    written = training.model_fields_set | found.model.model_fields_set
    left = {"standard": ["chunks"] * deals + ["order"], "everything": ["chunks"] * deals}
    return [key for key in left.get(found.search, []) if key not in written]


def _constraints(found: ScenarioFile, opened: Mapping[str, object]) -> Constraints:
    """Return the constraints, and that stages are equal where the program that runs the plan wants it."""
    written = found.constraints.model_copy(update=opened)
    read = read_constraints(written, Names(ends_by_name(found.cluster.servers, [])))
    return read if found.model.runtime is None else replace(read, equal_stages=True, one_mode=True)


def _cost(found: CostSection, cluster: nx.Graph) -> CostModel:
    """Return the cost model; where the file does not say how layers are priced, what its devices allow.

    That is the peak also where a key is written that only this has.
    """
    from pipecut.formulation.problem.cluster import servers_of

    constants = {"kernel_ns" if key == "kernel" else key: value for key, value in found.roofline}
    readings: dict[str, Any] = dict(found)
    readings["roofline"] = Roofline(**constants)
    if found.samples is None:
        readings["samples"] = Samples.FRACTIONS if found.stage_time is StageTime.OVERLAP else Samples.WHOLE
    if found.compute is None:
        open_ = CostModel.on_devices(server.device_class for server in servers_of(cluster))
        readings["compute"] = Compute.PEAK if found.means_peak else open_.compute
    return CostModel(**readings)


def _note(found: CostSection, cost: CostModel, cluster: nx.Graph) -> str:
    """Say what keeps times from those of a roofline, if nobody asked for others."""
    from pipecut.formulation.problem.cluster import servers_of

    if found.compute is not None or found.means_peak or cost.compute is Compute.ROOFLINE:
        return ""
    classes = {server.device_class.name: server.device_class for server in servers_of(cluster)}
    names = ", ".join(name for name, one in classes.items() if not one.memory_bytes_per_second)
    return (
        f"times are multiply-accumulates over the peak, which none reaches: for a roofline say memory_bandwidth of"
        f" {names}, or take devices of the library"
    )


def _kept(found: ScenarioFile) -> str:
    """Say what of the memory of devices no plan gets, where memory is limited."""
    used = {server.device for server in found.cluster.servers}
    rows = [(name, row) for name, row in found.cluster.devices.items() if name in used and row.kept]
    if not rows or getattr(found.constraints, "memory") is False:  # noqa: B009 (a section made from keys)
        return ""
    said = ", ".join(f"{scaled_size(row.kept)} of the {scaled_size(row.memory)} of {name}" for name, row in rows)
    return f"no plan gets {said}: context, communicators, allocator (cluster.devices.{rows[0][0]}.kept)"


def _configured(model: ModelSection) -> Configured | None:
    from pipecut.ingest.torch.hugging_face import Configured

    if model.transformers is None:
        return None
    shapes = tuple((name, tuple(shape)) for name, shape in sorted(model.inputs.items()))
    return Configured(model.task, model.sequence, shapes)


def _training(found: TrainingSection) -> Training:
    """Return the training; where something is to be chosen, the first choice stands for all."""
    values, written = {key: value for key, value in found if value is not None}, found.micro_batches
    if not isinstance(written, int):
        numbers = _divisors(found.global_batch) if isinstance(written, str) else written
        values |= {"micro_batches": numbers[0], "micro_batch_choices": numbers}
    for key, choices in (("schedule", "schedule_choices"), ("chunks", "chunk_choices")):
        values |= {key: values[key][0], choices: values[key] if len(values[key]) > 1 else ()}
    return Training(**values)


def _divisors(number: int) -> tuple[int, ...]:
    small = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return tuple(sorted({*small, *(number // one for one in small)}))


def _cluster(name: str, found: ClusterSection) -> nx.Graph:
    """Draw the cluster graph; single links stand before the mesh."""
    from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph

    classes = {
        key: DeviceClass(
            key,
            row.usable,
            row.peak,
            row.price_per_hour,
            _link_or_none(row.host_link),
            (row.memory_bandwidth or 0) // BITS_PER_BYTE,
        )
        for key, row in found.devices.items()
    }
    servers = [
        Server(one, classes[row.device], row.devices, _link_or_none(row.link), row.adapters or 0)
        for row in found.servers
        for one in row.names
    ]
    mesh = _link(found.between_servers) if found.between_servers else None
    return cluster_graph(name, servers, _links(found), found.switches, mesh)


def _links(found: ClusterSection) -> Iterator[tuple[str, str, Link]]:
    ends = ends_by_name(found.servers, found.switches)
    for link in found.links:
        yield from ((one, other, _link(link)) for one, other in pairs_of(link, ends))


def _link(found: LinkSection) -> Link:
    return Link(found.bandwidth, found.latency)


def _link_or_none(found: LinkSection | None) -> Link | None:
    return None if found is None else _link(found)


def opened_on(
    servers: Sequence[int], written: Collection[str], *, everything: bool = False
) -> Mapping[str, object]:
    """Return what is opened on servers of so many devices each, without the keys that are written.

    Stages have parts of a server that divide every server, or whole servers that follow one another; replicas have
    parts of some server.
    """
    degrees = [size for size in range(1, max(servers) + 1) if any(one % size == 0 for one in servers)]
    parts = [size for size in degrees if all(one % size == 0 for one in servers)]
    total = len(servers)
    runs = [many for many in range(1, total + 1) if total <= MANY_SERVERS or total % many == 0]
    whole = {sum(servers[at : at + many]) for many in runs for at in range(total - many + 1)}
    opened: dict[str, object] = {
        "tensor_parallel_degrees": degrees,
        "devices_per_stage": sorted({*parts, *whole}),
        "sharded": list(Sharded),
        "splits": [Axis.SEQUENCE, Axis.EXPERTS, Axis.VOCABULARY, *[Axis.CONTEXT] * everything],
        **({"placement": Placement.FREE} if everything else {}),
        "recompute": Recompute.BLOCKS,
    }
    return {key: value for key, value in opened.items() if key not in written}


def with_uses(instance: Instance, opened: Collection[str]) -> Instance:
    """Return an instance in which of what was opened only that is open which it has a use for.

    Groups that hold several stages have one device a replica in small models: what searches all of their plans
    takes one form a layer. Of large ones the plain grids are looked at. Layers of large models that are cut at
    some places run in the traced order where times are executed, as of other orders little is proved then.
    """
    from pipecut.formulation.uses import axes_of_use, dealt_for_use, divided_for_use, has_grids

    asked, axes, large = instance.constraints, axes_of_use(instance), has_grids(instance)
    training = replace(instance.training, dealt=dealt_for_use(instance) if "chunks" in opened else ())
    traced = "order" in opened and large and instance.goals[0].executed and instance.model.cuts is not None
    model = replace(instance.model, free_order=instance.model.free_order and not traced)
    alone = not large and all(one.chunks > 1 for one in instance.training.choices)
    useful = {
        "tensor_parallel_degrees": (1,) if alone else asked.tensor_parallel_degrees,
        "splits": tuple(axis for axis in asked.splits if axis in axes),
        "recompute": _recompute(instance),
        "sharded": tuple(one for one in divided_for_use(instance) if one in asked.sharded),
    }
    closed = {key: value for key, value in useful.items() if key in opened}
    return replace(instance, model=model, training=training, constraints=replace(asked, **closed))


def _recompute(instance: Instance) -> Recompute:
    """Return what stages may compute again: blocks alone too where there are some, if they are searched or needed.

    The exact searches for executed times know whole stages alone, as do all for other orders of passes. Where the
    reduction, which knows blocks that read from the one before them, plans for some of the choices, none of the
    others is to make its plan worse.
    """
    from pipecut.formulation.uses import has_grids, memory_binds, memory_is_tight, reads_neighbours

    orders, cost = instance.training.choices, instance.cost
    if not memory_binds(instance):
        return Recompute.NEVER
    plain = [one for one in orders if one.schedule.flushes and not one.schedule.in_halves and one.chunks == 1]
    if (asked := instance.constraints).one_mode:
        known = cost.stage_time is StageTime.ADD and {one.schedule for one in orders} == {Schedule.ONE_F_ONE_B}
        return asked.recompute if asked.recompute is Recompute.ALLOWED or known else Recompute.NEVER
    large, executed = has_grids(instance), instance.goals[0].executed
    far = large and executed and not reads_neighbours(instance)
    if far or instance.model.cuts is None or cost.stage_time is not StageTime.ADD:
        return Recompute.ALLOWED
    if large and any(one.schedule is Schedule.ONE_F_ONE_B for one in plain or orders):
        return Recompute.BLOCKS
    needed = not executed or memory_is_tight(instance)
    return Recompute.BLOCKS if needed and len(plain) == len(orders) else Recompute.ALLOWED
