"""Stages that grow atom by atom: their least weighted sums, by how many of their atoms are computed again.

Stages that are made of the same programs, behind equal boundaries, are one *node* of a tree, and so are those with
an atom less (``solvers.reduce.cells``). Sums are kept by the layouts of what is live behind a stage, of those
alone in which it may lie. Blocks that are computed again change what a stage takes and holds in large steps, which
prices of bytes mix: of stages of few blocks they say little. So those are told apart by how many of their blocks
are computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from pipecut.formulation.costs.bulk.divided import WHOLE_INPUT, divided
from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.limits import Deadline, in_time
from pipecut.solvers.atoms.blocks import SETTLED, Lending
from pipecut.solvers.atoms.programs import OUTSIDE, Key, Programs
from pipecut.solvers.reduce import form_sums
from pipecut.solvers.reduce.form_sums import NO_SUM, Factor, LayerSums, Numbers, eliminated, of_atom, product
from pipecut.solvers.reduce.word import Word, copying

PRICES = 6
"""A byte has prices of so many octaves above and below what it has if time is worth all that a stage holds."""
MUCH = 4
"""An atom needs much while it is computed again if it needs such a part of the most that any atom does."""
COUNTED, DEEP = 4, 16
"""Stages are told apart by how many such atoms are computed again, up to so many; long ones by whether any is."""
COUNT = -1
"""The variable of that number."""
FAST, STASH, LEAN = 0, 1, 2
"""The rows of weights of time alone, of the stash alone, and of all that is held with one micro-batch."""
_Atom = tuple[int, int, tuple[bool, ...]]
"""The program of an atom, what it reads (``solvers.atoms.blocks``), and whether it may be computed again."""
# The first atom of one stage and where it ends; or all stages.
Only = tuple[int, int] | None
Lies = tuple[tuple[int, ...], ...]
"""The numbers of the layouts in which each of what is live may lie."""


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Runs of atoms by what they are made of: ``at[i, j]`` is the node of the stage from atom i to atom j - 1.

    -1 where j is not behind i. ``parent[n]`` is the node of one atom less (-1: none), ``atom[n]`` the last atom of
    the short model, ``program[n]`` its program, ``place[n]`` the place of the short model where stages begin.
    ``again[atom]`` tells whether an atom may be computed again by itself (``CutSpace.again``).
    """

    at: Numbers
    parent: list[int]
    atom: list[int]
    program: list[int]
    place: list[int]
    again: tuple[tuple[bool, ...], ...]

    @property
    def longest(self) -> int:
        """Return the node of the stage with the most atoms."""
        first, stop = np.nonzero(self.at >= 0)
        longest = int((stop - first).argmax())
        return int(self.at[first[longest], stop[longest]])

    def choices(self, node: int) -> tuple[bool, ...]:
        """Return whether the last atom of a node may be computed again by itself."""
        return self.again[self.atom[node]]

    @staticmethod
    def of(word: Word, known: Programs, received: Numbers, lending: Lending, only: Only = None) -> Nodes:
        """Make the tree of a word; with ``only`` of that stage, and of those that it is with fewer atoms.

        Cost: the square of its atoms, or linear.
        """
        total, again = len(word.of_atom), word.short_space.again(word.short)
        found = Nodes(np.full((total + 1, total + 1), -1, dtype=np.int64), [], [], [], [], again)
        numbers: dict[tuple[object, ...], int] = {}
        # Of atoms of the short model it does not say how far stages reach before them.
        copied = copying(word.whole)
        starts, end = (range(total), None) if only is None else ((only[0],), only[1])
        for start in starts:
            first = word.of_atom[start]
            before: object = np.ascontiguousarray(received[:, word.short_space.places[first]]).tobytes()
            for stop, atom in enumerate(word.of_atom[start:end], start + 1):
                program = known.behind(atom, sum(at <= start for at, _ in copied[stop - 1]))
                key = before, program, lending.of_atom[atom], again[atom]
                if key not in numbers:
                    numbers[key] = len(found.parent)
                    found.parent.append(before if isinstance(before, int) else -1)
                    found.atom.append(atom)
                    found.program.append(program)
                    found.place.append(first)
                before = numbers[key]
                found.at[start, stop] = before
        return found


