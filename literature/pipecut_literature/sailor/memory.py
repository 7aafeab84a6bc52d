"""The peak memory of the fullest card of a plan, term by term.

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

from dataclasses import dataclass

from pipecut.formulation.problem.units import ceil_div
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.timeline.measures import peak_in_flight
from pipecut_literature.sailor.profile import LayerSizes, ProfiledMachine, SailorPlan, SailorStage
from pipecut_literature.sailor.time import check_layers, sizes_of

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
