"""Plans written for other programs: torchtitan's modules, Megatron-LM's layout, DeepSpeed's list, a program.

torchtitan cuts between the children of a model and the numbered modules of its lists; where groups hold several
stages, it is told the schedule, which says which. Megatron-LM's
``--pipeline-model-parallel-layout`` is a string: stages are split by ``|``, ``E`` is the embedding, ``t`` a
block, ``L`` the loss with all that stands before it behind the last block, ``t*3`` three blocks; it begins with
``E`` and ends with ``L``. Where it lists more stages than there are groups, stage s runs on group s modulo their
number, as in a plan of several chunks. Both give every stage equally many devices, as DeepSpeed does
(``exchange.deepspeed``). The program calls pipecut and takes any plan that pipecut can run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from exchange.deepspeed import deepspeed_program
from exchange.layer_lists import RESHARD
from exchange.whole_blocks import TargetError, WholeBlocks, whole_blocks
from formulation.problem.instance import Instance
from formulation.problem.options import Sharded
from formulation.problem.plan import Plan

__all__ = ["Source", "exported_plan"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a plan comes from: the paths of its file and its scenario, and the function that builds the model.

    ``model`` is ``module:function``, None where no function builds it.
    """

    plan: str
    scenario: str
    model: str | None


def exported_plan(instance: Instance, plan: Plan, target: str, source: Source) -> str:
    """Return a plan as the text that a target takes. Raises TargetError for what it cannot run."""
    return TARGETS[target](instance, plan, source)


def _torchtitan(instance: Instance, plan: Plan, source: Source) -> str:
    del source
    blocks = whole_blocks(instance, plan, "torchtitan", tuple(RESHARD), in_a_v=True)
    copies = blocks.sharded is Sharded.NONE
    content: dict[str, object] = {
        "module_fqns_per_model_part": [list(stage) for stage in blocks.stages],
        "tensor_parallel_degree": blocks.tensor_parallel_degree,
        "data_parallel_replicate_degree": blocks.replicas if copies else 1,
    }
    if instance.training.chunks > 1:
        in_a_v = instance.training.schedule.in_a_v
        content["pipeline_parallel_schedule"] = "ZBVZeroBubble" if in_a_v else "Interleaved1F1B"
        content["pipeline_parallel_degree"] = instance.training.ranks(len(plan))
    if not copies:
        content["data_parallel_shard_degree"] = blocks.replicas
        content["fsdp_reshard_after_forward"] = RESHARD[blocks.sharded]
    if blocks.recompute:
        content["activation_checkpoint"] = {"mode": "full"}
    return json.dumps(content, indent=1) + "\n"


def _megatron(instance: Instance, plan: Plan, source: Source) -> str:
    del source
    blocks = whole_blocks(instance, plan, "Megatron-LM", (Sharded.OPTIMIZER,))
    counts = _block_counts(blocks)
    stages = [f"t*{count}" if count > 1 else "t" * count for count in counts]
    stages[0] = "E" + stages[0]
    stages[-1] += "L"
    if "" in stages:
        raise TargetError(f"stage {stages.index('')} holds no block, and Megatron-LM needs one in every stage")
    ranks = instance.training.ranks(len(stages))
    rows = [
        f"--pipeline-model-parallel-size {ranks}",
        f"--tensor-model-parallel-size {blocks.tensor_parallel_degree}",
        f"--num-layers {sum(counts)}",
        f'--pipeline-model-parallel-layout "{"|".join(stages)}"',
    ]
    if blocks.sharded is Sharded.OPTIMIZER:
        rows.append("--use-distributed-optimizer")
    if blocks.recompute:
        rows.append("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    return "\n".join(rows) + "\n"


def _block_counts(blocks: WholeBlocks) -> list[int]:
    """Return the numbered blocks of every stage; all else must stand before the first or behind the last one."""
    lists = {block.rpartition(".")[0] for block in blocks.numbered}
    if len(lists) != 1:
        found = ", ".join(sorted(lists)) or "none"
        raise TargetError(f"Megatron-LM takes one list of equal blocks; the model's lists are: {found}")
    for at, stage in enumerate(blocks.stages):
        kinds = [block in blocks.numbered for block in stage]
        for block, before, behind in ((one, kinds[:i], kinds[i:]) for i, one in enumerate(stage) if not kinds[i]):
            begins, ends = at == 0 and not any(before), at == len(blocks.stages) - 1 and not any(behind)
            if not begins and not ends:
                raise TargetError(
                    f"stage {at} holds {block}: in Megatron-LM the first stage has all that stands before the "
                    "blocks, and the last one all that stands behind them"
                )
    return [sum(block in blocks.numbered for block in stage) for stage in blocks.stages]


def _script(instance: Instance, plan: Plan, source: Source) -> str:
    if source.model is None:
        raise TargetError("a program needs a model that a function builds: model.build of the scenario")
    module, _, function = source.model.partition(":")
    return _PROGRAM.format(
        devices=sum(stage.group.devices for stage in plan.stages[: instance.training.ranks(len(plan))]),
        module=module,
        function=function,
        scenario=source.scenario,
        plan=source.plan,
        batch=instance.training.global_batch,
    )


_PROGRAM = '''\
"""Trains {module}:{function} as a plan says. Start it with

    torchrun --nproc-per-node {devices} THIS_FILE

on one machine, or with --nnodes on several. Put your data, loss and optimiser where they are marked.
"""

import torch
import torch.distributed as dist
from {module} import {function}

import pipecut

STEPS = 10


def main() -> None:
    dist.init_process_group("gloo")  # on GPUs "cpu:gloo,cuda:nccl", with model, inputs and data on them
    problem = pipecut.load({scenario!r})
    plan = pipecut.read_plan({plan!r}, problem)
    torch.manual_seed(0)  # every process begins with the same weights
    model, inputs = {function}()
    pipeline = pipecut.pipeline(model, inputs, problem, plan, loss)
    optimizer = torch.optim.SGD(pipeline.parameters.values(), lr=0.01)  # your optimiser
    for step in range(STEPS):
        found = pipeline.step(*batch(inputs, step))
        optimizer.step()
        optimizer.zero_grad()
        if found is not None:
            print(f"step {{step}}: loss {{found:.6g}}", flush=True)
    dist.barrier()  # who leaves first takes its connections along
    dist.destroy_process_group()


def loss(outputs, targets):
    return outputs.square().mean()  # your loss: the mean over the samples that it gets


def batch(inputs, step):
    """Return inputs and targets of all {batch} samples of a step, the same in every process: your data."""
    chance = torch.Generator().manual_seed(step)
    named = inputs if isinstance(inputs, dict) else dict(enumerate(inputs))
    drawn = {{}}
    for name, one in named.items():
        shape = ({batch}, *one.shape[1:])
        if one.is_floating_point():
            drawn[name] = torch.randn(shape, generator=chance)
        else:
            drawn[name] = one.reshape(-1)[torch.randint(0, one.numel(), shape, generator=chance)]
    return (drawn if isinstance(inputs, dict) else tuple(drawn.values())), None


if __name__ == "__main__":
    main()
'''

TARGETS: Mapping[str, Callable[[Instance, Plan, Source], str]] = {
    "deepspeed": lambda instance, plan, _: deepspeed_program(instance, plan),
    "megatron": _megatron,
    "script": _script,
    "torchtitan": _torchtitan,
}
"""What a plan can be written for."""