@dataclass(frozen=True, slots=True, eq=False)
class RecomputeCase:
    """Some of the ways to run stages, where these may fit: ``sums[weights, cell]`` are their least weighted sums.

    ``kinds[cell]`` and ``nodes[cell]`` are the numbers of the cell's kind and node. ``more[cell]`` is what its
    working set has at least beside that of all ways.
    """

    kinds: Numbers
    nodes: Numbers
    sums: Numbers
    more: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """How stages grow by an atom: its sums, by the layouts of what is live ``before`` it and behind it.

    ``kept`` and ``least`` are those of all kinds if it is not computed again, and if it may be. On kinds where it
    may be, ``some`` are those that are kept, ``again`` those that are not, and ``either`` the least of both.
    """

    before: tuple[int, ...]
    live: tuple[int, ...]
    lies: Lies
    kept: Factor
    least: Factor
    some: Factor
    again: Factor
    either: Factor

    def joined(self, before: Numbers, atom: Factor) -> Numbers:
        """Return sums with the atom more: ``[layout of each that is live, weights, kind]``, or by a count too."""
        lead = (COUNT,) * (before.ndim - 2 - len(self.before))
        if not before.size:
            return np.zeros((0, *map(len, self.lies), *before.shape[-2:]), dtype=np.int64)
        kept = (*lead, *self.live)
        grown = eliminated([Factor((*lead, *self.before), before), atom], kept)
        return grown.sums.transpose(*map(grown.over.index, kept), -2, -1)

    def counted(self, kept: Numbers, again: Numbers) -> Numbers:
        """Return sums by one, two, ... atoms that are computed again (the last: or more), with the atom more."""
        more = np.concatenate([self.joined(before, self.again) for before in (kept, again)])
        rows = more[:COUNTED].copy()
        rows[-1] = more[len(rows) - 1 :].min(axis=0)
        own = rows[: len(again)]
        np.minimum(own, self.joined(again, self.some), out=own)
        return rows


