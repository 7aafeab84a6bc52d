"""The exact dynamic programme for devices in a line: where to cut, and how many devices each stage takes.

It generalises PipeDream's recurrence (SOSP'19, A(j, m)), which counts devices, to devices that stand at places:
a stage's *group* is ``count`` devices from place ``first`` of the line, so that its kind (classes, slowest link
inside) and the links to its neighbours are known. With ``T`` the time of a stage
(:mod:`solvers.reference.algorithm_1`), groups ``p`` before ``g``, and a combination that is ``max`` or ``+``:

    A[g, x](i) = least over p next to g with link x of  B[p, x](i)  combined with  boundary(i, x)
    B[g, y](j) = least over i < j and x of  A[g, x](i)  combined with  T(g, i, j) + received(x, i, y, j)

``A``: the layers before ``i`` are done, the stage on ``g`` starts at ``i``. ``B``: it stops at ``j``. The links
``x`` and ``y`` of a stage to its neighbours are part of the state only where they are part of its time, that
is, where the receiver pays for boundaries (BoundaryCharge.RECEIVER: activations over x, gradients over y);
where the link pays, ``boundary`` is charged between two known groups, and one label stands for all links.
The places used are a prefix of the line, so idle devices come last: any ``B[g, .](N)`` is the end of a plan.

Every plan of the line is one path through this recurrence and the terms are those of the evaluator, so the
least value is the optimum and its own bound: an oracle that shares no search with CP-SAT. Where the model may be
cut at some layers only, the recurrence goes over what lies between them. Two constraints are beyond it. A memory
limit couples stages (micro-batches in flight) and forms, so it is not seen: the value is then that of a
relaxation, still a bound. Under free placement the line is one way of many: still a plan, but no bound.

The same problem with atoms for layers, exactly: what a programme needs where stages are cut at places alone.

What lies between two neighbouring places of a cut space is taken for one *layer* of a smaller problem: stages are
runs of these, their least times are those of the layers (``solvers.reference.algorithm_1``), and sums of what
single layers hold stay sums. Plans are expanded to their layers, and get their forms, in
``solvers.dynamic.tables.stage_table``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pipecut.formulation.costs.amounts import goal_amount
from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import Tables, Times, build_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER, Deadline, in_time
from pipecut.formulation.outcome import Limits, Outcome, Proof, begin
from pipecut.formulation.problem.constraints import Goal, Placement
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group, GroupKind, line_places, modes_by_size
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.options import BoundaryCharge, Combine, StageTime
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.reference.algorithm_1 import StageTimes, best_forms, check_size
from pipecut.solvers.search.stoppable import stoppable
from pipecut.solvers.search.support import Support, sized, unseen


@dataclass(frozen=True, slots=True, eq=False)
class AtomTables:
    """The smaller problem: its tables (those of ``times``), its stage times, and what its atoms hold at least.

    The instance stays that of the layers: the tables alone have rows of atoms.

    ``fine`` are the tables of the layers and ``held`` their memory (None: it is not limited). ``least`` has the
    same three forms for every atom, each with the least of any possible form.
    """

    space: CutSpace
    fine: Tables
    times: StageTimes
    held: MemoryTables | None
    least: MemoryTables | None


def atom_tables(
    tables: Tables, space: CutSpace, times: StageTimes | None = None, *, memory: bool = True
) -> AtomTables:
    """Build the smaller problem of a cut space. ``times``: its stage times, where they are known.

    ``memory`` is False for who does not see its limit.

    Raises ValueError as ``solvers.reference.algorithm_1.StageTimes.of`` does.
    """
    times = StageTimes.of(tables, space) if times is None else times
    held = MemoryTables.of(tables) if memory and tables.instance.constraints.memory else None
    least = None if held is None else _small_memory(held, space)
    return AtomTables(space, tables, replace(times, tables=_small_tables(tables, space)), held, least)


def _small_tables(tables: Tables, space: CutSpace) -> Tables:
    """Return the tables of the atoms: sums of computation, of the least communication inside, and boundaries.

    Copies of weights are left out here: they are in the stage times, and what is inside is a lower limit.
    """
    starts, places = list(space.places[:-1]), list(space.places)
    least = np.add.reduceat(tables.inside.min(axis=2), starts, axis=1)
    return replace(
        tables,
        compute=np.add.reduceat(tables.compute, starts, axis=1),
        inside=np.repeat(least[:, :, None], 3, axis=2),
        between=np.zeros((len(tables.kinds), 0, 3, 3), dtype=np.int64),
        activation=tables.activation[:, places],
        gradient=tables.gradient[:, places],
        copies={},
    )


def _small_memory(held: MemoryTables, space: CutSpace) -> MemoryTables:
    starts = list(space.places[:-1])

    def same(least: Times) -> Times:
        return np.repeat(least[:, :, None], 3, axis=2)

    return replace(
        held,
        once=same(np.add.reduceat(held.least(held.once), starts, axis=1)),
        by_version=same(np.add.reduceat(held.least(held.by_version), starts, axis=1)),
        by_micro_batch=same(np.add.reduceat(held.least(held.by_micro_batch), starts, axis=1)),
        working_set=same(np.maximum.reduceat(held.least(held.working_set), starts, axis=1)),
        received=held.received[:, list(space.places)],
        copies={},
        possible=np.ones((len(held.once), len(starts), 3), dtype=np.bool_),
    )


NAME = "line_dp"

PLACES = ("no_cut", "together")
"""Rules that close places to cut, which is where stages start here."""
Place = tuple[int, int]
"""A group of the line: (first device, number of devices)."""
Label = int
"""A link by its index in the tables, where the time of a stage depends on it; else 0 for every link."""


@sized
def accepts(instance: Instance) -> Support:
    """Say what the programme makes of an instance (``solvers.search.support``). Cost: O(devices**2)."""
    groups = itertools.chain(*places_of(instance).values())
    kinds = len(set(GroupKind.all_of(instance, groups)))
    blind = unseen(instance, "memory", seen=PLACES)
    on_line = instance.constraints.placement is Placement.LINE
    return Support(
        proves=on_line and instance.goals[0] is Goal.BOTTLENECK and not blind,
        unseen=blind,
        bytes_needed=check_size(kinds, CutSpace.of(instance).stops),
    )


@stoppable(NAME)
def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Return an optimal plan of the line, with proof OPTIMAL; UNKNOWN if stopped early, with a bound.

    INFEASIBLE where no row of stages takes devices of the line in allowed numbers (UNKNOWN under free placement).
    Where memory is limited the outcome is blind to that rule; under free placement it is only FEASIBLE.
    No optimal plan uses fewer devices. Further ties are settled from the last stage to the first: the smallest
    last group, then for each stage the earliest start and the smallest group before it that lose nothing.
    Raises ValueError as :func:`solvers.reference.algorithm_1.StageTimes.of` does.
    Cost: O(devices**2 x atoms**2 x labels**2) numpy operations; labels are 1 where links pay for boundaries.
    """
    deadline, start = begin(limits).deadline, time.perf_counter()
    places = places_of(instance, deadline)
    if not places:
        return _without_a_plan(instance, time.perf_counter() - start)
    tables = build_tables(instance, tuple(itertools.chain(*places.values())), deadline)
    sweep = Sweep(atom_tables(tables, CutSpace.of(instance), memory=False), places)
    for group in in_time(sorted(places), deadline):
        sweep.reach(group)
    found = sweep.best()
    if found is None:
        return _without_a_plan(instance, time.perf_counter() - start)
    value, plan = found
    blind = unseen(instance, "memory", seen=PLACES)
    if instance.goals[0] is not Goal.BOTTLENECK:
        return _priced(instance, plan, value, time.perf_counter() - start)
    seconds = time.perf_counter() - start
    if instance.constraints.placement is not Placement.LINE:
        notes = ("best on the line; free placement may do better",)
        return Outcome(NAME, Proof.FEASIBLE, plan, value, None, seconds, notes, blind)
    return Outcome(NAME, Proof.OPTIMAL, plan, value, value, seconds, blind_to=blind)


