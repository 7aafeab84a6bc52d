"""How an instance is priced: the training set-up and the readings of the paper's cost model.

The PipePar paper leaves several things open (papers differ on each); every one is a named option here, with
the default that ``docs/formulation.md`` explains.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from formulation.instance import Instance
    from formulation.plan import Plan
    from formulation.violation import Violation


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

    def __post_init__(self) -> None:
        if self.flops_per_mac not in (1, 2):
            raise ValueError(f"flops_per_mac is {self.flops_per_mac}, expected 1 or 2")
        if self.backward_factor < 0:
            raise ValueError(f"backward_factor is {self.backward_factor}, expected 0 or more")


class Placement(enum.StrEnum):
    """Which devices a stage may run on."""

    LINE = "line"
    """Devices stand in server order and a stage takes the next ones, as the field's dynamic programmes assume."""
    FREE = "free"
    """Any devices of any servers; stages may share a server, also stages that are not neighbours."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Where layers must run: ``layers`` is a glob on layer names, and exactly one of the others says where.

    ``servers``: their stages run on devices of these servers only; ``device``: on devices of this class only;
    ``stage``: they lie in this stage, counted from the front (0, 1, ...) or from the end (-1, -2, ...).
    """

    layers: str
    servers: tuple[str, ...] = ()
    device: str | None = None
    stage: int | None = None

    def __post_init__(self) -> None:
        if (len(self.servers) > 0) + (self.device is not None) + (self.stage is not None) != 1:
            raise ValueError(f"pin of '{self.layers}': expected exactly one of servers, device and stage")


@dataclass(frozen=True, slots=True)
class FormLimit:
    """Layers (a glob on their names) take one of the ``allowed`` forms where they share their work."""

    layers: str
    allowed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reserve:
    """Memory in bytes that every device of a server keeps for something else."""

    server: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Own:
    """A constraint of the user's own, in its two halves; docs/constraints.md has a complete example.

    ``check`` is the rule: it yields the violations of any plan, without a solver. ``post`` is the family: it gets
    the variables of the declarative model (``solvers.cpsat.variables.Variables``), adds its constraints to
    ``v.model`` and yields each with an index. Both must say the same: a plan that only one of them accepts
    ends a search with FalseClaimError, or is missed. Raises ValueError for a name that is no identifier.
    """

    name: str
    check: Callable[[Instance, Plan], Iterator[Violation]]
    post: Callable[[Any], Iterator[tuple[tuple[int, ...], Any]]]

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"own constraint {self.name!r}: expected a name of letters, digits and underscores")


@dataclass(frozen=True, slots=True)
class Constraints:
    """Which limits a plan must keep beyond being a plan. Layers are named by globs, servers by their names.

    ``memory``: every stage fits into the smallest device of its group (``formulation.memory``).
    ``placement``: which device groups a stage may have; ``max_servers``: over how many servers one stage may
    stretch (None: any number). ``stages_at_least``, ``stages_at_most``: how many stages a plan has.
    ``together``: each entry is a set of globs whose layers share one stage; ``apart``: of whose globs no two meet
    in a stage; ``no_cut``: no stage starts at such a layer. ``devices_per_stage``: how many devices a stage may
    have (empty: any number). What these mean on an instance is in ``formulation.demands``.
    """

    memory: bool = False
    placement: Placement = Placement.LINE
    max_servers: int | None = None
    stages_at_least: int | None = None
    stages_at_most: int | None = None
    pins: tuple[Pin, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    apart: tuple[tuple[str, ...], ...] = ()
    no_cut: tuple[str, ...] = ()
    forms: tuple[FormLimit, ...] = ()
    devices_per_stage: tuple[int, ...] = ()
    reserve: tuple[Reserve, ...] = ()
    own: tuple[Own, ...] = ()

    def __post_init__(self) -> None:
        least, most = self.stages_at_least, self.stages_at_most
        for name, count in (("max_servers", self.max_servers), ("at_least", least), ("at_most", most)):
            if count is not None and count < 1:
                raise ValueError(f"{name} is {count}, expected 1 or more")
        if least is not None and most is not None and least > most:
            raise ValueError(f"at least {least} stages and at most {most}: no number is both")
        if any(count < 1 for count in self.devices_per_stage):
            raise ValueError(f"devices_per_stage is {self.devices_per_stage}, expected 1 or more each")
        if len({own.name for own in self.own}) < len(self.own):
            raise ValueError("two own constraints have the same name")


@dataclass(frozen=True, slots=True)
class Training:
    """One optimiser step: ``global_batch`` samples in ``micro_batches`` equal micro-batches.

    ``bytes_per_element`` is the size of weights, gradients and activations in training;
    ``optimizer_bytes_per_parameter`` what the optimiser keeps beside weight and gradient.
    """

    global_batch: int
    micro_batches: int = 1
    bytes_per_element: int = 4
    optimizer_bytes_per_parameter: int = 4
    schedule: Schedule = Schedule.ONE_F_ONE_B

    def __post_init__(self) -> None:
        if self.global_batch <= 0 or self.micro_batches <= 0:
            raise ValueError("global_batch and micro_batches must be 1 or more")
        if self.global_batch % self.micro_batches:
            raise ValueError(
                f"global_batch {self.global_batch} is not a multiple of micro_batches {self.micro_batches}"
            )
        if self.bytes_per_element <= 0 or self.optimizer_bytes_per_parameter < 0:
            raise ValueError("bytes_per_element must be above 0 and optimizer_bytes_per_parameter 0 or more")

    @property
    def micro_batch(self) -> int:
        """Samples in one micro-batch."""
        return self.global_batch // self.micro_batches
