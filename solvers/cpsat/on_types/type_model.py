"""The model of plans with a number of stages over types of stages (``solvers.cpsat.on_types.types``).

Each stage takes one type. Stages are counted from the last one, which is 0; what stands and lies in front of a
stage is a sum over the stages in front. Times are constants of types, so that no row has a large factor that
switches it off, and the slowest time is a ladder: one literal for each time that a stage may take, true from the
slowest downwards. A relaxation of such rows comes close to what plans take.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
from ortools.sat.python import cp_model

from pipecut.formulation.limits import in_time
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance, longest_run_ns
from pipecut.formulation.problem.units import ceil_div
from pipecut.solvers.cpsat.on_types.types import StageType, TypeSpace
from pipecut.solvers.reduce.programme import Cell
from pipecut.solvers.search.support import on_the_line
from pipecut.solvers.step_time.bounds.paths import ACTIVATION, BACKWARD, FORWARD, GRADIENT, SYNC, PassPath

LARGEST = 1 << 60
"""Sums of products above this are left out where they are not needed: CP-SAT keeps a bit in reserve."""

MOST_SUMS = 200
"""Of so many times of a slot all types that take longer are added up."""

Sum = cp_model.LinearExpr | int
"""A sum of variables with factors."""


@dataclass(frozen=True, slots=True)
class Cap:
    """A sum that is at most ``most``.

    ``total`` times the sum of stages and boundaries, ``slowest`` times the slowest of them, or the executed step,
    ``devices`` times the number of devices, and ``stages`` times that of stages.
    """

    total: int
    slowest: int
    devices: int
    stages: int
    most: int

    @staticmethod
    def of(instance: Instance, goal: Goal, most: int) -> Cap:
        """Return the limit on a goal of plans."""
        found = {
            Goal.ITERATION_TIME: (1, instance.training.micro_batches - 1, 0, 0),
            Goal.BOTTLENECK: (0, 1, 0, 0),
            Goal.DEVICES: (0, 0, 1, 0),
            Goal.STAGES: (0, 0, 0, 1),
            Goal.STEP_TIME: (0, 1, 0, 0),
        }
        return Cap(*found[goal], most)

    def value(self, total: Sum, slowest: Sum, devices: Sum, stages: int) -> Sum:
        """Return what is limited."""
        return self.total * total + self.slowest * slowest + self.devices * devices + self.stages * stages

    @property
    def most_ns(self) -> int | None:
        """Return what a stage may take at most; None for any time."""
        return self.most // (self.total + self.slowest) if self.total + self.slowest else None


@dataclass(frozen=True, slots=True)
class TypeQuestion:
    """What is asked of plans with so many ``stages``: the least value of the first cap, within all of them.

    No stage takes more than ``most_ns``, no boundary more than ``crossed_ns``. Of an executed step ``paths`` are
    known, and of ``closed`` plans, stage by stage, what they take at least.
    """

    space: TypeSpace
    stages: int
    caps: tuple[Cap, ...]
    most_ns: int
    crossed_ns: int
    paths: tuple[PassPath, ...] = ()
    closed: tuple[tuple[Cell, ...], ...] = ()

    @property
    def executed(self) -> bool:
        """Tell whether the step is one as executed."""
        return self.space.asked.goals[0].executed

    @property
    def micro_batches(self) -> int:
        """Return the number of micro-batches of a step."""
        return self.space.asked.training.micro_batches

    @staticmethod
    def of(space: TypeSpace, stages: int, most: int) -> TypeQuestion:
        """Ask for plans whose first goal is at most so much, within the limits that are demanded."""
        asked = space.asked
        left = (one for one in asked.constraints.at_most if one not in on_the_line(asked))
        limits = [(asked.goals[0], most), *((one.goal, one.at_most) for one in left)]
        caps = tuple(Cap.of(asked, goal, value) for goal, value in limits)
        longest = longest_run_ns(asked, asked.training.micro_batches)
        times = [longest, *(cap.most_ns for cap in caps if cap.most_ns is not None)]
        if asked.goals[0].executed:  # a boundary is crossed while stages do something else
            return TypeQuestion(space, stages, caps, min(*times, most // asked.training.micro_batches), most)
        return TypeQuestion(space, stages, caps, min(times), min(times))


@dataclass(slots=True)
class TypeModel:
    """The model: ``types[s]`` of the stage in slot s, and ``pick[s]`` which of them it takes.

    ``first[s]`` is its first atom, ``x[s]`` where its devices begin; ``rest[s]`` says what remainder of the period
    that is; ``crossed[s]`` is what the boundary in front of it takes.
    """

    ask: TypeQuestion
    model: cp_model.CpModel
    types: list[list[StageType]]
    pick: list[list[cp_model.IntVar]]
    first: list[cp_model.IntVar]
    x: list[cp_model.IntVar]
    crossed: list[Sum]
    slowest: Sum = 0
    step: Sum = 0
    ladder: dict[int, cp_model.IntVar] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def of(ask: TypeQuestion, families: Collection[str] = ()) -> TypeModel | None:
        """Post all families, or some; None where a stage has no type at all."""
        slots, space, model = range(ask.stages), ask.space, cp_model.CpModel()
        types = [space.of_slot(slot, ask.stages, ask.most_ns) for slot in in_time(slots, space.stages.deadline)]
        if not all(types):
            return None
        pick = [[model.new_bool_var(f"pick[{slot},{at}]") for at in range(len(types[slot]))] for slot in slots]
        first = [model.new_int_var(0, space.stages.atoms, f"first[{slot}]") for slot in slots]
        x = [model.new_int_var(0, space.line.devices, f"x[{slot}]") for slot in slots]
        crossed: list[Sum] = [model.new_int_var(0, ask.crossed_ns, f"crossed[{slot}]") for slot in slots[:-1]]
        v = TypeModel(ask, model, types, pick, first, x, [*crossed, 0])
        for name in (one for one in FAMILIES if not families or one in families):
            before = len(model.proto.constraints)
            sum(1 for _ in in_time(FAMILIES[name](v), space.stages.deadline))
            v.rows[name] = len(model.proto.constraints) - before
        return v

    @property
    def slots(self) -> range:
        """Return the slots, the last stage first."""
        return range(self.ask.stages)

    def sum(self, slot: int, of: Callable[[StageType], int]) -> Sum:
        """Return a number of the type of a slot."""
        return cp_model.LinearExpr.weighted_sum(self.pick[slot], [of(one) for one in self.types[slot]])

    def time(self, slot: int) -> Sum:
        """Return what the stage of a slot takes."""
        return self.sum(slot, lambda one: one.time)

    @property
    def total(self) -> Sum:
        """Return the sum of all stages and boundaries."""
        return sum(self.time(slot) for slot in self.slots) + sum(self.crossed)

    @property
    def devices(self) -> Sum:
        """Return the number of devices that are used."""
        return sum(self.sum(slot, lambda one: one.devices) for slot in self.slots)

    def capped(self, cap: Cap) -> Sum:
        """Return what a cap limits."""
        slowest = self.step if self.ask.executed else self.slowest
        return cap.value(self.total, slowest, self.devices, self.ask.stages)

    @property
    def value(self) -> Sum:
        """Return the value that is to be the least."""
        return self.capped(self.ask.caps[0])

    def cells(self, value: Callable[[Sum], int]) -> list[Cell]:
        """Return the stages of an assignment, first to last."""
        found, x, atom = list[Cell](), 0, 0
        for slot in reversed(self.slots):
            at = next(at for at, literal in enumerate(self.pick[slot]) if value(literal))
            one = self.types[slot][at]
            found.append(Cell(x, one.size, atom, atom + one.atoms))
            x, atom = x + one.devices, atom + one.atoms
        return found


def ladder(model: cp_model.CpModel, times: Collection[int]) -> tuple[dict[int, cp_model.IntVar], Sum]:
    """Return a literal for each time but 0, all of them true up to one, and the time that this is."""
    rungs = {time: model.new_bool_var(f"slowest[{time}]") for time in sorted(times) if time}
    for lower, higher in itertools.pairwise(rungs.values()):
        model.add_implication(higher, lower)
    steps = [after - before for before, after in itertools.pairwise([0, *rungs])]
    return rungs, cp_model.LinearExpr.weighted_sum([*rungs.values()], steps)


Posted = Iterator[cp_model.Constraint]
Family = Callable[[TypeModel], Posted]
"""Adds a group of constraints to the model and yields each; its docstring is the formula."""


def _one(v: TypeModel) -> Posted:
    """Sum over k of pick[s,k] = 1: each stage takes one type."""
    for slot in v.slots:
        yield v.model.add_exactly_one(v.pick[slot])


def _atoms(v: TypeModel) -> Posted:
    """first[S-1] = 0, first[s] + sum of atoms[k] pick[s,k] = first[s-1] (of s = 0: all atoms).

    pick[s,k] => first[s] in starts[k].
    """
    yield v.model.add(v.first[-1] == 0)
    for slot in v.slots:
        behind = v.first[slot - 1] if slot else v.ask.space.stages.atoms
        yield v.model.add(v.first[slot] + v.sum(slot, lambda one: one.atoms) == behind)
        if slot < v.ask.stages - 1:
            for literal, one in zip(v.pick[slot], v.types[slot], strict=True):
                starts = cp_model.Domain.from_values([*one.starts])
                yield v.model.add_linear_expression_in_domain(v.first[slot], starts).only_enforce_if(literal)


def _devices(v: TypeModel) -> Posted:
    """x[S-1] = 0, x[s] + sum of devices[k] pick[s,k] = x[s-1] (of s = 0: at most N)."""
    yield v.model.add(v.x[-1] == 0)
    for slot in v.slots:
        end = v.x[slot] + v.sum(slot, lambda one: one.devices)
        yield v.model.add(end == v.x[slot - 1]) if slot else v.model.add(end <= v.ask.space.line.devices)


def _places(v: TypeModel) -> Posted:
    """x[s] = P times[s] + rest[s]; pick[s,k] => rest[s] in rests[k].

    (rest[s], size[s+1], size[s], front[s], crossed[s]) in the table of boundaries.
    """
    space = v.ask.space
    period, devices = space.period, space.line.devices
    rests = list[Sum]()
    for slot in v.slots:
        here = [v.model.new_bool_var(f"rest[{slot},{at}]") for at in range(period)]
        times = v.model.new_int_var(0, devices // period, f"times[{slot}]")
        rests.append(cp_model.LinearExpr.weighted_sum(here, range(period)))
        yield v.model.add_exactly_one(here)
        yield v.model.add(v.x[slot] == period * times + rests[-1])
        seats = defaultdict[tuple[int, frozenset[int]], list[cp_model.IntVar]](list)
        for literal, one in zip(v.pick[slot], v.types[slot], strict=True):
            seats[one.size, one.rests].append(literal)
        for (_, where), literals in seats.items():
            if len(where) < period:
                yield v.model.add(sum(literals) <= sum(here[at] for at in where))
    for slot in v.slots[:-1]:
        numbers = [rests[slot], v.sum(slot + 1, lambda one: one.size), v.sum(slot, lambda one: one.size)]
        numbers += [v.sum(slot, lambda one: one.front), v.crossed[slot]]
        yield v.model.add_allowed_assignments(numbers, _crossings(v, slot))


def _crossings(v: TypeModel, slot: int) -> list[tuple[int, ...]]:
    """Return remainder, sizes of both stages, class of the place, and what crossing it takes, as they may be."""
    space, behind = v.ask.space, v.types[slot]
    met = {(one.size, one.front) for one in behind}
    before = {one.size for one in v.types[slot + 1]}
    rows = set[tuple[int, ...]]()
    for front in {front for _, front in met}:
        taken = space.crossed(front)
        for x, one, other in np.argwhere(space.joints[1:] >= 0).tolist():
            cost = int(taken[space.joints[x + 1, one, other]])
            if one in before and (other, front) in met and cost <= v.ask.crossed_ns:
                rows.add(((x + 1) % space.period, one, other, front, cost))
    return sorted(rows)


def _slowest(v: TypeModel) -> Posted:
    """T = sum of (t_i - t_(i-1)) slowest[t_i], slowest[t_i] => slowest[t_(i-1)], for all times t_i.

    Sum of pick[s,k] with time[k] >= t <= slowest[t]; T >= crossed[s] (by the formula);
    N T >= sum of devices[k] time[k] pick[s,k].
    """
    space, boundaries = v.ask.space, v.slots[:0] if v.ask.executed else v.slots[:-1]
    crossed = {cost for slot in boundaries for *_, cost in _crossings(v, slot)}
    v.ladder, v.slowest = ladder(v.model, crossed | {one.time for row in v.types for one in row})
    for slot in v.slots:
        longer, by_time = list[cp_model.IntVar](), defaultdict[int, list[cp_model.IntVar]](list)
        for literal, one in zip(v.pick[slot], v.types[slot], strict=True):
            by_time[one.time].append(literal)
        for at, time in enumerate(sorted(by_time, reverse=True)):
            longer += by_time[time]
            # Long sums are posted for some times alone; for all others the types that take just as long.
            some = longer if at % (1 + len(by_time) // MOST_SUMS) == 0 else by_time[time]
            if time:
                yield v.model.add(sum(some) <= v.ladder[time])
    for slot in boundaries:
        yield v.model.add(v.slowest >= v.crossed[slot])
    if space.line.devices * v.ask.most_ns < LARGEST:
        worked = sum(v.sum(slot, lambda one: one.devices * one.time) for slot in v.slots)
        yield v.model.add(space.line.devices * v.slowest >= worked)


def _classes(v: TypeModel) -> Posted:
    """Sum of holds[k,c] pick[s,k] = atoms of class c."""
    for at, all_ in enumerate(v.ask.space.held[-1].tolist()):
        yield v.model.add(sum(v.sum(slot, lambda one, at=at: one.holds[at]) for slot in v.slots) == all_)


def _limits(v: TypeModel) -> Posted:
    """Keep a (sum of time[k] pick[s,k] + sum of crossed[s]) + w T + d devices + e S <= limit."""
    for cap in v.ask.caps:
        yield v.model.add(v.capped(cap) <= cap.most)


def _paths(v: TypeModel) -> Posted:
    """Step >= the sum along each known path, with time[k] for a pair of passes and crossed[s].

    Step >= pre + M time of each stage, and >= pre + 2 tail + (M - s - 2) time and 2 tail - 2 time + (M - s) whole
    where M >= s + 2, with whole[k] for a pair with its part of what is done once; >= M whole; >= all + (M - S) T;
    >= pre + ceil(M / (s + 1)) tail.
    """
    if not v.ask.executed:
        return
    many, most, model = v.ask.micro_batches, v.ask.caps[0].most, v.model
    v.step = model.new_int_var(0, most, "step")
    # Variables of their own, as each of them is in many rows.
    times = [model.new_int_var(0, most, f"time[{slot}]") for slot in v.slots]
    whole = [model.new_int_var(0, most, f"whole[{slot}]") for slot in v.slots]
    for slot in v.slots:
        yield model.add(times[slot] == v.time(slot))
        yield model.add(whole[slot] == v.sum(slot, lambda one: one.whole))
    for slot in v.slots:
        pre = sum(times[slot + 1 :]) + sum(v.crossed[slot:])
        tail, own = sum(times[: slot + 1]) + sum(v.crossed[:slot]), times[slot]
        yield model.add(v.step >= pre + many * own)
        yield model.add(v.step >= pre + ceil_div(many, slot + 1) * tail)
        yield model.add(v.step >= many * whole[slot])
        if many >= slot + 2:
            yield model.add(v.step >= pre + 2 * tail + (many - slot - 2) * own)
            yield model.add(v.step >= 2 * tail - 2 * own + (many - slot) * whole[slot])
    total = sum(times) + sum(v.crossed)
    yield model.add(v.step >= total + max(0, many - v.ask.stages) * v.slowest)
    for path in v.ask.paths:
        stages, boundaries = along(path)
        own = sum(many * (whole if ends else times)[slot] for slot, (many, ends) in enumerate(stages))
        both = sum(many * v.crossed[slot] for slot, many in enumerate(boundaries))
        yield model.add(v.step >= own + both)


def along(path: PassPath) -> tuple[list[tuple[int, bool]], list[int]]:
    """Return by slot how many pairs of passes are on a path, and whether it ends there; and its boundaries.

    Where it ends, with what a stage does once, each pair has its part of that. A boundary is that in front of its
    slot, and counts where the path goes over it both ways.
    """
    pairs = np.minimum(path.often[FORWARD], path.often[BACKWARD]).tolist()
    both = np.minimum(path.often[ACTIVATION], path.often[GRADIENT]).tolist()
    stages = list(zip(pairs, (path.often[SYNC] > 0).tolist(), strict=True))
    # A path says of a boundary which stage is before it.
    return stages[::-1], both[-2::-1] if len(both) > 1 else []


def _closed(v: TypeModel) -> Posted:
    """Not all of pick[s,k] of a plan whose stages are settled, and whose paths are."""
    for cells in v.ask.closed:
        taken = list[cp_model.IntVar]()
        for slot, cell in zip(v.slots, reversed(cells), strict=True):
            rest = cell.x % v.ask.space.period
            rows = zip(v.pick[slot], v.types[slot], strict=True)
            taken += [literal for literal, one in rows if one.has(cell, rest)]
        if len(taken) == len(cells):
            yield v.model.add_bool_or([~literal for literal in taken])


FAMILIES: dict[str, Family] = {
    "one": _one,
    "atoms": _atoms,
    "devices": _devices,
    "places": _places,
    "slowest": _slowest,
    "classes": _classes,
    "paths": _paths,
    "closed": _closed,
    "limits": _limits,
}
"""All that plans with a number of stages are, each with its formula; demands on atoms leave types out."""
