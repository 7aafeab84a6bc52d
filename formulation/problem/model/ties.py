"""Ties: weights that several layers use.

A layer graph counts such weights at the first layer that uses them. A stage is a run of layers, so it has them
once however many of its layers use them; but where a layer uses weights that no earlier layer *of its stage* has,
its stage holds a copy (``formulation.problem.precision.Copy``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from formulation.problem.layers import Layer


@dataclass(frozen=True, slots=True)
class Tie:
    """Weights of so many bytes that all of these layers use; ``trainable_bytes`` of them are trained (None: all).

    They are part of the ``parameter_bytes`` of the first of the layers alone, in execution order. Raises
    ValueError for fewer than two layers, a layer twice, and sizes that cannot be.
    """

    layers: tuple[int, ...]
    parameter_bytes: int
    trainable_bytes: int | None = None

    def __post_init__(self) -> None:
        if len(set(self.layers)) < 2 or len(set(self.layers)) < len(self.layers):
            raise ValueError(f"weights tied between layers {self.layers}, expected two or more, each once")
        if type(self.parameter_bytes) is not int or self.parameter_bytes < 0:
            raise ValueError(f"tied weights of {self.parameter_bytes!r} bytes, expected a whole number, 0 or more")
        if type(self.trained_bytes) is not int or not 0 <= self.trained_bytes <= self.parameter_bytes:
            most = f"0 to {self.parameter_bytes}, the bytes of all these weights"
            raise ValueError(f"tied weights with trainable_bytes {self.trainable_bytes!r}, expected {most}")
        object.__setattr__(self, "layers", tuple(sorted(self.layers)))

    @property
    def trained_bytes(self) -> int:
        """Bytes of these weights that are trained."""
        return self.parameter_bytes if self.trainable_bytes is None else self.trainable_bytes


def moved(layers: Sequence[Layer], tie: Tie, factor: int, at: int) -> list[Layer]:
    """Return the layers with a tie's weights put to one of them (``factor`` 1) or taken away from it (-1)."""
    rows, one = list(layers), layers[at]
    trained = one.trained_bytes + factor * tie.trained_bytes
    total = one.parameter_bytes + factor * tie.parameter_bytes
    rows[at] = replace(one, parameter_bytes=total, trainable_bytes=None if trained == total else trained)
    return rows


def ties_problems(layers: Sequence[Layer], ties: Iterable[Tie]) -> list[str]:
    """Say which tied weights are not there: in layers that the graph does not have, or more than layers have."""
    ties = tuple(ties)
    if any(not 0 <= at < len(layers) for tie in ties for at in tie.layers):
        return ["weights are tied between layers that it does not have"]
    problems: list[str] = []
    for at, layer in enumerate(layers):
        first = [tie for tie in ties if tie.layers[0] == at]
        size, trained = sum(tie.parameter_bytes for tie in first), sum(tie.trained_bytes for tie in first)
        fixed = layer.parameter_bytes - layer.trained_bytes
        if trained > layer.trained_bytes or size - trained > fixed:
            problems.append(
                f"layer {layer.name} has weights of {layer.parameter_bytes} bytes, {layer.trained_bytes} of them"
                f" trained, and shares {size} and {trained} with later layers, which count at the first of them"
            )
    return problems
