"""In which formats a run computes and keeps numbers, as ``training.precision`` says.

Weights of 4 bytes and activations of 2: every stage computes under ``torch.autocast``. Weights of 2 bytes: the
model and its inputs are converted. With gradients of 4 bytes the optimiser works on a copy in 32 bits (12 bytes a
parameter), into which gradients are added. Two bytes are bfloat16, which needs no scale of the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from pipecut.execution.errors import StagesError
from pipecut.formulation.problem.precision import Precision

HALF = torch.bfloat16
_WITH_COPY = 12
"""Bytes of an optimiser that keeps a copy of the weights in 32 bits, beside Adam's two numbers."""


class Formats:
    """The formats of a run; without a precision those of the model itself."""

    def __init__(self, precision: Precision | None) -> None:
        """Look at the bytes of each kind. Raises StagesError for those that nothing here computes in."""
        found = None if precision is None else (precision.weights, precision.gradients, precision.activations)
        kept = None if precision is None else precision.frozen
        if precision is not None and kept is not None and kept != precision.weights:
            raise StagesError(
                f"training.precision.frozen {float(kept):g} cannot be run: weights that are not trained are"
                f" kept like the others, whose elements have {precision.weights}"
            )
        has_room = precision is not None and precision.optimizer >= _WITH_COPY
        if found == (2, 2, 2) and has_room:
            raise StagesError(
                f"training.precision {precision} (fp16-mixed) cannot be run: float16 needs a scale of the loss, "
                "and two bytes are bfloat16 here, whose sums need 4: plan with bf16-mixed, or with bf16"
            )
        self.copies = found == (2, 4, 2) and has_room
        self.converts = found == (2, 2, 2) or self.copies
        self.autocasts = found == (4, 4, 2)
        if not (found in (None, (4, 4, 4)) or self.converts or self.autocasts):
            raise StagesError(
                f"training.precision {precision} cannot be run: weights, gradients and activations of 4, 4 and 4 "
                "bytes can, of 4, 4 and 2 (amp), of 2, 2 and 2 with less than 12 for the optimiser (bf16), and of "
                "2, 4 and 2 with 12 or more (bf16-mixed)"
            )

    def prepare(self, model: nn.Module) -> None:
        """Make a model compute so; it is changed."""
        if self.converts:
            model.to(HALF)
        if self.autocasts:
            device, forward = next((one.device.type for one in model.parameters()), "cpu"), model.forward

            def under_autocast(*args: Any, **keywords: Any) -> Any:  # noqa: ANN401 (as the model)
                with torch.autocast(device, dtype=HALF):
                    return forward(*args, **keywords)

            model.forward = under_autocast

    def arriving(self, inputs: Any) -> Any:  # noqa: ANN401 (tensors in any structure)
        """Return inputs in the format of the weights."""
        return pytree.tree_map(self._converted, inputs) if self.converts else inputs

    def _converted(self, one: object) -> object:
        return one.to(HALF) if isinstance(one, torch.Tensor) and one.is_floating_point() else one


class FullCopies:
    """Weights in 32 bits for the optimiser, beside those that the stages compute with."""

    def __init__(self, weights: Mapping[str, nn.Parameter]) -> None:
        """Copy the weights that are trained."""
        self._weights = {name: one for name, one in weights.items() if one.requires_grad}
        self.parameters = {name: nn.Parameter(one.detach().float()) for name, one in self._weights.items()}

    @torch.no_grad()
    def hand_out(self) -> None:
        """Round the copies to the weights."""
        for name, one in self._weights.items():
            one.copy_(self.parameters[name])

    def collect(self) -> None:
        """Add the gradients of the weights to those of the copies, and forget them."""
        for name, one in self._weights.items():
            if one.grad is not None:
                copy = self.parameters[name]
                copy.grad = one.grad.float() if copy.grad is None else copy.grad.add_(one.grad)
                one.grad = None
