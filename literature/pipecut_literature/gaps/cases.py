"""The cases of the gap table: every shipped scenario in fixed variants, with and without a limit on memory.

A *series* is one scenario in one variant. Its first case has no memory limit; the others give every device a
percentage of the smallest memory at which the best plan of the first case fits (``smallest_fit``), so limits begin
to bind at 100 % on every scenario, whatever its model and cards.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from pipecut.commands.parts.opening import open_scenario
from pipecut.commands.terminal.failures import reading
from pipecut.formulation.costs.memory import MemoryParts, capacity_bytes
from pipecut.formulation.problem.cluster import DeviceClass, Server
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance, with_servers
from pipecut.formulation.problem.options import Combine
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import ceil_fraction
from pipecut.ingest.scenario.shipped import SHIPPED, scenario_files

if TYPE_CHECKING:
    import networkx as nx

    from pipecut.ingest.scenario.load import Scenario

SLOWER = 2
"""A slow card of the mixed variants has so many times less speed and memory."""


LARGE_LAYERS = 300
"""Models with more layers are not judged by the time of a step, and have the limits LARGE_PERCENTS only."""
LARGE_PERCENTS = (50,)


class GapTableFamily(enum.StrEnum):
    """What the cases of one table have in common."""

    PLAIN = "plain"
    MEMORY = "memory"
    MIXED = "mixed"
    MEMORY_MIXED = "memory and mixed"
    ITERATION_TIME = "iteration time"


@dataclass(frozen=True, slots=True)
class Variant:
    """What is changed in a scenario, and the memory limits (percent) of its further cases.

    ``mixed``: every second server, from the second one on, gets cards of half the speed and half the memory.
    ``schedule``: the schedule, with ``micro_batches``, and the time of a step as the goal; None: as shipped.
    """

    name: str
    family: GapTableFamily
    limited_family: GapTableFamily
    percents: tuple[int, ...]
    mixed: bool = False
    schedule: Schedule | None = None
    micro_batches: int = 8


_STEP = GapTableFamily.ITERATION_TIME, GapTableFamily.ITERATION_TIME
VARIANTS: tuple[Variant, ...] = (
    Variant("as shipped", GapTableFamily.PLAIN, GapTableFamily.MEMORY, (100, 50, 35, 25)),
    Variant("mixed", GapTableFamily.MIXED, GapTableFamily.MEMORY_MIXED, (100, 50, 25), mixed=True),
    Variant("GPipe step", *_STEP, (), schedule=Schedule.GPIPE),
    Variant("1F1B step", *_STEP, (50,), schedule=Schedule.ONE_F_ONE_B),
)


@dataclass(frozen=True, slots=True)
class Series:
    """One scenario in one variant, as an instance without a limit on memory."""

    scenario: Scenario
    variant: Variant
    unlimited: Instance


@dataclass(frozen=True, slots=True)
class GapTableCase:
    """One instance of the gap table; ``percent`` of the smallest fitting memory, or None without a limit."""

    scenario: str
    variant: str
    family: GapTableFamily
    percent: int | None

    @property
    def name(self) -> str:
        """The case in words: ``pipepar-vgg16, mixed, 50 % memory``."""
        limit = "" if self.percent is None else f", {self.percent} % memory"
        return f"{self.scenario}, {self.variant}{limit}"


def number_of_cases(series: Sequence[Series]) -> int:
    """Return how many cases there are."""
    return sum(1 + len(one.variant.percents) for one in series)


def every_series(overrides: Sequence[str], folder: Path | None = None) -> list[Series]:
    """Return all series of the scenarios in a folder (default: the shipped ones), small instances first.

    Raises InputError for a scenario that cannot be opened or whose model cannot be built.
    """
    paths = scenario_files(folder or SHIPPED)
    found = [one for path in paths for one in _series_of(path, overrides)]
    return sorted(found, key=lambda one: len(one.unlimited.layers) * one.unlimited.devices)


def _series_of(path: Path, overrides: Sequence[str]) -> Iterator[Series]:
    scenario = open_scenario(str(path), overrides)
    with reading(path):
        graph = scenario.layers()
        for variant in variants_for(len(graph)):
            changed = varied(scenario.settled(graph), variant)
            if changed is not None:
                yield Series(changed, variant, changed.instance(graph))


def variants_for(layers: int) -> list[Variant]:
    """Return the variants of a model with so many layers: fewer of a large one, to bound the time of them all."""
    if layers <= LARGE_LAYERS:
        return list(VARIANTS)
    return [
        replace(one, percents=tuple(percent for percent in one.percents if percent in LARGE_PERCENTS))
        for one in VARIANTS
        if one.schedule is None
    ]


def varied(scenario: Scenario, variant: Variant) -> Scenario | None:
    """Return the scenario in a variant, without its memory limit; None where the variant has no meaning.

    Only the first goal is kept: gaps are measured in it. Nothing can be mixed in a cluster of one server, and
    there is no time of a step where times are added up.
    """
    training, goals, cluster = scenario.training, scenario.goals[:1], scenario.cluster
    if variant.mixed:
        cluster = mixed(scenario)
        if cluster is None:
            return None
    if variant.schedule is not None:
        if scenario.cost.combine is not Combine.MAX:
            return None
        training, goals = stepped(training, variant.schedule, variant.micro_batches), (Goal.ITERATION_TIME,)
    constraints = replace(scenario.constraints, memory=False)
    return replace(scenario, training=training, goals=goals, cluster=cluster, constraints=constraints)


def stepped(training: Training, schedule: Schedule, micro_batches: int) -> Training:
    """Return the training in so many micro-batches; a batch that they do not divide is taken as many times."""
    batch = training.global_batch
    batch = batch if batch % micro_batches == 0 else batch * micro_batches
    return replace(training, schedule=schedule, micro_batches=micro_batches, global_batch=batch)


def mixed(scenario: Scenario) -> nx.Graph | None:
    """Return the cluster graph with slow cards in every second server; None for a single server."""
    graph = scenario.cluster.copy()
    names = [name for name, row in graph.nodes(data=True) if "server" in row]
    for name in names[1::2]:
        server: Server = graph.nodes[name]["server"]
        graph.nodes[name]["server"] = replace(server, device_class=_slow(server.device_class))
    return graph if len(names) > 1 else None


def _slow(card: DeviceClass) -> DeviceClass:
    memory, speed = (max(1, one // SLOWER) for one in (card.memory_bytes, card.flops_per_second))
    return replace(card, name=f"{card.name}, half", memory_bytes=memory, flops_per_second=speed)


def smallest_fit(instance: Instance, plan: Plan) -> Fraction:
    """Return the least factor on the memory of all devices at which every stage of a plan fits."""
    return max(
        Fraction(MemoryParts.of_stage(instance, plan, index).total, capacity_bytes(instance, stage.group))
        for index, stage in enumerate(plan.stages)
    )


def with_memory(instance: Instance, factor: Fraction) -> Instance:
    """Return the instance with memory limited to ``factor`` times that of every device, rounded up to a byte."""
    limited = replace(instance, constraints=replace(instance.constraints, memory=True))
    servers = [
        replace(server, device_class=replace(server.device_class, memory_bytes=size))
        for server in limited.servers
        for size in [max(1, ceil_fraction(server.device_class.memory_bytes * factor))]
    ]
    return with_servers(limited, servers)
