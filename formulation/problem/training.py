"""One optimiser step: its samples, their parts, and the order of their passes; and what of this may be chosen."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from pipecut.formulation.problem.precision import Precision

LEAST_MICRO_BATCHES = 16
"""Of a run without a flush; so many that a short pipeline shows its steady state."""
MICRO_BATCHES_A_STAGE = 4
"""Of a run without a flush: the pipeline fills and drains in one for each stage; the middle half is steady."""


class Schedule(enum.StrEnum):
    """The order of forward and backward passes, by its name and its ``words``: it fixes how many are in flight.

    The order itself is in the module of that name (``formulation.schedules.catalogue``).
    """

    words: str

    def __new__(cls, name: str, words: str) -> Self:
        """Return the member of a name, with what sentences call it."""
        made = str.__new__(cls, name)
        made._value_, made.words = name, words
        return made

    NAIVE = "naive", "one micro-batch at a time"
    """One micro-batch at a time through all stages: no pipelining."""
    GPIPE = "gpipe", "GPipe"
    """F-then-B: all forward passes of a step, then all backward passes."""
    ZERO_BUBBLE_H1 = "zero_bubble_h1", "ZB-H1"
    """1F1B with a flush and backward passes in two halves, that of the weights put off (ZB-H1)."""
    ZERO_BUBBLE_V = "zero_bubble_v", "ZB-V"
    """Two stages a group, laid as a V so that the last is on the first group, and passes as under ZB-H1 (ZB-V)."""
    ONE_F_ONE_B = "one_f_one_b", "1F1B"
    """1F1B with a flush after every step (PipeDream-Flush, Megatron-LM)."""
    ASYNC_ONE_F_ONE_B = "async_one_f_one_b", "1F1B without a flush"
    """1F1B without a flush, one stashed weight version for each micro-batch in flight (PipeDream)."""
    DOUBLE_BUFFERED = "double_buffered", "1F1B without a flush, two weight versions"
    """1F1B without a flush and with two weight versions at every stage (PipeDream-2BW)."""

    @property
    def in_halves(self) -> bool:
        """Tell whether backward passes have two halves: the gradient of the input, and later of the weights."""
        return self in (Schedule.ZERO_BUBBLE_H1, Schedule.ZERO_BUBBLE_V)

    @property
    def in_a_v(self) -> bool:
        """Tell whether each group holds two stages, of the way down through the groups and of the way up."""
        return self is Schedule.ZERO_BUBBLE_V

    @property
    def flushes(self) -> bool:
        """Tell whether a step ends before the next one begins."""
        return self not in (Schedule.ASYNC_ONE_F_ONE_B, Schedule.DOUBLE_BUFFERED)


IN_A_V = 2
"""Stages of each group that are laid as a V."""

_CHOICES = {"schedule": "schedule_choices", "chunks": "chunk_choices", "micro_batches": "micro_batch_choices"}
"""What a planner may choose, and the field that has its choices."""


@dataclass(frozen=True, slots=True)
class Training:
    """One optimiser step: ``global_batch`` samples in ``micro_batches`` equal micro-batches.

    ``bytes_per_element`` is the size of weights, gradients and activations in training;
    ``optimizer_bytes_per_parameter`` what the optimiser keeps beside weight and gradient; ``precision``, where it
    is given, says each of them apart and counts in their place (``elements``). ``chunks`` is how many stages
    each group of devices holds: 1, or under 1F1B more, in Megatron's interleaved order; in a V it is always 2,
    whatever is written. A planner may choose among
    ``micro_batch_choices``, ``schedule_choices`` and ``chunk_choices`` (empty: ``micro_batches``, ``schedule`` and
    ``chunks`` are what is written). ``dealt``: beside all plans whose groups hold one stage, plain grids whose
    groups hold so many are compared, under 1F1B.

    ``warm_up`` says how many forward passes a stage runs before its first backward pass under 1F1B, and so how
    many micro-batches it has in flight: ``classic``, one more than there are stages behind it; ``eager``, one more
    than twice as many, so that transfers are hidden too (Zhuang et al., MLSys 2023, arXiv 2211.05322); by
    stage, of which a plan of fewer stages has the last ones and the stages in front of a longer one the first; or
    ``choose``: each stage of a plan has its own, from the classic number on. Never more than there are
    micro-batches; other orders of passes have no choice. Raises ValueError for what does not go together.
    """

    global_batch: int
    micro_batches: int = 1
    bytes_per_element: int = 4
    optimizer_bytes_per_parameter: int = 4
    schedule: Schedule = Schedule.ONE_F_ONE_B
    micro_batch_choices: tuple[int, ...] = ()
    precision: Precision | None = None
    chunks: int = 1
    schedule_choices: tuple[Schedule, ...] = ()
    chunk_choices: tuple[int, ...] = ()
    dealt: tuple[int, ...] = ()
    warm_up: Literal["classic", "eager", "choose"] | tuple[int, ...] = "classic"

    def __post_init__(self) -> None:
        numbers = (self.micro_batches, *self.micro_batch_choices)
        if self.global_batch <= 0 or min(numbers) <= 0:
            raise ValueError("global_batch and micro_batches must be 1 or more")
        wrong = next((number for number in numbers if self.global_batch % number), None)
        if wrong is not None:
            raise ValueError(f"global_batch {self.global_batch} is not a multiple of micro_batches {wrong}")
        for name in _CHOICES.values():
            choices = getattr(self, name)
            if len(set(choices)) < len(choices):
                raise ValueError(f"{name} are {', '.join(map(str, choices))}, expected different ones")
        if self.bytes_per_element <= 0 or self.optimizer_bytes_per_parameter < 0:
            raise ValueError("bytes_per_element must be above 0 and optimizer_bytes_per_parameter 0 or more")
        # What is written of chunks stands beside a V, which has a number of its own.
        if any(one.in_a_v for one in self.schedule_choices) and not self.chunk_choices:
            object.__setattr__(self, "chunk_choices", (self.chunks,))
        self._check_orders()
        if self.schedule.in_a_v:
            object.__setattr__(self, "chunks", IN_A_V)

    def _check_orders(self) -> None:
        """Raise ValueError for chunks or schedules that are in no order of passes, or in none that is compared."""
        schedules, chunks = self.schedule_choices or (self.schedule,), self.chunk_choices or (self.chunks,)
        endless = next((one for one in schedules if not one.flushes), None)
        if endless is not None and len(schedules) > 1:
            raise ValueError(
                f"no step ends under {endless}, so it is not compared with other schedules: name it alone"
            )
        # 1F1B takes any number of chunks; of others each needs 1 among them, and something needs the rest.
        alone = [one for one in schedules if one is not Schedule.ONE_F_ONE_B and not one.in_a_v]
        most = max(chunks) if Schedule.ONE_F_ONE_B in schedules else 1 if len(alone) == len(schedules) else IN_A_V
        if min(chunks) < 1 or max(chunks) > most or (alone and min(chunks) > 1):
            order = min(alone, default=self.schedule)
            held = IN_A_V if order.in_a_v else 1
            raise ValueError(
                f"chunks is {', '.join(map(str, chunks))} under {order}: expected {held}, or more under"
                f" {Schedule.ONE_F_ONE_B}"
            )
        self._check_warm_up(schedules, chunks)

    def _check_warm_up(self, schedules: Sequence[Schedule], chunks: Sequence[int]) -> None:
        """Raise ValueError for numbers that no order has (``formulation.problem.plan``), or another schedule."""
        if self.warm_up == "classic":
            return
        if Schedule.ONE_F_ONE_B not in schedules or min(chunks) > 1:
            orders = f"{', '.join(schedules)} with chunks {', '.join(map(str, chunks))}"
            raise ValueError(
                f"warm_up is {self.warm_up} under {orders}: expected classic, or others under"
                f" {Schedule.ONE_F_ONE_B} with chunks 1"
            )
        if isinstance(self.warm_up, tuple):
            rising = any(one < other for one, other in itertools.pairwise(self.warm_up))
            if not self.warm_up or self.warm_up[-1] < 1 or rising:
                raise ValueError(
                    f"warm_up is {list(self.warm_up)}, expected a number for every stage, each 1 or more and none"
                    " above that of the stage before it, which would wait for it for ever"
                )

    @property
    def warms_up(self) -> bool:
        """Whether ``warm_up`` means something: under 1F1B of groups that hold one stage each."""
        return self.schedule is Schedule.ONE_F_ONE_B and self.chunks == 1

    @property
    def chooses_warm_ups(self) -> bool:
        """Whether every stage of a plan has a warm-up of its own."""
        return self.warms_up and self.warm_up == "choose"

    @property
    def left_open(self) -> tuple[str, ...]:
        """The names of the fields that a planner chooses."""
        several = {name for name, choices in _CHOICES.items() if len(getattr(self, choices)) > 1}
        return tuple(name for name in _CHOICES if name in several or (name == "chunks" and self.dealt))

    @property
    def choices(self) -> tuple[Training, ...]:
        """Every training that may be chosen, in the order in which it is written; only this, if nothing is open.

        Each keeps the choices. Groups hold as many stages as is written under 1F1B alone: in a V they hold 2, and
        under other schedules 1. Where plain grids alone hold several, those are in ``choices_of_grids``.
        """
        written = replace(self, chunks=1) if self.dealt and self.chunks > 1 else self
        rows = [getattr(self, choices) or (getattr(written, name),) for name, choices in _CHOICES.items()]
        named = (dict(zip(_CHOICES, row, strict=True)) for row in itertools.product(*rows))
        orders = (
            one | {"chunks": IN_A_V} if one["schedule"].in_a_v else one
            for one in named
            if one["chunks"] == 1 or one["schedule"] is Schedule.ONE_F_ONE_B or one["schedule"].in_a_v
        )
        return tuple(dict.fromkeys(replace(self, **one) for one in orders))

    @property
    def choices_of_grids(self) -> tuple[Training, ...]:
        """Every training of which plain grids alone are compared."""
        return tuple(replace(one, chunks=many) for one in self.choices for many in self.dealt)

    def chosen(self, said: Mapping[str, object]) -> Training | None:
        """Return the choice in which everything that is left open is as said; None where there is none.

        What is not said stays as it is.
        """
        wanted = {name: said.get(name, getattr(self, name)) for name in self.left_open}
        every = (*self.choices, *self.choices_of_grids)
        same = (one for one in every if all(getattr(one, name) == wanted[name] for name in wanted))
        return next(same, None)

    def closed(self) -> Training:
        """Return the training in which nothing is left open: what is written is chosen."""
        warm_up = self.warm_up if self.warms_up else "classic"
        return replace(self, warm_up=warm_up, dealt=(), **dict.fromkeys(_CHOICES.values(), ()))

    @property
    def elements(self) -> Precision:
        """The bytes of an element of each kind: ``precision`` where it is given."""
        size, state = self.bytes_per_element, self.optimizer_bytes_per_parameter
        return self.precision or Precision(size, size, size, state)

    @property
    def micro_batch(self) -> int:
        """Samples in one micro-batch."""
        return self.global_batch // self.micro_batches

    def warm_up_in(self, slot: int) -> int:
        """Return the forward passes before the first backward pass of a stage with so many stages behind it.

        Under 1F1B; of ``choose`` the fewest. They are as many as the stage has micro-batches in flight.
        """
        if isinstance(self.warm_up, tuple):
            found = self.warm_up[max(0, len(self.warm_up) - 1 - slot)]
        else:
            found = 2 * slot + 1 if self.warm_up == "eager" else slot + 1
        return min(found, self.micro_batches)

    def warm_ups(self, stages: int) -> tuple[int, ...]:
        """Return the same for all of so many stages, the first one first."""
        return tuple(map(self.warm_up_in, reversed(range(stages))))

    def ranks(self, stages: int) -> int:
        """Return how many groups of devices so many stages have, whose number is a multiple of ``chunks``.

        With one chunk each stage has its own.
        """
        return stages // self.chunks

    def dealt_to(self, ranks: int) -> bool:
        """Tell whether so many groups that hold several stages have an order of passes for the micro-batches.

        Interleaved ones go in rounds of as many as there are groups.
        """
        return self.schedule.in_a_v or self.micro_batches % ranks == 0

    def rank_of(self, stage: int, stages: int) -> int:
        """Return the group on which a stage of so many runs: its number modulo that of the groups.

        In a V stages go down through the groups and up again, so that group ``a`` has stages ``a`` and
        ``stages - 1 - a``.
        """
        return min(stage, stages - 1 - stage) if self.schedule.in_a_v else stage % self.ranks(stages)

    def stages_of(self, rank: int, stages: int) -> tuple[int, ...]:
        """Return the stages of a group, in order."""
        if self.schedule.in_a_v:
            return rank, stages - 1 - rank
        return tuple(range(rank, stages, self.ranks(stages)))

    def turns_at(self, stage: int, stages: int) -> bool:
        """Tell whether a stage runs on the group of the one before it, so that nothing is sent between them.

        That is where a V turns.
        """
        return self.schedule.in_a_v and 2 * stage == stages

    def boundaries_of(self, rank: int, stages: int) -> tuple[int, ...]:
        """Return the stages whose boundary before them uses the link between this group and the one before it.

        Between two stages of one group there is none. In a V both ways between two groups use one link, and no
        group is before the first.
        """
        if self.schedule.in_a_v:
            return (rank, stages - rank) if rank else (0,)
        return self.stages_of(rank, stages)

    def chunk_in_words(self, stage: int, stages: int) -> str:
        """Say which group of devices a stage of so many shares with others; nothing where it has its own."""
        if self.chunks == 1:
            return ""
        ranks = self.ranks(stages)
        return f"group {self.rank_of(stage, stages)}, chunk {stage // ranks + 1} of {self.chunks}"

    def steps_run(self, stages: int) -> int:
        """Return how many optimiser steps are run: one with a flush, else until the middle is steady."""
        if self.schedule.flushes:
            return 1
        wanted = max(LEAST_MICRO_BATCHES, MICRO_BATCHES_A_STAGE * stages)
        return -(-wanted // self.micro_batches)
