"""The iteration time of a plan on a machine that was profiled, term by term.

::

    iteration = pipeline + wait + max over stages (copies + all-reduce + update)

==============  ===================================================================================================
pipeline        the slowest chain of replicas, one of each stage, executed by ``blocking_pipeline_ns``. A forward
                pass takes the larger of its device's and its host's time, a backward pass its device's
                (``profile``). A boundary tensor passes at the rate of one card (``send_ns``),
                behind ``message_ns``, which the two hosts need for each message whatever its size; a constant of
                a machine that needs runs (``constants``)
wait            until the slowest of n replicas is there: replicas of one plan differ by chance. The mean of the
                largest of n normal deviates is at most sqrt(2 ln n) standard deviations, which is taken, times
                ``spread``, the standard deviation as a share of the pipeline's time; the other constant of a
                machine that needs runs
copies          the gradients are put into one flat buffer, scaled by 1/n, and copied back: 24 bytes for each fp32
                parameter, at the pace of the optimiser, which moves 28 (reads weight, gradient and two moments,
                writes all but the gradient)
all-reduce      a ring over the replicas of the stage; with several pipelines, another over these
update          the optimiser's step (``profile``)
==============  ===================================================================================================

Synchronisation overlaps with nothing: the engine reduces the gradients after a barrier behind all passes. Sources:
DeepSpeed's pipeline engine (``TrainSchedule``, ``_exec_reduce_grads``), as modified for the plans of Sailor.

1F1B as DeepSpeed executes it: a send and its receive are one event that holds both devices.

``torch.distributed.send`` and ``recv`` put a kernel on each device, in order with its passes; a message passes
when both have come to it, and neither computes meanwhile. Between two passes a device first hands on what it
has made, then takes what it needs, except before a forward pass that follows a backward pass, where it takes
first, as its partner of that moment gives first (``TrainSchedule`` of DeepSpeed)::

    stage 0   F0 [a0> F1 [a1> [<g0] B0 F2 [a2> [<g1] B1 ...
    stage 1      [a0] F0 B0 [a1] [g0> F1 B1 [a2] [g1> F2 ...

The actions are those of ``schedules.one_f_one_b``; the program below puts the messages between them and is
executed by ``timeline.sweep``, like any other. A message is an entry of its own queue, which waits for the entry
before it on either side; both sides go on behind a JOIN that waits for the message.

Messages and all-reduces over links of which only the bandwidth by message size was measured.

A fit tells the bandwidth of all cards of a node together, by the size of the message of each (four cards of GH-96
reach four times the bandwidth of one, those of RTX-3090 that of one: they share the way out). It is a parabola in
the logarithm of the size and holds only where it was measured, so it is read with two limits: beyond its vertex a
larger message is as fast as the vertex, and a message below 1 MB takes the time of 1 MB, latency more than data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import log, sqrt

import numpy as np

from pipecut.formulation.problem.plan import Span
from pipecut.formulation.problem.units import NS_PER_SECOND, ceil_div, ceil_fraction
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import NONE, Kind, PipelineSchedule
from pipecut.formulation.timeline.durations import Durations, Execution
from pipecut.formulation.timeline.program import JOIN, SYNC, Program
from pipecut.formulation.timeline.timeline import sweep
from pipecut_literature.sailor.profile import (
    BYTES_PER_MB,
    LayerSizes,
    LinkFit,
    NotProfiledError,
    ProfiledMachine,
    SailorLinks,
    SailorPlan,
    SailorReplica,
    SailorStage,
)

BUCKET_BYTES = 4 * 500_000_000
"""DeepSpeed's bucket of an all-reduce: 500,000,000 fp32 elements (``MEMORY_OPT_ALLREDUCE_SIZE``)."""
LARGEST_MESSAGE = 10**15


