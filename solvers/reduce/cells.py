"""What every stage takes at least: cells by kind of group, number of micro-batches in flight, and run of atoms.

Stages that are made of the same programs, behind equal boundaries, are one *node* of a tree. Their least
weighted sums (``solvers.reduce.sums``) grow atom by atom. For stages with so many micro-batches in flight these
give two limits: how much a device holds at least, which tells what never fits; and by duality how long a stage
takes at least that fits. Both are lower bounds; where memory is short labels of several layouts may mix, and they
are not exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pipecut.formulation.costs.bulk.divided import WHOLE_INPUT, divided
from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import Tables, build_tables
from pipecut.formulation.limits import NEVER, Deadline, in_time
from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.instance import FORBIDDEN, longest_ns, most_bytes
from pipecut.solvers.atoms.blocks import SETTLED, Lending
from pipecut.solvers.atoms.programs import OUTSIDE, Key, Programs, programs
from pipecut.solvers.reduce.kinds import Priced
from pipecut.solvers.reduce.sums import (
    MOST_BYTES,
    NO_SUM,
    TIME_BITS,
    ByteWeights,
    Factor,
    LayerSums,
    Numbers,
    alike_forms,
    eliminated,
    of_atom,
    product,
    scale_of,
)
from pipecut.solvers.reduce.word import Word
from pipecut.solvers.step_time.bounds.pass_tables import PassTables, pass_tables
from pipecut.solvers.step_time.bounds.rays import weighed

PRICES = 6
"""A byte has prices of so many octaves above and below what it has if time is worth all that a stage holds."""
FEWER = 3
"""With few prices every so-manieth octave is one."""
MUCH = 4
"""An atom needs much while it is computed again if it needs such a part of the most that any atom does."""
IN_FLIGHT = (1, 4, 16)
"""For so many micro-batches in flight bytes of the stash are weighed."""
FIRST = (0, -1)
"""All stages that begin with the first atom."""
FAST, STASH, LEAN = 0, 1, 2
"""The rows of weights of time alone, of the stash alone, and the first of all that is held."""


def _plain(kinds: int, scale: int, in_flight: Sequence[int], *, each: bool) -> ByteWeights:
    """Return the weights of time alone, and of bytes alone: none where nothing is said to be in flight."""
    rows = [(scale, 0, 0)]
    if in_flight:
        rows += [(0, 0, 1), *((0, 1, many) for many in in_flight)]
    time, once, stash = np.repeat(np.array(rows, dtype=np.int64).T[:, :, None], kinds, axis=2)
    return ByteWeights(time, once, stash, scale, each)


def _priced(weights: ByteWeights, prices: Numbers, in_flight: Sequence[int]) -> ByteWeights:
    """Return the same weights, and those of time with bytes at some prices ``[price, kind]``."""
    once = np.repeat(prices, len(in_flight), axis=0)
    stash = once * np.tile(np.array(in_flight), len(prices))[:, None]
    return ByteWeights(
        np.concatenate([weights.time, np.full_like(once, weights.scale)]),
        np.concatenate([weights.once, once]),
        np.concatenate([weights.stash, stash]),
        weights.scale,
        weights.each,
    )


def _at_once(charged: Numbers, each: Numbers, micro_batches: int) -> Numbers:
    """Return times with all of what is charged to so many micro-batches, each of which was rounded up."""
    once = np.maximum(0, micro_batches * (np.minimum(charged, NO_SUM >> 8) - each) - micro_batches + 1)
    return np.where(charged < FORBIDDEN, each + once, charged)


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Runs of atoms by what they are made of: ``at[i, j]`` is the node of the stage from atom i to atom j - 1.

    -1 where j is not behind i. ``parent[n]`` is the node of one atom less (-1: none), ``atom[n]`` the last atom of
    the short model, ``program[n]`` its program, ``place[n]`` the place of the short model where stages begin.
    """

    at: Numbers
    parent: list[int]
    atom: list[int]
    program: list[int]
    place: list[int]

    @property
    def longest(self) -> int:
        """Return the node of the stage with the most atoms."""
        first, stop = np.nonzero(self.at >= 0)
        longest = int((stop - first).argmax())
        return int(self.at[first[longest], stop[longest]])

    def of_stage(self, first: int, stop: int) -> Nodes:
        """Return the nodes of one stage, and of those that are like it with fewer atoms."""
        some = [int(self.at[first, at]) for at in range(first + 1, stop + 1)]
        number = {node: at for at, node in enumerate(some)}
        at = np.full_like(self.at, -1)
        at[first, first + 1 : stop + 1] = np.arange(len(some))
        rows = (self.atom, self.program, self.place)
        parent = [number.get(self.parent[node], -1) for node in some]
        return Nodes(at, parent, *([row[node] for node in some] for row in rows))

    @staticmethod
    def of(word: Word, known: Programs, received: Numbers, lending: Lending) -> Nodes:
        """Make the tree of a word. Cost: the square of its atoms."""
        total = len(word.of_atom)
        found = Nodes(np.full((total + 1, total + 1), -1, dtype=np.int64), [], [], [], [])
        numbers: dict[tuple[object, ...], int] = {}
        for start, first in enumerate(word.of_atom):
            before: object = np.ascontiguousarray(received[:, word.short_space.places[first]]).tobytes()
            for stop, atom in enumerate(word.of_atom[start:], start + 1):
                program = known.of(atom, first)
                key = before, program, lending.of_atom[atom]
                if key not in numbers:
                    numbers[key] = len(found.parent)
                    found.parent.append(before if isinstance(before, int) else -1)
                    found.atom.append(atom)
                    found.program.append(program)
                    found.place.append(first)
                before = numbers[key]
                found.at[start, stop] = before
        return found


