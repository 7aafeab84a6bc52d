"""One layout with all its numbers: runs on every kind of group, transfers over every link, and plans of it priced.

A plan of a layout is a row of places, where stages begin and the last one ends, and a choice of group for every
rank. Its value is that of the evaluator, from the numbers of runs.

A layout says how many groups there are, of how many devices each, in which mode, and which they may be.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.constraints.rules import check_mode
from pipecut.formulation.executed import PipelinePasses, most_kept
from pipecut.formulation.limits import Deadline
from pipecut.formulation.problem.constraints import Goal, Placement
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.modes import modes
from pipecut.formulation.problem.options import Synchronisation
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.chunks.pass_chains import ChunkPath, critical_path, paths
from pipecut.solvers.chunks.runs import AtomRun, KnownRuns, Runs, forms_of


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """``choices[r]`` are the groups that rank ``r`` may have: of one size, class and mode for all ranks."""

    choices: tuple[tuple[Group, ...], ...]

    @property
    def ranks(self) -> int:
        """How many groups there are."""
        return len(self.choices)


def layouts(instance: Instance, deadline: Deadline) -> Iterator[GroupLayout]:
    """Yield every layout that an instance allows; plans of different layouts are different plans.

    Raises StoppedError after the deadline. Cost: that of listing the possible groups for each number of them.
    """
    chunks, demands, atoms = instance.training.chunks, instance.demands, CutSpace.of(instance).stops
    free = instance.constraints.placement is Placement.FREE
    groups = Group.possible(instance, deadline) if free else ()
    for ranks in range(2, min(instance.devices, atoms // chunks) + 1):
        if not instance.training.dealt_to(ranks):
            continue
        if not (demands.stages_at_least or 1) <= ranks * chunks <= (demands.stages_at_most or ranks * chunks):
            continue
        for size in range(1, instance.devices // ranks + 1):
            # Where no size that is asked for can be had, all have modes; here such an instance has no layout.
            for mode in modes(instance, size) if size in (demands.devices_per_stage or (size,)) else ():
                if free:
                    fitting = [one for one in groups if (one.devices, one.mode) == (size, mode)]
                    yield from _of_classes(instance, fitting, ranks)
                else:
                    row = tuple((Group.on_line(instance, rank * size, size, mode),) for rank in range(ranks))
                    allowed = not any(any(check_mode(instance, 0, one)) for (one,) in row)
                    classes = {_class_of(instance, one) for (one,) in row}
                    if allowed and len(classes) == 1 and None not in classes:
                        yield GroupLayout(row)


def _of_classes(instance: Instance, groups: list[Group], ranks: int) -> Iterator[GroupLayout]:
    """Yield a layout for each class of which there are groups."""
    by_class: dict[int, list[Group]] = {}
    for group in groups:
        found = _class_of(instance, group)
        if found is not None:
            by_class.setdefault(found, []).append(group)
    for row in by_class.values():
        yield GroupLayout((tuple(row),) * ranks)


def _class_of(instance: Instance, group: Group) -> int | None:
    """Return the class of all devices of a group; None if they are of several."""
    found = {instance.class_index(server) for server, _ in group.counts}
    return found.pop() if len(found) == 1 else None


Window = tuple[range, range]


@dataclass(frozen=True, slots=True)
class Dealt:
    """A plan of a layout: the places where stages begin and the last one ends, and the choice of every rank."""

    places: tuple[int, ...]
    choice: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Case:
    """A layout, and what is known of it: no plan of it but those ``seen`` is below ``lower``.

    ``kinds[r][q]`` is the number of the kind of a choice of a rank, whose runs are ``runs[kind]``. ``known`` has
    the times of activations and gradients over every link that two choices may be joined by.
    ``paths`` are those of a step that are known: any step's, and the critical ones of plans that were executed.
    ``often`` are the paths of any step as an array, and ``busy`` the ranks that do most of their passes.
    ``pairs`` are the boundaries, by the stage before each, that use the link from a rank to the next; in a V there
    is none from the last rank to the first one.
    """

    known: KnownRuns
    layout: GroupLayout
    runs: tuple[Runs, ...]
    kinds: tuple[tuple[int, ...], ...]
    lower: int = 0
    seen: list[Dealt] = field(default_factory=list)
    paths: list[ChunkPath] = field(default_factory=list)
    often: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    busy: tuple[int, ...] = ()
    pairs: tuple[tuple[int, ...], ...] = ()
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
    def instance(self) -> Instance:
        """The instance of all layouts."""
        return self.known.instance

    @property
    def space(self) -> CutSpace:
        """Where stages may begin and end."""
        return self.known.space

    @property
    def stages(self) -> int:
        """How many stages every plan of the layout has."""
        return self.layout.ranks * self.instance.training.chunks

    @property
    def windows(self) -> list[Window]:
        """At which places each stage may begin and end: at least one atom is left for every other stage."""
        stages, stops = self.stages, self.space.stops
        starts = [range(at, stops - stages + at + 1) if at else range(1) for at in range(stages)]
        return list(zip(starts, [*starts[1:], range(stops, stops + 1)], strict=True))

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
        return self.known.over(Group.link_between(self.instance, one, other))

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

    def fit_together(self, one: Group, other: Group) -> bool:
        """Tell whether no server has to give two groups more devices than it has."""
        taken, servers = dict(one.counts), self.instance.servers
        return all(taken.get(server, 0) + count <= servers[server].devices for server, count in other.counts)

    def no_better_than(self, other: Case) -> bool:
        """Tell whether any plan of this layout is one of another layout that takes no longer and holds no more.

        On the same devices, in a mode in which no run of atoms takes longer, or holds more, of anything.
        """
        rows = list(zip(self.layout.choices, other.layout.choices, strict=False))
        if len(self.layout.choices) != len(other.layout.choices) or any(
            [group.counts for group in row] != [group.counts for group in others] for row, others in rows
        ):
            return False
        if self.layout.choices[0][0].mode.optimizer_on_host > other.layout.choices[0][0].mode.optimizer_on_host:
            return False
        own, others = (itertools.chain.from_iterable(case.kinds) for case in (self, other))
        pairs = set(zip(own, others, strict=True))
        return all(_no_better(self.runs[one], other.runs[another]) for one, another in pairs)

    def kept(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Return by rank the numbers of micro-batches that it keeps of its chunks when it keeps most."""
        training = self.instance.training
        return most_kept(training.schedule, self.layout.ranks, training.chunks, training.micro_batches)