@dataclass(frozen=True, slots=True)
class NodeLink:
    """The way out of a node that ``cards`` cards use at the same time, each with a message of its own."""

    fit: LinkFit
    cards: int

    def message_ns(self, message_bytes: int) -> int:
        """Return the ns until the messages of all cards, of so many bytes each, are through. Nothing costs 0.

        Raises NotProfiledError where the fit gives no bandwidth.
        """
        if message_bytes == 0:
            return 0
        least = max(message_bytes, int(BYTES_PER_MB))
        try:
            rate = self.fit.bytes_per_second(self._within(least))
        except ValueError as error:
            raise NotProfiledError(f"bandwidth between nodes: {error}") from error
        seconds = Fraction(self.cards * least) / Fraction(rate)
        return ceil_fraction(seconds * NS_PER_SECOND)

    def _within(self, message_bytes: int) -> int:
        """Return the size at which the fit is read: its vertex, for messages beyond the vertex of a peak."""
        if self.fit.c2 >= 0:
            return min(message_bytes, LARGEST_MESSAGE)
        vertex = BYTES_PER_MB * 2 ** min(40.0, -self.fit.c1 / (2 * self.fit.c2))
        return min(message_bytes, max(int(BYTES_PER_MB), math.ceil(vertex)))


def links_out(links: SailorLinks, replica: SailorReplica, cards: int | None = None) -> list[NodeLink]:
    """Return the way out of each kind of node of a replica, for all its cards in a node or for so many of them.

    Raises NotProfiledError for a card without a fit.
    """
    at_once = replica.cards_per_node if cards is None else cards
    found = []
    for kind in replica.kinds:
        counts = sorted(count for card, count in links.inter if card == kind)
        if not counts:
            raise NotProfiledError(f"card {kind}: no fit of the bandwidth between nodes")
        used = max((count for count in counts if count <= at_once), default=counts[0])
        found.append(NodeLink(links.inter[kind, used], used))
    return found


def send_ns(links: SailorLinks, one: SailorReplica, other: SailorReplica, message_bytes: int) -> int:
    """Return the ns to send a boundary tensor from a replica to one of the next stage: the slower end's.

    The whole tensor passes at the rate of a single card: the cards of a tensor-parallel group do not carry it
    faster together. This is read off the runs on GH-96: as if four cards carried a quarter each at the same time,
    every run with several stages would come out too short (docs/studies/sailor.md, the terms).
    """
    ways = [*links_out(links, one, 1), *links_out(links, other, 1)]
    return max(way.message_ns(message_bytes) for way in ways)


def all_reduce_ns(links: SailorLinks, members: Mapping[SailorReplica, tuple[int, int]]) -> int:
    """Return the ns of a ring all-reduce among replicas on nodes of their own, bucket by bucket.

    ``members``: how many replicas of a kind there are, and the bytes of the gradients on one of its cards.
    2 (n - 1) steps, each moving 1/n of the bucket over every link, at the pace of the slowest (Patarasuk and Yuan,
    2009). Every card of a replica is in a ring of its own, and all these rings share the way out. Replicas of
    unlike degrees exchange the same gradients, in shares of unlike size.
    """
    count = sum(number for number, _ in members.values())
    if count < 2:
        return 0
    times = [
        2 * (count - 1) * sum(way.message_ns(ceil_div(bucket, count)) for bucket in _buckets(own))
        for one, (_, own) in members.items()
        for way in links_out(links, one)
    ]
    return max(times)


def _buckets(reduced_bytes: int) -> list[int]:
    full, rest = divmod(reduced_bytes, BUCKET_BYTES)
    return [BUCKET_BYTES] * full + [rest]


Message = tuple[int, int, int]
"""Direction (FORWARD: an activation, BACKWARD: a gradient), boundary, micro-batch."""


def blocking_pipeline_ns(durations: Durations, micro_batches: int) -> int:
    """Return when the last pass or message of an iteration is done, in ns.

    Synchronisation and update are not part of it. Cost: linear in stages times micro-batches.
    Raises ScheduleError for less than one micro-batch.
    """
    schedule = one_f_one_b(durations.stages, micro_batches)
    return int(sweep(_program(schedule, durations)).stop_ns.max())


@dataclass(slots=True)
class _Entries:
    """Entries of a program: stage, kind, micro-batch, duration, needs and gate; the queues of the ranks first."""

    rows: list[list[int]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=lambda: [0])

    def put(self, stage: int, kind: int, micro_batch: int, duration: int, needs: int = NONE) -> int:
        """Add an entry to the open queue and return its index."""
        self.rows.append([stage, kind, micro_batch, duration, needs, NONE])
        return len(self.rows) - 1

    def gate(self, entry: int, gate: int) -> None:
        """Let an entry wait for another one, too."""
        self.rows[entry][-1] = gate

    def close(self) -> None:
        """End the open queue."""
        self.offsets.append(len(self.rows))


