"""DeepSpeed's pipeline: a list of modules, each of which gets what the one before gives, and one degree for all.

``PipelineModule`` divides its list by rules of its own (equally many entries, parameters, or entries of a type)
and takes no list of stages. A list with one entry a stage leaves the rule ``uniform`` no choice: so that is what
is written. It calls every entry with the result of the one before and nothing else, divides no layers by itself,
computes an entry again as a whole, and in a pipeline lets replicas divide the state of the optimiser only (ZeRO
stage 1). ``RANKS`` says how many ranks follow one another on which server.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from pipecut.exchange.whole_blocks import BY_SCRIPT, RuntimePlan, TargetError, read_run, starts_of
from pipecut.formulation.problem.constraints import Sharded
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.training import Schedule
from pipecut.ingest.graphs.cut_places import Chain
from pipecut.ingest.graphs.runtimes import DEEPSPEED, ComputedAgain

PROGRAM = DEEPSPEED
FORMATS = ("bf16", "data_types")


def write(instance: Instance, run: RuntimePlan) -> str:
    """Return a module of Python with the stages of a plan. Raises TargetError for what DeepSpeed cannot run."""
    _check_chain(instance, run)
    config = {
        "train_batch_size": run.training.global_batch,
        "train_micro_batch_size_per_gpu": run.samples,
        "gradient_accumulation_steps": run.training.micro_batches,
        "zero_optimization": {"stage": int(run.sharded is Sharded.OPTIMIZER)},
        **PROGRAM.settings_of(run.training),
    }
    listed = "".join(f"    {stage!r},\n" for stage in run.modules(instance))
    again = int(run.again is ComputedAgain.STAGES)
    return _PROGRAM.format(stages=listed, config=config, again=again, ranks=run.ranks(instance))


def read(instance: Instance, text: str) -> RuntimePlan:
    """Return what a module that was written for an instance tells DeepSpeed."""
    found: dict[str, Any] = {
        one.targets[0].id: ast.literal_eval(one.value)
        for one in ast.parse(text).body
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
    }
    config, stages, ranks = found["CONFIG"], found["STAGES"], found["RANKS"]
    interval = re.findall(r"activation_checkpoint_interval=(\d+)", text)
    return read_run(
        instance,
        PROGRAM,
        starts=starts_of(instance, stages),
        degrees=(1, sum(count for _, count in ranks) // len(stages)),
        sharded=Sharded.OPTIMIZER if config["zero_optimization"]["stage"] else Sharded.NONE,
        again=ComputedAgain.STAGES if interval == ["1"] else ComputedAgain.NOTHING,
        sequence=False,
        ranks=ranks,
        batch=(config["train_batch_size"], config["train_micro_batch_size_per_gpu"]),
        order=(Schedule.ONE_F_ONE_B, 1),
        formats={name: config[name] for name in FORMATS if name in config},
    )


def _check_chain(instance: Instance, run: RuntimePlan) -> None:
    """Raise TargetError unless every module works on what the one before it gives, also inside a stage."""
    chain = Chain.of(instance.model)
    stage_of = {layer: at for at, span in enumerate(run.spans(instance)) for layer in span.layers}
    place = {block: at for at, block in enumerate(dict.fromkeys(chain.blocks))}
    for one, other, _ in instance.model.edges:
        if place[chain.blocks[other]] - place[chain.blocks[one]] > 1:
            raise TargetError(
                f"stage {stage_of[other]}: {chain.name(other)} reads what {chain.name(one)} made, and "
                f"{PROGRAM.name} gives a module only what the one before it returns; {BY_SCRIPT}"
            )


_PROGRAM = '''\
"""The stages of a plan for DeepSpeed: pipeline(model, loss) is its PipelineModule, CONFIG is for initialize."""

from deepspeed.pipe import PipelineModule
from torch import nn

STAGES = [
{stages}]
CONFIG = {config!r}
RANKS = {ranks!r}  # how many follow one another on which server


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
