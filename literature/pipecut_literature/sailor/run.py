"""Records of a machine that was profiled and of plans that were run on it: what a prediction starts from.

Times are whole ns, sizes whole bytes. Sizes of a layer are those on one card of a tensor-parallel group, for a
micro-batch of one sample; times are those of one micro-batch of the size that they are listed under.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pipecut.formulation.problem.plan import Span

BYTES_PER_GB = 1e9
BYTES_PER_MB = 1e6


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """One layer on one card (or tensor-parallel group), in ns; ``update_ns`` is the optimiser's step."""

    forward_ns: int
    backward_ns: int
    update_ns: int


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """One layer on one card of a tensor-parallel group, for a micro-batch of one sample.

    ``stash_bytes`` is what it keeps for its backward pass.
    """

    parameter_bytes: int
    input_bytes: int
    output_bytes: int
    stash_bytes: int


@dataclass(frozen=True, slots=True)
class LinkFit:
    """A fit of measured bandwidth: ``c2 L^2 + c1 L + c0`` GB/s for a message of x MB (10^6 bytes), L = log2 x.

    ``peak_bytes_per_second`` is the largest that was measured; the fit is not capped by it.
    """

    c2: float
    c1: float
    c0: float
    peak_bytes_per_second: float

    def bytes_per_second(self, message_bytes: int) -> float:
        """Return the bandwidth of a message. Raises ValueError outside of what the fit can answer."""
        if message_bytes < 1:
            raise ValueError(f"a message of {message_bytes} bytes, expected at least 1")
        log = math.log2(message_bytes / BYTES_PER_MB)
        found = BYTES_PER_GB * ((self.c2 * log + self.c1) * log + self.c0)
        if found <= 0:
            raise ValueError(f"the fit gives {found:.4g} bytes/s for {message_bytes} bytes, outside of its range")
        return found


@dataclass(frozen=True, slots=True)
class SailorLinks:
    """Bandwidth between nodes and inside a node, by card and cards per node that take part."""

    inter: Mapping[tuple[str, int], LinkFit]
    intra: Mapping[tuple[str, int], LinkFit]


@dataclass(frozen=True, slots=True)
class SailorReplica:
    """The nodes of one replica, as (card, cards of the node, zone), and its tensor-parallel degree.

    The replica uses as many cards as its degree; the nodes hold at least so many.
    """

    cards: tuple[tuple[str, int, str], ...]
    tensor_parallel_degree: int

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of card, each once."""
        return tuple(dict.fromkeys(card for card, _, _ in self.cards))

    @property
    def cards_per_node(self) -> int:
        """Cards of one node that work for this replica at the same time: those that share its way out."""
        return min(self.tensor_parallel_degree, max(count for _, count, _ in self.cards))


@dataclass(frozen=True, slots=True)
class SailorStage:
    """A run of layers and the replicas that hold it."""

    span: Span
    replicas: tuple[SailorReplica, ...]


@dataclass(frozen=True, slots=True)
class SailorMeasurement:
    """One real run: ns of an iteration and of the gradient synchronisation, and peak bytes of the fullest card.

    None: was not measured.
    """

    iteration_ns: int | None
    gradient_sync_ns: int | None
    peak_memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class SailorPlan:
    """Pipelines (stages in order), samples of a micro-batch and of an iteration, nodes, and the run if any."""

    pipelines: tuple[tuple[SailorStage, ...], ...]
    micro_batch: int
    global_batch: int
    nodes: int | None
    measured: SailorMeasurement | None

    @property
    def replicas(self) -> int:
        """Replicas of the first stages of all pipelines: they share the global batch."""
        return sum(len(stages[0].replicas) for stages in self.pipelines)

    @property
    def micro_batches(self) -> int:
        """Micro-batches that each replica of a pipeline runs in one iteration."""
        return self.global_batch // (self.micro_batch * self.replicas)

    @property
    def machine(self) -> tuple[str, ...]:
        """The kinds of card that the plan uses, sorted: what its measured constants belong to."""
        stages = (stage for stages in self.pipelines for stage in stages)
        return tuple(sorted({kind for stage in stages for one in stage.replicas for kind in one.kinds}))

    def same_work(self, other: SailorPlan) -> bool:
        """Tell whether another plan asks for the same run, whatever was measured of either."""
        mine = (self.pipelines, self.micro_batch, self.global_batch)
        return mine == (other.pipelines, other.micro_batch, other.global_batch)


Profile = Mapping[tuple[int, int], tuple[LayerTimes, ...]]
"""Layer times of one card by (micro-batch size, tensor-parallel degree), layers in order."""