def _program(schedule: PipelineSchedule, durations: Durations) -> Program:
    """Return the actions of a schedule with its messages between them."""
    entries = _Entries()
    joins: dict[Message, list[int]] = {}
    times: dict[int, tuple[int, ...]] = {Kind.FORWARD: durations.forward_ns, Kind.BACKWARD: durations.backward_ns}
    for rank in range(schedule.ranks):
        for step in _steps(schedule, rank):
            if len(step) == 2:
                kind, micro_batch = step
                entries.put(rank, kind, micro_batch, times[kind][rank])
            else:
                joins.setdefault(step, []).append(entries.put(rank, JOIN, step[2], 0))
        entries.close()
    _put_messages(entries, joins, durations)
    queues = len(entries.offsets) - 1
    return Program(
        schedule,
        durations,
        Execution(),
        tuple(entries.offsets),
        (*range(schedule.ranks), *(NONE,) * (queues - schedule.ranks)),
        *(np.array(column, dtype=np.int64) for column in zip(*entries.rows, strict=True)),
        message_ns=np.zeros(len(entries.rows), dtype=np.int64),
        link=np.full(len(entries.rows), NONE, dtype=np.int64),
    )


def _steps(schedule: PipelineSchedule, rank: int) -> Iterator[tuple[int, int] | Message]:
    """Yield the passes of a rank, as (kind, micro-batch), with the messages that it takes part in between them."""
    row = schedule.row(rank)
    passes = list(zip(schedule.kind[row].tolist(), schedule.micro_batch[row].tolist(), strict=True))
    last = schedule.stages - 1
    before: tuple[int, int] | None = None
    for step in (*passes, None):
        taken, given = _taken(step, rank, last), _given(before, rank, last)
        turned = before is not None and step is not None and (before[0], step[0]) == (Kind.BACKWARD, Kind.FORWARD)
        yield from (*taken, *given) if turned else (*given, *taken)
        if step is not None:
            yield step
        before = step


def _taken(step: tuple[int, int] | None, rank: int, last: int) -> list[Message]:
    """Return the message that a pass needs from another device."""
    if step is None or rank == (0 if step[0] == Kind.FORWARD else last):
        return []
    return [(step[0], rank - 1 if step[0] == Kind.FORWARD else rank, step[1])]


def _given(step: tuple[int, int] | None, rank: int, last: int) -> list[Message]:
    """Return the message that a pass makes for another device."""
    if step is None or rank == (last if step[0] == Kind.FORWARD else 0):
        return []
    return [(step[0], rank if step[0] == Kind.FORWARD else rank - 1, step[1])]


def _put_messages(entries: _Entries, joins: dict[Message, list[int]], durations: Durations) -> None:
    """Add the queues of the messages, one for each boundary and direction, and let both ends wait for them."""
    times: dict[int, tuple[int, ...]] = {
        Kind.FORWARD: durations.activation_ns,
        Kind.BACKWARD: durations.gradient_ns,
    }
    starts = set(entries.offsets)
    open_queue: tuple[int, int] | None = None
    for message, ends in sorted(joins.items()):
        direction, boundary, micro_batch = message
        if open_queue not in (None, (direction, boundary)):
            entries.close()
        open_queue = direction, boundary
        before = [NONE if end in starts else end - 1 for end in ends]
        entry = entries.put(boundary, SYNC, micro_batch, times[direction][boundary], before[0])
        entries.gate(entry, before[1])
        for end in ends:
            entries.gate(end, entry)
    if open_queue is not None:
        entries.close()


UPDATE_BYTES = 28
"""Bytes that Adam moves for each fp32 parameter: reads 4 values of 4 bytes, writes 3."""
COPY_BYTES = 24
"""Bytes moved for each fp32 gradient besides the all-reduce: three passes that read and write it."""


