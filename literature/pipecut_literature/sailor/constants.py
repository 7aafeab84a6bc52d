"""The constants of a machine that need runs: its replicas' spread, its hosts' messages, and its share of memory.

They are medians over runs on the same kinds of card (where there is none: that share a kind with the plan), so no
single run decides. The run that is predicted is left out of its own estimate (``same_work``): what is reported is
held out.

* **Spread**: (measured gradient synchronisation - predicted copies and all-reduce) / (predicted pipeline x
  sqrt(2 ln n)), of every run with n > 1 replicas. Iteration times are not looked at for it. A run whose measured
  synchronisation and predicted pipeline are together more than a quarter longer than its iteration does not count:
  that synchronisation is not one (its timer must have counted passes that were still running). 0 without any run.
* **Message**: what the hosts of a blocking message need beside the time that its bytes take, which no profile of
  layers shows: launching the send and the receive, and waiting for both. Of every run with several stages it is
  (measured iteration - predicted, with the spread and no such time) / (by how much the prediction grows with it);
  of that, and no less than 0, the median. 0 without any run.
* **Unused blocks and machine bytes**: what was measured beyond the bytes of the plan is a share of the stash, and
  the same for all else. The share is the median of the slopes between any two runs (Theil and Sen), no less than
  0; the rest is the median of what is left. Without any run: no unused blocks, and what Sailor's own planner
  reserves, 2 GB for cards that work alone, 3 GB in a tensor-parallel group.

The peak memory of the fullest card of a plan, term by term.

::

    peak = max over stages and replicas of
           20 bytes x parameters + (1 + unused) x in flight x micro-batch x stash + working set + machine

==============  ===================================================================================================
20 bytes        fp32 weight, gradient, and two moments of Adam; and the flat copy of the gradients during
                synchronisation. No activation is left then, but their memory is in blocks of many sizes that
                PyTorch's allocator does not put together, so one long buffer comes on top
in flight       micro-batches between their forward and backward pass in 1F1B, ``peak_in_flight`` of the schedule
stash           what the layers of the stage keep for the backward pass (``layer_sizes``)
working set     twice the stash of the largest inner layer: its backward pass makes the gradient of what it kept,
                and intermediates of the same kind. On the last stage the larger of two: this, with the outputs
                below but without the stash of the output layer, which is freed by then; and the outputs with two
                more tensors like them, the gradient of the logits and the temporary of the loss
outputs         the last stage keeps the logits of its last two micro-batches: the engine has at least two pipeline
                buffers and gives an output back only when its buffer is used again
machine         what the driver counts besides PyTorch's tensors: CUDA context, kernels, buffers of NCCL, work
                space of cuBLAS; the same for every model
unused          blocks that the allocator holds but does not use, as a share of the stash. Both are constants of a
                machine, estimated from runs (``constants``)
==============  ===================================================================================================

Measured values are those of ``nvidia-smi``, in whole MiB; predictions are rounded up to them. Sources: DeepSpeed's
pipeline engine (``num_pipe_buffers``, ``_exec_forward_pass``, ``allreduce_bucket``); Adam; 1F1B, PipeDream-Flush.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from pipecut.formulation.problem.units import ceil_div
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import peak_in_flight
from pipecut_literature.sailor.profile import LayerSizes, ProfiledMachine, SailorPlan, SailorStage
from pipecut_literature.sailor.time import PredictedTime, check_layers, order_statistic, predict_time, sizes_of

STATE_COPIES = 5
"""Weight, gradient, two moments, and the flat copy of the gradients: all of the size of the parameters."""
PIPELINE_BUFFERS = 2
"""DeepSpeed's fewest pipeline buffers, which is what the last stage has."""
MIB = 2**20


@dataclass(frozen=True, slots=True)
class PredictedMemory:
    """Bytes of one card of the fullest replica: what the plan needs, and what the machine adds for that."""

    stage: int
    parameter_bytes: int
    stash_bytes: int
    working_bytes: int
    machine_bytes: int

    @property
    def plan_bytes(self) -> int:
        """Parameters with their state, stash, and working set."""
        return self.parameter_bytes + self.stash_bytes + self.working_bytes

    @property
    def peak_bytes(self) -> int:
        """All terms together, rounded up to whole MiB, as ``nvidia-smi`` shows them."""
        return ceil_div(self.plan_bytes + self.machine_bytes, MIB) * MIB


def predict_memory(
    machine: ProfiledMachine, plan: SailorPlan, machine_bytes: int = 0, unused: float = 0.0
) -> PredictedMemory:
    """Return the memory of the fullest card. Raises NotProfiledError for what was not measured.

    Cost: linear in layers and replicas, and in the actions of one schedule for each pipeline.
    """
    check_layers(machine, plan)
    found = []
    for stages in plan.pipelines:
        in_flight = peak_in_flight(one_f_one_b(len(stages), plan.micro_batches))
        for number, stage in enumerate(stages):
            for sizes in {sizes_of(machine, one) for one in stage.replicas}:
                own = sizes[stage.span.first : stage.span.stop]
                stash = in_flight[number] * plan.micro_batch * sum(one.stash_bytes for one in own)
                parameters = STATE_COPIES * sum(one.parameter_bytes for one in own)
                added = machine_bytes + int(unused * stash)
                working = _working_bytes(plan, sizes, stage)
                found.append(PredictedMemory(number, parameters, stash, working, added))
    return max(found, key=lambda one: one.plan_bytes)


