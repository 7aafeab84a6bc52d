"""What every stage takes at least: cells by kind of group, number of micro-batches in flight, and run of atoms.

Stages that are made of the same programs, behind equal boundaries, are one *node* of a tree. Their least
weighted sums grow atom by atom (``solvers.reduce.growth``, ``solvers.reduce.form_sums``). For stages with so many
micro-batches in flight these give two limits: how much a device holds at least, which tells what never fits; and
by duality how long a stage takes at least that fits. Both are lower bounds; where memory is short labels of
several layouts may mix, and they are not exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pipecut.formulation.costs.bulk.divided import WHOLE_INPUT, divided
from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import Tables, build_tables
from pipecut.formulation.limits import NEVER, Deadline
from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.instance import FORBIDDEN, longest_ns, most_bytes
from pipecut.solvers.atoms.blocks import Lending
from pipecut.solvers.atoms.programs import programs
from pipecut.solvers.reduce import form_sums
from pipecut.solvers.reduce.form_sums import NO_SUM, ByteWeights, LayerSums, Numbers, alike_forms, product
from pipecut.solvers.reduce.growth import FAST, LEAN, STASH, AtomGrowth, Nodes, Only, RecomputeCase
from pipecut.solvers.reduce.kinds import Priced
from pipecut.solvers.reduce.word import Word
from pipecut.solvers.step_time.bounds.pass_tables import PassTables, pass_tables

FEWER = 3
"""Bytes are weighed at the price of every so-manieth octave."""
IN_FLIGHT = (1, 4, 16)
"""For so many micro-batches in flight bytes of the stash are weighed."""


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


def _at_once(charged: Numbers, each: Numbers, micro_batches: int, rounded: int = 1) -> Numbers:
    """Return times with all of what is charged to so many micro-batches, in so many parts that were rounded up."""
    off = rounded * (micro_batches - 1)
    once = np.maximum(0, micro_batches * (np.minimum(charged, NO_SUM >> 8) - each) - off)
    return np.where(charged < FORBIDDEN, each + once, charged)


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


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of some kinds of groups for one number of micro-batches.

    ``octaves[price, kind]`` are prices of a byte; ``weights`` have those of them that are weighed for a few
    numbers in flight. ``working[kind, node]`` is the largest working set at least. Where atoms may be computed
    again there are several ``cases``, by how many are (``solvers.reduce.growth``).
    """

    word: Word
    tables: Tables
    held: MemoryTables | None
    nodes: Nodes
    weights: ByteWeights
    octaves: Numbers
    cases: tuple[RecomputeCase, ...]
    working: Numbers
    growth: AtomGrowth
    passes: PassTables | None = None
    _slots: dict[int, Numbers] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[GroupKind, ...]:
        """Return the kinds of groups, in the order of the cells."""
        return self.tables.kinds

    def charged(self, deadline: Deadline = NEVER) -> Cells:
        """Return the cells with what is done once a step charged to its micro-batches."""
        return Cells.of(self.word, (self.tables, self.held), deadline)

    def ending(self, deadline: Deadline = NEVER) -> Cells:
        """Return the cells of the same kinds with all of what is done once a step in their times.

        Bytes are not weighed against these. Where they could leave 64 bits, these cells themselves.
        """
        many, tables = self.word.short.training.micro_batches, self.tables
        if longest_ns(self.word.whole).bit_length() + many.bit_length() > form_sums.TIME_BITS:
            return self
        inside = _at_once(tables.inside, tables.each, many)
        # The gradients of a copy are summed, and added to those of the stage before.
        copies = {ends: _at_once(one, tables.copies_each[ends], many, 2) for ends, one in tables.copies.items()}
        whole, part = replace(tables, inside=inside, copies=copies), many.bit_length()
        return Cells.of(self.word, (whole, self.held), deadline, part=part)

    @staticmethod
    def of(
        word: Word,
        priced: Priced,
        deadline: Deadline = NEVER,
        *,
        each: bool = False,
        only: Only = None,
        part: int = 0,
        passes: PassTables | None = None,
    ) -> Cells:
        """Make the cells of these kinds of groups. Raises StoppedError after the deadline.

        Times are with what is done once a step charged to its micro-batches, or those of ``each`` pass alone. Of
        one stage ``only``; with times in fewer ``part`` bits, and bytes not weighed.
        Layers and layouts that differ in any of some ``passes`` are told apart.
        """
        tables, held = priced
        instance, apart = word.short, tables if passes is None else passes.told_apart(tables)
        known = programs(apart, held, word.short_space)
        lending = Lending(tables, word.short_space)
        received = np.zeros((len(tables.kinds), len(instance.layers) + 1), dtype=np.int64)
        nodes = Nodes.of(word, known, received if held is None else held.received, lending, only)
        alike = alike_forms(apart, held)
        scale = max(1, form_sums.scale_of(word.whole) >> part) if only is None else 1
        # No stage has more in flight than there are micro-batches.
        many = [one for one in IN_FLIGHT if held is not None and one <= instance.training.micro_batches]
        weights = _plain(len(tables.kinds), scale, many, each=each)
        octaves = np.zeros((0, len(tables.kinds)), dtype=np.int64)
        if held is not None and not part:
            plain = AtomGrowth(LayerSums(tables, held, weights, known, alike), nodes, lending, word)
            octaves = plain.prices(deadline)
            weights = _priced(weights, octaves[::FEWER], many)
        grown = AtomGrowth(LayerSums(tables, held, weights, known, alike), nodes, lending, word)
        working = grown.working()
        cases = grown.cases(working, deadline)
        return Cells(word, tables, held, nodes, weights, octaves, cases, working, grown, passes)

    def least(self, in_flight: int) -> Numbers:
        """Return ``[kind, node]``: the least time of a stage with so many micro-batches in flight, in ns.

        FORBIDDEN where no stage fits.
        """
        in_flight = 1 if self.held is None else in_flight
        if in_flight not in self._slots:
            room = None if self.held is None else self.room(in_flight)
            found = np.full(self.working.size, FORBIDDEN, dtype=np.int64)
            for case in self.cases:
                at = case.kinds * self.working.shape[1] + case.nodes
                found[at] = np.minimum(found[at], self._of_case(case, in_flight, room))
            self._slots[in_flight] = found.reshape(self.working.shape)
        return self._slots[in_flight]

    def sums_of(self, kind: int, node: int) -> Numbers:
        """Return the least sums by weights of one kind and node that fit in any case."""
        rows = [case.sums[:, (case.kinds == kind) & (case.nodes == node)] for case in self.cases]
        return np.concatenate(rows, axis=1).min(axis=1)

    def _of_case(self, case: RecomputeCase, in_flight: int, room: Numbers | None) -> Numbers:
        sums, found = case.sums, case.sums[FAST]
        never = np.zeros(len(case.kinds), dtype=np.bool_)
        if room is not None:
            many, rows = self._rows(in_flight)
            # What is weighed for fewer micro-batches than are in flight holds the least stash for the others. What
            # is left of the room is no more than the capacity, so no product of it and a price is above NO_SUM.
            left = room[case.kinds, case.nodes] - case.more - (in_flight - many) * sums[STASH]
            never, left = left < 0, np.maximum(left, 0)
            for at in rows:
                if self.weights.time[at, 0]:
                    found = np.maximum(found, sums[at] - self.weights.once[at][case.kinds] * left)
                else:
                    never |= sums[at] > left
        return np.where(never, FORBIDDEN, np.minimum(-(-found // self.weights.scale), FORBIDDEN))

    def _rows(self, in_flight: int) -> tuple[int, list[int]]:
        """Return the weights of bytes that say most of so many micro-batches, and for how many they are.

        The least of a sum is no less than that of its parts, so what is weighed for fewer says no more.
        """
        many = max(one for one in IN_FLIGHT if one <= in_flight)
        once, stash = self.weights.once[LEAN:, 0], self.weights.stash[LEAN:, 0]
        return many, (LEAN + np.flatnonzero(stash == many * once)).tolist()

    def price(self, kind: int, node: int, in_flight: int) -> int:
        """Return the number of the price (:meth:`prices`) by which a stage takes most."""
        if self.held is None:
            return 0
        within = self.weights.stash[:, kind] <= self.weights.once[:, kind] * in_flight
        timed = np.flatnonzero((self.weights.time[:, kind] > 0) & within)
        room = max(0, int(self.room(in_flight)[kind, node]))
        once, stash = self.weights.once[timed, kind], self.weights.stash[timed, kind]
        sums = self.sums_of(kind, node)
        least = sums[timed] + product(once * in_flight - stash, sums[STASH]) - once * room
        prices = [price for price, _ in self.prices(kind, in_flight)]
        return int(np.searchsorted(prices, once[least.argmax()]))

    def prices(self, kind: int, in_flight: int) -> list[tuple[int, int]]:
        """Return the prices of a byte that is held once and of one of the stash, of a kind, from none upwards."""
        return [(int(once), int(once) * in_flight) for once in np.unique([0, *self.octaves[:, kind]])]

    def room(self, in_flight: int) -> Numbers:
        """Return ``[kind, node]``: the bytes left for what a stage holds, beside its working set."""
        return self.growth.room(self.working, in_flight)