def priced_groups(word: Word, groups: tuple[Group, ...], deadline: Deadline) -> Priced:
    """Return what the layers of the short model take on kinds of groups, and hold.

    With the room of devices for the whole model; None where memory is not limited.
    """
    tables = build_tables(word.short, groups, deadline)
    if not word.whole.constraints.memory:
        return tables, None
    rooms, most = [one.memory_bytes for one in word.whole.device_classes], most_bytes(word.whole)
    # Capacities are cut off at what a model may need at most, which of the short model is less.
    capacity = tuple(min(most, *(rooms[one] for one in kind.classes)) for kind in tables.kinds)
    held = replace(MemoryTables.of(tables), capacity=capacity)
    return tables, _of_several(word, tables, held) if word.apart else held


def _of_several(word: Word, tables: Tables, held: MemoryTables) -> MemoryTables:
    """Return what devices with several stages hold at least: these compute again in turn, and begin anywhere."""
    again = np.array([bool(kind.mode.recompute) for kind in tables.kinds])[:, None, None]
    rerun = np.where(again, divided(tables, tables.instance.stash_bytes, WHOLE_INPUT), 0)
    received = held.received.copy()
    received[:, 1:] = received[:, list(word.short_space.places[1:-1]) or [0]].min(axis=1, keepdims=True)
    return replace(held, once=np.maximum(0, held.once - rerun), received=received)


@dataclass(frozen=True, slots=True, eq=False)
class PricedPasses:
    """Some kinds of groups with what layers take in each pass, and hold."""

    tables: Tables
    held: MemoryTables | None
    passes: PassTables

    @staticmethod
    def of(word: Word, groups: tuple[Group, ...], deadline: Deadline) -> PricedPasses:
        """Price the layers of the short model. Cost: a call for each layer that differs, form and kind."""
        tables, held = priced_groups(word, groups, deadline)
        return PricedPasses(tables, held, pass_tables(tables))


