"""One layout with all its numbers: runs on every kind of group, transfers over every link, and plans of it priced.

A plan of a layout is a row of places, where stages begin and the last one ends, and a choice of group for every
rank. Its value is that of the evaluator, from the numbers of runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from formulation.costs import times
from formulation.costs.memory import capacity_bytes, chunks_memory
from formulation.executed.chunks import most_kept
from formulation.executed.pipeline import PipelinePasses
from formulation.executed.step import step_of_training_ns
from formulation.limits.deadline import Deadline
from formulation.problem.cuts import CutSpace
from formulation.problem.groups import Group, GroupKind
from formulation.problem.instance import Instance
from formulation.problem.options import Goal, Synchronisation
from formulation.problem.plan import Plan, Span, Stage
from formulation.problem.units import Link
from solvers.chunks.layouts import GroupLayout
from solvers.chunks.paths import ChunkPath, critical_path, paths, spent_ns
from solvers.chunks.runs import AtomRun, Runs, forms_of, runs_of

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class Dealt:
    """A plan of a layout: the places where stages begin and the last one ends, and the choice of every rank."""

    places: tuple[int, ...]
    choice: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Case:
    """A layout, and what is known of it: no plan of it but those ``seen`` is below ``lower``.

    ``kinds[r][q]`` is the number of the kind of a choice of a rank, whose runs are ``runs[kind]``. ``links`` are
    those that two choices may be joined by, with the times of the activations and of the gradients at every place.
    ``paths`` are those of a step that are known: any step's, and the critical ones of plans that were executed.
    ``pairs`` are the boundaries, by the stage before each, that use the link from a rank to the next; in a V there
    is none from the last rank to the first one.
    """

    instance: Instance
    layout: GroupLayout
    space: CutSpace
    runs: tuple[Runs, ...]
    kinds: tuple[tuple[int, ...], ...]
    links: dict[Link | None, tuple[list[int], list[int]]] = field(default_factory=dict)
    lower: int = 0
    seen: list[Dealt] = field(default_factory=list)
    paths: list[ChunkPath] = field(default_factory=list)
    pairs: tuple[tuple[int, ...], ...] = ()
    _often: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    _on: tuple[int, ...] = ()
    _own: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        training, stages, ranks = self.instance.training, self.stages, self.layout.ranks
        self._on = tuple(training.rank_of(at, stages) for at in range(stages))
        self._own = tuple(training.stages_of(rank, stages) for rank in range(ranks))
        after = (rank % ranks for rank in range(1, ranks + (not training.schedule.in_a_v)))
        rows = (training.boundaries_of(rank, stages) for rank in after)
        self.pairs = tuple(tuple(at - 1 for at in row if at) for row in rows)

    @property
    def stages(self) -> int:
        """How many stages every plan of the layout has."""
        return self.layout.ranks * self.instance.training.chunks

    @property
    def steps(self) -> bool:
        """Tell whether what counts is the time of a step; else it is the bottleneck."""
        return self.instance.goals[0] is Goal.STEP_TIME

    def rank_of(self, at: int) -> int:
        """Return the rank of a stage."""
        return self._on[at]

    def own(self, rank: int) -> tuple[int, ...]:
        """Return the stages of a rank."""
        return self._own[rank]

    def link(self, one: Group, other: Group) -> tuple[list[int], list[int]]:
        """Return the times of the activations and of the gradients between two groups, at every place."""
        return self.over(Group.link_between(self.instance, one, other))

    def over(self, link: Link | None) -> tuple[list[int], list[int]]:
        """Return the same over a link."""
        if link not in self.links:
            places = self.space.places[:-1]
            self.links[link] = (
                [times.activation_ns(self.instance, cut, link) for cut in places],
                [times.gradient_ns(self.instance, cut, link) for cut in places],
            )
        return self.links[link]

    def stages_of(self, dealt: Dealt) -> list[AtomRun] | None:
        """Return the stages of a plan; None where one of them takes longer than any plan that counts."""
        found: list[AtomRun] = []
        for at, run in enumerate(pairwise(dealt.places)):
            rank = self.rank_of(at)
            known = self.runs[self.kinds[rank][dealt.choice[rank]]].get(run)
            if known is None:
                return None
            found.append(known)
        return found

    def transfers_of(self, dealt: Dealt) -> tuple[list[int], list[int]]:
        """Return activation and gradient of every boundary of a plan."""
        groups = [row[at] for row, at in zip(self.layout.choices, dealt.choice, strict=True)]
        activation, gradient = [0] * (self.stages - 1), [0] * (self.stages - 1)
        for rank, pair in enumerate(self.pairs):
            link = self.link(groups[rank], groups[(rank + 1) % len(groups)])
            for at in pair:
                activation[at], gradient[at] = (row[dealt.places[at + 1]] for row in link)
        return activation, gradient

    def value(self, dealt: Dealt, below: int) -> int | None:
        """Return the value of a plan; None where it is not below, or breaks a rule on memory."""
        runs = self.stages_of(dealt)
        if runs is None or self.bound(dealt, runs) >= below or not self._fits(dealt, runs):
            return None
        if self.steps:
            training = self.instance.training
            found = step_of_training_ns(training, self.passes(dealt, runs), overlapped=overlapped(self.instance))
        else:
            found = self.bound(dealt, runs)
        return found if found < below else None

    def promised(self, dealt: Dealt) -> float:
        """Return the bound of a plan; infinity where it breaks a rule on memory, or takes too long to count."""
        runs = self.stages_of(dealt)
        return self.bound(dealt, runs) if runs is not None and self._fits(dealt, runs) else math.inf

    def bound(self, dealt: Dealt, runs: Sequence[AtomRun]) -> int:
        """Return the bottleneck of a plan, or what its step takes at least by the paths that are known."""
        if not self.steps:
            both = list(map(sum, zip(*self.transfers_of(dealt), strict=True)))
            sent = (sum(both[at] for at in pair) for pair in self.pairs)
            ranks = range(self.layout.ranks)
            return max(*sent, *(sum(runs[at].total_ns for at in self.own(rank)) for rank in ranks))
        if len(self._often) < len(self.paths):
            self._often = np.array([one.often for one in self.paths], dtype=np.int64)
        return int((self._often @ np.array(spent_ns(self.passes(dealt, runs)), dtype=np.int64)).max())

    def critical_path(self, dealt: Dealt, runs: Sequence[AtomRun]) -> ChunkPath:
        """Return the path of a plan that takes as long as its step."""
        passes = self.passes(dealt, runs)
        return critical_path(self.instance.training, passes, overlapped=overlapped(self.instance))

    def passes(self, dealt: Dealt, runs: Sequence[AtomRun]) -> PipelinePasses:
        """Return all passes of a plan."""
        activation, gradient = self.transfers_of(dealt)
        return PipelinePasses(
            tuple(run.forward_ns for run in runs),
            tuple(run.backward_ns + run.weight_ns for run in runs),
            tuple(run.sync_ns for run in runs),
            tuple(activation),
            tuple(gradient),
            tuple(run.weight_ns for run in runs),
        )

    def kept(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Return by rank the numbers of micro-batches that it keeps of its chunks when it keeps most."""
        training = self.instance.training
        return most_kept(training.schedule, self.layout.ranks, training.chunks, training.micro_batches)

    def _fits(self, dealt: Dealt, runs: Sequence[AtomRun]) -> bool:
        if not self.instance.constraints.memory:
            return True
        rows = zip(self.kept(), self.layout.choices, dealt.choice, strict=True)
        for rank, (kept, choices, at) in enumerate(rows):
            parts = [runs[one].parts for one in self.own(rank)]
            held = chunks_memory(parts, kept, choices[at].mode)
            if held.total > capacity_bytes(self.instance, choices[at]):
                return False
        return True