@dataclass(frozen=True, slots=True)
class PredictedTime:
    """The terms of one iteration in ns; ``wait_ns`` needs the spread of the machine, messages what hosts need."""

    pipeline_ns: int
    wait_ns: int
    copies_ns: int
    all_reduce_ns: int
    update_ns: int

    @property
    def gradient_sync_ns(self) -> int:
        """What a timer around the gradient synchronisation shows: the wait, the copies, the all-reduce."""
        return self.wait_ns + self.copies_ns + self.all_reduce_ns

    @property
    def iteration_ns(self) -> int:
        """All terms together."""
        return self.pipeline_ns + self.gradient_sync_ns + self.update_ns


def order_statistic(replicas: int) -> float:
    """Return the bound sqrt(2 ln n) on the mean of the largest of n standard normal deviates; 0 for one."""
    return sqrt(2 * log(max(1, replicas)))


def predict_time(
    machine: ProfiledMachine, plan: SailorPlan, spread: float = 0.0, message_ns: int = 0
) -> PredictedTime:
    """Return the predicted time of an iteration.

    ``spread`` is the relative standard deviation of replicas, ``message_ns`` what the hosts of a message need.
    Raises NotProfiledError for a card, degree or layer that was not measured. Cost: that of executing one chain
    for each combination of unlike replicas.
    """
    check_layers(machine, plan)
    pipeline = 0
    for stages in plan.pipelines:
        spans = tuple(stage.span for stage in stages)
        for chain in dict.fromkeys(_chains(stages)):
            times = _durations(machine, plan, spans, chain, message_ns)
            pipeline = max(pipeline, blocking_pipeline_ns(times, plan.micro_batches))
    ends = [_end(machine, plan, stage) for stages in plan.pipelines for stage in stages]
    copies, reduce, update = max(ends, key=sum)
    wait = ceil_fraction(Fraction(spread * order_statistic(plan.replicas)) * pipeline)
    return PredictedTime(pipeline, wait, copies, reduce + _across_ns(machine, plan), update)


def check_layers(machine: ProfiledMachine, plan: SailorPlan) -> None:
    """Raise NotProfiledError for a pipeline that has other layers than the profile, or a missing profile."""
    for number, stages in enumerate(plan.pipelines):
        for stage in stages:
            for one in stage.replicas:
                sizes = sizes_of(machine, one)
                if stages[-1].span.stop != len(sizes):
                    raise NotProfiledError(
                        f"pipeline {number} has layers 0 to {stages[-1].span.stop - 1}, "
                        f"expected 0 to {len(sizes) - 1}, as profiled"
                    )
                for kind in one.kinds:
                    found = machine.profile(kind, one.tensor_parallel_degree).layers
                    if found != len(sizes):
                        raise NotProfiledError(f"card {kind}: profile of {found} layers, sizes of {len(sizes)}")


def sizes_of(machine: ProfiledMachine, replica: SailorReplica) -> tuple[LayerSizes, ...]:
    """Return layer sizes at the degree of a replica. Raises NotProfiledError where there are none."""
    degree = replica.tensor_parallel_degree
    if degree not in machine.sizes:
        degrees = ", ".join(str(one) for one in sorted(machine.sizes))
        raise NotProfiledError(f"no layer sizes for tensor-parallel degree {degree}, only for {degrees}")
    return machine.sizes[degree]


Chain = tuple[tuple[tuple[SailorReplica, ...], Fraction], ...]
"""For each stage the replicas that a chain may use, and their micro-batches for each one of the chain."""


def _chains(stages: tuple[SailorStage, ...]) -> list[Chain]:
    """Return a chain for each replica of the first stage: replica j talks to replica j mod n of a stage of n.

    A stage with fewer replicas does the micro-batches of several chains, one with more replicas shares them out.
    """
    width = len(stages[0].replicas)
    found = []
    for number in range(width):
        chain = []
        for stage in stages:
            count = len(stage.replicas)
            own = stage.replicas[number::width] if count > width else (stage.replicas[number % count],)
            chain.append((tuple(dict.fromkeys(own)), Fraction(width, count)))
        found.append(tuple(chain))
    return found


