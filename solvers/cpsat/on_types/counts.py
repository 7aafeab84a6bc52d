"""How many stages are of which type: a relaxation of the model over types that knows neither slots nor places.

Every plan has counts. They hold each class of atoms as often as the model does, use no more devices than there
are, and one stage begins with the first atom and one ends with the last. A stage takes longer the more
micro-batches it has in flight, and so the further in front it stands: a type has times with *deadlines*, the last
slot in which it takes no more, and so many stages at most have a deadline of d as there are slots up to d (a
condition of Hall). Neighbours are not known, so a boundary takes what it takes at least in front of a stage of its
size. What is left out is where on the line a stage stands and what stands beside it: a few parts in a thousand. So
counts rule most numbers of stages out, and say which of the others promise most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from pipecut.formulation.limits import in_time
from pipecut.solvers.cpsat.on_types.type_model import LARGEST, Sum, TypeQuestion, ladder
from pipecut.solvers.cpsat.on_types.types import FIRST, LAST
from pipecut.solvers.reduce.form_sums import Numbers
from pipecut.solvers.reduce.programme import Cell


@dataclass(frozen=True, slots=True)
class CountedType:
    """Stages of a ``size`` that hold as many atoms of each class, and have these ``ends`` of the model.

    ``deadline`` is the last slot in which they take no longer than ``time``, ``crossed`` what is in front of them
    at least.
    """

    size: int
    devices: int
    holds: tuple[int, ...]
    ends: int
    deadline: int
    time: int
    crossed: int

    def slowest(self, *, executed: bool) -> int:
        """Return what the slowest stage of a plan takes at least that has one of these; or boundary."""
        return self.time if executed else max(self.time, self.crossed)


def counted_types(ask: TypeQuestion) -> list[CountedType]:
    """Return the types of the stages of plans that are asked for."""
    space, found = ask.space, list[CountedType]()
    allowed = [space.allowed(slot, ask.stages) for slot in range(ask.stages)]
    for size, devices in enumerate(space.line.sizes):
        column = space.line.seat[:, size]
        seats = np.unique(column[column >= 0]).tolist()
        crossed = {front: _crossed(ask, front, size) for front in set(space.fronts.tolist())}
        rows = list[Numbers]()
        for slot in in_time(range(ask.stages), space.stages.deadline):
            least = np.minimum.reduce([space.stages.least(seat, slot) for seat in seats])
            rows.append(space.runs.least(np.where(allowed[slot], least, ask.most_ns + 1)))
        times = np.stack(rows)
        # What a stage takes in a slot or in any in front of it rises from slot to slot.
        rising = np.minimum.accumulate(times[::-1])[::-1]
        last = np.vstack([rising[1:] > rising[:-1], np.ones((1, times.shape[1]), dtype=bool)])
        for slot, of in np.argwhere(last & (rising <= ask.most_ns)).tolist():
            front, ends, *holds = space.runs.classes[of]
            before = 0 if ends & FIRST else crossed[front]
            found.append(CountedType(size, devices, tuple(holds), ends, slot, int(rising[slot, of]), before))
    return found


def _crossed(ask: TypeQuestion, front: int, size: int) -> int:
    """Return what the tensors in front of a stage of a size take at least."""
    joints = ask.space.joints[:, :, size]
    return int(ask.space.crossed(front)[joints[joints >= 0]].min(initial=ask.crossed_ns + 1))


@dataclass(slots=True)
class CountModel:
    """The model of counts: how many stages are of each type, and its value."""

    ask: TypeQuestion
    model: cp_model.CpModel
    pairs: list[tuple[cp_model.IntVar, CountedType]]
    value: Sum

    def cells(self, value: Callable[[Sum], int]) -> list[Cell]:
        """Return stages with the counts of an assignment, one after the other: those with late deadlines in front.

        They need not keep to anything that counts do not know.
        """
        rows = [one for many, one in self.pairs for _ in range(value(many))]
        rows.sort(key=lambda one: (not one.ends & FIRST, one.ends & LAST, -one.deadline, -one.devices))
        found, x, atom = list[Cell](), 0, 0
        for one in rows:
            found.append(Cell(x, one.size, atom, atom + sum(one.holds)))
            x, atom = x + one.devices, atom + sum(one.holds)
        return found

    @staticmethod
    def of(ask: TypeQuestion) -> CountModel | None:
        """Post all rows; None where there are no types at all."""
        types = [one for one in counted_types(ask) if one.crossed <= ask.crossed_ns]
        if not types:
            return None
        model, most = cp_model.CpModel(), ask.stages
        count = [model.new_int_var(0, 1 if one.ends else most, "") for one in types]
        pairs = list(zip(count, types, strict=True))
        model.add(_sum(count) == ask.stages)
        for end in (FIRST, LAST):
            model.add(_sum([many for many, one in pairs if one.ends & end]) == 1)
        for at, all_ in enumerate(ask.space.held[-1].tolist()):
            model.add(_sum(count, [one.holds[at] for one in types]) == all_)
        for slot in range(ask.stages - 1):
            model.add(_sum([many for many, one in pairs if one.deadline <= slot]) <= slot + 1)
        devices = _sum(count, [one.devices for one in types])
        model.add(devices <= ask.space.line.devices)
        rungs, slowest = ladder(model, {one.slowest(executed=ask.executed) for one in types})
        for many, one in pairs:
            if time := one.slowest(executed=ask.executed):
                model.add(many <= (1 if one.ends else most) * rungs[time])
        if ask.space.line.devices * ask.most_ns < LARGEST:
            worked = _sum(count, [one.devices * one.time for one in types])
            model.add(ask.space.line.devices * slowest >= worked)
        total = _sum(count, [one.time + one.crossed for one in types])
        if ask.executed:
            pace, slowest = slowest, model.new_int_var(0, ask.caps[0].most, "step")
            model.add(slowest >= ask.micro_batches * pace)
            model.add(slowest >= total + max(0, ask.micro_batches - ask.stages) * pace)
        for cap in ask.caps:
            model.add(cap.value(total, slowest, devices, ask.stages) <= cap.most)
        return CountModel(ask, model, pairs, ask.caps[0].value(total, slowest, devices, ask.stages))


def _sum(of: list[cp_model.IntVar], factors: list[int] | None = None) -> Sum:
    return cp_model.LinearExpr.weighted_sum(of, [1] * len(of) if factors is None else factors)
