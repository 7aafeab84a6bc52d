"""Plans written for other programs, and what these then run: torchtitan, Megatron-LM, DeepSpeed, a program.

Each of the first three has a module that writes what it is told (``exchange.torchtitan``, ``exchange.megatron``,
``exchange.deepspeed``) and reads it again. What was written is read back and priced, so that whoever exports a
plan is told what the other program makes of it. The program calls pipecut and takes any plan that pipecut can
run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType

from pipecut.exchange import deepspeed, megatron, torchtitan
from pipecut.exchange.whole_blocks import RuntimePlan, TargetError, as_run, runs_of
from pipecut.formulation.constraints.constraint import Violation
from pipecut.formulation.evaluate import Evaluation, evaluate
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.plan import Plan
from pipecut.ingest.graphs.runtimes import Runtime
from pipecut.ingest.operators.samples import BATCH_STATISTICS

WRITERS: Mapping[str, ModuleType] = {"deepspeed": deepspeed, "megatron": megatron, "torchtitan": torchtitan}
SCRIPT = "script"
TARGETS = (*WRITERS, SCRIPT)
"""What a plan can be written for."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a plan comes from: the paths of its file and its scenario, and the function that builds the model.

    ``model`` is ``module:function``, None where no function builds it.
    """

    plan: str
    scenario: str
    model: str | None


@dataclass(frozen=True, slots=True)
class Export:
    """A plan as the text that a target takes, and as the target runs it.

    ``runs`` is the plan that it runs, a plan of ``instance``, and ``priced`` the price of that; ``planned`` that
    of the plan as given. ``otherwise`` layers are divided otherwise than in the plan. ``notes`` say what else
    differs.
    """

    text: str
    planned: Evaluation
    instance: Instance
    runs: Plan
    priced: Evaluation
    otherwise: int = 0
    notes: tuple[str, ...] = ()


def exported_plan(instance: Instance, plan: Plan, target: str, source: Source) -> Export:
    """Return a plan as the text that a target takes, with what it runs.

    Raises TargetError for a plan that breaks a rule, for what the target cannot run, and where what it runs
    instead breaks a rule: more memory than there is, or a form that the user does not allow.
    """
    planned = evaluate(instance, plan)
    if target == SCRIPT:
        text = _script(instance, plan, source)
        _check_rules(planned.violations, "the plan breaks a rule of its scenario")
        return Export(text, planned, instance, plan, planned)
    module = WRITERS[target]
    program: Runtime = module.PROGRAM
    found = [_read_back(instance, plan, planned, module, run) for run in runs_of(instance, plan, program)]
    _check_rules(planned.violations, "the plan breaks a rule of its scenario")
    nearest = min(found, key=lambda one: (bool(_of_user(one.priced.violations)), one.otherwise))
    differs = f" (layers divided otherwise: {nearest.otherwise})" if nearest.otherwise else ""
    broken = _of_user(nearest.priced.violations)
    _check_rules(broken, f"as {program.name} runs it{differs}, the plan breaks a rule")
    return nearest


def _read_back(
    instance: Instance, plan: Plan, planned: Evaluation, module: ModuleType, run: RuntimePlan
) -> Export:
    """Return what is written to have a program run this, and the price of what was written."""
    text: str = module.write(instance, run)
    wide, runs = as_run(instance, module.read(instance, text))
    say: Callable[[Instance], list[str]] = getattr(module, "notes", lambda _: [])
    shared = any(stage.group.devices > 1 for stage in runs.stages)
    mixed = (one for one in instance.model.notes if shared and one.startswith(BATCH_STATISTICS))
    otherwise = _otherwise(instance, plan, runs)
    return Export(text, planned, wide, runs, evaluate(wide, runs), otherwise, (*say(instance), *mixed))


def _check_rules(broken: tuple[Violation, ...], what: str) -> None:
    if broken:
        raise TargetError(f"{what}: {broken[0].message}")


def _of_user(broken: tuple[Violation, ...]) -> tuple[Violation, ...]:
    """Leave out that blocks which a program computes again lie across layers that a user keeps together."""
    return tuple(one for one in broken if (one.rule, one.unit) != ("devices", "layer"))


def _otherwise(instance: Instance, plan: Plan, runs: Plan) -> int:
    """Return how many layers have another form in one plan than in another of the same stages."""
    return sum(
        form != other and instance.layers[layer].split is not Split.FOLLOW
        for stage, one in zip(plan.stages, runs.stages, strict=True)
        for layer, form, other in zip(stage.span.layers, stage.forms, one.forms, strict=True)
    )


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