def plan_of(instance: Instance, layout: GroupLayout, dealt: Dealt) -> Plan:
    """Return a plan of a layout as one."""
    groups = [row[at] for row, at in zip(layout.choices, dealt.choice, strict=True)]
    forms, space = forms_of(instance, groups[0]), CutSpace.of(instance)
    stages: list[Stage] = []
    for at, run in enumerate(pairwise(dealt.places)):
        span = space.layers(Span(*run))
        group = groups[instance.training.rank_of(at, len(dealt.places) - 1)]
        stages.append(Stage(span, group, forms[span.first : span.stop]))
    return Plan(tuple(stages))


def case_of(instance: Instance, layout: GroupLayout, most_ns: int, deadline: Deadline) -> Case:
    """Return a layout with its numbers, without stages whose passes alone take longer than ``most_ns``.

    Raises StoppedError after the deadline. Cost: that of the runs of each kind of group.
    """
    space, kinds = CutSpace.of(instance), dict[GroupKind, Group]()
    for group in {one: None for row in layout.choices for one in row}:
        kinds.setdefault(GroupKind.of(instance, group), group)
    order = list(kinds)
    rows = tuple(tuple(order.index(GroupKind.of(instance, one)) for one in row) for row in layout.choices)
    runs = tuple(runs_of(instance, space, group, most_ns, deadline) for group in kinds.values())
    training, case = instance.training, Case(instance, layout, space, runs, rows)
    if case.steps:
        case.paths += paths(training.closed(), case.stages, overlapped(instance), deadline)
    return case


def overlapped(instance: Instance) -> bool:
    """Tell whether stages synchronise beside other work."""
    return instance.cost.synchronisation is Synchronisation.OVERLAPPED
