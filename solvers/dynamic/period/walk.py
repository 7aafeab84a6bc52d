"""The way back from a whole plan to its stages, with the devices that they have and the forms of their layers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pipecut.formulation.costs.tables import Tables
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.dynamic.period.stage_periods import Pair, StagePeriods
from pipecut.solvers.dynamic.states.states import StateSpace, Steps


@dataclass(frozen=True, slots=True)
class Found:
    """A stage on the way back: how it runs, its atoms, and its pace and synchronisation at most."""

    stage: Stage
    kind: int
    most: Pair


@dataclass(slots=True)
class WayBack:
    """The stages from the front so far. Alike servers were exchanged on the way, so they are translated back."""

    space: StateSpace
    tables: Tables
    found: list[Found] = field(default_factory=list)
    _real: tuple[int, ...] = ()

    def put(self, steps: Steps, at: int, kind: int, span: Span, most: Pair) -> None:
        """Put the next stage behind those so far: the one of a step, on a kind of its devices."""
        real = self._real or tuple(range(len(self.tables.instance.servers)))
        step = self.space.step(int(steps.state[at]), int(steps.place[at]))
        self._real = real = tuple(real[step.moved[server]] for server in range(len(real)))
        groups = self.space.suffixes.places[step.place].groups
        group = self.tables.groups[next(one for one in groups if self.tables.kind_of[one] == kind)]
        counts = tuple(sorted((real[server], count) for server, count in group.counts))
        self.found.append(Found(Stage(span, replace(group, counts=counts), (0,) * len(span)), kind, most))


def plan_of(found: list[Found], periods: StagePeriods, most_ns: int) -> Plan | None:
    """Return the plan of layers with forms, or None where some stages have none so fast, which are then known.

    No stage takes more than ``most_ns`` in any plan of use.
    """
    stages: list[Stage] = []
    for slot, one in enumerate(reversed(found)):
        forms = periods.forms(slot, one.kind, one.stage.span, one.most, most_ns)
        if forms is not None:
            stages.append(replace(one.stage, span=periods.space.layers(one.stage.span), forms=forms))
    return Plan(tuple(reversed(stages))) if len(stages) == len(found) else None
