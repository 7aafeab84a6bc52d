"""Chains of atoms: whole stages, with the least time of each that also fits into memory; exact.

A stage is a chain of atoms, and its labels are those of a shorter chain joined with the next atom's front. Stages
that begin with the same programs, on the same kind, under the same rule and with the same room share their labels:
they are kept in a tree, a branch for each program. Labels that take longer than a limit are left out; so what is
not found within it is only known to take longer, and the limit is doubled when somebody asks beyond it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.problem.options import StageTime
from pipecut.formulation.problem.plan import Span
from pipecut.solvers.atoms.blocks import SETTLED, Lending
from pipecut.solvers.atoms.fronts import FrontRule, Fronts, States
from pipecut.solvers.atoms.labels import HELD, START, TIME, WORKING, Labels, best_labels, joined, parts_of
from pipecut.solvers.atoms.programs import OUTSIDE, Key, programs

Chosen = tuple[tuple[int, ...], tuple[Span, ...]]
"""The form of each layer of a stage, and the blocks that it computes again by themselves."""
_Step = tuple[int, int]
"""What a chain grows by: the numbers of an atom's program, and of what it reads (``solvers.atoms.blocks``)."""
LARGEST_NS = FORBIDDEN - 2
"""The largest limit: one more is still no FORBIDDEN time."""
# A limit is above the first time that is asked for by this part of it.
HEADROOM = 8


