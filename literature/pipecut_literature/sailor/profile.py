"""What a layer profile says of a real run: the time of the device, the time of the host, the optimiser's step.

A profile times each layer with events on the device's stream, and small micro-batches show it its limits: the
device finishes its kernels before the host has launched the next ones, and the event counts the waiting. Such an
entry is *host-bound*. It is known by its growth: doubling the micro-batch should double the time of a busy device
and does not change that of a busy host, so an entry nearer to "unchanged" than to "in proportion" is host-bound,
if all smaller sizes are (a larger one may just be more efficient).

* The *device's* time of a host-bound pass is that of the next larger micro-batch, in proportion.
* The *host's* time of a forward pass is the mean of the host-bound forward entries: launching takes what it
  takes, whatever the size, and the entries differ only by the host's own jitter. In a real run the forward pass
  of a stage takes the larger of both sums.
* A real backward pass takes the device's time. It is launched by the autograd engine (compiled code), while the
  profile runs it through hooks in Python; the host-bound backward entries measure these hooks.

No run is needed for any of this. Micro-batches between two profiled sizes are interpolated, larger ones taken in
proportion to the largest.

Records of a machine that was profiled and of plans that were run on it: what a prediction starts from.

Times are whole ns, sizes whole bytes. Sizes of a layer are those on one card of a tensor-parallel group, for a
micro-batch of one sample; times are those of one micro-batch of the size that they are listed under.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from pipecut.formulation.problem.plan import Span
from pipecut.formulation.problem.units import ceil_fraction

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

    iteration_ns: int | None = None
    gradient_sync_ns: int | None = None
    peak_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SailorPlan:
    """Pipelines (stages in order), samples of a micro-batch and of an iteration, nodes, and what was measured."""

    pipelines: tuple[tuple[SailorStage, ...], ...]
    micro_batch: int
    global_batch: int
    nodes: int | None
    measured: SailorMeasurement = SailorMeasurement()

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


Rows = Mapping[int, tuple[LayerTimes, ...]]
"""Layer times by micro-batch size, sizes in order."""
DeviceTimes = tuple[tuple[Fraction, Fraction], ...]
"""(forward, backward) ns of every layer on a busy device."""


class NotProfiledError(ValueError):
    """A plan asks for something that was not measured; the message says for what, and what there is."""


@dataclass(frozen=True, slots=True)
class DegreeProfile:
    """The profile of one card at one tensor-parallel degree.

    ``rows`` as measured and ``device`` cleaned of the host's time, by micro-batch size (at least one); ``host_ns``
    is what the host needs to launch the forward pass of every layer, 0 if no entry is host-bound.
    """

    rows: Rows
    device: Mapping[int, DeviceTimes]
    host_ns: tuple[Fraction, ...]

    @classmethod
    def of(cls, rows: Rows) -> DegreeProfile:
        """Return the profile that follows from measured rows, of at least one micro-batch size."""
        ordered = dict(sorted(rows.items()))
        return cls(ordered, _device(ordered), _host_ns(ordered))

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.host_ns)

    def device_ns(self, layer: int, batch: int) -> tuple[Fraction, Fraction]:
        """Return (forward, backward) ns of a layer on a busy device for any micro-batch size."""
        sizes = list(self.device)
        below = max((size for size in sizes if size <= batch), default=sizes[0])
        above = min((size for size in sizes if size >= batch), default=sizes[-1])
        low, high = self.device[below][layer], self.device[above][layer]
        if below == above:
            return low[0] * Fraction(batch, below), low[1] * Fraction(batch, below)
        share = Fraction(batch - below, above - below)
        return low[0] + (high[0] - low[0]) * share, low[1] + (high[1] - low[1]) * share

    def update_ns(self, sizes: tuple[LayerSizes, ...], first: int, stop: int, batch: int) -> int:
        """Return the ns of the optimiser's step over layers ``first`` to ``stop - 1``, rounded up.

        Where all layers carry the same number, it is the step of the network that was profiled, not of a layer:
        layers of unlike size cannot take the same, and the whole model could not be read so fast. That network is
        known too: layers whose rows repeat the one before were not profiled but filled in. A step reads and writes
        every parameter a fixed number of times, so it is shared out by parameters.
        """
        nearest = min(self.rows, key=lambda size: (abs(size - batch), size))
        rows = self.rows[nearest]
        steps = {row.update_ns for row in rows}
        if len(steps) > 1:
            return sum(row.update_ns for row in rows[first:stop])
        profiled = [at for at in range(len(rows)) if at == 0 or rows[at] != rows[at - 1]]
        whole = sum(sizes[at].parameter_bytes for at in profiled)
        part = sum(one.parameter_bytes for one in sizes[first:stop])
        return ceil_fraction(Fraction(steps.pop() * part, max(1, whole)))


@dataclass(frozen=True, slots=True)
class ProfiledMachine:
    """Everything that was measured of one model without running a plan.

    ``profiles`` by (card, tensor-parallel degree), ``sizes`` by degree, layers in order.
    """

    profiles: Mapping[tuple[str, int], DegreeProfile]
    sizes: Mapping[int, tuple[LayerSizes, ...]]
    links: SailorLinks

    @classmethod
    def of(
        cls, profiles: Mapping[str, Profile], sizes: Mapping[int, tuple[LayerSizes, ...]], links: SailorLinks
    ) -> ProfiledMachine:
        """Return the machine of measured profiles by card. Cost: linear in their entries."""
        found = {
            (card, degree): DegreeProfile.of({size: rows for (size, one), rows in table.items() if one == degree})
            for card, table in profiles.items()
            for degree in {one for _, one in table}
        }
        return cls(found, sizes, links)

    def uncleaned(self) -> ProfiledMachine:
        """Return the machine as the profile shows it, host-bound entries included, for comparison."""
        found = {}
        for key, one in self.profiles.items():
            device = {
                size: tuple((Fraction(row.forward_ns), Fraction(row.backward_ns)) for row in rows)
                for size, rows in one.rows.items()
            }
            found[key] = DegreeProfile(one.rows, device, (Fraction(0),) * one.layers)
        return ProfiledMachine(found, self.sizes, self.links)

    def profile(self, card: str, degree: int) -> DegreeProfile:
        """Return the profile of a card at a degree. Raises NotProfiledError where there is none."""
        if (card, degree) in self.profiles:
            return self.profiles[card, degree]
        degrees = sorted(one for kind, one in self.profiles if kind == card)
        if degrees:
            only = ", ".join(str(one) for one in degrees)
            raise NotProfiledError(f"card {card}: no profile of tensor-parallel degree {degree}, only of {only}")
        cards = ", ".join(sorted({kind for kind, _ in self.profiles}))
        raise NotProfiledError(f"card {card}: no profile; there are profiles of {cards or 'no card'}")


def _device(rows: Rows) -> dict[int, DeviceTimes]:
    """Return the times of a busy device, from the largest micro-batch down."""
    bound = [_host_bound(rows, backward=False), _host_bound(rows, backward=True)]
    found: dict[int, DeviceTimes] = {}
    larger = 0
    for batch in reversed(list(rows)):
        times = tuple((Fraction(one.forward_ns), Fraction(one.backward_ns)) for one in rows[batch])
        if larger:
            share = Fraction(batch, larger)
            forward, backward = (batch in sizes for sizes in bound)
            times = tuple(
                (big[0] * share if forward else own[0], big[1] * share if backward else own[1])
                for own, big in zip(times, found[larger], strict=True)
            )
        found[batch], larger = times, batch
    return dict(sorted(found.items()))


def _host_ns(rows: Rows) -> tuple[Fraction, ...]:
    """Return the mean of the host-bound forward entries of every layer."""
    bound = _host_bound(rows, backward=False)
    return tuple(
        Fraction(sum(rows[size][layer].forward_ns for size in bound), max(1, len(bound)))
        for layer in range(len(next(iter(rows.values()))))
    )


def _host_bound(rows: Rows, *, backward: bool) -> list[int]:
    """Return the micro-batch sizes, from the smallest on, at which a pass over all layers is host-bound.

    Up to the first one at which it is not: what keeps the device busy at some size does so at every larger one.
    """
    found = []
    for batch, larger in pairwise(rows):
        own, other = (
            sum(one.backward_ns if backward else one.forward_ns for one in rows[size]) for size in (batch, larger)
        )
        if 2 * larger * own <= (larger + batch) * other:
            break
        found.append(batch)
    return found
