"""The passes of whole stages: for every kind and span those of its forms that no other forms beat in every pass.

A stage is a chain of atoms (``solvers.atoms.programs``), and a label what its layers take so far: forward pass,
backward pass, synchronisation, with halves what is for weights, and where memory may run out bytes held and the
largest working set. Stages that begin with the same programs on the same kind share their labels, in a tree with a
branch for each program. Labels with which no step could keep to a limit are left out.

Of kinds that split no layers a stage has one label, which takes sums over layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import Times
from pipecut.formulation.limits import in_time
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.plan import Span
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.solvers.atoms.programs import OUTSIDE, LayerStep
from pipecut.solvers.atoms.unbeaten import Rows, unbeaten
from pipecut.solvers.step_time.bounds.columns import compared
from pipecut.solvers.step_time.bounds.mixtures import Mixture
from pipecut.solvers.step_time.bounds.pass_tables import HELD, StageParts
from pipecut.solvers.step_time.bounds.rays import Proportion
from pipecut.solvers.step_time.growing import NO_LIMIT, Further, Growing, Grown, Room, StageRule, countable

FEW, FAR = 32, 6
"""Stages of so few starts that stop at least so many atoms on are followed each on its own, as far as there is
time for the rest; of more starts those that begin alike share their labels."""
MOST_STOPS, MOST_ROOMS = 4, 8
"""With so many stops of a start, and so many sums for each, it is looked which of all of them may still be."""


@dataclass(frozen=True, slots=True, eq=False)
class StageRows:
    """Stages of one kind in one slot, by ascending stop: ``start``, ``stop`` in atoms, and ``passes`` in ns.

    Those that stop at place j are rows ``first[j]`` to ``first[j + 1]``.
    """

    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    passes: Times
    first: NDArray[np.int64]


@dataclass(slots=True)
class _Node:
    """The stages of some atoms, and those of one atom more by its program."""

    grown: Grown
    after: dict[int, _Node] = field(default_factory=dict)


class StageFronts:
    """The stages of an instance with which a step may take at most ``most_ns``.

    The limit may fall while they are used. With a ``width`` only about so many labels of each kind are followed:
    then some stages are missing. ``mixtures``, of all plans within the limit, leave stages out that are in none.
    """

    def __init__(self, of: StageParts, most_ns: int, width: int = 0, mixtures: Sequence[Mixture] = ()) -> None:
        self.tables, self.space, self.passes, self.programs = of.tables, of.space, of.passes, of.programs
        self.held, self.most_ns, self._mixtures = of.held, most_ns, mixtures
        self._growing, self._every = Growing(of, width), Growing(of, 0)
        self._columns = of.passes.columns
        self._furthers: dict[StageRule, Further] = {}
        self._trees: dict[tuple[StageRule, int], _Node] = {}
        self._rows: dict[tuple[Keeps | None, int], StageRows] = {}

    def rows(self, slot: int, kind: int, useful: NDArray[np.bool_]) -> StageRows:
        """Return the stages of a kind in a slot, those from i to j where ``useful[i, j]`` says that they may be.

        The first answer counts: whatever is useful later was so before.
        Raises StoppedError after the deadline of the tables.
        """
        keeps = None if self.held is None else self.held.keeps(slot)
        if (keeps, kind) not in self._rows:
            whole = self.tables.kinds[kind].tensor_parallel_degree == 1
            self._rows[keeps, kind] = self._single(slot, kind, useful) if whole else self._made(slot, kind, useful)
        return self._rows[keeps, kind]

    def _single(self, slot: int, kind: int, useful: NDArray[np.bool_]) -> StageRows:
        """Return the stages of a kind that splits no layers: sums over layers."""
        places = np.array(self.space.places)
        sums = np.pad(self.passes.layers[kind, :, 0].cumsum(axis=0), ((1, 0), (0, 0)))[places]
        stop, start = np.nonzero(with_room(self.held, self.space, slot, kind, useful).T)
        passes = sums[stop] - sums[start]
        for (earlier, layer), copy in self.passes.copies.items():
            passes[(earlier < places[start]) & (places[start] <= layer) & (layer < places[stop])] += copy[kind, 0]
        return StageRows(start, stop, self._columns.passes(passes), self._firsts(stop))

    def _firsts(self, stop: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(stop, np.arange(self.space.stops + 2))

    def forms(self, slot: int, kind: int, span: Span, passes: tuple[int, ...]) -> tuple[int, ...]:
        """Return forms of the layers of a stage that take no more than these passes, within its memory.

        Raises LookupError if there are none.
        """
        rule, history = self._rule(slot, kind, span.first), list[Grown]()
        grown, steps, begin = self._begun(span.first), self._steps(span), self.space.places[span.first]
        further = Further(
            begin,
            steps,
            partial(self._every.put, rule),
            [self._wanted(rule, span, passes)],
            self.tables.deadline,
        )
        for layer, step in enumerate(steps, begin + 1):
            grown = self._every.step(rule, step, grown, self.most_ns, layer, further)
            history.append(grown)
        found_passes = self._columns.passes(grown.labels[:, :HELD])
        better = compared(found_passes) <= compared(np.array([passes], dtype=np.int64))
        good = np.flatnonzero(better.all(axis=1))
        if not len(good):
            raise LookupError(f"kind {kind}, atoms {span.first} to {span.stop}: no forms take {passes}")
        row, found = int(good[0]), list[int]()
        for grown in reversed(history):
            found.append(int(grown.form[row]))
            row = int(grown.before[row])
        return tuple(reversed(found))

    def _wanted(self, rule: StageRule, span: Span, passes: tuple[int, ...]) -> Room:
        """Return the room of stages that take no more than these passes."""
        often, wanted = self._columns.within(passes)
        most = np.append(NO_LIMIT if rule.room is None else rule.room, wanted)
        return Room(self.space.places[span.stop], self._with_bytes(often), most, len(most))

    def _with_bytes(self, often: Times) -> Times:
        """Return sums of columns behind that of the bytes, which are counted in one more column."""
        return np.block(
            [
                [np.zeros((1, often.shape[1]), dtype=np.int64), np.ones((1, 1), dtype=np.int64)],
                [often, np.zeros((len(often), 1), dtype=np.int64)],
            ]
        )

    def _made(self, slot: int, kind: int, useful: NDArray[np.bool_]) -> StageRows:
        start: list[int] = []
        stop: list[int] = []
        passes: list[Rows] = []
        starts = np.flatnonzero(useful.any(axis=1)).tolist()
        for first in in_time(starts, self.tables.deadline):
            stops = tuple(np.flatnonzero(useful[first]).tolist())
            for last, labels in self._from(slot, kind, first, stops, few=len(starts) <= FEW):
                if useful[first, last]:
                    best = self._best(labels)
                    passes.append(best)
                    start += [first] * len(best)
                    stop += [last] * len(best)
        order = np.argsort(np.array(stop, dtype=np.int64), kind="stable")
        stops = np.array(stop, dtype=np.int64)[order]
        none = self._columns.passes(np.zeros((0, self._columns.width), dtype=np.int64))
        whole = np.concatenate(passes)[order] if passes else none
        return StageRows(np.array(start, dtype=np.int64)[order], stops, whole, self._firsts(stops))

    def _best(self, labels: Rows) -> Times:
        """Return the unbeaten passes of stages with these labels."""
        passes, one = self._columns.passes(labels[:, :HELD]), np.zeros(len(labels), dtype=np.int64)
        return passes[unbeaten(compared(passes), one, self.tables.deadline)]

    def _from(
        self, slot: int, kind: int, first: int, stops: tuple[int, ...], *, few: bool = False
    ) -> Iterator[tuple[int, Rows]]:
        """Yield the places where a stage may stop that starts here, each with its passes.

        ``stops`` are those that are asked for; with ``few`` there are few starts.
        """
        rule = self._rule(slot, kind, first)
        if few and stops[0] - first >= FAR:
            mixed = len(stops) <= MOST_STOPS
            rule = replace(rule, goal=(first, stops if mixed else stops[:1], mixed))
        begun = self._begun(first)
        node = self._trees.setdefault((rule, begun.key.shape[1]), _Node(begun))
        for atom in range(first, stops[-1]):
            program = self.programs.of(atom, first)
            if program not in node.after:
                self.tables.deadline.check()
                node.after[program] = _Node(self._atom(rule, atom, program, node.grown))
            node = node.after[program]
            if not len(node.grown.labels):
                return
            yield atom + 1, node.grown.labels

    def _rule(self, slot: int, kind: int, first: int) -> StageRule:
        if self.held is None:
            return StageRule(kind, None, None)
        keeps = self.held.keeps(slot)
        room = self.held.room(slot, kind, self.space.places[first])
        most = self.held.lasting(slot, kind).max(axis=-1).sum() + self.held.working_set[kind].max()
        for copy in self.held.copies.values():
            most += copy.lasting(keeps, kind).max() + copy.working_set[kind].max()
        return StageRule(kind, keeps, room) if most > room else StageRule(kind, None, None)

    def _begun(self, first: int) -> Grown:
        width = self.programs.all[self.programs.of_atom[first]].width
        none = np.zeros(1, dtype=np.int64)
        empty = np.zeros((1, self._columns.width + 2), dtype=np.int64)
        return Grown(empty, np.full((1, width), OUTSIDE, dtype=np.int64), none, none)

    def _atom(self, rule: StageRule, atom: int, program: int, grown: Grown) -> Grown:
        further = self._ahead(rule)
        for layer, step in enumerate(self.programs.all[program].steps, self.space.places[atom] + 1):
            if not len(grown.labels):
                break
            grown = self._growing.step(rule, step, grown, self.most_ns, layer, further)
        return grown

    def _ahead(self, rule: StageRule) -> Further | None:
        """Return what looks ahead for labels of stages that are asked for; None where it is for any."""
        if rule.goal is None:
            return None
        if rule not in self._furthers:
            first, stops, mixed = rule.goal
            rooms = [self._room(rule, first, stop, mixed=mixed) for stop in stops]
            steps = self._steps(Span(first, stops[-1]))
            put = partial(self._growing.put, rule)
            self._furthers[rule] = Further(self.space.places[first], steps, put, rooms, self.tables.deadline)
        return self._furthers[rule]

    def _steps(self, span: Span) -> list[LayerStep]:
        number = [self.programs.of(atom, span.first) for atom in range(span.first, span.stop)]
        return [step for one in number for step in self.programs.all[one].steps]

    def _room(self, rule: StageRule, first: int, stop: int, *, mixed: bool) -> Room:
        """Return what a stage may take of a step and of its memory, and by mixtures if these are asked."""
        (step, many), found = self.passes.whole, dict[Proportion, int]()
        for one in self._mixtures if mixed else ():
            for counts, left in one.room(rule.kind, first, stop, self.most_ns).items():
                found[counts] = max(left, found.get(counts, left))
        if len(found) > MOST_ROOMS or not all(countable(counts, self.most_ns) for counts in found):
            found = {}
        rows = [self._columns.below(one) for one in (step, *found)]
        most = np.repeat(np.array([many * self.most_ns, *found.values()], dtype=np.int64), len(rows[0]))
        most = np.append(NO_LIMIT if rule.room is None else rule.room, most)
        often = self._with_bytes(np.concatenate(rows))
        return Room(self.space.places[stop], often, most, 1 + len(rows[0]), len(rows[0]))


def with_room(
    held: MemoryTables | None, space: CutSpace, slot: int, kind: int, fitting: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return those of the stages ``fitting[i, j]``, which fit without copies, that fit with what they copy.

    Cost: linear in layers for each place where a stage begins that copies something.
    """
    if held is None or not held.copies:
        return fitting
    found, places, lasting = fitting.copy(), np.array(space.places), held.lasting(slot, kind)
    for start in np.flatnonzero(fitting.any(axis=1)).tolist():
        first = int(places[start])
        if any(earlier < first <= layer for earlier, layer in held.copies):
            kept, working = (part[first:, 0] for part in held.in_stage(slot, kind, first, lasting))
            needed = np.append(0, kept.cumsum() + np.maximum.accumulate(working))
            found[start, start + 1 :] &= needed[places[start + 1 :] - first] <= held.room(slot, kind, first)
    return found