@dataclass(slots=True)
class _Node:
    """The stages of so many atoms: labels, computation in ns, and whether any label was left out for its time.

    Labels are known by the forms of the live layers, and the statuses of tensors (``solvers.atoms.blocks``) behind
    them. Computation is that of the first pass; labels have what is computed again in their time.
    """

    states: States
    compute_ns: int
    cut_off: bool
    atoms: int = 0
    after: dict[_Step, _Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """An atom that goes on from a layout to another: its rule, and its front with what it costs ``more`` there.

    The last of ``right`` are so many ``statuses``.
    """

    rule: FrontRule
    left: Key
    right: Key
    statuses: int
    more: Labels
    front: Labels


@dataclass(slots=True)
class _Tree:
    """The stages on one kind under one rule with the same room; times above the limit are not followed."""

    rule: FrontRule
    room: int
    limit_ns: int
    root: _Node


@dataclass(frozen=True, slots=True, eq=False)
class ExactRow:
    """The least times of the stages from one place on: ``time[q]`` if it stops at place q, up to ``limit_ns``.

    A time of ``limit_ns + 1`` says that it takes longer, FORBIDDEN that it never fits. It rises with q.
    """

    time: Times
    limit_ns: int

    def end(self, start: int, threshold_ns: int) -> int:
        """Return the furthest place where a stage may stop within a threshold; ``start`` if none fits."""
        most = int(np.searchsorted(self.time[start + 1 :], threshold_ns, side="right"))
        return start + most if threshold_ns <= self.limit_ns else self._beyond(start)

    def _beyond(self, start: int) -> int:
        return start + int(np.searchsorted(self.time[start + 1 :], FORBIDDEN, side="left"))


class Chains:
    """Exact rows and forms of the stages of an instance under its memory limit."""

    def __init__(self, tables: Tables, held: MemoryTables, space: CutSpace) -> None:
        self.tables, self.held, self.space = tables, held, space
        self.fronts = Fronts(tables, held, programs(tables, held, space))
        self._lending = Lending(tables, space)
        self._overlap = tables.instance.cost.stage_time is StageTime.OVERLAP
        self._trees: dict[tuple[FrontRule, int, int, int], _Tree] = {}
        self._compute: dict[tuple[int, int], int] = {}

    def row(self, slot: int, kind: int, start: int, threshold_ns: int) -> ExactRow:
        """Return the row of stages of a kind in a slot from a place on, exact up to the threshold at least.

        Raises StoppedError after the deadline of the tables.
        """
        tree = self._tree(slot, kind, start, threshold_ns)
        time = np.full(len(self.space.places), FORBIDDEN, dtype=np.int64)
        for stop, node in enumerate(self._nodes(tree, start), start + 1):
            least = min((int(labels[0, TIME]) for labels in node.states.values()), default=None)
            if least is None:
                time[stop:] = tree.limit_ns + 1 if node.cut_off else FORBIDDEN
                break
            time[stop] = self._time(node.compute_ns, least)
        return ExactRow(time, tree.limit_ns)

    def forms(self, slot: int, kind: int, span: Span, threshold_ns: int) -> Chosen | None:
        """Return the fastest choice for a run of atoms within threshold and memory; None if there is none."""
        tree, way = self._way(slot, kind, span, threshold_ns)
        if not way[-1].states:
            return None
        key, label = _fastest(way[-1].states)
        if self._time(way[-1].compute_ns, int(label[TIME])) > threshold_ns:
            return None
        return self._walk(tree.rule, way, span.first, key, label)

    def fastest(self, slot: int, kind: int, span: Span, limit_ns: int) -> Chosen | None:
        """Return the fastest choice for a run of atoms within memory; None if none ever fits.

        ``limit_ns`` is where the search begins: it is doubled until one is found, or nothing was left out.
        """
        while True:
            tree, way = self._way(slot, kind, span, limit_ns)
            if way[-1].states:
                return self._walk(tree.rule, way, span.first, *_fastest(way[-1].states))
            if not way[-1].cut_off or tree.limit_ns >= LARGEST_NS:
                return None
            limit_ns = 2 * tree.limit_ns + 1

    def _way(self, slot: int, kind: int, span: Span, threshold_ns: int) -> tuple[_Tree, list[_Node]]:
        """Return the tree of a stage and its nodes, from the root to it or the first without labels."""
        tree = self._tree(slot, kind, span.first, threshold_ns)
        nodes = itertools.islice(self._nodes(tree, span.first), len(span))
        return tree, [tree.root, *nodes]

    def _walk(self, rule: FrontRule, way: list[_Node], start: int, key: Key, label: Labels) -> Chosen:
        """Go back from a label of the last node to the first, by the labels that make it up."""
        found, again = list[list[int]](), list[Span]()
        for at in range(len(way) - 1, 0, -1):
            atom = start + at - 1
            one, label, own = self._back(rule, self._step(atom, start), way[at - 1], key, label)
            program, width = self.fronts.programs.of(atom, start), len(key) - one.statuses
            ends = one.left[: self.fronts.programs.all[program].width], key[:width]
            found.append(self.fronts.forms(program, one.rule, ends, own - one.more))
            if one.rule.alone is not None:
                again.append(self.space.layers(Span(atom, atom + 1)))
            key = one.left
        return tuple(form for forms in reversed(found) for form in forms), tuple(reversed(again))

    def _back(
        self, rule: FrontRule, step: _Step, node: _Node, key: Key, label: Labels
    ) -> tuple[_Way, Labels, Labels]:
        for one in self._ways(rule, step, node):
            parts = parts_of(label, node.states[one.left], one.front) if one.right == key else None
            if parts is not None:
                return one, *parts
        raise LookupError(f"no labels make up {label.tolist()} at layout {key}")

    def _ways(self, rule: FrontRule, step: _Step, node: _Node) -> Iterator[_Way]:
        """Yield every way in which an atom may go on from a node, kept or computed again by itself."""
        program, number = step
        width = self.fronts.programs.all[program].width
        lefts = list(dict.fromkeys(key[:width] for key in node.states))
        for own in self.fronts.choices(rule) if not self._overlap else [rule]:
            fronts, alone = self.fronts.of(program, own, lefts), own.alone is not None
            slower = self._compute_ns(program, own.kind) - self._compute_ns(program, rule.kind)
            for left in node.states:
                place = (node.atoms, rule.kind)
                stays, after = self._lending.after(number, (left[:width], left[width:]), place, again=alone)
                more = np.array([slower, rule.keeps.in_flight * stays, 0])
                for key, front in fronts[left[:width]].items():
                    yield _Way(own, left, (*key, *after), len(after), more, front + more)

    def _tree(self, slot: int, kind: int, start: int, threshold_ns: int) -> _Tree:
        """Return the tree that a stage's labels stand in, with a limit that is not below the threshold."""
        rule, room = self.fronts.rule(slot, kind), self.held.room(slot, kind, self.space.places[start])
        width, threshold_ns = self._width(start), min(threshold_ns, LARGEST_NS)
        settled = self._lending.pending[start]
        tree = self._trees.get((rule, room, width, settled))
        if tree is None or tree.limit_ns < threshold_ns:
            limit = (
                threshold_ns + threshold_ns // HEADROOM if tree is None else max(threshold_ns, 2 * tree.limit_ns)
            )
            root = _Node({(*(OUTSIDE,) * width, *(SETTLED,) * settled): START}, 0, cut_off=False)
            tree = _Tree(rule, room, min(limit, LARGEST_NS), root)
            self._trees[rule, room, width, settled] = tree
        return tree

    def _width(self, start: int) -> int:
        """Return how many layers before a place some layer behind it looks at."""
        known = self.fronts.programs
        return known.all[known.of_atom[start]].width

    def _nodes(self, tree: _Tree, start: int) -> Iterator[_Node]:
        """Yield the nodes of the stages from a place on, shortest first, up to the first without labels."""
        node = tree.root
        for atom in range(start, self.space.stops):
            step = self._step(atom, start)
            if step not in node.after:
                self.tables.deadline.check()
                node.after[step] = self._grown(tree, node, step)
            node = node.after[step]
            yield node
            if not node.states:
                return

    def _step(self, atom: int, start: int) -> _Step:
        return self.fronts.programs.of(atom, start), self._lending.of_atom[atom]

    def _grown(self, tree: _Tree, node: _Node, step: _Step) -> _Node:
        compute = node.compute_ns + self._compute_ns(step[0], tree.rule.kind)
        most = tree.limit_ns if self._overlap else tree.limit_ns - compute
        if compute > tree.limit_ns:
            return _Node({}, compute, cut_off=True, atoms=node.atoms + 1)
        cut_off = node.cut_off
        grown: dict[Key, list[Labels]] = {}
        for one in self._ways(tree.rule, step, node):
            both = joined(node.states[one.left], one.front)
            both = both[both[:, HELD] + both[:, WORKING] <= tree.room]
            late = both[:, TIME] > most
            cut_off = cut_off or bool(late.any())
            grown.setdefault(one.right, []).append(both[~late])
        merged = {key: best_labels(np.concatenate(parts)) for key, parts in grown.items()}
        states = {key: labels for key, labels in merged.items() if len(labels)}
        return _Node(states, compute, cut_off, node.atoms + 1)

    def _compute_ns(self, program: int, kind: int) -> int:
        if (program, kind) not in self._compute:
            known = self.fronts.programs
            layers = [known.layers[step.cost][0] for step in known.all[program].steps]
            self._compute[program, kind] = int(self.tables.compute[kind, layers].sum())
        return self._compute[program, kind]

    def _time(self, compute_ns: int, moved_ns: int) -> int:
        return max(compute_ns, moved_ns) if self._overlap else compute_ns + moved_ns


def _fastest(states: States) -> tuple[Key, Labels]:
    """Return the layout and the label of least time; labels are sorted by time."""
    key, labels = min(states.items(), key=lambda item: int(item[1][0, TIME]))
    return key, labels[0]