def places_of(instance: Instance, deadline: Deadline = NEVER) -> dict[Place, list[Group]]:
    """Return the groups of every place of the line, one for each way in which its devices may work together."""
    places: dict[Place, list[Group]] = {}
    ways = modes_by_size(instance, deadline)
    for first, stop in in_time(dict.fromkeys(line_places(instance)), deadline):
        count = stop - first
        places[first, count] = [Group.on_line(instance, first, count, way) for way in ways[count]]
    return places


def _without_a_plan(instance: Instance, seconds: float) -> Outcome:
    """Return what it means that the line has no plan: rules that are not seen here only make plans fewer."""
    if instance.constraints.placement is Placement.LINE:
        return Outcome(NAME, Proof.INFEASIBLE, seconds=seconds)
    return Outcome(NAME, Proof.UNKNOWN, seconds=seconds, notes=("the line has no plan; free placement may have",))


def _priced(instance: Instance, plan: Plan, bottleneck_ns: int, seconds: float) -> Outcome:
    """Return the plan with the least bottleneck as an answer to another goal, about which it proves nothing."""
    bottleneck = goal_amount(Goal.BOTTLENECK, bottleneck_ns)
    notes = (f"plans for the bottleneck, {bottleneck}, and is priced by {instance.goals[0]}",)
    value = evaluate(instance, plan).objective
    return Outcome(
        NAME, Proof.FEASIBLE, plan, value, None, seconds, notes, unseen(instance, "memory", seen=PLACES)
    )


