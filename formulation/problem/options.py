"""How an instance is priced: the training set-up and the readings of the paper's cost model.

The PipePar paper leaves several things open (papers differ on each); every one is a named option here, with
the default that ``docs/formulation.md`` explains. Goals and constraints (``formulation.problem.constraints``) can
be had from here too.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from fractions import Fraction

from formulation.problem.constraints import Constraints, Goal, Placement, Recompute
from formulation.problem.precision import Precision
from formulation.problem.units import ceil_div

__all__ = [
    "AllReduce",
    "Boundary",
    "BoundaryCharge",
    "Combine",
    "Constraints",
    "CostModel",
    "Count",
    "Goal",
    "Placement",
    "Recompute",
    "Schedule",
    "Sharing",
    "StageTime",
    "Synchronisation",
    "Training",
    "steps_run",
]

LEAST_MICRO_BATCHES = 16
"""Of a run without a flush; so many that a short pipeline shows its steady state."""
MICRO_BATCHES_A_STAGE = 4
"""Of a run without a flush: the pipeline fills and drains in one for each stage; the middle half is steady."""


class Schedule(enum.StrEnum):
    """The order of forward and backward passes; it fixes how many micro-batches are in flight."""

    NAIVE = "naive"
    """One micro-batch at a time through all stages: no pipelining."""
    GPIPE = "gpipe"
    """F-then-B: all forward passes of a step, then all backward passes."""
    ONE_F_ONE_B = "one_f_one_b"
    """1F1B with a flush after every step (PipeDream-Flush, Megatron-LM)."""
    ASYNC_ONE_F_ONE_B = "async_one_f_one_b"
    """1F1B without a flush, one stashed weight version for each micro-batch in flight (PipeDream)."""
    DOUBLE_BUFFERED = "double_buffered"
    """1F1B without a flush and with two weight versions at every stage (PipeDream-2BW)."""

    @property
    def flushes(self) -> bool:
        """Tell whether a step ends before the next one begins."""
        return self not in (Schedule.ASYNC_ONE_F_ONE_B, Schedule.DOUBLE_BUFFERED)


class Synchronisation(enum.StrEnum):
    """What the sum of weight gradients over the devices that share them costs, once a step."""

    CHARGED = "charged"
    """Its whole time, spread over the micro-batches of the step."""
    OVERLAPPED = "overlapped"
    """Nothing: it hides behind the backward passes."""


class Sharing(enum.StrEnum):
    """How the devices of a stage share its work (``formulation.problem.shares``)."""

    EQUAL = "equal"
    """Every device does the same; the slowest sets the pace."""
    PROPORTIONAL = "proportional"
    """In proportion to peak speed, so that devices of different classes finish together (AccPar §5)."""


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


@dataclass(frozen=True, slots=True)
class CostModel:
    """The readings of the paper's equations that an instance is priced with."""

    count: Count = Count.MACS
    flops_per_mac: int = 2
    backward_factor: Fraction = Fraction(2)
    all_reduce: AllReduce = AllReduce.RING
    stage_time: StageTime = StageTime.ADD
    boundary: Boundary = Boundary.BOTH
    boundary_charge: BoundaryCharge = BoundaryCharge.LINK
    combine: Combine = Combine.MAX
    synchronisation: Synchronisation = Synchronisation.CHARGED
    sharing: Sharing = Sharing.EQUAL

    def __post_init__(self) -> None:
        if self.flops_per_mac not in (1, 2):
            raise ValueError(f"flops_per_mac is {self.flops_per_mac}, expected 1 or 2")
        if self.backward_factor < 0:
            raise ValueError(f"backward_factor is {self.backward_factor}, expected 0 or more")


@dataclass(frozen=True, slots=True)
class Training:
    """One optimiser step: ``global_batch`` samples in ``micro_batches`` equal micro-batches.

    ``bytes_per_element`` is the size of weights, gradients and activations in training;
    ``optimizer_bytes_per_parameter`` what the optimiser keeps beside weight and gradient; ``precision``, where it
    is given, says each of them apart and counts in their place (:attr:`elements`). ``micro_batch_choices`` are the
    numbers of micro-batches that a planner may choose among (empty: ``micro_batches`` it is).
    """

    global_batch: int
    micro_batches: int = 1
    bytes_per_element: int = 4
    optimizer_bytes_per_parameter: int = 4
    schedule: Schedule = Schedule.ONE_F_ONE_B
    micro_batch_choices: tuple[int, ...] = ()
    precision: Precision | None = None

    def __post_init__(self) -> None:
        numbers = (self.micro_batches, *self.micro_batch_choices)
        if self.global_batch <= 0 or min(numbers) <= 0:
            raise ValueError("global_batch and micro_batches must be 1 or more")
        wrong = next((number for number in numbers if self.global_batch % number), None)
        if wrong is not None:
            raise ValueError(f"global_batch {self.global_batch} is not a multiple of micro_batches {wrong}")
        if len(set(self.micro_batch_choices)) < len(self.micro_batch_choices):
            raise ValueError(f"micro_batch_choices are {self.micro_batch_choices}, expected different numbers")
        if self.bytes_per_element <= 0 or self.optimizer_bytes_per_parameter < 0:
            raise ValueError("bytes_per_element must be above 0 and optimizer_bytes_per_parameter 0 or more")

    @property
    def elements(self) -> Precision:
        """Bytes of an element of each kind."""
        size, state = self.bytes_per_element, self.optimizer_bytes_per_parameter
        return self.precision or Precision(size, size, size, state)

    @property
    def micro_batch(self) -> int:
        """Samples in one micro-batch."""
        return self.global_batch // self.micro_batches


def steps_run(training: Training, stages: int) -> int:
    """Return how many optimiser steps are run: one with a flush, else until the middle of the run is steady."""
    if training.schedule.flushes:
        return 1
    wanted = max(LEAST_MICRO_BATCHES, MICRO_BATCHES_A_STAGE * stages)
    return ceil_div(wanted, training.micro_batches)
