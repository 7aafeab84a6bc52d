"""A loop over stages as a user writes it, with the gradient broken off at every cut, and the unsplit model."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from pipecut.execution.splitting.stages import ModelStages
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.plan import Plan, Span, Stage
from tests.execution.models import Inputs

Result = dict[str, torch.Tensor | None]


def plan_of(cuts: Iterable[int], layers: int) -> Plan:
    """Return the plan with these cuts, one device a stage."""
    ends = itertools.pairwise([0, *cuts, layers])
    return Plan(tuple(Stage(Span(a, b), Group(((0, 1),)), (0,) * (b - a)) for a, b in ends))


def loss_of(outputs: object) -> torch.Tensor:
    """Return a number that depends on every output that has a gradient, on each element differently."""
    leaves = [one for one in pytree.tree_leaves(outputs) if isinstance(one, torch.Tensor) and one.requires_grad]
    return sum(
        ((one.double() * torch.linspace(1, 2, one.numel()).view_as(one)).sum() for one in leaves),
        torch.zeros((), dtype=torch.double),
    )


def called(model: Any, inputs: Inputs) -> Any:
    fresh = pytree.tree_map(lambda one: one.clone(), inputs)
    return model(**fresh) if isinstance(fresh, dict) else model(*fresh)


def unsplit(model: nn.Module, inputs: Inputs) -> Result:
    """Return outputs, gradients and buffers of one pass of a copy of the model."""
    model = copy.deepcopy(model).train()
    outputs = called(model, inputs)
    loss_of(outputs).backward()
    return _state(model, outputs)


def split(stages: ModelStages, model: nn.Module, inputs: Inputs) -> Result:
    """Return the same of one pass through the stages, which share the model's parameters and buffers."""
    model.zero_grad(set_to_none=True)
    fresh = pytree.tree_map(lambda one: one.clone(), inputs)
    values = stages.inputs(**fresh) if isinstance(fresh, dict) else stages.inputs(*fresh)
    given: Sequence[torch.Tensor] = ()
    taken: list[list[torch.Tensor]] = []
    gave: list[Sequence[torch.Tensor]] = []
    for stage in stages:
        pairs = zip(stage.takes, given, strict=True)
        taken.append([one.detach().clone().requires_grad_(take.differentiable) for take, one in pairs])
        given = stage(*taken[-1], *(values[one.name].clone() for one in stage.inputs))
        gave.append(given)
    outputs = stages.outputs(given)
    loss_of(outputs).backward()
    for at in range(len(stages) - 1, 0, -1):
        flowing = [
            (out, back.grad)
            for out, back in zip(gave[at - 1], taken[at], strict=True)
            if out.requires_grad and back.grad is not None
        ]
        torch.autograd.backward([out for out, _ in flowing], [back for _, back in flowing])
    return _state(model, outputs)


def _state(model: nn.Module, outputs: object) -> Result:
    leaves = [one for one in pytree.tree_leaves(outputs) if isinstance(one, torch.Tensor)]
    found: Result = {f"output {at}": one.detach() for at, one in enumerate(leaves)}
    found |= {f"gradient of {name}": one.grad for name, one in model.named_parameters()}
    return found | {f"buffer {name}": one.clone() for name, one in model.named_buffers()}


def unlike(one: Result, other: Result) -> list[str]:
    """Return the names of what is not equal to the last bit."""
    assert one.keys() == other.keys()
    return [name for name in one if not _equal(one[name], other[name])]


def _equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)