class Sweep:
    """The tables A and B of the recurrence, group by group along the line. Values are int64 ns.

    N counts atoms: what lies between two neighbouring places to cut. ``starts[g, x]`` is A by the first atom ``i``
    of the stage on g, N values; ``stops[g, y]`` is B by the first atom ``j`` after it, N + 1 values. Cells that no
    stages reach hold FORBIDDEN or more.
    """

    def __init__(self, atoms: AtomTables, places: dict[Place, list[Group]]) -> None:
        self.atoms, self.times = atoms, atoms.times
        times, cost = atoms.times, atoms.fine.instance.cost
        self.places = places
        self.starts: dict[tuple[Place, Label], Times] = {}
        self.stops: dict[tuple[Place, Label], Times] = {}
        self._join = np.maximum if cost.combine is Combine.MAX else np.add
        self._receiver_pays = cost.boundary_charge is BoundaryCharge.RECEIVER
        groups = {group: at for at, group in enumerate(times.tables.groups)}
        self._index = {place: [groups[group] for group in ways] for place, ways in places.items()}
        self._devices = max(sum(place) for place in places)
        self._links: dict[tuple[Place, Place], int] = {}

    def reach(self, place: Place) -> None:
        """Fill A and B of one group. All groups that end where this one begins must have been reached."""
        for label, before in self._starts(place).items():
            self.starts[place, label] = before
        for after in self._labels_after(place):
            self.stops[place, after] = np.minimum.reduce(
                [self._through(place, label, after).min(axis=0) for label in self._labels_before(place)]
            )

    def best(self) -> tuple[int, Plan] | None:
        """Return the optimum and its plan, after every group has been reached; None if no plan ends anywhere."""
        total = self.times.tables.rows
        ends = {key: int(row[total]) for key, row in self.stops.items()}
        value = min(ends.values())
        if value >= FORBIDDEN:
            return None
        place, after = min(
            (key for key, found in ends.items() if found == value),
            key=lambda key: (sum(key[0]), key[0][1], key[1]),
        )
        stages: list[Stage] = []
        stop = total
        while stop > 0:
            first, label = self._start_of(place, after, stop)
            stages.append(self._stage(place, Span(first, stop), label, after))
            if first > 0:
                place, after = self._before(place, label, first), label
            stop = first
        return value, Plan(tuple(reversed(stages)))

    def _starts(self, place: Place) -> dict[Label, Times]:
        """A[g, .]: 0 at the first layer for a group at the head of the line, else over all groups before."""
        total = self.times.tables.rows
        # Nothing here exceeds FORBIDDEN, which keeps its sums along a long line within 64 bits.
        rows = {label: np.full(total, FORBIDDEN, dtype=np.int64) for label in self._labels_before(place)}
        if place[0] == 0:
            rows[0][0] = 0
        for before in in_time(self._before_places(place), self.times.tables.deadline):
            label = self._label(before, place)
            np.minimum(rows[label], self._over(before, place), out=rows[label])
        return rows

    def _over(self, before: Place, place: Place) -> Times:
        """Return the values of a stage on ``before``, then the boundary to ``place``, by cut: N values."""
        link, tables = self._link(before, place), self.times.tables
        reached = self.stops[before, self._label(before, place)][:-1]
        charge = tables.activation[link, :-1] + tables.gradient[link, :-1]
        if self._receiver_pays:
            charge = np.zeros_like(charge)
        return self._join(reached, charge)

    def _through(self, place: Place, label: Label, after: Label) -> Times:
        """Return A[g, x](i) combined with the time of the stage (i, j) on g, N x (N + 1)."""
        return self._join(self.starts[place, label][:, None], self._stage_ns(place, label, after))

    def _stage_ns(self, place: Place, label: Label, after: Label) -> Times:
        """Return the least times of all spans on a place between two links; FORBIDDEN where j <= i."""
        ways = {self.times.tables.kind_of[index] for index in self._index[place]}
        return np.minimum.reduce([self._kind_ns(kind, label, after) for kind in sorted(ways)])

    def _kind_ns(self, kind: int, label: Label, after: Label) -> Times:
        times, tables = self.times, self.times.tables
        if not self._receiver_pays or not tables.links:
            return times.time[kind]
        received = tables.activation[label, :-1, None] + tables.gradient[after][None, :]
        if tables.instance.cost.stage_time is StageTime.OVERLAP:
            # FORBIDDEN of the communication where j <= i outlasts the negative computation there.
            return np.maximum(times.compute(kind), times.communication[kind] + received)
        return times.time[kind] + received

    def _start_of(self, place: Place, after: Label, stop: int) -> tuple[int, Label]:
        """Return first layer and link before of a best stage on a group that stops at ``stop``."""
        value = self.stops[place, after][stop]
        for label in self._labels_before(place):
            column = self._through(place, label, after)[:, stop]
            if column.min() == value:
                return int(column.argmin()), label
        raise LookupError(f"no stage on devices {place} reaches layer {stop} in {value} ns")

    def _before(self, place: Place, label: Label, first: int) -> Place:
        """Return the smallest group before ``place`` from which a best stage starts at layer ``first``."""
        value = self.starts[place, label][first]
        for before in self._before_places(place):
            if self._label(before, place) == label and self._over(before, place)[first] == value:
                return before
        raise LookupError(f"no group before devices {place} reaches layer {first} in {value} ns")

    def _stage(self, place: Place, span: Span, label: Label, after: Label) -> Stage:
        """Return the stage in the first way that takes least, with its best forms."""
        tables = self.times.tables

        def time_of(index: int) -> int:
            return int(self._kind_ns(tables.kind_of[index], label, after)[span.first, span.stop])

        index = min(self._index[place], key=time_of)
        layers = self.atoms.space.layers(span)
        return Stage(layers, tables.groups[index], best_forms(self.atoms.fine, tables.kind_of[index], layers))

    def _before_places(self, place: Place) -> Iterator[Place]:
        """Yield the groups that end where this one begins, the smallest first."""
        groups = ((place[0] - count, count) for count in range(1, place[0] + 1))
        return (group for group in groups if group in self.places)

    def _labels_before(self, place: Place) -> list[Label]:
        return sorted({self._label(before, place) for before in self._before_places(place)} or {0})

    def _labels_after(self, place: Place) -> list[Label]:
        """Labels of the links to the groups that may come next; any one will do at the end of the line."""
        after = sum(place)
        groups = ((after, count) for count in range(1, self._devices - after + 1))
        return sorted({self._label(place, other) for other in groups if other in self.places} or {0})

    def _label(self, one: Place, other: Place) -> Label:
        return self._link(one, other) if self._receiver_pays else 0

    def _link(self, one: Place, other: Place) -> int:
        if (one, other) not in self._links:
            self._links[one, other] = self.times.tables.link_index(self._index[one][0], self._index[other][0])
        return self._links[one, other]
