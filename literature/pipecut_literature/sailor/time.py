"""The iteration time of a plan on a machine that was profiled, term by term.

::

    iteration = pipeline + wait + max over stages (copies + all-reduce + update)

==============  ===================================================================================================
pipeline        the slowest chain of replicas, one of each stage, executed by ``measured_pipeline``. A forward
                pass takes the larger of its device's and its host's time, a backward pass its device's
                (``measured_profile``). A boundary tensor passes at the rate of one card (``measured_network``),
                behind ``message_ns``, which the two hosts need for each message whatever its size; a constant of
                a machine that needs runs (``measured_constants``)
wait            until the slowest of n replicas is there: replicas of one plan differ by chance. The mean of the
                largest of n normal deviates is at most sqrt(2 ln n) standard deviations, which is taken, times
                ``spread``, the standard deviation as a share of the pipeline's time; the other constant of a
                machine that needs runs
copies          the gradients are put into one flat buffer, scaled by 1/n, and copied back: 24 bytes for each fp32
                parameter, at the pace of the optimiser, which moves 28 (reads weight, gradient and two moments,
                writes all but the gradient)
all-reduce      a ring over the replicas of the stage; with several pipelines, another over these
update          the optimiser's step (``measured_profile``)
==============  ===================================================================================================

Synchronisation overlaps with nothing: the engine reduces the gradients after a barrier behind all passes. Sources:
DeepSpeed's pipeline engine (``TrainSchedule``, ``_exec_reduce_grads``), as modified for the plans of Sailor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import log, sqrt

from pipecut.formulation.problem.plan import Span
from pipecut.formulation.problem.units import ceil_div, ceil_fraction
from pipecut.formulation.timeline.durations import Durations
from pipecut_literature.sailor.network import all_reduce_ns, links_out, send_ns
from pipecut_literature.sailor.pipeline import blocking_pipeline_ns
from pipecut_literature.sailor.profile import NotProfiledError, ProfiledMachine
from pipecut_literature.sailor.run import LayerSizes, SailorPlan, SailorReplica, SailorStage

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