def _working_bytes(plan: SailorPlan, sizes: tuple[LayerSizes, ...], stage: SailorStage) -> int:
    """Return what comes on top of the stash while a backward pass runs."""
    last = len(sizes) - 1
    inner = [sizes[layer].stash_bytes for layer in stage.span.layers if layer != last]
    layer = 2 * plan.micro_batch * max(inner, default=0)
    if last not in stage.span:
        return layer
    output = plan.micro_batch * sizes[last].output_bytes
    kept = min(PIPELINE_BUFFERS, plan.micro_batches) * output
    return max(layer + kept - plan.micro_batch * sizes[last].stash_bytes, kept + 2 * output)


ALONE_BYTES = 2_000_000_000
GROUP_BYTES = 3_000_000_000
MESSAGE_NS = 1_000_000
"""The time of a message with which it is tried by how much a prediction grows."""
IMPLAUSIBLE = 1.25
"""Synchronisation and pipeline over the iteration, above which the measured synchronisation is not believed."""


@dataclass(frozen=True, slots=True)
class SailorRun:
    """A plan, what was measured of it, and what is predicted of it without any constant.

    ``grown_ns`` is by how much the pipeline takes longer where each message takes ``MESSAGE_NS`` more.
    """

    plan: SailorPlan
    time: PredictedTime
    memory: PredictedMemory
    grown_ns: int

    @classmethod
    def of(cls, machine: ProfiledMachine, plan: SailorPlan) -> SailorRun:
        """Predict a plan. Raises NotProfiledError for what was not measured."""
        time, slower = predict_time(machine, plan), predict_time(machine, plan, message_ns=MESSAGE_NS)
        return cls(plan, time, predict_memory(machine, plan), slower.pipeline_ns - time.pipeline_ns)

    @property
    def spread(self) -> float | None:
        """The spread of replicas that this run shows; None if it shows none."""
        run, replicas = self.plan.measured, self.plan.replicas
        if run.gradient_sync_ns is None or replicas < 2 or not (self.sync_is_plausible and self.time.pipeline_ns):
            return None
        waited = run.gradient_sync_ns - self.time.copies_ns - self.time.all_reduce_ns
        return max(0, waited) / (self.time.pipeline_ns * order_statistic(replicas))

    def message_ns(self, spread: float) -> int | None:
        """Return what the hosts of a message need by this run, at this spread of replicas; None without any."""
        run, slower = self.plan.measured, 1 + spread * order_statistic(self.plan.replicas)
        if run.iteration_ns is None or not self.grown_ns:
            return None
        without = self.time.iteration_ns + (slower - 1) * self.time.pipeline_ns
        return max(0, round((run.iteration_ns - without) * MESSAGE_NS / (slower * self.grown_ns)))

    @property
    def sync_is_plausible(self) -> bool:
        """Whether the measured synchronisation leaves room for the passes in the measured iteration."""
        run = self.plan.measured
        if run.gradient_sync_ns is None or run.iteration_ns is None:
            return True
        return run.gradient_sync_ns + self.time.pipeline_ns <= IMPLAUSIBLE * run.iteration_ns

    @property
    def machine_bytes(self) -> int | None:
        """What was measured beyond the plan's own bytes; None if memory was not measured."""
        peak = self.plan.measured.peak_memory_bytes
        return None if peak is None else peak - self.memory.plan_bytes


@dataclass(frozen=True, slots=True)
class MachineConstants:
    """The spread of replicas, hosts' messages, the machine's own bytes, unused blocks by the stash.

    ``spread_runs``, ``message_runs`` and ``memory_runs`` are how many runs they rest on.
    """

    spread: float
    message_ns: int
    machine_bytes: int
    unused: float
    spread_runs: int
    message_runs: int
    memory_runs: int


def constants_for(plan: SailorPlan, runs: Sequence[SailorRun]) -> MachineConstants:
    """Return the constants with which to predict a plan: from all other runs on the same kinds of card."""
    return constants_of(plan, [run for run in runs if not run.plan.same_work(plan)])


def constants_of(plan: SailorPlan, runs: Sequence[SailorRun]) -> MachineConstants:
    """Return the constants of a plan's machine, from all of these runs on the same kinds of card."""
    spreads = [run.spread for run in _on_machine(plan, [run for run in runs if run.spread is not None])]
    spread = median(one for one in spreads if one is not None) if spreads else 0.0
    sending = _on_machine(plan, [run for run in runs if run.message_ns(spread) is not None])
    messages = [run.message_ns(spread) or 0 for run in sending]
    measured = _on_machine(plan, [run for run in runs if run.machine_bytes is not None])
    own = [(run.memory.stash_bytes, run.machine_bytes or 0) for run in measured]
    unused = _slope(own)
    degrees = {
        one.tensor_parallel_degree for stages in plan.pipelines for stage in stages for one in stage.replicas
    }
    default = GROUP_BYTES if max(degrees) > 1 else ALONE_BYTES
    return MachineConstants(
        spread,
        round(median(messages)) if messages else 0,
        max(0, int(median(more - unused * stash for stash, more in own))) if own else default,
        unused,
        len(spreads),
        len(messages),
        len(own),
    )


def _slope(points: Sequence[tuple[int, int]]) -> float:
    """Return the median of the slopes between any two points that differ in the first number, no less than 0."""
    slopes = [(y - other) / (x - at) for (at, other), (x, y) in combinations(points, 2) if at != x]
    return max(0.0, median(slopes)) if slopes else 0.0


def _on_machine(plan: SailorPlan, runs: Sequence[SailorRun]) -> list[SailorRun]:
    """Return the runs on the kinds of card of a plan; where there is none, those that share a kind with it."""
    same = [run for run in runs if run.plan.machine == plan.machine]
    return same or [run for run in runs if not set(run.plan.machine).isdisjoint(plan.machine)]