def _durations(
    machine: ProfiledMachine, plan: SailorPlan, spans: tuple[Span, ...], chain: Chain, message_ns: int
) -> Durations:
    """Return the times of the passes and messages of a chain, of the slowest where it may use several replicas."""
    passes = [
        tuple(map(max, zip(*(_passes(machine, plan, span, one, share) for one in own), strict=True)))
        for span, (own, share) in zip(spans, chain, strict=True)
    ]
    cuts = (span.stop for span in spans[:-1])
    messages = tuple(
        message_ns
        + max(
            send_ns(machine.links, one, other, plan.micro_batch * sizes_of(machine, one)[cut - 1].output_bytes)
            for one in senders
            for other in takers
        )
        for cut, ((senders, _), (takers, _)) in zip(cuts, pairwise(chain), strict=True)
    )
    forward, backward = zip(*passes, strict=True)
    return Durations(forward, backward, activation_ns=messages, gradient_ns=messages)


def _passes(
    machine: ProfiledMachine, plan: SailorPlan, span: Span, replica: SailorReplica, share: Fraction
) -> tuple[int, int]:
    """Return (forward, backward) ns of a stage for one micro-batch, at the pace of the slowest kind of card."""
    forward = backward = Fraction(0)
    for kind in replica.kinds:
        profile = machine.profile(kind, replica.tensor_parallel_degree)
        device = [profile.device_ns(layer, plan.micro_batch) for layer in span.layers]
        host = sum(profile.host_ns[span.first : span.stop], Fraction(0))
        forward = max(forward, host, sum((one for one, _ in device), Fraction(0)))
        backward = max(backward, sum((one for _, one in device), Fraction(0)))
    apart = _tensor_parallel_ns(machine, plan, span, replica)
    return ceil_fraction(forward * share) + apart, ceil_fraction(backward * share) + apart


def _tensor_parallel_ns(machine: ProfiledMachine, plan: SailorPlan, span: Span, replica: SailorReplica) -> int:
    """Return what the profile, made inside a node, lacks where a replica lies on several nodes.

    Two all-reduces of the layer's output for each layer and pass (Megatron-LM), in a ring over the degree's cards
    that leaves each node once.
    """
    degree = replica.tensor_parallel_degree
    if replica.cards_per_node >= degree:
        return 0
    sizes = sizes_of(machine, replica)
    inner = [sizes[layer].output_bytes for layer in span.layers if layer < len(sizes) - 1]
    steps = 4 * (degree - 1)
    ways = links_out(machine.links, replica)
    return sum(
        steps * max(ceil_div(way.message_ns(ceil_div(plan.micro_batch * one, degree)), way.cards) for way in ways)
        for one in inner
    )


def _end(machine: ProfiledMachine, plan: SailorPlan, stage: SailorStage) -> tuple[int, int, int]:
    """Return (copies, all-reduce, update) ns of a stage behind the passes, the slowest of its replicas."""
    updates = [
        machine.profile(kind, one.tensor_parallel_degree).update_ns(
            sizes_of(machine, one), stage.span.first, stage.span.stop, plan.micro_batch
        )
        for one in stage.replicas
        for kind in one.kinds
    ]
    update = max(updates)
    reduced = all_reduce_ns(machine.links, _members(machine, stage.replicas, stage.span))
    return ceil_div(update * COPY_BYTES, UPDATE_BYTES), reduced, update


def _members(
    machine: ProfiledMachine, replicas: Sequence[SailorReplica], span: Span
) -> dict[SailorReplica, tuple[int, int]]:
    """Return the kinds of replicas, how many there are of each, and the gradients of a span on a card of each."""
    return {
        one: (number, sum(sizes_of(machine, one)[layer].parameter_bytes for layer in span.layers))
        for one, number in Counter(replicas).items()
    }


def _across_ns(machine: ProfiledMachine, plan: SailorPlan) -> int:
    """Return the ns of the all-reduce among pipelines, one member of each, of the largest stage."""
    if len(plan.pipelines) < 2:
        return 0
    members = [stages[0].replicas[0] for stages in plan.pipelines]
    spans = {stage.span for stages in plan.pipelines for stage in stages}
    return max(all_reduce_ns(machine.links, _members(machine, members, span)) for span in spans)
