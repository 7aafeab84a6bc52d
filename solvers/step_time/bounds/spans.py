"""The least passes of all stages, by kind and span, of places or of blocks of neighbouring places.

Blocks are for a first look: between two blocks the least of all stages from a place of the one to a place of the
other stands for them, and so does the least of what crosses a block. What is in no plan by blocks is in none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.problem.options import BoundaryCharge
from pipecut.solvers.dynamic.tables.demanded import admitted, stage_counts
from pipecut.solvers.dynamic.tables.stage_table import StageLimits
from pipecut.solvers.reference.line_dp import atom_tables
from pipecut.solvers.step_time.bounds.columns import Period
from pipecut.solvers.step_time.bounds.pass_tables import PassTables
from pipecut.solvers.step_time.bounds.rays import PACE, Proportion, Rays, least_of, least_times

OWN = 2
"""Paces and whole steps are known by places, other proportions by blocks of places."""
Bits = NDArray[np.bool_]
Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Boundaries:
    """What boundaries take, by link and place; the last row is that of no link.

    A link takes ``activation`` and ``gradient``; or stages beside it take ``fetched`` and ``returned`` ones.
    """

    activation: Times
    gradient: Times
    fetched: Times
    returned: Times

    @property
    def both(self) -> Times:
        """Both transfers of a boundary."""
        return self.activation + self.gradient


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Least times by kind, first place and stop: ``pace`` of a micro-batch, ``whole`` of a step.

    ``roomy[rule]``, in the same places, tells what keeps to demands and may fit into the memory of slots with this
    rule; ``rules`` has one for each slot, and no plan has fewer stages than ``least_stages``. ``warm_ups`` are by
    slot the warm-ups that its stages may have, each told by a slot that has it if nothing is chosen, whose rule is
    ``rule_of`` it; ``rules`` are those of the least. ``place[i]`` is the first place of block i. ``rays``: more
    proportions of passes, if known.

    A plan takes at least ``micro_batches`` times each pace, ``once`` all paces and boundaries in a row, and where
    boundaries have queues ``queued`` times each of these.

    Where backward passes have two halves plans are of so many ``stages``, and a pace is forward pass and first
    half. The second halves of stage s wait behind s further pairs, so all but min(s + 1, M) of them are done
    before its last gradient leaves: ``early`` is the least until then, with no more of them than of any stage.

    Where a limit is that on a ``period``, no run of stages takes more than the limit for each of them, and none of
    them more for what is summed ``beside`` its passes.
    """

    pace: Times
    whole: Times
    roomy: dict[int, Bits]
    rules: tuple[int, ...]
    warm_ups: tuple[range, ...]
    rule_of: tuple[int, ...]
    boundaries: Boundaries
    place: Index
    micro_batches: int
    once: int = 1
    queued: int = 0
    least_stages: int = 1
    rays: Rays | None = None
    stages: int | None = None
    early: Times | None = None
    period: Period | None = None
    beside: Times | None = None

    @property
    def known(self) -> tuple[Proportion, ...]:
        """The proportions of passes whose least is known."""
        whole = (self.micro_batches, self.micro_batches, 1)
        return (PACE, whole, *(() if self.rays is None else self.rays.proportions))

    def least(self, row: int, kind: Index, first: Index, stop: Index) -> Times:
        """Return the least of passes in the proportion of a row."""
        if row < OWN or self.rays is None:
            return (self.whole if row else self.pace)[kind, first, stop]
        return self.rays.least[row - OWN, kind, self.rays.block[first], self.rays.block[stop]]

    def all_least(self, kind: Index, first: Index, stop: Index) -> Times:
        """Return the least of passes in all known proportions."""
        own = [self.pace[kind, first, stop], self.whole[kind, first, stop]]
        if self.rays is None:
            return np.array(own)
        return np.concatenate([own, self.rays.least[:, kind, self.rays.block[first], self.rays.block[stop]]])

    def evenly(self, width: int) -> Index:
        """Return the starts of blocks of so many places; the first and the last place stay alone."""
        last = self.pace.shape[2] - 1
        return np.concatenate([[0], np.arange(1, last, width), [last]])

    def by_work(self, most: int) -> Index:
        """Return the starts of at most about so many blocks, cut behind the atoms that take longest alone."""
        last = self.pace.shape[2] - 1
        atoms = np.arange(last)
        work = self.whole[:, atoms, atoms + 1].min(axis=0)
        heavy = np.sort(np.argsort(-work, kind="stable")[: max(1, most - 3)])
        return np.unique(np.concatenate([[0, 1], heavy[work[heavy] > 0] + 1, [last]]))

    def blocks(self, starts: Index) -> Spans:
        """Return the same, without rays, for blocks that start at these places, the first and the last alone."""
        sent = self.boundaries
        rows = (sent.activation, sent.gradient, sent.fetched, sent.returned)
        return replace(
            self,
            pace=least_of(self.pace, starts),
            whole=least_of(self.whole, starts),
            roomy={rule: least_of(~one, starts) == 0 for rule, one in self.roomy.items()},
            boundaries=Boundaries(*(np.minimum.reduceat(one, starts, axis=1) for one in rows)),
            place=starts,
            rays=None,
            early=None if self.early is None else least_of(self.early, starts),
            beside=None if self.beside is None else least_of(self.beside, starts),
        )

    def inside(self, blocks: Bits, place: Index) -> Bits:
        """Return a table by kind and pair of blocks as one by kind and pair of places."""
        of = np.searchsorted(place, np.arange(self.pace.shape[2]), side="right") - 1
        return blocks[:, of[:-1, None], of[None, :]]