def _no_better(runs: Runs, others: Runs) -> bool:
    """Tell whether every run is among others, where it is no dearer in anything."""
    less = (others.table <= runs.table).all(axis=0) & others.there
    return bool((less | ~runs.there).all())


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


def case_of(known: KnownRuns, layout: GroupLayout, most_ns: int, deadline: Deadline) -> Case:
    """Return a layout with its numbers, without most stages whose passes alone take longer than ``most_ns``.

    Raises StoppedError after the deadline. Cost: that of the runs of each kind of group that is not known yet.
    """
    instance = known.instance
    every = dict.fromkeys(itertools.chain.from_iterable(layout.choices))
    kinds = {one: GroupKind.of(instance, one) for one in every}
    order = list(dict.fromkeys(kinds.values()))
    rows = tuple(tuple(order.index(kinds[one]) for one in row) for row in layout.choices)
    runs = tuple(known.on(kind, most_ns, deadline) for kind in order)
    case = Case(known, layout, runs, rows)
    if case.steps:
        key = case.stages
        if key not in known.by_stages:
            found = paths(instance.training.closed(), case.stages, overlapped(instance), deadline)
            known.by_stages[key] = found, np.array([one.often for one in found], dtype=np.int64)
        found, case.often = known.by_stages[key]
        case.paths, case.busy = list(found), tuple(one.rank for one in found)
    return case


def overlapped(instance: Instance) -> bool:
    """Tell whether stages synchronise beside other work."""
    return instance.cost.synchronisation is Synchronisation.OVERLAPPED
