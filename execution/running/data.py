"""Data to run a plan on where there is none: like the example inputs of a model, but different in every sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pipecut.execution.errors import StagesError
from pipecut.formulation.costs.amounts import counted
from pipecut.ingest.torch.export import Inputs


def samples_like(inputs: Inputs, many: int, seed: int) -> Inputs:
    """Return so many samples: floating-point values are drawn anew, others among those of the example."""
    chance = torch.Generator().manual_seed(seed)

    def drawn(one: object) -> object:
        if not isinstance(one, torch.Tensor):
            return one
        shape = (many, *one.shape[1:])
        if one.is_floating_point():
            return torch.randn(shape, generator=chance, dtype=one.dtype).to(one.device)
        flat = one.reshape(-1)
        return flat[torch.randint(0, len(flat), shape, generator=chance).to(one.device)]

    return pytree.tree_map(drawn, dict(inputs) if isinstance(inputs, Mapping) else tuple(inputs))


def placed(inputs: Inputs, device: torch.device) -> Inputs:
    """Return inputs on a device."""
    return pytree.tree_map(lambda one: one.to(device) if isinstance(one, torch.Tensor) else one, inputs)


def mean_square(outputs: Any, targets: object) -> torch.Tensor:  # noqa: ANN401 (what a model returns)
    """Return the mean of the squares of every floating-point output, added up: a loss that needs no targets.

    Raises StagesError where there is none.
    """
    del targets
    leaves = [one for one in pytree.tree_leaves(outputs) if isinstance(one, torch.Tensor)]
    floating = [one for one in leaves if one.is_floating_point()]
    if not floating:
        raise StagesError("the model returns no floating-point tensor, so there is nothing to train")
    return torch.stack([one.square().mean() for one in floating]).sum()


def copied(samples: object) -> Any:  # noqa: ANN401 (tensors in any structure)
    """Return the same samples in memory of their own."""
    return pytree.tree_map(lambda one: one.clone() if isinstance(one, torch.Tensor) else one, samples)


def samples_of(batch: object, rows: range) -> Any:  # noqa: ANN401 (tensors in any structure)
    """Return some samples of a batch: of every tensor in it these rows of its first dimension."""
    return pytree.tree_map(
        lambda one: one[rows.start : rows.stop] if isinstance(one, torch.Tensor) else one, batch
    )


def check_samples(batch: object, what: str, many: int) -> None:
    """Raise StagesError unless every array of a batch has ``many`` samples; ``what`` names it in the message."""
    for place, one in pytree.tree_flatten_with_path(batch)[0]:
        name = f"{what}{pytree.keystr(place)}"
        if not isinstance(one, torch.Tensor):
            if hasattr(one, "shape"):
                raise StagesError(
                    f"{name} is a {type(one).__name__}, whose samples are not told apart: give a tensor"
                )
        elif not one.dim() or len(one) != many:
            found = counted(len(one), "sample") if one.dim() else "no samples"
            raise StagesError(
                f"{name} has {found} (shape {list(one.shape)}), and a step takes {many}, as planned: give as many "
                "in dimension 0, or plan with another training.global_batch"
            )


@torch.no_grad()
def check_mean(
    loss: Callable[[Any, Any], torch.Tensor], outputs: object, targets: object, found: torch.Tensor, samples: int
) -> None:
    """Raise StagesError where a loss is surely no mean over samples: it is not that of its halves, or of doubles.

    Outputs whose first dimension is not that of the samples are not looked at.
    """
    leaves = [one for one in pytree.tree_leaves(outputs) if isinstance(one, torch.Tensor)]
    if not leaves or any(not one.dim() or len(one) != samples for one in leaves):
        return
    half = samples // 2
    if half:
        rows = (range(half), range(half, samples))
        parts = [float(loss(samples_of(outputs, one), samples_of(targets, one))) * len(one) for one in rows]
        what, other = (
            f"that of its {half} first and {counted(samples - half, 'other sample')} on average",
            sum(parts) / samples,
        )
    else:
        double = tuple(pytree.tree_map(_twice, one) for one in (outputs, targets))
        what, other = "that of the same sample twice", float(loss(*double))
    size = max(abs(float(found)), abs(other))
    exact = all(one.dtype.itemsize >= 4 for one in leaves if one.is_floating_point())
    rough = 1e-4 if exact else 2e-2
    if abs(float(found) - other) > rough * size:
        raise StagesError(
            f"the loss of {samples} samples is {float(found):.8g}, and {what} {other:.8g}: it mixes samples, or "
            "is no mean over them, so micro-batches would compute something else; take the mean over samples"
        )


def _twice(one: object) -> object:
    return torch.cat([one, one]) if isinstance(one, torch.Tensor) else one
