"""The least time of every stage of a cut space, whatever the forms of its layers: atoms joined one after another.

For each layout at its ends an atom has a least communication on every kind of group. Stages from all places on
grow together by one atom at a time: a row for each layout at their right end, with the least communication of
every stage that ends so. Memory is not looked at (``solvers.atoms.chains`` does). Written apart from the tables of
the dynamic programmes, so that what rests on either is evidence for what rests on the other.
"""

from __future__ import annotations

import itertools

import numpy as np

from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.limits import TooLargeError, in_time
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.problem.options import StageTime
from pipecut.solvers.atoms.programs import OUTSIDE, AtomProgram, Key, LayerStep, Programs, layout_of

BYTES_A_STAGE = 16
"""For each kind of group and two places: a time, and a time while it is made."""
MOST_LIVE = 4
"""How many layers may be live at once: their layouts are tried one by one."""
Least = dict[Key, Times]
"""The least communication in ns, by the layout of the live layers; by kind, or by kind and place."""


def check_size(places: int, kinds: int) -> int:
    """Return the bytes of the table of least times. Raises TooLargeError if they are too many."""
    needed = BYTES_A_STAGE * kinds * places * places
    TooLargeError.refuse_above(
        f"times of all stages ({kinds} kinds of device groups, {places} places to cut)",
        needed,
        "close cuts with constraints.no_cut, or narrow constraints.devices_per_stage",
    )
    return needed


def least_times(tables: Tables, space: CutSpace, known: Programs) -> Times:
    """Return by kind, first and last place the least time of a stage; FORBIDDEN where it stops before it starts.

    Raises TooLargeError for tables that are too large, and where more than MOST_LIVE layers are live at once;
    StoppedError after the deadline of the tables. Cost: O(kinds x places**2 x layouts) in numpy.
    """
    check_size(len(space.places), len(tables.kinds))
    if known.widest > MOST_LIVE:
        raise TooLargeError(
            f"the forms of {known.widest} layers matter at once, at most {MOST_LIVE} can be tried together; ask"
            " another solver, or narrow them with constraints.forms"
        )
    least = np.full((len(tables.kinds), space.stops, space.stops + 1), FORBIDDEN, dtype=np.int64)
    moves = _Moves(tables, known)
    states: Least = {}
    for atom in in_time(range(space.stops), tables.deadline):
        outside = (OUTSIDE,) * known.all[known.of_atom[atom]].width
        states.setdefault(outside, np.full(least.shape[:2], FORBIDDEN, dtype=np.int64))[:, atom] = 0
        grown: Least = {}
        for (left, row), (begin, end, program) in itertools.product(states.items(), known.ranges(atom)):
            for right, cost in moves.of(program, left).items():
                if right not in grown:
                    grown[right] = np.full(least.shape[:2], FORBIDDEN, dtype=np.int64)
                into = grown[right][:, begin:end]
                np.minimum(into, row[:, begin:end] + cost[:, None], out=into)
        least[:, :, atom + 1] = np.minimum.reduce(list(grown.values()))
        states = grown
    compute = np.add.reduceat(tables.compute, list(space.places[:-1]), axis=1)
    sums = np.pad(compute.cumsum(axis=1), ((0, 0), (1, 0)))
    joined = np.maximum if tables.instance.cost.stage_time is StageTime.OVERLAP else np.add
    time = joined(sums[:, None, :] - sums[:, :-1, None], least)
    time[least >= FORBIDDEN] = FORBIDDEN
    return time


class _Moves:
    """What atoms communicate at least, by program and the layouts at both ends, on every kind of group."""

    def __init__(self, tables: Tables, known: Programs) -> None:
        self._tables, self._programs = tables, known
        self._known: dict[tuple[int, Key], Least] = {}

    def of(self, program: int, left: Key) -> Least:
        """Return, by layout at the right end, the least communication by kind from a layout at the left end."""
        if (program, left) not in self._known:
            self._known[program, left] = self._found(self._programs.all[program], left)
        return self._known[program, left]

    def _found(self, program: AtomProgram, left: Key) -> Least:
        states: Least = {left: np.zeros(len(self._tables.kinds), dtype=np.int64)}
        for step in program.steps:
            grown: Least = {}
            for key, row in states.items():
                # Kinds that split nothing have form 0 alone, others the forms of the layer: the tables know which.
                for form in sorted({0, *step.forms}) if step.forms else (0,):
                    around = (*key, form) if step.forms else key
                    after = tuple(around[at] for at in step.kept)
                    cost = np.minimum(row + self._cost(step, key, form), FORBIDDEN)
                    grown[after] = np.minimum(grown[after], cost) if after in grown else cost
            states = grown
        return states

    def _cost(self, step: LayerStep, key: Key, form: int) -> Times:
        lies = form if step.forms else layout_of(step, key)
        layer, copied = self._programs.layers[step.cost]
        copy = self._tables.instance.copies[layer]
        cost = self._tables.inside[:, layer, lies]
        if copied and copy is not None:
            cost = cost + self._tables.copies[copy.earlier, layer][:, lies]
        for at, edge in step.edges:
            if key[at] != OUTSIDE:
                cost = cost + self._tables.between[:, self._programs.edges[edge], key[at], form]
        return cost
