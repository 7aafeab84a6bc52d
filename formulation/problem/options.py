"""How an instance is priced: the training set-up and the readings of the paper's cost model.

The PipePar paper leaves several things open (papers differ on each); every one is a named option here, with
the default that ``docs/formulation.md`` explains. Goals and constraints (``formulation.problem.constraints``) and
the training (``formulation.problem.training``) can be had from here too; :func:`default_goals` says what is
minimised where nobody says it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from pipecut.formulation.predictor.roofline import DEFAULT_ROOFLINE, Roofline
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.training import Training

if TYPE_CHECKING:
    from pipecut.formulation.problem.cluster import DeviceClass


class Synchronisation(enum.StrEnum):
    """What the sum of weight gradients over the devices that share them costs, once a step."""

    CHARGED = "charged"
    """Its whole time, spread over the micro-batches of the step."""
    OVERLAPPED = "overlapped"
    """What it takes longer than the passes of its own layer, beside which it runs."""


class Sharing(enum.StrEnum):
    """How the devices of a stage share its work (``formulation.problem.shares``)."""

    EQUAL = "equal"
    """Every device does the same; the slowest sets the pace."""
    PROPORTIONAL = "proportional"
    """In proportion to peak speed, so that devices of different classes finish together (AccPar §5)."""


class Samples(enum.StrEnum):
    """What replicas, and devices that share a layer by samples, have of a micro-batch."""

    WHOLE = "whole"
    """Whole samples: who has most of them sets the pace, and some may have none."""
    FRACTIONS = "fractions"
    """Equal fractions, also of single samples, as in the models of most papers."""


class Combine(enum.StrEnum):
    """What the times of the stages add up to."""

    MAX = "max"
    """The slowest stage or boundary: the period of a full pipeline (PipeDream)."""
    SUM = "sum"
    """All of them, one after another: PipePar eq. (1) read literally."""


class StageTime(enum.StrEnum):
    """How computation and communication of one stage combine."""

    ADD = "add"
    """One after the other: ``T_cm + T_cp`` (PipePar eq. 1)."""
    OVERLAP = "overlap"
    """At the same time: the larger of the two (the paper's introduction claims overlap)."""


class Boundary(enum.StrEnum):
    """Which transfers between neighbouring stages are charged."""

    NONE = "none"
    ACTIVATION = "activation"
    BOTH = "both"
    """The activation forward and its gradient backward."""


class BoundaryCharge(enum.StrEnum):
    """Who pays for a boundary transfer."""

    LINK = "link"
    """The link, in parallel to the stages: a boundary is one more term of the maximum (PipeDream)."""
    RECEIVER = "receiver"
    """The stage that receives: activations of its own input, gradients of its own output (HetPipe §7)."""


class AllReduce(enum.StrEnum):
    """The volume of a sum over ``n`` devices of a tensor of ``A`` bytes, as each device's link sees it."""

    RING = "ring"
    """``2 (n - 1) / n * A``."""
    PLAIN = "plain"
    """``A`` (AccPar Table 4)."""


class Count(enum.StrEnum):
    """Which operations of a layer are counted."""

    MACS = "macs"
    """Exact multiply-accumulates of matrix products."""
    TORCHSTAT = "torchstat"
    """The rule that reproduces PipePar's Table I: biases, activations, pools and norms count too."""


class Compute(enum.StrEnum):
    """How the time of a layer without measured times is predicted (``formulation.predictor``)."""

    PEAK = "peak"
    """Multiply-accumulates over the peak (PipePar eq. 3)."""
    ROOFLINE = "roofline"
    """Products at an efficiency by their sizes, bytes at the bandwidth of the memory, a floor for each kernel."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """The readings of the paper's equations that an instance is priced with.

    ``count``, ``flops_per_mac`` and ``backward_factor`` are those of ``compute: peak``. ``expert_load`` is how
    many tokens the experts of the fullest device get, over the mean of all devices: the capacity factor where
    there is one, as buffers are padded to it, else what was measured. ``inside`` says whether a device waits for
    the backward sums of a product's input, or multiplies for the gradient of its weights meanwhile. Raises
    ValueError for numbers out of range, and where computing overlaps with communicating under a roofline or in
    whole samples: there forms trade one for the other, and the larger of two sums that both depend on them is
    searched by no method.
    """

    compute: Compute = Compute.PEAK
    roofline: Roofline = DEFAULT_ROOFLINE
    count: Count = Count.MACS
    flops_per_mac: int = 2
    backward_factor: Fraction = Fraction(2)
    all_reduce: AllReduce = AllReduce.RING
    stage_time: StageTime = StageTime.ADD
    boundary: Boundary = Boundary.BOTH
    boundary_charge: BoundaryCharge = BoundaryCharge.LINK
    combine: Combine = Combine.MAX
    synchronisation: Synchronisation = Synchronisation.CHARGED
    inside: Synchronisation = Synchronisation.CHARGED
    sharing: Sharing = Sharing.EQUAL
    samples: Samples = Samples.WHOLE
    expert_load: Fraction = Fraction(1)

    @classmethod
    def on_devices(cls, classes: Iterable[DeviceClass]) -> CostModel:
        """Return what counts where nobody names a cost model: a roofline if all memories have a known bandwidth.

        Else multiply-accumulates over the peak.
        """
        known = all(one.memory_bytes_per_second for one in classes)
        return cls(compute=Compute.ROOFLINE if known else Compute.PEAK)

    def __post_init__(self) -> None:
        if self.flops_per_mac not in (1, 2):
            raise ValueError(f"flops_per_mac is {self.flops_per_mac}, expected 1 or 2")
        if self.backward_factor < 0:
            raise ValueError(f"backward_factor is {self.backward_factor}, expected 0 or more")
        if self.expert_load < 1:
            raise ValueError(f"expert_load is {self.expert_load}, expected 1 or more (the fullest over the mean)")
        if self.stage_time is not StageTime.OVERLAP:
            return
        instead = "take stage_time 'add' with"
        if self.expert_load > 1:
            raise ValueError(f"stage_time 'overlap' needs expert_load 1: {instead} an uneven load")
        if self.samples is Samples.WHOLE:
            raise ValueError(f"stage_time 'overlap' needs samples 'fractions': {instead} whole samples")
        if self.inside is Synchronisation.OVERLAPPED:
            raise ValueError(f"stage_time 'overlap' needs inside 'charged': {instead} inside 'overlapped'")
        if self.compute is Compute.ROOFLINE:
            raise ValueError(f"stage_time 'overlap' needs compute 'peak': {instead} a roofline")


def default_goals(training: Training, cost: CostModel) -> tuple[Goal, ...]:
    """Return what is minimised where nobody says it: the executed time (docs/decisions/0014-default-goal.md).

    Under a schedule with a flush, as all are that may be chosen among, that is the time of a step; without one no
    step ends, and it is the period of a micro-batch. Whoever says ``Combine.SUM`` says with it what is minimised:
    it is a reading of the bottleneck, and of nothing that is executed.
    """
    if cost.combine is Combine.SUM:
        return (Goal.BOTTLENECK,)
    return (Goal.STEP_TIME if training.schedule.flushes else Goal.PERIOD,)
