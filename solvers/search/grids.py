"""Plain grids: equal groups, all in one mode, that have nearly equal parts of a model; the most promising first.

A *plain grid* is what people write by hand: a tensor-parallel degree, a number of stages, replicas on all other
devices, one level of sharding, one choice of what is computed again, forms of one kind for all layers, a number of
micro-batches; blocks are divided as evenly as they go, with the ends of the model counted in, or so that each
stage has as many of them, as far as memory lets them.

What a stage takes and holds are sums over its atoms (``solvers.search.pieces``). What a grid takes is bounded from
below: first by what its devices compute, then by tables without what sharding and recomputing cost, then with all
of it, and last with the blocks divided. Whatever is least goes on, so plans come out in the order of what they
promise: one that takes no longer than the next one promises takes no longer than any grid.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs import times
from pipecut.formulation.costs.megatron_forms import forms_in
from pipecut.formulation.limits import Deadline, StoppedError
from pipecut.formulation.problem.constraints import Goal, Recompute, Sharded
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.layers import FORMS, Axis, Split
from pipecut.formulation.problem.modes import Mode, modes
from pipecut.formulation.problem.options import BoundaryCharge, Combine, Samples, Sharing, Synchronisation
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.shares import server_classes
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link, ceil_div
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.solvers.search.pieces import Forms, Numbers, PieceCosts, Pieces, PieceTables, ShortModel
from pipecut.solvers.search.support import devices_of

LATE = 3
"""So many are tried at most when time is over."""
ROUNDED = 8
"""Nanoseconds, or bytes, by which all that a layer takes or keeps of samples is off at most."""
NEAR = 10
"""The largest stage is found to one part in 2**NEAR, and then lessened as far as it goes."""


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """Equal groups on the line, for each the first that is like it, and links between neighbours, once asked."""

    groups: tuple[Group, ...]
    like: tuple[int, ...]
    known: dict[object, Link | None] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return how many devices a group has."""
        return self.groups[0].devices

    @staticmethod
    def all(instance: Instance) -> Iterator[_Row]:
        """Yield groups of every size that leaves no device over; fewer where the model has too few atoms."""
        stops, sizes = CutSpace.of(instance).stops, [server.devices for server in instance.servers]
        parts = [size for size in range(min(sizes), 0, -1) if all(one % size == 0 for one in sizes)]
        there, asked = devices_of(instance), instance.demands.devices_per_stage
        if len(set(sizes)) == 1:
            servers = there // sizes[0]
            most = min(servers, instance.constraints.max_servers or servers)
            parts += [sizes[0] * many for many in range(2, most + 1) if servers % many == 0]
        classes = server_classes(instance)
        for size in (one for one in parts if one <= there and (not asked or one in asked)):
            stages = range(min(there // size, stops))
            groups = tuple(Group.on_line(instance, at * size, size) for at in stages)
            held = [tuple((classes[server], count) for server, count in one.counts) for one in groups]
            yield _Row(groups, tuple(held.index(one) for one in held))

    def link_before(self, instance: Instance, at: int) -> Link | None:
        """Return the link between a group and the one before it: one for all pairs of alike groups."""
        one, other = self.groups[at - 1 : at + 1]
        key = *self.like[at - 1 : at + 1], one.counts[-1][0] == other.counts[0][0]
        if key not in self.known:
            self.known[key] = Group.link_between(instance, one, other)
        return self.known[key]

    def modes(self, instance: Instance) -> list[Mode]:
        """Return the modes in which all groups may be, but those in a grid of devices."""
        return [mode for mode in modes(instance, self.size) if mode.grid == 1]

    def on(self, mode: Mode) -> tuple[Group, ...]:
        """Return the groups in a mode."""
        return tuple(replace(one, mode=mode) for one in self.groups)


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """All of a grid but the cuts; ``costs`` are what stages cost, ``keeps`` how often they keep what they hold.

    Where groups hold several stages, ``own`` are the costs of groups, with what their devices have room for.
    """

    row: _Row
    mode: Mode
    forms: Forms
    again: bool
    costs: tuple[PieceCosts, ...]
    keeps: tuple[Keeps, ...]
    own: tuple[PieceCosts, ...] = ()

    def changed(self, change: Callable[[PieceCosts], PieceCosts]) -> _Way:
        """Return the way with other costs of its stages."""
        known = {cost: change(cost) for cost in dict.fromkeys(self.costs)}
        return replace(self, costs=tuple(known[cost] for cost in self.costs))


@dataclass(frozen=True, slots=True, eq=False)
class GridPlan:
    """A plan of equal groups whose stages begin behind so many atoms, and what it promises for a whole step."""

    promised: int
    training: Training
    way: _Way
    cuts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Scanned:
    """The stages of a row at a degree, as far as their micro-batch does not matter.

    The fullest replica, and of it the fullest device, has so many ``samples``. Some are computed ``again``, or
    none. ``total`` and ``largest`` are the least times of all and of the slowest one, whatever the cuts, ``ways``
    those that need least memory.
    """

    row: _Row
    degree: int
    samples: tuple[int, ...]
    total: int
    largest: int
    ways: tuple[_Way, ...]
    again: bool


# Where devices have room for anything it does not matter how often it is kept: None.
_Reach = dict[tuple[PieceCosts, Keeps | None, int], list[int]]
"""What one, two, ... atoms of a stage that begins behind so many take together; NOWHERE where they do not fit."""
NOWHERE = 1 << 62
_Entry = tuple[int, "GridPlan | Callable[[], Iterator[_Entry]]"]
"""What nothing that comes of it undercuts, and what that is."""


class Grids:
    """The plain grids of a model, which is read once for all choices of its training."""

    def __init__(self, model: ShortModel, deadline: Deadline) -> None:
        self.pieces, self.deadline, self.short = Pieces(model), deadline, model.short
        self.rows, total = list(_Row.all(model.whole)), len(model.short.layers)
        sequence = (False, True)[: 1 + (Axis.SEQUENCE in model.short.demands.splits)]
        pairs = [np.array(forms_in(model.short, [Span(0, total)], sequence=one)) for one in sequence]
        # Where a device may be a replica of its own, nobody divides the samples of one in another way.
        alike = () if 1 in model.short.constraints.tensor_parallel_degrees else FORMS
        self.forms = [*pairs, *(np.full(total, form) for form in alike)]

    def plans(self, choices: Iterable[Training], below: int | None = None) -> Iterator[GridPlan]:
        """Yield plans of all choices in the order of what they promise, for as long as that is below a step.

        Raises StoppedError after the deadline, behind the first of those that are known: others may undercut them,
        so they promise nothing.
        """
        ticks, alike = itertools.count(), dict[Training, list[Training]]()
        for one in choices:
            own = replace(one, chunks=min(one.chunks, 2), schedule_choices=(), chunk_choices=())
            alike.setdefault(own, []).append(one)
        every = [_Choice(self, replace(self.short, training=some[0]), tuple(some)) for some in alike.values()]
        sources = {one: one.source(every) for one in every}
        scanned = {one: list(one.scanned(every)) for one in dict.fromkeys(sources.values())}
        starts = (start for one, source in sources.items() for start in one.begun(scanned[source]))
        heap = [(bound, next(ticks), start) for bound, start in starts]
        heapq.heapify(heap)
        while heap:
            bound, _, found = heapq.heappop(heap)
            if below is not None and bound >= below:
                return
            if isinstance(found, GridPlan):
                yield found
                continue
            try:
                self.deadline.check()
                for promised, child in found():
                    heapq.heappush(heap, (max(bound, promised), next(ticks), child))
            except StoppedError:
                known = [one for *_, one in sorted(heap) if isinstance(one, GridPlan)]
                yield from (replace(one, promised=0) for one in known[:LATE])
                raise

    def plan(self, found: GridPlan) -> Plan:
        """Return the plan of the whole model. Cost: linear in its layers."""
        way, pieces, of_atom = found.way, self.pieces, self.pieces.model.of_atom
        stages: list[Stage] = []
        groups = way.row.on(way.mode)
        for at, (first, stop) in enumerate(itertools.pairwise((*found.cuts, len(of_atom)))):
            group = groups[found.training.rank_of(at, len(found.cuts))]
            forms = tuple(form for atom in of_atom[first:stop] for form in way.forms[slice(*pieces.own[atom])])
            again = (atom for atom in range(first, stop) if way.again and pieces.repeats[of_atom[atom]])
            runs = tuple(Span(*pieces.ends[atom]) for atom in again)
            stages.append(Stage(Span(pieces.ends[first][0], pieces.ends[stop - 1][1]), group, forms, again=runs))
        return Plan(tuple(stages))

    def allowed(self, tables: PieceTables, kind: int) -> Iterator[Forms]:
        """Yield wanted forms on a kind of groups, each once; a layer that has no such form takes its first one."""
        decides = np.array([layer.split is not Split.FOLLOW for layer in self.short.layers])
        if tables.tables.kinds[kind].tensor_parallel_degree == 1:
            yield (FORMS[0],) * len(decides)
            return
        allowed = tables.tables.inside[kind] < FORBIDDEN
        found: dict[Forms, None] = {}
        # Micro-batches differ in whether devices can divide the samples of attention, in form 0.
        context = [row.across is not None and row.across.axis is Axis.CONTEXT for row in self.short.layers]
        for row, without in itertools.product(self.forms, (0, 1)):
            some = allowed.copy()
            some[context, :without] &= ~allowed[context, 1:].any(axis=1, keepdims=True)
            # Where no layer may take it, tables have no place for a form.
            there = np.minimum(row, some.shape[1] - 1)
            fits = (row == there) & some[np.arange(len(row)), there]
            kept = np.where(fits, row, some.argmax(axis=1))
            found[tuple(np.where(decides, kept, FORMS[0]).tolist())] = None
        yield from found


@dataclass(frozen=True, slots=True, eq=False)
class _Choice:
    """One number of micro-batches and order of passes: those of ``short``, an instance of the short model.

    ``trainings`` have them: one, or several in which groups hold different numbers of stages.
    """

    grids: Grids
    short: Instance
    trainings: tuple[Training, ...]
    known: dict[int, tuple[Keeps, ...]] = field(default_factory=dict)

    @property
    def executed(self) -> bool:
        """Tell whether passes are executed, at whose end is what is done once a step."""
        return self.short.goals[0].executed

    @property
    def classic(self) -> bool:
        """Tell whether the bounds of a step under 1F1B hold (``formulation.costs.bounds``)."""
        training = self.short.training
        return self.short.goals[0] is Goal.STEP_TIME and training.warms_up and training.warm_up == "classic"

    def source(self, every: Iterable[_Choice]) -> _Choice:
        """Return the one whose stages say the most of this one's: of large micro-batches no sample takes longer.

        Samples are whole, so they have several of this one's. Of curves that were measured nothing is known.
        """
        training = self.short.training
        alike = (one for one in every if one.short.training.schedule.in_halves == training.schedule.in_halves)
        first = min(alike, key=lambda one: one.short.training.micro_batches)
        curved = any(len(layer.measured) > 1 for layer in self.short.layers)
        return self if curved or training.micro_batches % first.short.training.micro_batches else first

    def scanned(self, every: Iterable[_Choice]) -> Iterator[_Scanned]:
        """Yield the stages on all groups at each degree of any choice: times unsharded, ways with least memory."""
        found: dict[tuple[_Row, int], dict[Mode, None]] = {}
        for one, row in itertools.product(every, self.grids.rows):
            if not one.dealt_to(row):
                continue
            for mode in row.modes(one.short):
                found.setdefault((row, mode.tensor_parallel_degree(row.size)), {})[mode] = None
        plain = {
            (row, degree): [Mode(row.size // degree, again) for again in (False, True)] for row, degree in found
        }
        lean = {key: _leanest(own) for key, own in found.items()}
        if not found:
            return
        tables = self._tables((key[0], mode) for key in found for mode in (*plain[key], *lean[key]))
        told = self.short.constraints.recompute is Recompute.EVERY_BLOCK
        for (key, own), again in itertools.product(lean.items(), (False, True)[told:]):
            row, blocks = key[0], again and self._in_blocks
            some = [mode for mode in own if bool(mode.recompute) is again]
            if some or blocks:
                ways = [way for mode in some for way in self._ways(row, mode, tables, again=False)]
                ways += [way for mode in own[:blocks] for way in self._ways(row, mode, tables, again=True)]
                quick = plain[key][again and not blocks]
                rows = [_each(way) for way in self._ways(row, quick, tables, again=blocks)]
                total = min((int(self._least_of_atoms(way).sum()) for way in rows), default=0)
                cuts = (self._balanced(way, _Reach()) for way in rows)
                slow = (0 if own is None else own[1] for own in cuts)
                yield _Scanned(*key, self.samples(*key), total, min(slow, default=0), tuple(ways), again)

    def begun(self, scanned: Iterable[_Scanned]) -> Iterator[_Entry]:
        """Yield groups of every size at each degree, with what nothing on them undercuts."""
        for one in (one for one in scanned if self.dealt_to(one.row)):
            part = min(map(Fraction, self.samples(one.row, one.degree), one.samples))
            # Each of a layer's times was rounded.
            off = ROUNDED * len(self.grids.pieces.model.whole.layers)
            total, largest = (max(0, int(time * part) - off) for time in (one.total, one.largest))
            yield self.hand(total, largest, len(one.row.groups)), partial(self._modes, one, part)

    def dealt_to(self, row: _Row) -> list[Training]:
        """Return those in which all groups may hold as many stages: several if the groups are alike."""
        many, stops = len(row.groups), len(self.grids.pieces.ends)
        some = [one for one in self.trainings if many <= stops // one.chunks]
        alike = many > 1 and len(set(row.like)) == 1
        return [one for one in some if one.chunks == 1 or (alike and one.dealt_to(many))]

    def _scaled(self, way: _Way, part: Fraction) -> _Way:
        """Return a way with this number of micro-batches, and so many times the samples."""

        def scaled(cost: PieceCosts) -> PieceCosts:
            off, share = ROUNDED * len(self.short.layers), float(part)
            parts = (cost.stash, cost.received, cost.version)
            stash, received, waits = (np.maximum(0, np.int64(one * share) - off) for one in parts)
            version = waits if self.short.training.schedule.in_halves else cost.version
            return replace(cost, stash=stash, received=received, version=version, work=np.zeros_like(cost.work))

        return replace(way.changed(scaled), keeps=self._keeps(len(way.costs)))

    def _keeps(self, stages: int) -> tuple[Keeps, ...]:
        """Return how often stages keep what tables have."""
        training = self.short.training
        if stages not in self.known:
            found = (Keeps.of(training, at, stages) for at in range(stages))
            # With passes in halves tables have in the place of versions what waits.
            halves = training.schedule.in_halves
            self.known[stages] = tuple(replace(one, versions=one.again) if halves else one for one in found)
        return self.known[stages]

    @property
    def _in_blocks(self) -> bool:
        return self.short.constraints.recompute.by_blocks

    def samples(self, row: _Row, degree: int) -> tuple[int, ...]:
        """Return how many samples the fullest replica has, and of it the fullest device; or the whole stage."""
        cost, batch = self.short.cost, self.short.training.micro_batch
        if cost.sharing is not Sharing.EQUAL or cost.samples is not Samples.WHOLE:
            return (batch,)
        own = ceil_div(batch, row.size // degree)
        return own, ceil_div(own, degree)

    def hand(self, total: int, largest: int, stages: int) -> int:
        """Return what a step takes at least of so many stages that take so long together, the largest so long.

        Of groups that hold several stages the largest run says nothing: they may share what no as many runs do.
        """
        goal, training = self.short.goals[0], self.short.training
        steps, slow = training.micro_batches, max(ceil_div(total, stages), largest * (training.chunks == 1))
        if not goal.timed:
            return 0
        if goal in (Goal.BOTTLENECK, Goal.PERIOD) or not training.schedule.flushes:
            return steps * (total if self.short.cost.combine is Combine.SUM else slow)
        if training.schedule is Schedule.NAIVE:
            return steps * total
        if goal is Goal.ITERATION_TIME or training.schedule is Schedule.GPIPE:
            return total + (steps - 1) * slow
        if training.schedule.in_halves:
            return steps * slow
        filled = total + (steps - 1) * total // stages if steps > stages else int(total / _bubble(steps, stages))
        return max(steps * slow, filled if self.classic else total)

    def _modes(self, scanned: _Scanned, part: Fraction) -> Iterator[_Entry]:
        """Yield ways to hold the stages of a row at a degree, if layers may fit with so many times the samples."""
        row, again = scanned.row, scanned.again
        scaled = [self._filled(self._scaled(way, part), FORBIDDEN, _Reach()) for way in scanned.ways]
        found = [mode for mode in row.modes(self.short) if mode.tensor_parallel_degree(row.size) == scanned.degree]
        found = [mode for mode in found if again or not mode.recompute]
        if not found or (scaled and not any(scaled)):
            return
        tables = self._tables((row, mode) for mode in found)
        for mode in found:
            if mode.recompute or not again or self._in_blocks:
                for way in self._ways(row, mode, tables, again=again and not mode.recompute):
                    least = self._least_of_atoms(way)
                    bound = self.hand(int(least.sum()), int(least.max()), len(way.costs))
                    yield bound, partial(self._divided, way)

    def _tables(self, found: Iterable[tuple[_Row, Mode]]) -> PieceTables:
        """Return the prices on the groups of rows in modes, of which alike ones are looked at once."""
        rows = [(row, mode, row.on(mode)) for row, mode in dict.fromkeys(found)]
        places = [(row, mode, at) for row, mode, _ in rows for at in sorted(set(row.like))]
        groups = tuple(groups[at] for row, _, groups in rows for at in sorted(set(row.like)))
        priced = PieceTables(self.grids.pieces, self.short, groups, self.grids.deadline)
        priced.kinds.update(zip(places, priced.tables.kind_of, strict=True))
        return priced

    def _ways(self, row: _Row, mode: Mode, tables: PieceTables, *, again: bool) -> Iterator[_Way]:
        """Yield the ways to hold the stages of a row in a mode, in all forms; ``again``: blocks computed again."""
        kinds = [tables.kinds[row, mode, at] for at in row.like]
        keeps = self._keeps(len(kinds))
        for forms in self.grids.allowed(tables, kinds[0]):
            costs = {kind: tables.costs(kind, forms, again=again) for kind in set(kinds)}
            if all(self.grids.pieces.least(one.each).max() < FORBIDDEN for one in costs.values()):
                yield _Way(row, mode, forms, again, tuple(costs[kind] for kind in kinds), keeps)

    def _taken(self, cost: PieceCosts) -> Numbers:
        return cost.each if self.executed else cost.charged

    def _least_of_atoms(self, way: _Way) -> Numbers:
        """Return what atoms take at least."""
        return self.grids.pieces.least(np.minimum.reduce([self._taken(one) for one in dict.fromkeys(way.costs)]))

    def _divided(self, way: _Way) -> Iterator[_Entry]:
        """Yield the plans with blocks divided evenly by time, and by number with more in front or behind."""
        freed, known = way.changed(lambda one: replace(one, capacity=0)), _Reach()
        for one in self.dealt_to(way.row):
            many = len(way.costs) * one.chunks
            order = [one.rank_of(at, many) for at in range(many)]
            costs, keeps = (tuple(row[at] for at in order) for row in (freed.costs, way.keeps))
            dealt = replace(way, costs=costs, keeps=keeps, own=way.costs)
            yield from self._of_training(one, dealt if one.chunks > 1 else way, known)

    def _of_training(self, training: Training, way: _Way, known: _Reach) -> Iterator[_Entry]:
        """Yield those of one training."""
        many = len(way.costs)
        each, more = divmod(len(self.grids.pieces.ends), many)
        front = tuple(at * each + min(at, more) for at in range(many))
        behind = tuple(at * each + max(0, at - many + more) for at in range(many))
        balanced, fits = self._balanced(way, known), partial(self._dealt_fits, training) if way.own else self._fits
        for cuts in dict.fromkeys((balanced[0], front, behind) if balanced is not None else ()):
            if (balanced and cuts == balanced[0] and not way.own) or fits(way, cuts):
                promised = self.promised(training, way, cuts)
                yield promised, GridPlan(promised, training, way, cuts)

    def _balanced(self, way: _Way, known: _Reach) -> tuple[tuple[int, ...], int] | None:
        """Return the cuts with the least largest stage, first stages full, and it; None if nothing fits."""
        least = self._least_of_atoms(way)
        mean, largest = ceil_div(int(least.sum()), len(way.costs)), int(least.max())
        low = max(mean, largest) - 1
        # Where memory lets them, stages take no more than the mean and an atom.
        best = self._filled(way, mean + largest, known) or self._filled(way, FORBIDDEN, known)
        while best is not None and (left := best[1] - low) > 1:
            middle = (low + best[1]) // 2 if left > best[1] >> NEAR else best[1] - 1
            found = self._filled(way, middle, known)
            low, best = (middle, best) if found is None else (low, found)
        return best

    def _filled(self, way: _Way, limit: int, known: _Reach) -> tuple[tuple[int, ...], int] | None:
        """Return the cuts where stages take as many atoms as fit, none longer than a limit, and the longest time.

        ``known`` keeps what runs of atoms take.
        """
        pieces, cuts, longest = self.grids.pieces, [0], 0
        for at, (cost, keeps) in enumerate(zip(way.costs, way.keeps, strict=True), 1):
            if (run := known.get(key := (cost, keeps if cost.capacity else None, cuts[-1]))) is None:
                own = pieces.of(cuts[-1])
                spent = self._taken(cost)[own].cumsum()
                if cost.capacity:
                    spent[_held(cost, keeps, own, cuts[-1]) > cost.capacity] = NOWHERE
                run = known[key] = spent.tolist()
            many = bisect_right(run, limit, hi=len(run) - (len(way.costs) - at))
            if not many:
                return None
            cuts.append(cuts[-1] + many)
            longest = max(longest, run[many - 1])
        return (tuple(cuts[:-1]), longest) if cuts[-1] == len(pieces.ends) else None

    def _sums(self, way: _Way, cuts: Sequence[int]) -> tuple[Numbers, list[NDArray[np.intp]]]:
        """Return the times of stages, and their pieces."""
        ends = itertools.pairwise((*cuts, len(self.grids.pieces.ends)))
        rows = [self.grids.pieces.of(first)[: stop - first] for first, stop in ends]
        return np.array([self._taken(cost)[row].sum() for cost, row in zip(way.costs, rows, strict=True)]), rows

    def _fits(self, way: _Way, cuts: Sequence[int]) -> bool:
        stages = zip(way.costs, way.keeps, self._sums(way, cuts)[1], cuts, strict=True)
        return all(
            not cost.capacity or _held(cost, keeps, row, first)[-1] <= cost.capacity
            for cost, keeps, row, first in stages
        )

    def _dealt_fits(self, training: Training, way: _Way, cuts: Sequence[int]) -> bool:
        """Tell whether what groups hold of all their stages when the first backward pass begins may fit."""
        ranks, rows, most = len(way.own), self._sums(way, cuts)[1], training.micro_batches
        for at, cost in enumerate(way.own):
            last = 2 * (ranks - at) - 1
            kept = [min(most, max(ranks, last)), *[ranks] * (len(rows) // ranks - 2), min(ranks, last)]
            if training.schedule.in_a_v:  # as many as under 1F1B, of stages that are half as long
                kept = [min(most, 2 * ranks - 1 - at), min(most, at + 1)]
            own = [(kept[n], cuts[s], rows[s]) for n, s in enumerate(training.stages_of(at, len(rows)))]
            held = sum(int((cost.once + cost.version + n * cost.stash)[row].sum()) for n, _, row in own)
            received = sum(n * int(cost.received[first]) for n, first, _ in own)
            if cost.capacity and held + received + max(cost.work[row].max() for _, _, row in own) > cost.capacity:
                return False
        return True

    def promised(self, training: Training, way: _Way, cuts: Sequence[int]) -> int:
        """Return what a step takes at least with these cuts; in a V only about so long."""
        own, rows = self._sums(way, cuts)
        ranks = len(way.own) or len(own)
        links = ((way.row.link_before(self.short, at), cuts[at]) for at in range(1, ranks))
        crossing = np.array([self._crossing(*one) for one in links], dtype=np.int64)
        if way.own:
            # A group waits for its first stage, and all before that come behind it once more.
            each = [list(training.stages_of(at, len(own))) for at in range(ranks)]
            work = training.micro_batches * np.array([own[one].sum() for one in each])
            if not self.executed:
                return int(work.max())
            both = own[:ranks] + np.append(crossing, 0)
            # With passes in halves the second ones wait for nobody; as all of a stage is counted, it is no bound.
            before = 0 if training.schedule.in_halves else both.cumsum() - both
            # The first group ends last, with its first stage.
            ends = each[0] if self.short.cost.synchronisation is Synchronisation.CHARGED else (0,)
            last = sum(int(way.costs[one].sync[rows[one]].sum()) for one in ends)
            return int(max(own.sum(), (before + work).max())) + last
        if not self.executed and self.short.cost.boundary_charge is BoundaryCharge.LINK:
            own = np.append(own, crossing)
        least = self.hand(int(own.sum()), int(own.max()), len(own))
        if self.classic:
            least = max(least, one_f_one_b(own, crossing, self.short.training.micro_batches))
        return least + int(way.costs[0].sync[rows[0]].sum()) * (self.short.goals[0] is Goal.STEP_TIME)

    def _crossing(self, link: Link | None, atom: int) -> int:
        place = self.grids.pieces.own[self.grids.pieces.model.of_atom[atom]][0]
        return times.activation_ns(self.short, place, link) + times.gradient_ns(self.short, place, link)


def _bubble(steps: int, stages: int) -> float:
    """Return which part of a step of so few micro-batches stages take at most to do one, all together.

    Stage s takes no less than those before it, and the steps times itself: the largest of these is least where
    each stage has M / (M - 1) times the one behind it.
    """
    return 1 - (1 - 1 / steps) ** stages + 1e-9


def _each(way: _Way) -> _Way:
    """Return a way in which nothing is done once a step, and devices have room for anything."""
    return way.changed(lambda one: replace(one, charged=one.each, capacity=0))


def _leanest(found: Iterable[Mode]) -> list[Mode]:
    """Return of modes the one that needs the least memory of those that keep activations, and of the others."""
    level = list(Sharded).index
    rows = ([mode for mode in found if bool(mode.recompute) is again] for again in (False, True))
    return [max(row, key=lambda mode: (level(mode.sharded), mode.optimizer_on_host)) for row in rows if row]


def _held(cost: PieceCosts, keeps: Keeps, own: NDArray[np.intp], first: int) -> Numbers:
    """Return what a device holds of a stage of one, two, ... of these pieces, which begins with an atom."""
    kept = cost.once + keeps.versions * cost.version + keeps.in_flight * cost.stash
    received = keeps.in_flight * int(cost.received[first])
    return kept[own].cumsum() + np.maximum.accumulate(cost.work[own]) + received


def one_f_one_b(own: Numbers, crossing: Numbers, steps: int) -> int:
    """Return what a step under 1F1B takes at least, by three ways through it for each stage.

    All pairs of passes of a stage, and the way there and back; the two of ``solvers.reduce.executed.slowest``; and
    rounds: a stage with n - 1 stages behind it runs a backward pass n later than another only when the forward
    pass between them has been all the way down, and back.
    """
    both = own + np.append(crossing, 0)
    behind = np.arange(len(own))[::-1]
    before, tail = both.cumsum() - both, both[::-1].cumsum()[::-1]
    rounds, rest = np.divmod(steps - 1, behind + 1)
    ways = (
        before + steps * own,
        np.where(steps >= behind + 2, before + 2 * tail + (steps - behind - 2) * own, 0),
        before + tail * (1 + rounds) + np.where(rounds > 0, rest * own, 0),
    )
    return int(np.maximum.reduce(ways).max())