@dataclass(slots=True)
class AtomGrowth:
    """Stages that grow atom by atom: sums by the layouts of what is live behind them."""

    sums: LayerSums
    nodes: Nodes
    lending: Lending
    word: Word
    _factors: dict[_Atom, tuple[Factor, Factor, Factor, tuple[int, ...]]] = field(default_factory=dict)
    _steps: dict[tuple[_Atom, Lies], _Step] = field(default_factory=dict)
    _lies: dict[int, Lies] = field(default_factory=dict)

    def prices(self, deadline: Deadline) -> Numbers:
        """Return prices ``[price, kind]`` of a byte around those at which a model is worth what it takes."""
        whole, *_ = next(islice(self._all_counted(deadline, frozenset()), self.nodes.longest, None))
        octaves = np.arange(-PRICES, PRICES + 1)[:, None]
        held = self.sums.held
        # What a device may hold at such a price is no more than a sum may be.
        most = NO_SUM // max(1, *(held.capacity if held is not None else ()))
        middle = np.minimum(whole[FAST], NO_SUM) / np.maximum(whole[LEAN], 1)
        return np.clip(middle * 2.0**octaves, 1, max(1, most)).astype(np.int64)

    def cases(self, working: Numbers, deadline: Deadline) -> tuple[RecomputeCase, ...]:
        """Return the cases of stages: a single one where no atom may be computed again by itself."""
        held, room, (some, _) = self.sums.held, self.room(working, 1), self._reruns
        every, large, more = np.arange(len(working)), frozenset[int](), np.zeros_like(working)
        if held is not None and held.recomputing:
            large, more = self._large(held, working)
        found = list[list[tuple[Numbers, ...]]]()
        for node, rows in enumerate(self._all_counted(deadline, large)):
            found += [[] for _ in rows[len(found) :]]
            for at, sums in enumerate(rows):
                kinds = some if at else every
                beside = more[kinds, node] * bool(at)
                fits = sums[FAST] < NO_SUM
                if held is not None:  # with one micro-batch in flight, which these rows weigh; no stage holds less
                    fits &= sums[LEAN] <= room[kinds, node] - beside
                found[at].append((kinds[fits], np.full(fits.sum(), node), sums[:, fits], beside[fits]))
        rows = ((np.concatenate(row, axis=-1) for row in zip(*case, strict=True)) for case in found)
        return tuple(RecomputeCase(*row) for row in rows)

    def _large(self, held: MemoryTables, working: Numbers) -> tuple[frozenset[int], Numbers]:
        """Return the atoms that need much while they are computed again, and what stages then hold at least.

        ``[kind, node]``, beside their working sets; NO_SUM where none of these atoms is.
        """
        again = self._rerun(held)
        large = frozenset(np.flatnonzero(MUCH * again.max(axis=0) >= again.max()).tolist())
        # An atom that is computed again holds that while its own layers work; others work at other times.
        by_atom = again + self._working_of_atoms(held)
        by_atom[:, [at for at in range(by_atom.shape[1]) if at not in large]] = NO_SUM
        least = self._of_nodes(by_atom, np.minimum)
        return large, np.where(least < NO_SUM, np.maximum(0, least - working), NO_SUM)

    def room(self, working: Numbers, in_flight: int) -> Numbers:
        """Return ``[kind, node]``: the bytes left for what a stage holds, beside its working set."""
        held = self.sums.held
        if held is None:  # memory is not limited, and nobody looks
            return working
        received = held.received[:, np.array(self.word.short_space.places)[self.nodes.place]]
        return np.array(held.capacity)[:, None] - in_flight * received - working

    def _all_counted(self, deadline: Deadline, large: frozenset[int]) -> Iterator[list[Numbers]]:
        return (self._counted_apart if self.word.apart else self._counted)(deadline, large)

    def _counted(self, deadline: Deadline, large: frozenset[int]) -> Iterator[list[Numbers]]:
        """Yield by node least sums ``[weights, kind]`` with none of the large atoms computed again, with one, ....

        The last are those with as many or more. Those with any are of kinds alone on which atoms may be.
        """
        states, (some, _) = dict[int, tuple[Numbers, Numbers, int]](), self._reruns
        shape = len(self.sums.weights), len(self.sums.tables.kinds)
        for node, parent in enumerate(in_time(self.nodes.parent, deadline)):
            step = self._step(node)
            # Of no atom nothing is summed up, and all that is live lies in another stage.
            outside = np.zeros((*(1,) * len(step.before), *shape), dtype=np.int64)
            kept, again, atoms = states[parent] if parent >= 0 else (outside, outside[None, ..., some][:0], 0)
            if self.nodes.atom[node] in large:
                whole, again = step.joined(kept, step.kept), step.counted(kept[None, ..., some], again)
                again = again if atoms < DEEP else again.min(axis=0, keepdims=True)
            else:
                whole, again = step.joined(kept, step.least), step.joined(again, step.either)
            states[node] = whole, again, atoms + 1
            inner = tuple(range(len(step.live)))
            yield [whole.min(axis=inner), *(row.min(axis=inner) for row in again)]

    def _rerun(self, held: MemoryTables) -> Numbers:
        """Return ``[kind, atom]``: what an atom holds at least while it is computed again."""
        (some, priced), tables = self._reruns, self.sums.tables
        stash = divided(tables, tables.instance.stash_bytes, WHOLE_INPUT)[priced]
        least = np.where(held.possible[some], stash, NO_SUM).min(axis=2)
        ends = self.word.short_space.atoms()
        found = np.full((len(tables.kinds), self.word.short_space.stops), 0, dtype=np.int64)
        for at, (first, stop) in enumerate(ends):
            found[some, at] = least[:, first:stop].sum(axis=1)
        return found

    def _counted_apart(self, deadline: Deadline, large: frozenset[int]) -> Iterator[list[Numbers]]:
        """Yield the same of atoms that may each stand behind any other, or at the head of a stage."""
        some, atoms = self._reruns[0], self.nodes.atom
        rows = [self._factor(node)[:3] for node in in_time(range(len(atoms)), deadline)]
        alone = [[one.sums.min(axis=tuple(range(one.sums.ndim - 2))) for one in row] for row in rows]
        kept, least, again = (self._levelled(np.stack(row, axis=-1), atoms) for row in zip(*alone, strict=True))
        states = list[list[Numbers]]()
        for node, parent in enumerate(self.nodes.parent):
            whole, *more = states[parent] if parent >= 0 else [np.zeros_like(kept[..., node])]
            if atoms[node] in large:
                rerun = [one + again[..., node] for one in (whole[:, some], *more)]
                whole, stays = whole + kept[..., node], [one + kept[:, some, node] for one in more]
                more = [*map(np.minimum, rerun, stays), rerun[-1]]
                if len(more) > COUNTED:
                    more = [*more[: COUNTED - 1], np.minimum(*more[COUNTED - 1 :])]
            else:
                whole, more = whole + least[..., node], [one + least[:, some, node] for one in more]
            states.append([np.minimum(one, NO_SUM) for one in (whole, *more)])
            yield states[-1]

    def _levelled(self, values: Numbers, atoms: Sequence[int]) -> Numbers:
        """Return values by atom in which no block has more than another, and nothing else in the middle has any.

        So whatever devices hold of the middle, there is a run of atoms of which this tells no more.
        """
        ends, blocks = np.isin(atoms, (0, self.word.short_space.stops - 1)), np.isin(atoms, self.word.blocks)
        least = values.min(axis=-1, where=blocks, initial=NO_SUM)
        return np.where(blocks, least[..., None], np.where(ends, values, 0))

    def working(self) -> Numbers:
        """Return ``[kind, node]``: the largest working set at least."""
        held = self.sums.held
        if held is None:
            return np.zeros((len(self.sums.tables.kinds), len(self.nodes.parent)), dtype=np.int64)
        return self._of_nodes(self._working_of_atoms(held), np.maximum)

    def _of_nodes(self, by_atom: Numbers, joined: np.ufunc) -> Numbers:
        """Return ``[kind, node]`` of values ``[kind, atom]``: those of all atoms of a node joined."""
        if self.word.apart:
            by_atom = self._levelled(by_atom, range(by_atom.shape[1]))
        found = by_atom[:, self.nodes.atom]
        for node, parent in enumerate(self.nodes.parent):
            if parent >= 0:
                found[:, node] = joined(found[:, node], found[:, parent])
        return found

    def _working_of_atoms(self, held: MemoryTables) -> Numbers:
        """Return ``[kind, atom]``: the largest working set of a layer at least."""
        by_layer = held.least(held.working_set)
        ends = self.word.short_space.atoms()
        return np.stack([by_layer[:, first:stop].max(axis=1) for first, stop in ends], axis=1)

    @property
    def _reruns(self) -> tuple[Numbers, Numbers]:
        """Return the kinds on which atoms may be computed again by themselves, and those that price it."""
        choices = {} if self.sums.held is None else self.sums.held.recomputing
        return np.array([*choices], dtype=np.int64), np.array([*choices.values()], dtype=np.int64)

    def _step(self, node: int) -> _Step:
        """Return how stages grow by the last atom of a node."""
        program, parent = self.nodes.program[node], self.nodes.parent[node]
        outside = ((len(self.sums.ends) - 1,),) * self.sums.programs.all[program].width
        lies = self._lies[parent] if parent >= 0 else outside
        key = (program, self.lending.of_atom[self.nodes.atom[node]], self.nodes.choices(node)), lies
        if key not in self._steps:
            self._steps[key] = self._made(node, lies)
        self._lies[node] = self._steps[key].lies
        return self._steps[key]

    def _made(self, node: int, lies: Lies) -> _Step:
        kept, least, again, live = self._factor(node)
        over, (some, _) = dict(enumerate(lies)), self._reruns
        for one in live:
            if one not in over:
                others = tuple(at for at in range(least.sums.ndim) if at != least.over.index(one))
                over[one] = tuple(np.flatnonzero((least.sums < NO_SUM).any(axis=others)).tolist()) or (0,)
        kept, least, again = (
            replace(row, sums=row.sums[np.ix_(*(over[one] for one in row.over))]) for row in (kept, least, again)
        )
        some, either = (replace(row, sums=row.sums[..., some]) for row in (kept, least))
        behind = tuple(over[one] for one in live)
        return _Step(tuple(range(len(lies))), live, behind, kept, least, some, again, either)

    def _factor(self, node: int) -> tuple[Factor, Factor, Factor, tuple[int, ...]]:
        """Return sums of the last atom of a node: kept, the least, and computed again; and what is live behind it.

        Those computed again are on the kinds on which it may be.
        """
        program, number = self.nodes.program[node], self.lending.of_atom[self.nodes.atom[node]]
        if (key := (program, number, ways := self.nodes.choices(node))) not in self._factors:
            known, (some, priced) = self.sums.programs.all[program], self._reruns
            kept, live = of_atom(self.sums, known, np.arange(len(self.sums.tables.kinds)))
            again = replace(kept, sums=np.full_like(kept.sums[..., some], NO_SUM))
            if len(some) and True in ways:
                again, _ = of_atom(self.sums, known, some, priced, self.stays(number, some))
            if len(some) and False not in ways:
                kept.sums[..., some] = NO_SUM
            sums = kept.sums.copy()
            sums[..., some] = np.minimum(sums[..., some], again.sums)
            self._factors[key] = kept, replace(kept, sums=sums), again, live
        return self._factors[key]

    def stays(self, number: int, kinds: Numbers) -> dict[int, Numbers]:
        """Return what stays at least of the tensors that an atom reads if it is computed again, by their layouts.

        Of those alone of which that depends on no other atom (``solvers.atoms.blocks``).
        """
        found: dict[int, Numbers] = {}
        for read in self.lending.steps[number].reads:
            if read.source is None or read.status is not None:
                continue
            held = np.array(self.lending.held(read.split, read.again_bytes))[kinds]
            layouts = [
                np.zeros(len(kinds), np.int64) if one == OUTSIDE else held[:, one] for one in self.sums.ends
            ]
            bytes_ = np.minimum(np.stack(layouts), form_sums.MOST_BYTES)[:, None, :]
            cost = product(self.sums.weights.stash[None][..., kinds], bytes_)
            found[read.source] = found.get(read.source, 0) + cost
        return found

    def outside(self, atom: int) -> Key:
        """Return the statuses before the first atom of a stage: tensors of which nothing will stay."""
        reads = self.lending.steps[self.lending.of_atom[atom]].reads
        return (SETTLED,) * sum(read.status is not None for read in reads)