def spans_of(tables: Tables, passes: PassTables, space: CutSpace) -> Spans:
    """Work out the least passes of all stages.

    Raises ValueError and TooLargeError as ``solvers.reference.algorithm_1.StageTimes.of`` does.
    """
    instance, formula, micro_batches = tables.instance, passes.formula, passes.often
    training = instance.training
    (whole, many), period = passes.whole, passes.period
    pace = least_times(tables, passes, PACE, space)
    atoms = atom_tables(pace.tables, space, pace)
    limits = StageLimits(atoms.times, atoms.least)
    counts = stage_counts(instance)
    slots = range(max(1, counts.stop - 1))
    warm_ups = [range(slot, slot + 1) for slot in slots]
    if training.chooses_warm_ups and formula is None:
        # A last stage answers earliest with a warm-up of 1: from the arrival of micro-batch j to the end of its
        # backward pass k it does both passes of j to k with any, and with 1 the latest of these sums is the end.
        warm_ups[1:] = [range(min(slot, micro_batches - 1), micro_batches) for slot in slots[1:]]
    rules = limits.slots(max(one.stop for one in warm_ups))
    stops, keeping = np.arange(space.stops + 1), admitted(tables, space)
    found = Spans(
        pace=atoms.times.time,
        whole=_divided(least_times(tables, passes, whole, space).time, many),
        roomy={
            one: (stops <= limits.ends(one, FORBIDDEN - 1)[:, :-1, None]) & (True if keeping is None else keeping)
            for one in set(rules)
        },
        rules=tuple(rules[one.start] for one in warm_ups),
        warm_ups=tuple(warm_ups),
        rule_of=tuple(rules),
        boundaries=_boundaries(tables, space.places),
        place=stops,
        micro_batches=micro_batches,
        once=1 if formula is None else formula.once,
        queued=0 if formula is None else formula.often,
        least_stages=counts.start if counts else len(slots) + 1,
        period=period,
    )
    if period is not None and not period.charged:
        sync = least_times(tables, passes, (0, 0, 1), space).time
        found = replace(found, beside=_divided(sync, period.micro_batches))
    halves = training.schedule.in_halves and formula is None
    return _in_halves(found, tables, passes, space) if halves else found


def _divided(times: Times, many: int) -> Times:
    """Return times for each of so many, rounded up; what is forbidden stays so."""
    return times if many == 1 else np.where(times < FORBIDDEN, -(-times // many), FORBIDDEN)


def _in_halves(found: Spans, tables: Tables, passes: PassTables, space: CutSpace) -> Spans:
    """Return the spans of plans of so many stages whose backward passes have halves."""
    many, stages = found.micro_batches, tables.instance.demands.stages_at_most or 1
    early = (many, many, 0, -min(stages, many))
    return replace(
        found,
        pace=least_times(tables, passes, (*PACE, -1), space).time,
        early=least_times(tables, passes, early, space).time,
        stages=stages,
    )


def _boundaries(tables: Tables, places: tuple[int, ...]) -> Boundaries:
    nothing = np.zeros((1, len(places)), dtype=np.int64)
    sent = [np.concatenate([one[:, list(places)], nothing]) for one in (tables.activation, tables.gradient)]
    none = [np.zeros_like(one) for one in sent]
    receiver = tables.instance.cost.boundary_charge is BoundaryCharge.RECEIVER
    return Boundaries(*none, *sent) if receiver else Boundaries(*sent, *none)
