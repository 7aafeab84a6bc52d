"""Published runs as instances with plans: priced and executed by what prices and executes every plan.

A run of degrees t (tensor), p (pipeline), d (data) and v chunks is a plan of p v stages on t d devices each, in
Megatron-LM's forms; the chunks of a rank have the same devices. Its nodes are the machines ``dgx-a100`` of the
library: eight cards, an adapter for each. Two numbers are estimated, from two published rows, three were measured
by others (:class:`Constants`), one is counted in Megatron-LM's source, all others are those of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType

import networkx as nx

from pipecut.formulation.costs.megatron_forms import megatron_forms
from pipecut.formulation.predictor.roofline import Roofline
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Recompute
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import Axis, Split
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.options import BoundaryCharge, Compute, CostModel, Samples, Synchronisation
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import NS_PER_SECOND, Link
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.timeline.from_plan import PlanRun
from pipecut.formulation.timeline.timeline import run
from pipecut.ingest.scenario.library import Library, MachineFacts
from pipecut_literature.megatron.layers import BLOCK, ELEMENT_BYTES, transformer_layers
from pipecut_literature.megatron.published import PublishedStep, TrainingRun
from pipecut_literature.megatron.transformer import LayerRecompute, TransformerShape

MACHINE = "dgx-a100"
ADAM_BYTES = 12
"""32-bit weights and two moments beside the 16-bit weights."""
UPDATE = Fraction(66, 30)
"""Bytes of a parameter that Megatron-LM of 2021 moves at the end of a step, over those that it must move.

Gradients in 16 bits are set to 0 (2), divided by the replicas (4) and copied to 32 bits (6); these are unscaled
(8), read for their norm (4) and clipped (8); Adam reads four numbers and writes three (28), and weights go back to
16 bits (6). Source: ``distributed.py``, ``optimizer.py`` and ``clip_grads.py`` of commit 3d718bfc.
"""
AGAIN: Mapping[LayerRecompute, tuple[str, ...]] = MappingProxyType(
    {LayerRecompute.NONE: (), LayerRecompute.SELECTIVE: ("block.*.core",), LayerRecompute.FULL: ("block.*",)}
)
"""The layers that stages compute again. Checkpoints lie around blocks: never embedding, head or loss."""
WITH_ROWS = {(Split.MATRIX, 1): 3, (Split.MATRIX, 2): 4, (Split.JOIN, 1): 0}
"""Forms of Megatron-LM's pairs with sequence parallelism, by those without."""
THOUSANDTHS = 1000
GIGABYTE = 8 * 10**9
"""Bits."""
LARGEST_SIZE = 256
"""By which products count larger than they are at most: the largest tile of cuBLAS."""


@dataclass(frozen=True, slots=True)
class Constants:
    """What is not on a data sheet: two numbers that are estimated, and three that were measured by others.

    ``largest`` (in thousandths) and ``size`` (``outer`` and ``inner``) are those of the roofline. ``near`` are the
    GB/s that sums between the eight cards of a node reach: 220 by nccl-tests on eight A100-SXM4-80GB
    (github.com/NVIDIA/nccl-tests/issues/228), of 300 on the data sheet. ``far`` are those of a card to another
    node: SC'21, §5.9, reports an effective bisection bandwidth of 12.9 TB/s for the sums among replicas of 512
    groups on 3,072 cards; a ring crosses a bisection twice, once in either direction, so that is 12.6, of 25 on
    the data sheet (counted in one direction it would be more than the adapters have). ``memory`` is the share of
    the memory's bandwidth that a kernel reaches: 0.88 on an A100-SXM4-80GB, by Nsight Compute
    (forums.developer.nvidia.com/t/339083).
    """

    largest: int
    size: int
    near: int = 220
    far: Fraction = Fraction(63, 5)
    memory: Fraction = Fraction(22, 25)

    @property
    def roofline(self) -> Roofline:
        """The constants of the cost model."""
        largest = Fraction(self.largest, THOUSANDTHS)
        return Roofline(largest, self.size, self.size, memory=self.memory, update=UPDATE)


