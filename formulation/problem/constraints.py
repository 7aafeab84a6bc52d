"""What a plan must keep beyond being a plan, as a user writes it, and what plans are judged by.

Layers are named by globs and servers by names here; ``formulation.problem.demands`` looks them up on an instance.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from formulation.constraints.violation import Violation
    from formulation.problem.instance import Instance
    from formulation.problem.plan import Plan

__all__ = ["Constraints", "FormLimit", "Goal", "GoalLimit", "Own", "Pin", "Placement", "Recompute", "Reserve"]


class Goal(enum.StrEnum):
    """What a plan is judged by: a whole number, the less the better (``formulation.costs.goals``)."""

    BOTTLENECK = "bottleneck"
    """The steady-state time per micro-batch: the slowest stage or boundary, in ns."""
    ITERATION_TIME = "iteration_time"
    """One optimiser step with its fill and drain, in ns."""
    COST = "cost"
    """The price of the devices used, in millionths of the currency per hour."""
    MEMORY = "memory"
    """The largest peak of any stage, in bytes of one device."""
    DEVICES = "devices"
    STAGES = "stages"


class Recompute(enum.StrEnum):
    """Whether stages drop their activations and compute them again in the backward pass (re-materialisation)."""

    NEVER = "never"
    ALLOWED = "allowed"
    """Each stage chooses."""
    ALWAYS = "always"


class Placement(enum.StrEnum):
    """Which devices a stage may run on."""

    LINE = "line"
    """Devices stand in server order and a stage takes the next ones, as the field's dynamic programmes assume."""
    FREE = "free"
    """Any devices of any servers; stages may share a server, also stages that are not neighbours."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Where layers must run: ``layers`` is a glob on layer names, and exactly one of the others says where.

    ``servers``: their stages run on devices of these servers only; ``device``: on devices of this class only;
    ``stage``: they lie in this stage, counted from the front (0, 1, ...) or from the end (-1, -2, ...).
    """

    layers: str
    servers: tuple[str, ...] = ()
    device: str | None = None
    stage: int | None = None

    def __post_init__(self) -> None:
        if (len(self.servers) > 0) + (self.device is not None) + (self.stage is not None) != 1:
            raise ValueError(f"pin of '{self.layers}': expected exactly one of servers, device and stage")


@dataclass(frozen=True, slots=True)
class FormLimit:
    """Layers (a glob on their names) take one of the ``allowed`` forms where they share their work."""

    layers: str
    allowed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reserve:
    """Memory in bytes that every device of a server keeps for something else."""

    server: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class GoalLimit:
    """A value that a goal may not exceed, in the goal's unit (a budget, a required throughput, a deadline)."""

    goal: Goal
    at_most: int

    def __post_init__(self) -> None:
        if self.at_most < 0:
            raise ValueError(f"at_most.{self.goal} is {self.at_most}, expected 0 or more")


@dataclass(frozen=True, slots=True)
class Own:
    """A constraint of the user's own, in its two halves; docs/constraints.md has a complete example.

    ``check`` is the rule: it yields the violations of any plan, without a solver. ``post`` is the family: it gets
    the variables of the declarative model (``solvers.cpsat.base.variables.Variables``), adds its constraints to
    ``v.model`` and yields each with an index. Both must say the same: a plan that only one of them accepts
    ends a search with FalseClaimError, or is missed. Raises ValueError for a name that is no identifier.
    """

    name: str
    check: Callable[[Instance, Plan], Iterator[Violation]]
    post: Callable[[Any], Iterator[tuple[tuple[int, ...], Any]]]

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"own constraint {self.name!r}: expected a name of letters, digits and underscores")


@dataclass(frozen=True, slots=True)
class Constraints:
    """Which limits a plan must keep beyond being a plan. Layers are named by globs, servers by their names.

    ``memory``: every stage fits into the smallest device of its group (``formulation.costs.memory``).
    ``placement``: which device groups a stage may have; ``max_servers``: over how many servers one stage may
    stretch (None: any number). ``stages_at_least``, ``stages_at_most``: how many stages a plan has.
    ``together``: each entry is a set of globs whose layers share one stage; ``apart``: of whose globs no two meet
    in a stage; ``no_cut``: no stage starts at such a layer. ``devices_per_stage``: how many devices a stage may
    have (empty: any number). ``tensor_parallel_degrees``: over how many devices one replica of a stage may be
    split; the stage's other devices hold more replicas (empty: one replica on all devices of a stage).
    ``recompute``: whether stages may drop activations. ``at_most``: limits on what plans are judged by. What these
    mean on an instance is in ``formulation.problem.demands``, ``formulation.problem.groups`` and
    ``formulation.costs.goals``.
    """

    memory: bool = False
    placement: Placement = Placement.LINE
    max_servers: int | None = None
    stages_at_least: int | None = None
    stages_at_most: int | None = None
    pins: tuple[Pin, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    apart: tuple[tuple[str, ...], ...] = ()
    no_cut: tuple[str, ...] = ()
    forms: tuple[FormLimit, ...] = ()
    devices_per_stage: tuple[int, ...] = ()
    reserve: tuple[Reserve, ...] = ()
    tensor_parallel_degrees: tuple[int, ...] = ()
    recompute: Recompute = Recompute.NEVER
    at_most: tuple[GoalLimit, ...] = ()
    own: tuple[Own, ...] = ()

    def __post_init__(self) -> None:
        least, most = self.stages_at_least, self.stages_at_most
        for name, count in (("max_servers", self.max_servers), ("at_least", least), ("at_most", most)):
            if count is not None and count < 1:
                raise ValueError(f"{name} is {count}, expected 1 or more")
        if least is not None and most is not None and least > most:
            raise ValueError(f"at least {least} stages and at most {most}: no number is both")
        for name in ("devices_per_stage", "tensor_parallel_degrees"):
            if any(count < 1 for count in getattr(self, name)):
                raise ValueError(f"{name} is {getattr(self, name)}, expected 1 or more each")
        if len({limit.goal for limit in self.at_most}) < len(self.at_most):
            raise ValueError("at_most: a goal has two limits")
        if len({own.name for own in self.own}) < len(self.own):
            raise ValueError("two own constraints have the same name")
