"""How long everything takes, and how it is executed: what a timeline needs beside the order of actions."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Contention(enum.StrEnum):
    """What happens when two transfers want one link at the same time."""

    NONE = "none"
    """Both pass at full speed."""
    FIFO = "fifo"
    """One after the other: the earlier request first; at the same moment the lower rank, then its earlier one."""


class Transfers(enum.StrEnum):
    """Who stands still while a tensor crosses a boundary."""

    OVERLAPPED = "overlapped"
    """Nobody: a copy engine sends while both devices compute."""
    SENDER = "sender"
    """The device that sends: its next action starts when its tensor has arrived."""
    RECEIVER = "receiver"
    """The device that receives: it fetches the tensor when it comes to the action that needs it (HetPipe §7)."""


@dataclass(frozen=True, slots=True)
class Execution:
    """How actions are executed.

    ``overlap_sync``: a stage's gradients are synchronised from its last backward pass on, while its device goes
    on; else only after all other work of the device, which stands still. ``updates_every`` is for schedules
    without a flush: backward passes of each replica between two updates of its weights.
    """

    contention: Contention = Contention.NONE
    transfers: Transfers = Transfers.OVERLAPPED
    overlap_sync: bool = False
    updates_every: int = 1

    def __post_init__(self) -> None:
        if self.updates_every < 1:
            raise ValueError(f"updates_every is {self.updates_every}, expected 1 or more")


@dataclass(frozen=True, slots=True)
class Durations:
    """Times in ns. One entry for each stage; of the last four, one for each boundary (behind stage 0, 1, ...).

    ``weight_gradient_ns`` is the part of ``backward_ns`` that belongs to ``W`` where a schedule has ``I`` and
    ``W`` (default: half, rounded down: both gradients of a matrix product cost the same). ``recompute_ns`` is
    spent before ``B`` or ``I`` by a stage that recomputes its activations. ``sync_ns`` is the synchronisation of
    the weight gradients, once an update; ``optimizer_ns`` the update itself. ``activation_link`` and
    ``gradient_link`` number the links; boundaries may share one (default: every boundary its own in either
    direction). Whatever else is left empty takes no time.
    """

    forward_ns: tuple[int, ...]
    backward_ns: tuple[int, ...]
    weight_gradient_ns: tuple[int, ...] = ()
    recompute_ns: tuple[int, ...] = ()
    sync_ns: tuple[int, ...] = ()
    optimizer_ns: tuple[int, ...] = ()
    activation_ns: tuple[int, ...] = ()
    gradient_ns: tuple[int, ...] = ()
    activation_link: tuple[int, ...] = ()
    gradient_link: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        stages = len(self.forward_ns)
        if stages == 0:
            raise ValueError("forward_ns has no stage")
        half = tuple(max(0, time // 2) for time in self.backward_ns)
        links = range(stages - 1)
        self._fill("backward_ns", stages, ())
        self._fill("weight_gradient_ns", stages, half)
        for name in ("recompute_ns", "sync_ns", "optimizer_ns"):
            self._fill(name, stages, (0,) * stages)
        for name in ("activation_ns", "gradient_ns"):
            self._fill(name, stages - 1, (0,) * (stages - 1))
        self._fill("activation_link", stages - 1, tuple(2 * link for link in links))
        self._fill("gradient_link", stages - 1, tuple(2 * link + 1 for link in links))
        for stage, (weight, whole) in enumerate(zip(self.weight_gradient_ns, self.backward_ns, strict=True)):
            if weight > whole:
                raise ValueError(f"stage {stage}: weight_gradient_ns {weight} is above backward_ns {whole}")

    def _fill(self, name: str, expected: int, default: tuple[int, ...]) -> None:
        """Put the default where nothing is given; raise ValueError for a wrong number of entries or a bad one."""
        given: Sequence[int] = getattr(self, name)
        values = tuple(given) if given else default
        if len(values) != expected:
            raise ValueError(f"{name} has {len(values)} entries, expected {expected}")
        wrong = [at for at, value in enumerate(values) if type(value) is not int or value < 0]
        if wrong:
            raise ValueError(f"{name}[{wrong[0]}] is {values[wrong[0]]!r}, expected a whole number, 0 or more")
        object.__setattr__(self, name, values)

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.forward_ns)

    @property
    def input_gradient_ns(self) -> tuple[int, ...]:
        """The part of ``backward_ns`` that belongs to ``I``."""
        return tuple(
            whole - weight for whole, weight in zip(self.backward_ns, self.weight_gradient_ns, strict=True)
        )

    @property
    def whole_backward_ns(self) -> tuple[int, ...]:
        """The backward pass of each stage with what it computes again."""
        return tuple(own + again for own, again in zip(self.backward_ns, self.recompute_ns, strict=True))

    @property
    def latency_ns(self) -> int:
        """The time of one micro-batch alone: every pass and every transfer, one after another."""
        transfers = sum(self.activation_ns) + sum(self.gradient_ns)
        return sum(self.forward_ns) + sum(self.whole_backward_ns) + transfers