@dataclass(frozen=True, slots=True, eq=False)
class RecomputeCase:
    """Some of the ways to run stages: ``sums[weights, kind, node]`` are their least weighted sums.

    ``more[kind, node]`` is what their working sets have at least beside those of all ways; NO_SUM for no way.
    """

    sums: Numbers
    more: Numbers


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of some kinds of groups for one number of micro-batches.

    ``octaves[price, kind]`` are prices of a byte; ``weights`` have those of them that are weighed for a few
    numbers in flight. ``working[kind, node]`` is the largest working set at least. Where atoms may be computed
    again there are two ``cases``: none of those is that would need much while it is, or one of them at least.
    """

    word: Word
    tables: Tables
    held: MemoryTables | None
    nodes: Nodes
    weights: ByteWeights
    octaves: Numbers
    few: bool
    cases: tuple[RecomputeCase, ...]
    working: Numbers
    growth: AtomGrowth
    _slots: dict[int, Numbers] = field(default_factory=dict)
    _most: dict[int, Numbers] = field(default_factory=dict)
    _weighed: dict[int, tuple[RecomputeCase, ...]] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[GroupKind, ...]:
        """Return the kinds of groups, in the order of the cells."""
        return self.tables.kinds

    @staticmethod
    def of(
        word: Word,
        priced: Priced,
        deadline: Deadline = NEVER,
        *,
        each: bool = False,
        few: bool = False,
    ) -> Cells:
        """Make the cells of these kinds of groups. Raises StoppedError after the deadline.

        Times are with what is done once a step charged to its micro-batches, or those of ``each`` pass alone. With
        ``few`` bytes are weighed at few prices until :meth:`weigh` is asked for more.
        """
        return Cells._of(word, *priced, deadline, each=each, few=few)

    def charged(self, deadline: Deadline = NEVER, *, first: bool = False) -> Cells:
        """Return the cells of the same kinds with what is done once a step charged to its micro-batches.

        All of them, or those of ``first`` stages.
        """
        only = FIRST if first else None
        return Cells._of(self.word, self.tables, self.held, deadline, each=False, few=self.few, only=only)

    def ending(self, deadline: Deadline = NEVER) -> Cells:
        """Return the cells of the same kinds with all of what is done once a step in their times.

        Bytes are not weighed against these. Where they could leave 64 bits, these cells themselves.
        """
        many, tables = self.word.short.training.micro_batches, self.tables
        if longest_ns(self.word.whole).bit_length() + many.bit_length() > TIME_BITS:
            return self
        inside = _at_once(tables.inside, tables.each, many)
        copies = {ends: _at_once(one, tables.copies_each[ends], many) for ends, one in tables.copies.items()}
        whole, part = replace(tables, inside=inside, copies=copies), many.bit_length()
        return Cells._of(self.word, whole, self.held, deadline, each=False, few=True, part=part)

    @staticmethod
    def weighed(
        word: Word, priced: PricedPasses, often: Numbers, stage: tuple[int, int], deadline: Deadline
    ) -> Cells:
        """Make the cells of one stage, in which passes and synchronisation count so often in place of times."""
        tables = weighed(priced.tables, priced.passes, often)
        return Cells._of(word, tables, priced.held, deadline, each=False, only=stage)

    @staticmethod
    def _of(
        word: Word,
        tables: Tables,
        held: MemoryTables | None,
        deadline: Deadline,
        *,
        each: bool,
        only: tuple[int, int] | None = None,
        few: bool = False,
        part: int = 0,
    ) -> Cells:
        instance = word.short
        known = programs(tables, held, word.short_space)
        lending = Lending(tables, word.short_space)
        received = np.zeros((len(tables.kinds), len(instance.layers) + 1), dtype=np.int64)
        nodes = Nodes.of(word, known, received if held is None else held.received, lending)
        if only is not None:
            nodes = nodes.of_stage(only[0], only[1] if only != FIRST else len(word.of_atom))
        alike = alike_forms(tables, held)
        scale = max(1, scale_of(word.whole) >> part) if only is None or only == FIRST else 1
        # No stage has more in flight than there are micro-batches.
        many = [one for one in IN_FLIGHT if held is not None and one <= instance.training.micro_batches]
        weights = _plain(len(tables.kinds), scale, many, each=each)
        octaves = np.zeros((0, len(tables.kinds)), dtype=np.int64)
        if held is not None and not part:
            plain = AtomGrowth(LayerSums(tables, held, weights, known, alike), nodes, lending, word)
            octaves = plain.prices(deadline)
            weights = _priced(weights, octaves[::FEWER] if few else octaves, many)
        grown = AtomGrowth(LayerSums(tables, held, weights, known, alike), nodes, lending, word)
        cases, working = grown.cases(deadline), grown.working()
        return Cells(word, tables, held, nodes, weights, octaves, few, cases, working, grown)

    def least(self, in_flight: int) -> Numbers:
        """Return ``[kind, node]``: the least time of a stage with so many micro-batches in flight, in ns.

        FORBIDDEN where no stage fits.
        """
        if self.held is None:
            in_flight = 1
        if in_flight not in self._slots:
            self._slots[in_flight] = np.minimum.reduce(
                [self._of_case(at, in_flight) for at in range(len(self.cases))]
            )
        return self._slots[in_flight]

    def most(self, in_flight: int) -> Numbers:
        """Return ``[kind, node]``: what the fastest stage that fits takes at most; FORBIDDEN: nothing is known.

        What weighs least at some price fits if that leaves it no more bytes than there are. Kinds whose atoms may
        be computed again one by one weigh less than any of their stages, so nothing is known of them.
        """
        if self.held is None:
            return self.least(in_flight)
        if in_flight not in self._most:
            self._most[in_flight] = self._most_of(in_flight, self.held)
        return self._most[in_flight]

    def _most_of(self, in_flight: int, held: MemoryTables) -> Numbers:
        weights, sums = self.weights, self.cases[0].sums
        room = self.room(in_flight) + self.working - self.growth.working(most=True)
        found = np.full_like(room, FORBIDDEN)
        timed = np.flatnonzero(weights.time[:, 0])[1:]
        weighed = weights.stash[timed, 0] // weights.once[timed, 0]
        # What holds little with many in flight holds little with fewer; nearest are those that are enough.
        many = min(weighed.tolist(), key=lambda one: (one < in_flight, abs(one - in_flight)), default=1)
        for at in timed[weighed == many]:
            price = weights.once[at][:, None]
            bytes_ = np.minimum((sums[at] - sums[FAST]) // price, MOST_BYTES)
            fits = (sums[at] < NO_SUM) & (bytes_ * max(in_flight, many) // many <= room)
            least = price * np.minimum(sums[LEAN + IN_FLIGHT.index(many)], MOST_BYTES)
            found = np.where(fits, np.minimum(found, (sums[at] - least) // weights.scale), found)
        found[[*held.recomputing]] = FORBIDDEN
        return np.maximum(found, self.least(in_flight))

    def weigh(self, in_flight: int, deadline: Deadline = NEVER) -> bool:
        """Weigh bytes of the stash for exactly so many micro-batches in flight; tell whether that is new.

        Least times of stages with so many are closer then. Cost: the sums at every price.
        """
        if self.held is None or in_flight in self._weighed:
            return False
        if in_flight in IN_FLIGHT and not self.few:
            return False
        prices = self.octaves
        sums, weights = self.growth.sums, self.weights
        rows = ByteWeights(
            np.full_like(prices, weights.scale), prices, prices * in_flight, weights.scale, weights.each
        )
        grown = replace(self.growth, sums=replace(sums, weights=rows), factors={})
        self._weighed[in_flight] = grown.cases(deadline)
        self._slots.pop(in_flight, None)
        return True

    def _closer(self, at: int, in_flight: int, room: Numbers) -> Numbers:
        """Return the least sums of a case, less what room is worth, by what was weighed for as many in flight.

        Where nothing was, for the next fewer ones.
        """
        found, many = np.zeros_like(room), max((one for one in self._weighed if one <= in_flight), default=0)
        if many:
            for price, sums in zip(self.octaves[:, :, None], self._weighed[many][at].sums, strict=True):
                further = price * (in_flight - many)
                least = sums + product(further, self.cases[at].sums[STASH]) if many < in_flight else sums
                np.maximum(found, least - price * room, out=found)
        return found

    def _of_case(self, at_case: int, in_flight: int) -> Numbers:
        case = self.cases[at_case]
        weights, sums = self.weights, case.sums
        found, never = sums[FAST], (sums[FAST] >= NO_SUM) | (case.more >= NO_SUM)
        if self.held is not None:
            room = self.room(in_flight) - np.where(never, 0, case.more)
            never |= room < 0
            room = np.maximum(room, 0)
            for at in range(LEAN, len(weights)):
                price, stash = weights.once[at][:, None], weights.stash[at][:, None]
                if (stash > price * in_flight).any():
                    continue
                # What is weighed for fewer micro-batches than are in flight holds the least stash for the others.
                further = price * in_flight - stash
                least = sums[at] + product(further, sums[STASH]) if further.any() else sums[at]
                if weights.time[at, 0]:
                    found = np.maximum(found, least - price * room)
                else:
                    never |= least > room
            found = np.maximum(found, self._closer(at_case, in_flight, room))
        return np.where(never, FORBIDDEN, np.minimum(-(-found // weights.scale), FORBIDDEN))

    def price(self, kind: int, node: int, in_flight: int) -> int:
        """Return the number of the price (:meth:`prices`) by which a stage takes most."""
        if self.held is None:
            return 0
        within = self.weights.stash[:, kind] <= self.weights.once[:, kind] * in_flight
        timed = np.flatnonzero((self.weights.time[:, kind] > 0) & within)
        room = max(0, int(self.room(in_flight)[kind, node]))
        once, stash = self.weights.once[timed, kind], self.weights.stash[timed, kind]
        sums = self.cases[-1].sums[:, kind, node]
        least = sums[timed] + product(once * in_flight - stash, sums[STASH]) - once * room
        prices = [price for price, _ in self.prices(kind, in_flight)]
        return int(np.searchsorted(prices, once[least.argmax()]))

    def prices(self, kind: int, in_flight: int) -> list[tuple[int, int]]:
        """Return the prices of a byte that is held once and of one of the stash, of a kind, from none upwards."""
        return [(int(once), int(once) * in_flight) for once in np.unique([0, *self.octaves[:, kind]])]

    def room(self, in_flight: int) -> Numbers:
        """Return ``[kind, node]``: the bytes left for what a stage holds, beside its working set."""
        if self.held is None:
            raise ValueError("memory is not limited")
        cuts = np.array(self.word.short_space.places)[self.nodes.place]
        received = self.held.received[:, cuts]
        return np.array(self.held.capacity)[:, None] - in_flight * received - self.working


@dataclass(slots=True)
class AtomGrowth:
    """Stages that grow atom by atom: sums by the layouts of what is live behind them."""

    sums: LayerSums
    nodes: Nodes
    lending: Lending
    word: Word
    factors: dict[tuple[int, int, bool], tuple[Factor, tuple[int, ...]]] = field(default_factory=dict)

    def prices(self, deadline: Deadline) -> Numbers:
        """Return prices ``[price, kind]`` of a byte around those at which a model is worth what it takes."""
        sums = self.run(deadline, frozenset())
        whole = sums[:, :, self.nodes.longest]
        octaves = np.arange(-PRICES, PRICES + 1)[:, None]
        held = self.sums.held
        # What a device may hold at such a price is no more than a sum may be.
        most = NO_SUM // max(1, *(held.capacity if held is not None else ()))
        middle = np.minimum(whole[FAST], NO_SUM) / np.maximum(whole[LEAN], 1)
        return np.clip(middle * 2.0**octaves, 1, max(1, most)).astype(np.int64)

    def cases(self, deadline: Deadline) -> tuple[RecomputeCase, ...]:
        """Return the cases of stages: a single one where no atom may be computed again by itself."""
        held, nodes = self.sums.held, self.nodes
        shape = len(self.sums.tables.kinds), len(nodes.parent)
        nothing = np.zeros(shape, dtype=np.int64)
        if held is None or not held.recomputing or self.word.apart:
            return (RecomputeCase(self.run(deadline, frozenset()), nothing),)
        again, working = self._rerun(held), self.working()
        own = self._working_of_atoms(held)
        large = frozenset(np.flatnonzero(MUCH * again.max(axis=0) >= again.max()).tolist())
        # An atom that is computed again holds that while its own layers work; others work at other times.
        least = np.full(shape, NO_SUM, dtype=np.int64)
        for node, (atom, parent) in enumerate(zip(nodes.atom, nodes.parent, strict=True)):
            if atom in large:
                least[:, node] = again[:, atom] + own[:, atom]
            if parent >= 0:
                least[:, node] = np.minimum(least[:, node], least[:, parent])
        more = np.where(least < NO_SUM, np.maximum(0, least - working), NO_SUM)
        few, all_ = self.run(deadline, large), self.run(deadline, frozenset())
        return RecomputeCase(few, nothing), RecomputeCase(all_, more)

    def _rerun(self, held: MemoryTables) -> Numbers:
        """Return ``[kind, atom]``: what an atom holds at least while it is computed again."""
        some = np.array([*held.recomputing]), np.array([*held.recomputing.values()])
        most = np.where(held.possible[some[0]], held.once[some[1]] - held.once[some[0]], NO_SUM)
        least = most.min(axis=2)
        ends = self.word.short_space.atoms()
        found = np.full((len(self.sums.tables.kinds), self.word.short_space.stops), 0, dtype=np.int64)
        for at, (first, stop) in enumerate(ends):
            found[some[0], at] = least[:, first:stop].sum(axis=1)
        return found

    def run(self, deadline: Deadline, kept: frozenset[int]) -> Numbers:
        """Return the least sums ``[weights, kind, node]`` with some atoms that are not computed again."""
        if self.word.apart:
            return self._apart(deadline)
        shape = len(self.sums.weights), len(self.sums.tables.kinds)
        found = np.empty((*shape, len(self.nodes.parent)), dtype=np.int64)
        states: dict[int, Numbers] = {}
        for node, parent in enumerate(in_time(self.nodes.parent, deadline)):
            factor, live = self._factor(node, again=self.nodes.atom[node] not in kept)
            width = len(self._left(node))
            before = states[parent] if parent >= 0 else self._outside(width, shape)
            grown = eliminated([Factor(tuple(range(width)), before), factor], live)
            # Sums are kept in the order in which layers are live.
            order = [grown.over.index(one) for one in live]
            states[node] = grown.sums.transpose(*order, -2, -1)
            found[:, :, node] = grown.sums.min(axis=tuple(range(len(live)))) if live else grown.sums
        return found

    def _apart(self, deadline: Deadline) -> Numbers:
        """Return least sums of atoms that may each stand behind any other, or at the head of a stage."""
        found = list[Numbers]()
        for node in in_time(range(len(self.nodes.parent)), deadline):
            sums = self._factor(node, again=True)[0].sums
            found.append(sums.min(axis=tuple(range(sums.ndim - 2))))
        alone = self._levelled(np.stack(found, axis=-1), self.nodes.atom)
        for node, parent in enumerate(self.nodes.parent):
            if parent >= 0:
                alone[:, :, node] = np.minimum(alone[:, :, node] + alone[:, :, parent], NO_SUM)
        return alone

    def _levelled(self, values: Numbers, atoms: Sequence[int]) -> Numbers:
        """Return values by atom in which no block has more than another, and nothing else in the middle has any.

        So whatever devices hold of the middle, there is a run of atoms of which this tells no more.
        """
        ends, blocks = np.isin(atoms, (0, self.word.short_space.stops - 1)), np.isin(atoms, self.word.blocks)
        least = values.min(axis=-1, where=blocks, initial=NO_SUM)
        return np.where(blocks, least[..., None], np.where(ends, values, 0))

    def working(self, *, most: bool = False) -> Numbers:
        """Return ``[kind, node]``: the largest working set at least, or at most if no atom is computed again."""
        held = self.sums.held
        if held is None:
            return np.zeros((len(self.sums.tables.kinds), len(self.nodes.parent)), dtype=np.int64)
        by_atom = self._working_of_atoms(held, most=most)
        if self.word.apart:
            by_atom = self._levelled(by_atom, range(self.word.short_space.stops))
        found = by_atom[:, self.nodes.atom]
        for node, parent in enumerate(self.nodes.parent):
            if parent >= 0:
                found[:, node] = np.maximum(found[:, node], found[:, parent])
        return found

    def _working_of_atoms(self, held: MemoryTables, *, most: bool = False) -> Numbers:
        """Return ``[kind, atom]``: the largest working set of a layer at least, or at most."""
        by_layer = held.least(held.working_set)
        if most:
            by_layer = held.working_set.max(axis=2, where=held.possible, initial=0)
            for (_, layer), copies in held.copies.items():
                by_layer[:, layer] += copies.working_set.max(axis=1)
        ends = self.word.short_space.atoms()
        return np.stack([by_layer[:, first:stop].max(axis=1) for first, stop in ends], axis=1)

    def _left(self, node: int) -> range:
        return range(self.sums.programs.all[self.nodes.program[node]].width)

    def _outside(self, width: int, shape: tuple[int, int]) -> Numbers:
        """Return the sums of no atom: nothing where all that is live lies in another stage."""
        ends = len(self.sums.ends)
        found = np.full((*(ends,) * width, *shape), NO_SUM, dtype=np.int64)
        found[(-1,) * width] = 0
        return found

    def _factor(self, node: int, *, again: bool) -> tuple[Factor, tuple[int, ...]]:
        """Return the sums of the last atom of a node; with ``again`` also computed again by itself."""
        program, atom = self.nodes.program[node], self.nodes.atom[node]
        key = program, self.lending.of_atom[atom], again
        if key not in self.factors:
            kinds = np.arange(len(self.sums.tables.kinds))
            known = self.sums.programs.all[program]
            factor, live = self._factor(node, again=False) if again else of_atom(self.sums, known, kinds)
            choices = {} if self.sums.held is None or not again else self.sums.held.recomputing
            if choices:
                some, priced = np.array([*choices]), np.array([*choices.values()])
                other, _ = of_atom(self.sums, known, some, priced, self.stays(key[1], some))
                least = factor.sums.copy()
                least[..., some] = np.minimum(least[..., some], other.sums)
                factor = replace(factor, sums=least)
            self.factors[key] = factor, live
        return self.factors[key]

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
            bytes_ = np.minimum(np.stack(layouts), MOST_BYTES)[:, None, :]
            cost = product(self.sums.weights.stash[None][..., kinds], bytes_)
            found[read.source] = found.get(read.source, 0) + cost
        return found

    def outside(self, atom: int) -> Key:
        """Return the statuses before the first atom of a stage: tensors of which nothing will stay."""
        reads = self.lending.steps[self.lending.of_atom[atom]].reads
        return (SETTLED,) * sum(read.status is not None for read in reads)