def data_sheet() -> Constants:
    """Return constants with links and memory of the data sheet; the two that are estimated are 0."""
    facts, _ = node(MACHINE)
    near, far = facts.inside.each_pair.value, facts.adapters.bandwidth.value
    return Constants(0, 0, near // GIGABYTE, Fraction(far, GIGABYTE), Fraction(1))


@lru_cache(maxsize=32)
def _graph(shape: TransformerShape) -> nx.DiGraph:
    return transformer_layers(shape)


@lru_cache(maxsize=4)
def node(machine: str) -> tuple[MachineFacts, DeviceClass]:
    """Return what the library says of a machine, and its card at the peak of 16-bit numbers."""
    library = Library.read()
    facts = library.machines[machine]
    found = library.devices[facts.device]
    card = facts.device, found.memory.value, found.peak(facts.device, ELEMENT_BYTES)
    return facts, DeviceClass(*card, memory_bytes_per_second=found.memory_bandwidth.value // 8)


def servers_for(machine: str, devices: int, near: int) -> list[Server]:
    """Return as many nodes of the library as so many devices fill; cards of a node reach ``near`` bits/s."""
    facts, card = node(machine)
    each, adapters = facts.devices.value, facts.adapters.number.value
    return [Server(f"{machine}-{at}", card, each, Link(near), adapters) for at in range(-(-devices // each))]


def instance_of(training: TrainingRun, constants: Constants) -> Instance:
    """Return the instance of a run: its model on its nodes.

    A LayerNorm that continues the stage before lies by samples, as forms do not say that every card has it whole;
    of one sample it is divided here, as where ``Constants`` were found, and not done by one card.
    """
    servers = servers_for(MACHINE, training.devices, constants.near * GIGABYTE)
    cluster = cluster_graph("published", servers, (), mesh=Link(int(constants.far * GIGABYTE)))
    own = Training(
        training.global_batch,
        training.micro_batches,
        bytes_per_element=ELEMENT_BYTES,
        optimizer_bytes_per_parameter=ADAM_BYTES,
    )
    cost = CostModel(
        compute=Compute.ROOFLINE,
        samples=Samples.FRACTIONS,
        roofline=constants.roofline,
        boundary_charge=BoundaryCharge.RECEIVER,
        inside=Synchronisation.OVERLAPPED if training.sums_beside else Synchronisation.CHARGED,
    )
    allowed = Constraints(
        recompute=Recompute.ALLOWED,
        recompute_layers=AGAIN[training.recompute],
        splits=(Axis.VOCABULARY, *((Axis.SEQUENCE,) if training.sequence_parallel else ())),
    )
    return build_instance(_graph(training.shape), cluster, own, cost, allowed)


@lru_cache(maxsize=32)
def plan_of(training: TrainingRun) -> Plan:
    """Return the plan of a run. Chunks of a rank have the same devices, which only a schedule can allow."""
    instance = instance_of(training, Constants(THOUSANDTHS, 0))
    blocks, devices = training.shape.layers // training.stages, training.degree * training.replicas
    mode = Mode(training.replicas, recompute="layers" if AGAIN[training.recompute] else False)
    stages: list[Stage] = []
    for at in range(training.stages):
        first = 1 + BLOCK * blocks * at if at else 0
        last = at == training.stages - 1
        span = Span(first, len(instance.layers) if last else 1 + BLOCK * blocks * (at + 1))
        forms = forms_of(instance, span, training.degree, training.sequence_parallel)
        group = Group.on_line(instance, at % training.ranks * devices, devices, mode)
        stages.append(Stage(span, group, forms))
    return Plan(tuple(stages))


def forms_of(instance: Instance, span: Span, degree: int, sequence_parallel: bool) -> tuple[int, ...]:
    """Return Megatron-LM's forms of a stage; with sequence parallelism what lies between its products is in rows.

    Products then sum to rows in place of the whole, or gather their rows; shortcuts work on rows.
    """
    forms = megatron_forms(instance, span) if degree > 1 else (0,) * len(span)
    kinds = (instance.layers[layer].split for layer in span.layers)
    rows = WITH_ROWS if sequence_parallel else {}
    return tuple(rows.get(one, one[1]) for one in zip(kinds, forms, strict=True))


@lru_cache(maxsize=256)
def step_s(training: TrainingRun, constants: Constants) -> Fraction:
    """Return the seconds of a step as executed on the timeline, interleaved if the run is."""
    instance = instance_of(training, constants)
    found = PlanRun.of(instance, plan_of(training))
    many = training.micro_batches
    chunked = training.chunks > 1
    schedule = interleaved(training.ranks, training.chunks, many) if chunked else found.schedule
    timeline = run(schedule, found.durations, found.execution)
    return Fraction(timeline.makespan_ns, NS_PER_SECOND)


def fitted(narrow: PublishedStep, wide: PublishedStep, known: Constants | None = None) -> Constants:
    """Return the constants at which two published rows come out, the sizes of their products being unlike.

    Larger ``size`` makes wide products faster against narrow ones. It is the least with which the wide row takes
    no longer than published, once ``largest`` is the least with which the narrow one does. Both are whole numbers.
    The link and the memory are those of ``known``.
    Cost: some 8 predictions of the wide row, and 50 of the narrow one.
    """

    def over(row: PublishedStep, constants: Constants) -> float:
        return float(step_s(row.training, constants) - row.iteration_s)

    def both(size: int) -> Constants:
        one, bounds = replace(known or Constants(0, 0), size=size), (THOUSANDTHS // 10, THOUSANDTHS)
        found = _first_within(bounds, lambda largest: over(narrow, replace(one, largest=largest)))
        return replace(one, largest=found)

    return both(_first_within((0, LARGEST_SIZE), lambda size: over(wide, both(size))))


def _first_within(bounds: tuple[int, int], over: Callable[[int], float]) -> int:
    """Return the least whole number at which a falling function is not above 0, the upper bound where none is.

    Between two tries it is taken to be straight; a bound that stays is given half its weight, so that both move.
    """
    low, high = bounds
    above, below = over(low), over(high)
    if above <= 0 or below > 0:
        return low if above <= 0 else high
    while high - low > 1:
        guess = low + round(above / (above - below) * (high - low))
        middle = min(max(guess, low + 1), high - 1)
        found = over(middle)
        if found > 0:
            low, above, below = middle, found, below / 2
        else:
            high, below, above = middle, found, above / 2
    return high
