"""DeepSpeed's pipeline: a list of modules, each of which gets what the one before gives, and one degree for all.

``PipelineModule`` divides its list by rules of its own (equally many entries, parameters, or entries of a type)
and takes no list of stages. A list with one entry a stage leaves the rule ``uniform`` no choice: so that is what
is written. It calls every entry with the result of the one before and nothing else, divides no layers by itself,
and in a pipeline lets replicas divide the state of the optimiser only (ZeRO stage 1).
"""

from __future__ import annotations

from exchange.whole_blocks import TargetError, WholeBlocks, whole_blocks
from formulation.problem.instance import Instance
from formulation.problem.options import Sharded
from formulation.problem.plan import Plan
from ingest.graphs.runtime_places import block_of, is_operation

__all__: list[str] = []

NAME = "DeepSpeed"


def deepspeed_program(instance: Instance, plan: Plan) -> str:
    """Return a module of Python with the stages of a plan. Raises TargetError for what DeepSpeed cannot run."""
    blocks = whole_blocks(instance, plan, NAME, (Sharded.OPTIMIZER,))
    if instance.training.chunks > 1:
        raise TargetError(
            f"each group holds {instance.training.chunks} stages, and {NAME}'s pipeline gives each stage devices "
            "of its own: plan with training.chunks: 1"
        )
    if blocks.tensor_parallel_degree > 1:
        raise TargetError(
            f"stage 0 divides its layers over {blocks.tensor_parallel_degree} devices, and {NAME}'s pipeline "
            "divides none: plan with constraints.tensor_parallel_degrees: [1]"
        )
    _check_chain(instance, plan, blocks)
    training = instance.training
    if training.micro_batch % blocks.replicas:
        raise TargetError(
            f"{blocks.replicas} replicas share micro-batches of {training.micro_batch} samples, and {NAME} gives "
            "each equally many: take a micro-batch that they divide"
        )
    config = {
        "train_batch_size": training.global_batch,
        "train_micro_batch_size_per_gpu": training.micro_batch // blocks.replicas,
        "gradient_accumulation_steps": training.micro_batches,
        "zero_optimization": {"stage": int(blocks.sharded is Sharded.OPTIMIZER)},
    }
    listed = "".join(f"    {list(stage)!r},\n" for stage in blocks.stages)
    return _PROGRAM.format(stages=listed, config=config, again=int(blocks.recompute))


def _check_chain(instance: Instance, plan: Plan, blocks: WholeBlocks) -> None:
    """Raise TargetError unless every block works on what the block before it gives, and holds its own weights."""
    stage_of = {layer: at for at, stage in enumerate(plan.stages) for layer in stage.span.layers}
    place = {block: at for at, block in enumerate(block for stage in blocks.stages for block in stage)}
    for layer, row in enumerate(instance.layers):
        if is_operation(row.name, row.operator):
            raise TargetError(
                f"stage {stage_of[layer]}: {row.name} is an operation outside all modules, and {NAME} calls "
                "modules only: put it into one"
            )
    for edge in instance.edges:
        giver, taker = (block_of(instance.layers[one].name) for one in (edge.producer, edge.consumer))
        if place[taker] - place[giver] > 1:
            raise TargetError(
                f"stage {stage_of[edge.consumer]}: {instance.layers[edge.consumer].name} reads what "
                f"{instance.layers[edge.producer].name} made, and {NAME} gives a module only what the one before "
                "it returns"
            )
    for tie in instance.model.ties:
        first, *others = tie.layers
        for other in others:
            if stage_of[other] != stage_of[first]:
                raise TargetError(
                    f"stage {stage_of[other]}: {instance.layers[other].name} shares weights with "
                    f"{instance.layers[first].name} of stage {stage_of[first]}, which {NAME} wants written as "
                    "TiedLayerSpec: keep both in one stage (constraints.together)"
                )


_PROGRAM = '''\
"""The stages of a plan for DeepSpeed: pipeline(model, loss) is its PipelineModule, CONFIG is for initialize."""

from deepspeed.pipe import PipelineModule
from torch import nn

STAGES = [
{stages}]
CONFIG = {config!r}


def pipeline(model, loss):
    """Each stage is one entry of the list, so that "uniform" gives every stage its own."""
    entries = [nn.Sequential(*(model.get_submodule(name) for name in stage)) for stage in STAGES]
    return PipelineModule(
        layers=entries,
        num_stages=len(entries),
        partition_method="uniform",
        activation_checkpoint_interval={again},
        loss_fn=loss,
    )
'''
