"""Least sums over all plans of a layout: what mixtures of paths take at least, by a way through the places.

A path of passes takes a sum over stages and boundaries, and so does a mixture of paths with whole weights. Every
stage adds what its run of atoms takes as often as the mixture goes through it, and every boundary what is sent
over it. The plan with the least such sum is a shortest way from the first place to the last one, with as many
steps as there are stages. Where a rank may have groups of several kinds, or be joined by several links, each step
takes the least of them, so that no plan of the layout has less. Runs that no plan has room for, or that are in no
plan within a limit, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.memory import capacity_bytes
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.units import Link
from pipecut.solvers.chunks.bulk import held_of
from pipecut.solvers.chunks.case import Case
from pipecut.solvers.chunks.runs import Numbers

FAR = 1 << 60
"""The sum of no plan at all."""
TIMES = 4
"""Rows of runs that paths go through: forward passes, first or whole backward passes, second halves, and ends."""


@dataclass(frozen=True, slots=True, eq=False)
class PathSums:
    """All runs of all stages of a layout.

    ``tables[s]`` has a table of times for each kind of group that stage s may have, ``there[s]`` tells which runs
    it may be (start, stop), and ``sent[d, b]`` is what crosses boundary b at least by the place where it lies,
    forward (0) and backward (1). ``certain``: all choices of groups have the same of everything.
    """

    tables: tuple[tuple[Numbers, ...], ...]
    there: tuple[NDArray[np.bool_], ...]
    sent: Numbers
    certain: bool

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.tables)

    @property
    def places(self) -> int:
        """How many places there are."""
        return len(self.there[0])

    def stage(self, often: Numbers, at: int) -> Numbers:
        """Return the sums of a stage with the boundary before it, by path, start and stop; FAR for no run.

        ``often`` are rows of ``ChunkPath.often``, or of mixtures.
        """
        through = often[:, : TIMES * self.stages].reshape(len(often), TIMES, self.stages)[:, :, at]
        found = np.min([np.tensordot(through, one, 1) for one in self.tables[at]], axis=0)
        if at:
            sent = often[:, TIMES * self.stages :].reshape(len(often), 2, self.stages - 1)[:, :, at - 1]
            found += (sent @ self.sent[:, at - 1])[:, :, None]
        return np.where(self.there[at], found, FAR)

    def behind(self, often: Numbers) -> Numbers:
        """Return the least sums of the stages from each one on, by path, stage and the place where it starts."""
        found = np.full((len(often), self.stages + 1, self.places), FAR, dtype=np.int64)
        found[:, self.stages, -1] = 0
        for at in reversed(range(self.stages)):
            both = self.stage(often, at) + found[:, at + 1, None, :]
            found[:, at] = np.minimum(both.min(axis=2), FAR)
        return found

    def plan(self, often: Numbers, behind: Numbers) -> tuple[int, ...]:
        """Return a plan in which one path takes least; nothing where there is none."""
        places = [0]
        if behind[0, 0, 0] >= FAR:
            return ()
        for at in range(self.stages):
            both = self.stage(often, at)[0, places[-1]] + behind[0, at + 1]
            places.append(int(both.argmin()))
        return tuple(places)

    def within(self, often: Numbers, units: Numbers, behind: Numbers, upper: int) -> PathSums:
        """Return the runs that are in some plan in which no path, divided by its unit, takes ``upper`` or more.

        ``behind`` are the least sums of the same paths.
        """
        most = np.minimum(FAR - 1, units * (upper - 1))[:, None, None]
        ahead = np.full((len(often), self.places), FAR, dtype=np.int64)
        ahead[:, 0] = 0
        there: list[NDArray[np.bool_]] = []
        for at in range(self.stages):
            both = self.stage(often, at) + ahead[:, :, None]
            there.append(np.all(both + behind[:, at + 1, None, :] <= most, axis=0))
            ahead = np.minimum(both.min(axis=1), FAR)
        return replace(self, there=tuple(there))


def sums_of(case: Case) -> PathSums:
    """Return the sums of a layout. Cost: runs times stages, and pairs of choices that follow each other."""
    kinds = [sorted(set(case.kinds[case.rank_of(at)])) for at in range(case.stages)]
    tables = tuple(tuple(case.runs[kind].table[:TIMES] for kind in row) for row in kinds)
    links = [_links(case, rank) for rank in range(len(case.pairs))]
    sent = np.zeros((2, case.stages - 1, case.space.stops + 1), dtype=np.int64)
    for pair, joined in zip(case.pairs, links, strict=True):
        over = [case.known.over(link) for link in joined]
        for at in pair if over else ():
            sent[:, at, :-1] = np.min(np.array(over, dtype=np.int64), axis=0)
    certain = all(len(row) == 1 for row in kinds) and all(len(joined) == 1 for joined in links)
    return PathSums(tables, _there(case), sent, certain)


def _links(case: Case, rank: int) -> list[Link | None]:
    """Return the links by which a choice of a rank may be joined with one of the next."""
    after = (rank + 1) % case.layout.ranks
    pairs = ((one, other) for one in case.layout.choices[rank] for other in case.layout.choices[after])
    return list(
        dict.fromkeys(Group.link_between(case.instance, *pair) for pair in pairs if case.fit_together(*pair))
    )


def _there(case: Case) -> tuple[NDArray[np.bool_], ...]:
    """Return which runs each stage may be: within its window, on groups of some kind, and with room for others."""
    stops, found = case.space.stops, list[NDArray[np.bool_]]()
    for at, (starts, ends) in enumerate(case.windows):
        kinds = set(case.kinds[case.rank_of(at)])
        there = np.any([case.runs[kind].there for kind in kinds], axis=0)
        window = np.zeros((stops + 1, stops + 1), dtype=np.bool_)
        window[starts.start : starts.stop, ends.start : ends.stop] = True
        found.append(there & window)
    if case.instance.constraints.memory:
        for rank in range(case.layout.ranks):
            for at, fits in _fitting(case, rank, found).items():
                found[at] = found[at] & fits
    return tuple(found)


def _fitting(case: Case, rank: int, there: list[NDArray[np.bool_]]) -> dict[int, NDArray[np.bool_]]:
    """Return by stage of a rank which runs fit beside the smallest that its other stages may be.

    At every moment at which the rank may keep most; of working sets its own, as the largest is no smaller.
    """
    own, group = case.own(rank), case.layout.choices[rank][0]
    # Groups of one size, class and mode hold the same (``GroupLayout``), whichever kind has a run.
    tables = [case.runs[kind] for kind in sorted(set(case.kinds[rank]))]
    table = np.max([np.where(runs.there, runs.table, 0) for runs in tables], axis=0)
    chunks, capacity = len(own), capacity_bytes(case.instance, group)
    lasting, each, working = held_of(case, table[:, None], on_host=group.mode.optimizer_on_host)
    fits = {at: np.ones_like(there[at]) for at in own}
    for kept in case.kept()[rank]:
        numbers = np.array(kept, dtype=np.int64).reshape(-1, chunks)
        held = {at: lasting[0] + np.tensordot(numbers[:, chunk], each, 1) for chunk, at in enumerate(own)}
        least = {at: int(held[at][there[at]].min(initial=FAR)) for at in own}
        for at in own:
            others = sum(least[one] for one in own if one != at)
            fits[at] &= held[at] + working + others <= capacity
    return fits
