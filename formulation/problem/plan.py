"""A plan: a candidate answer, valid or not. Rules judge it (``formulation.constraints.rules``), costs price it."""

from __future__ import annotations

from dataclasses import dataclass

from formulation.problem.groups import Group

__all__ = ["Plan", "Span", "Stage"]


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open run of layers: ``first <= layer < stop``."""

    first: int
    stop: int

    def __len__(self) -> int:
        return max(0, self.stop - self.first)

    def __contains__(self, layer: int) -> bool:
        return self.first <= layer < self.stop

    @property
    def layers(self) -> range:
        """The layer indices of the span."""
        return range(self.first, self.stop)


@dataclass(frozen=True, slots=True)
class Stage:
    """A span of layers on a device group, with one parallel form for each layer (FOLLOW layers: 0)."""

    span: Span
    group: Group
    forms: tuple[int, ...]

    def form(self, layer: int) -> int:
        """Return the form of a layer of this stage, by its index in the model."""
        return self.forms[layer - self.span.first]


@dataclass(frozen=True, slots=True)
class Plan:
    """Stages in pipeline order."""

    stages: tuple[Stage, ...]

    def __len__(self) -> int:
        return len(self.stages)
