"""What torchtitan and Megatron-LM can run of a plan: whole blocks, and as many devices in every stage.

What a block is, and where a stage may start, says ``ingest.graphs.runtime_places``; ``model.runtime`` of a
scenario keeps a planner to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from formulation.problem.groups import Group
from formulation.problem.instance import Instance
from formulation.problem.options import Sharded
from formulation.problem.plan import Plan, Stage
from ingest.graphs.runtime_places import block_of, is_numbered, is_operation

__all__ = ["TargetError"]


class TargetError(ValueError):
    """A plan is nothing that another program can run; ``str()`` says which layer or stage is at fault."""


@dataclass(frozen=True, slots=True)
class WholeBlocks:
    """The blocks of every stage in order, and the degrees of all stages.

    ``numbered`` tells which blocks are parts of a list, ``sharded`` what the replicas of every stage divide,
    ``recompute`` whether they keep no activations.
    """

    stages: tuple[tuple[str, ...], ...]
    numbered: frozenset[str]
    tensor_parallel_degree: int
    replicas: int
    sharded: Sharded
    recompute: bool


def whole_blocks(
    instance: Instance, plan: Plan, target: str, divides: Sequence[Sharded], *, in_a_v: bool = False
) -> WholeBlocks:
    """Return the blocks of every stage of a plan, for a program called ``target``.

    ``divides`` is what replicas can divide there; ``in_a_v``: it knows stages that are laid as a V. Raises
    TargetError where a stage starts inside a block or has none, where stages have different numbers of devices or
    replicas, or divide different things, or what the program cannot.
    """
    if not (in_a_v and instance.training.schedule.in_a_v):
        _check_warm_up(instance, plan, target)
    first = plan.stages[0].group
    home: dict[str, int] = {}
    numbered: set[str] = set()
    stages: list[tuple[str, ...]] = []
    for at, stage in enumerate(plan.stages):
        held = (stage.group.devices, stage.group.replicas)
        if held != (first.devices, first.replicas):
            raise TargetError(
                f"stage {at} has {held[0]} devices in {held[1]} replicas, stage 0 {first.devices} in "
                f"{first.replicas}: {target} gives all stages equally many"
            )
        _check_mode(at, stage.group, target)
        _check_recompute(instance, at, stage, first, target)
        _check_sharded(at, stage.group, first, target, divides)
        blocks: dict[str, None] = {}
        for layer in stage.span.layers:
            name, operator = instance.layers[layer].name, instance.layers[layer].operator
            block = block_of(name)
            if is_operation(name, operator):
                continue
            if is_numbered(name):
                numbered.add(block)
            if home.setdefault(block, at) != at:
                raise TargetError(
                    f"stage {at} starts inside block {block}, at layer {name}: {target} cuts between blocks only"
                )
            blocks[block] = None
        if not blocks:
            raise TargetError(f"stage {at} holds no module, and {target} needs one in every stage")
        stages.append(tuple(blocks))
    held = (first.tensor_parallel_degree, first.replicas, first.mode.sharded, first.mode.recompute is True)
    return WholeBlocks(tuple(stages), frozenset(numbered), *held)


def _check_mode(at: int, group: Group, target: str) -> None:
    """Raise TargetError for a stage with its optimiser on the host, or with its devices in a grid."""
    if group.mode.optimizer_on_host:
        raise TargetError(
            f"stage {at} keeps the optimiser on its host, and what is written for {target} says nothing of it "
            "yet: plan with constraints.optimizer_on_host: never"
        )
    if group.mode.grid > 1:
        rows, columns = group.grid
        raise TargetError(
            f"stage {at} splits layers by two forms at once, on a grid of {rows} x {columns} devices, and what is "
            f"written for {target} names one degree: plan without pairs in constraints.splits"
        )


def _check_warm_up(instance: Instance, plan: Plan, target: str) -> None:
    """Raise TargetError for passes in halves, or a stage that warms up otherwise than commonly in 1F1B."""
    training = instance.training
    if training.schedule.in_halves:
        raise TargetError(
            f"the plan is for {training.schedule}, and {target} runs whole backward passes: plan with"
            " training.schedule: one_f_one_b, or run it with pipecut run"
        )
    at = plan.unlike_classic(training)
    if at is not None:
        raise TargetError(
            f"stage {at} runs {plan.warm_ups(training)[at]} forward passes before its first backward pass, and"
            f" {target} {min(len(plan) - at, training.micro_batches)}, of the stages from it on: plan with"
            " training.warm_up: classic"
        )


def _check_recompute(instance: Instance, at: int, stage: Stage, first: Group, target: str) -> None:
    """Raise TargetError for a stage that computes some layers again, or again what others keep."""
    again, wanted = stage.group.mode.recompute, first.mode.recompute
    if stage.again:
        run = stage.again[0]
        names = [instance.layers[layer].name for layer in (run.first, run.stop - 1)]
        raise TargetError(
            f"stage {at} computes {len(stage.again)} blocks again, first the layers {names[0]} to {names[1]}, and "
            f"what is written for {target} says nothing of single blocks: plan with constraints.recompute: never "
            "or always"
        )
    if again not in (False, True):
        raise TargetError(
            f"stage {at} computes named layers again, and what is written for {target} says nothing of single "
            "layers: plan with constraints.recompute: never or always"
        )
    if again != wanted:
        kept = "computes its activations again" if again else "keeps its activations"
        raise TargetError(
            f"stage {at} {kept}, stage 0 does not: {target} does the same in all; plan with "
            "constraints.recompute: never or always"
        )


def _check_sharded(at: int, group: Group, first: Group, target: str, divides: Sequence[Sharded]) -> None:
    """Raise TargetError for a stage whose devices divide what the program does not, or not among replicas."""
    sharded = group.mode.sharded
    if sharded is not first.mode.sharded:
        raise TargetError(
            f"stage {at} has sharded '{sharded}', stage 0 '{first.mode.sharded}': {target} divides the same in all"
        )
    if sharded not in (Sharded.NONE, *divides):
        listed = ", ".join((Sharded.NONE, *divides))
        raise TargetError(
            f"stage {at} has sharded '{sharded}', which {target} does not run in a pipeline: plan with "
            f"constraints.sharded: [{listed}]"
        )
    if sharded is not Sharded.NONE and group.replicas == 1:
        raise TargetError(
            f"stage {at} has sharded '{sharded}' in one replica: {target} divides among replicas only; plan with "
            "constraints.tensor_parallel_degrees: [1]"
        )
