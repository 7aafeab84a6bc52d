"""What torchtitan and Megatron-LM can run of a plan: whole blocks, and as many devices in every stage.

A *block* is a numbered module of a list (``layers.17``), with all layers below it; what stands in no list is a
block by itself. An operation between modules (an addition) has no module, and stays with the layer before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from formulation.problem.instance import Instance
from formulation.problem.plan import Plan

__all__ = ["TargetError"]


class TargetError(ValueError):
    """A plan is nothing that another program can run; ``str()`` says which layer or stage is at fault."""


@dataclass(frozen=True, slots=True)
class WholeBlocks:
    """The blocks of every stage in order, and the degrees of all stages.

    ``numbered`` tells which blocks are parts of a list.
    """

    stages: tuple[tuple[str, ...], ...]
    numbered: frozenset[str]
    tensor_parallel_degree: int
    replicas: int


def whole_blocks(instance: Instance, plan: Plan, target: str) -> WholeBlocks:
    """Return the blocks of every stage of a plan, for a program called ``target``.

    Raises TargetError where a stage starts inside a block or has none, and where stages have different numbers of
    devices or replicas.
    """
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
        blocks: dict[str, None] = {}
        for layer in stage.span.layers:
            name, operator = instance.layers[layer].name, instance.layers[layer].operator
            block = _block(name)
            if block != name or name.rpartition(".")[2].isdecimal():
                numbered.add(block)
            elif name.rpartition(".")[2].partition(":")[0] == operator:
                continue
            if home.setdefault(block, at) != at:
                raise TargetError(
                    f"stage {at} starts inside block {block}, at layer {name}: {target} cuts between blocks only"
                )
            blocks[block] = None
        if not blocks:
            raise TargetError(f"stage {at} holds no module, and {target} needs one in every stage")
        stages.append(tuple(blocks))
    return WholeBlocks(tuple(stages), frozenset(numbered), first.tensor_parallel_degree, first.replicas)


def _block(name: str) -> str:
    """Return the block of a layer: its name up to the first number, or the whole of it."""
    parts = name.split(".")
    at = next((at for at, part in enumerate(parts) if part.isdecimal()), len(parts) - 1)
    return ".".join(parts[: at + 1])
