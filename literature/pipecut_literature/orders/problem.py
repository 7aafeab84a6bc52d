"""What is asked: the actions of one optimiser step, where they run, and how much memory their ranks have.

A *pass* is what all micro-batches of a stage have in common: a stage and a kind of action. All its actions take
equally long, wait for the same other pass and send the same message. The model and the bounds are written in
passes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipecut.formulation.schedules.table import Kind, ScheduleError
from pipecut.formulation.timeline.durations import Contention, Durations, Execution, Transfers
from pipecut.formulation.timeline.measures import Footprint

Key = tuple[int, Kind]
"""A stage and a kind of action, which name a pass."""


class OrderError(ScheduleError):
    """A question that no order can answer: fields that contradict each other, or leave an order open."""


@dataclass(frozen=True, slots=True)
class Pass:
    """All actions of one kind at one stage, in ns.

    An action keeps its device for ``fetch_ns`` (it fetches what it needs), ``duration_ns``, and ``hold_ns`` (it
    stands still while its message travels). The action that needs it can begin ``travel_ns`` after it has stopped.
    With contention these are the times on free links. ``needs`` is the pass that it waits for. ``message_ns`` and
    ``link`` tell of the message that it sends (0 and None: none).
    """

    stage: int
    kind: Kind
    rank: int
    duration_ns: int
    needs: Key | None
    message_ns: int
    link: int | None
    fetch_ns: int
    hold_ns: int
    travel_ns: int

    @property
    def occupied_ns(self) -> int:
        """How long an action keeps its device on free links."""
        return self.fetch_ns + self.duration_ns + self.hold_ns

    @property
    def source(self) -> Key | None:
        """The pass at another stage that it needs and whose message it takes, if it does."""
        return None if self.needs is None or self.needs[0] == self.stage else self.needs


@dataclass(frozen=True, slots=True)
class OrderProblem:
    """One optimiser step with a flush, whose order is sought.

    ``stage_ranks[s]`` is the rank of stage ``s``; several stages may share one. With ``split`` backward passes are
    two actions, ``I`` and ``W``, else one, ``B``. ``memory_bytes`` is the capacity of each rank, and ``footprint``
    what its stages hold; both are given or neither is. Raises OrderError where the fields do not fit together.
    """

    durations: Durations
    execution: Execution
    micro_batches: int
    stage_ranks: tuple[int, ...]
    split: bool = False
    footprint: Footprint | None = None
    memory_bytes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.micro_batches < 1:
            raise OrderError(f"micro_batches is {self.micro_batches}, expected 1 or more")
        if len(self.stage_ranks) != self.stages:
            raise OrderError(f"stage_ranks has {len(self.stage_ranks)} entries for {self.stages} stages")
        if set(self.stage_ranks) != set(range(self.ranks)):
            raise OrderError(f"stage_ranks is {self.stage_ranks}, expected every rank from 0 on at least once")
        self._check_memory()
        self._check_durations()

    def _check_memory(self) -> None:
        if self.footprint is None or self.memory_bytes is None:
            if self.footprint is not None or self.memory_bytes is not None:
                raise OrderError("a footprint and memory_bytes are given together or not at all")
            return
        if len(self.footprint.static_bytes) != self.stages:
            raise OrderError(f"a footprint of {len(self.footprint.static_bytes)} stages for {self.stages}")
        if len(self.memory_bytes) != self.ranks:
            raise OrderError(f"memory_bytes has {len(self.memory_bytes)} entries for {self.ranks} ranks")

    def _check_durations(self) -> None:
        """Refuse passes of 0 ns where messages compete: the model cannot tell who asks first at one moment."""
        if self.follows_from_rows:
            return
        for stage, kind in self.passes():
            if self.duration_ns(stage, kind) < 1:
                raise OrderError(
                    f"stage {stage}: {kind.name} takes 0 ns; with contention on shared links an order is sought "
                    "for passes of 1 ns or more"
                )

    @property
    def stages(self) -> int:
        """Number of stages."""
        return self.durations.stages

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return max(self.stage_ranks) + 1

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of actions, in the order in which a micro-batch takes them."""
        if self.split:
            return Kind.FORWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT
        return Kind.FORWARD, Kind.BACKWARD

    @property
    def backward(self) -> Kind:
        """The kind whose end lets the gradient travel on: ``I`` or ``B``."""
        return self.kinds[1]

    @property
    def one_rank_each(self) -> bool:
        """Tell whether no two stages share a rank."""
        return len(set(self.stage_ranks)) == self.stages

    @property
    def follows_from_rows(self) -> bool:
        """Tell whether no link is asked for by two passes at a time that compete: rows alone decide everything.

        Then earlier is never worse, and every solution's rows are executed within its makespan.
        """
        if self.execution.contention is Contention.NONE:
            return True
        links = [one.link for one in self.passes().values() if one.link is not None]
        return len(set(links)) == len(links)

    @property
    def stretch(self) -> int:
        """One more than the number of actions that take no time: the factor of ``stretched``."""
        instant = sum(self.duration_ns(stage, kind) == 0 for stage in range(self.stages) for kind in self.kinds)
        return 1 + instant * self.micro_batches

    def stretched(self) -> OrderProblem:
        """Return the same problem with every action taking time, so that times tell an order.

        All times are multiplied by K = ``stretch``, and actions of 0 ns take 1. An order of makespan T takes from
        K T to K T + K - 1 then, as its longest way has at most K - 1 of these actions; so whole multiples of K
        compare orders as before. The problem itself if everything takes time. Cost: linear in stages.
        """
        factor, times = self.stretch, self.durations
        if factor == 1:
            return self
        longer = {
            kind: tuple(max(1, factor * self.duration_ns(stage, kind)) for stage in range(self.stages))
            for kind in self.kinds
        }
        weights = longer.get(Kind.WEIGHT_GRADIENT, (0,) * self.stages)
        backward = tuple(one + other for one, other in zip(longer[self.backward], weights, strict=True))
        rest = {
            name: tuple(factor * time for time in getattr(times, name))
            for name in ("sync_ns", "optimizer_ns", "activation_ns", "gradient_ns")
        }
        durations = replace(
            times,
            forward_ns=longer[Kind.FORWARD],
            backward_ns=backward,
            weight_gradient_ns=weights,
            recompute_ns=(),
            **rest,
        )
        return replace(self, durations=durations)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages of a rank, in ascending order."""
        return tuple(stage for stage, own in enumerate(self.stage_ranks) if own == rank)

    def duration_ns(self, stage: int, kind: Kind) -> int:
        """Return how long an action computes; a stage that recomputes does so before ``B`` or ``I``."""
        times = self.durations
        if kind is Kind.FORWARD:
            return times.forward_ns[stage]
        if kind is Kind.WEIGHT_GRADIENT:
            return times.weight_gradient_ns[stage]
        whole = times.backward_ns if kind is Kind.BACKWARD else times.input_gradient_ns
        return whole[stage] + times.recompute_ns[stage]

    def passes(self) -> dict[Key, Pass]:
        """Return all passes by stage and kind. Cost: linear in stages."""
        return {(stage, kind): self._pass(stage, kind) for stage in range(self.stages) for kind in self.kinds}

    def _pass(self, stage: int, kind: Kind) -> Pass:
        transfers = self.execution.transfers
        needs = self._needs(stage, kind)
        message_ns, link = self._message(stage, kind)
        fetched = self._message(*needs)[0] if needs is not None and needs[0] != stage else 0
        return Pass(
            stage=stage,
            kind=kind,
            rank=self.stage_ranks[stage],
            duration_ns=self.duration_ns(stage, kind),
            needs=needs,
            message_ns=message_ns,
            link=link,
            fetch_ns=fetched if transfers is Transfers.RECEIVER else 0,
            hold_ns=message_ns if transfers is Transfers.SENDER else 0,
            travel_ns=0 if transfers is Transfers.RECEIVER else message_ns,
        )

    def _needs(self, stage: int, kind: Kind) -> Key | None:
        if kind is Kind.FORWARD:
            return (stage - 1, kind) if stage else None
        if kind is Kind.WEIGHT_GRADIENT:
            return stage, Kind.INPUT_GRADIENT
        return (stage + 1, kind) if stage + 1 < self.stages else (stage, Kind.FORWARD)

    def _message(self, stage: int, kind: Kind) -> tuple[int, int | None]:
        """Return time and link of the message of a pass; 0 and None if it stays on its rank or takes no time."""
        times, forward = self.durations, kind is Kind.FORWARD
        taker = stage + 1 if forward else stage - 1
        if kind is Kind.WEIGHT_GRADIENT or not 0 <= taker < self.stages:
            return 0, None
        boundary = min(stage, taker)
        message_ns = (times.activation_ns if forward else times.gradient_ns)[boundary]
        if self.stage_ranks[stage] == self.stage_ranks[taker] or message_ns == 0:
            return 0, None
        return message_ns, (times.activation_link if forward else times.gradient_link)[boundary]
