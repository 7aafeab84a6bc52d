"""Chains of atoms: whole stages, with the least time of each that also fits into memory; exact.

A stage is a chain of atoms, and its labels are those of a shorter chain joined with the next atom's front. Stages
that begin with the same programs, on the same kind, under the same rule and with the same room share their labels:
they are kept in a tree, a branch for each program. Labels that take longer than a limit are left out; so what is
not found within it is only known to take longer, and the limit is doubled when somebody asks beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from formulation.costs.memory_tables import MemoryTables
from formulation.costs.tables import FORBIDDEN, Tables, Times
from formulation.problem.cuts import CutSpace
from formulation.problem.options import StageTime
from formulation.problem.plan import Span
from solvers.atoms.fronts import FrontRule, Fronts, States
from solvers.atoms.labels import HELD, START, TIME, WORKING, Labels, joined, parts_of, unbeaten
from solvers.atoms.programs import OUTSIDE, Key, programs

__all__: list[str] = []

LARGEST_NS = FORBIDDEN - 2
"""The largest limit: one more is still no FORBIDDEN time."""
HEADROOM = 8
"""A limit is above the first time that is asked for by this part of it."""


@dataclass(slots=True)
class _Node:
    """The stages of some atoms: labels, computation in ns, and whether any label was left out for its time."""

    states: States
    compute_ns: int
    cut_off: bool
    after: dict[int, _Node] = field(default_factory=dict)


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
        self._overlap = tables.instance.cost.stage_time is StageTime.OVERLAP
        self._trees: dict[tuple[FrontRule, int, int], _Tree] = {}
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

    def forms(self, slot: int, kind: int, span: Span, threshold_ns: int) -> tuple[int, ...] | None:
        """Return the fastest forms of a run of atoms within threshold and memory, a form a layer; None if none."""
        start, stop = span.first, span.stop
        tree = self._tree(slot, kind, start, threshold_ns)
        way = [tree.root]
        for _, node in zip(range(start, stop), self._nodes(tree, start), strict=False):
            way.append(node)
        if len(way) <= stop - start or not way[-1].states:
            return None
        key, labels = min(way[-1].states.items(), key=lambda item: int(item[1][0, TIME]))
        if self._time(way[-1].compute_ns, int(labels[0, TIME])) > threshold_ns:
            return None
        return self._walk(tree.rule, way, start, key, labels[0])

    def _walk(self, rule: FrontRule, way: list[_Node], start: int, key: Key, label: Labels) -> tuple[int, ...]:
        """Go back from a label of the last node to the first, by the labels that make it up."""
        found: list[list[int]] = []
        for at in range(len(way) - 1, 0, -1):
            program = self.fronts.programs.of_atom[start + at - 1]
            left, label, own = self._back(rule, program, way[at - 1].states, key, label)
            found.append(self.fronts.forms(program, rule, (left, key), own))
            key = left
        return tuple(form for forms in reversed(found) for form in forms)

    def _back(
        self, rule: FrontRule, program: int, before: States, key: Key, label: Labels
    ) -> tuple[Key, Labels, Labels]:
        fronts = self.fronts.of(program, rule, before)
        for left, labels in before.items():
            front = fronts[left].get(key)
            parts = None if front is None else parts_of(label, labels, front)
            if parts is not None:
                return left, *parts
        raise LookupError(f"no labels make up {label.tolist()} at layout {key}")

    def _tree(self, slot: int, kind: int, start: int, threshold_ns: int) -> _Tree:
        """Return the tree that a stage's labels stand in, with a limit that is not below the threshold."""
        rule, room = self.fronts.rule(slot, kind), self.held.room(slot, kind, self.space.places[start])
        width, threshold_ns = self._width(start), min(threshold_ns, LARGEST_NS)
        tree = self._trees.get((rule, room, width))
        if tree is None or tree.limit_ns < threshold_ns:
            limit = (
                threshold_ns + threshold_ns // HEADROOM if tree is None else max(threshold_ns, 2 * tree.limit_ns)
            )
            root = _Node({(OUTSIDE,) * width: START}, 0, cut_off=False)
            tree = self._trees[rule, room, width] = _Tree(rule, room, min(limit, LARGEST_NS), root)
        return tree

    def _width(self, start: int) -> int:
        """Return how many layers before a place some layer behind it looks at."""
        known = self.fronts.programs
        return known.all[known.of_atom[start]].width

    def _nodes(self, tree: _Tree, start: int) -> Iterator[_Node]:
        """Yield the nodes of the stages from a place on, shortest first, up to the first without labels."""
        node = tree.root
        for program in self.fronts.programs.of_atom[start:]:
            if program not in node.after:
                self.tables.deadline.check()
                node.after[program] = self._grown(tree, node, program)
            node = node.after[program]
            yield node
            if not node.states:
                return

    def _grown(self, tree: _Tree, node: _Node, program: int) -> _Node:
        compute = node.compute_ns + self._compute_ns(program, tree.rule.kind)
        most = tree.limit_ns if self._overlap else tree.limit_ns - compute
        if compute > tree.limit_ns:
            return _Node({}, compute, cut_off=True)
        cut_off = node.cut_off
        grown: dict[Key, list[Labels]] = {}
        fronts = self.fronts.of(program, tree.rule, node.states)
        for left, labels in node.states.items():
            for key, front in fronts[left].items():
                both = joined(labels, front)
                both = both[both[:, HELD] + both[:, WORKING] <= tree.room]
                late = both[:, TIME] > most
                cut_off = cut_off or bool(late.any())
                grown.setdefault(key, []).append(both[~late])
        merged = {key: unbeaten(np.concatenate(parts)) for key, parts in grown.items()}
        return _Node({key: labels for key, labels in merged.items() if len(labels)}, compute, cut_off)

    def _compute_ns(self, program: int, kind: int) -> int:
        if (program, kind) not in self._compute:
            known = self.fronts.programs
            layers = [known.layers[step.cost] for step in known.all[program].steps]
            self._compute[program, kind] = int(self.tables.compute[kind, layers].sum())
        return self._compute[program, kind]

    def _time(self, compute_ns: int, moved_ns: int) -> int:
        return max(compute_ns, moved_ns) if self._overlap else compute_ns + moved_ns
