"""The stages of a slot that plans may be made of, with the ways in which they are put before suffixes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.solvers.step_time.bounds.columns import COLUMNS
from pipecut.solvers.step_time.bounds.pass_tables import PassTables
from pipecut.solvers.step_time.bounds.spans import Bits, Index, Spans
from pipecut.solvers.step_time.bounds.ways import NOTHING, Ways

MOST_PAIRS = 1 << 20
"""So many pairs of a way and a stage are looked at in a slot."""


def least_passes(passes: PassTables, space: CutSpace) -> Times:
    """Return sums over layers up to each place of the least that their forms take, by bound, pass and kind.

    A stage takes no less of a pass than any of its bounds says (``columns.PassColumns``).
    """
    rows = np.stack([passes.columns.below(one) for one in np.eye(COLUMNS, dtype=np.int64).tolist()], axis=1)
    possible = passes.layers[..., 0] < FORBIDDEN
    least = np.zeros((*rows.shape[:2], len(possible), len(space.places)), dtype=np.int64)
    for at in np.ndindex(*rows.shape[:2]):
        own = np.where(possible, passes.layers @ rows[at], FORBIDDEN).min(axis=2)
        own[own >= FORBIDDEN] = 0
        least[at] = np.pad(own.cumsum(axis=1), ((0, 0), (1, 0)))[:, list(space.places)]
    return least


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """Ways with their stages in a slot, by ascending ``target``: the number of an end and a place.

    ``least[bound, row, kind, place]``: sums of passes over layers; ``nearest``: the last place of the block that
    a stage begins in, and the first one of that where it stops. ``fetched``: activation and gradient that the
    stage fetches itself; ``sent``: what crosses the boundary behind it.
    """

    spans: Spans
    least: Times
    kind: Index
    way: Index
    first: Index
    stop: Index
    nearest: Index
    fetched: Times
    sent: Times

    def together(self, row: int, rows: Index) -> Times:
        """Return the least of passes in a known proportion, without what is fetched."""
        return self.spans.least(row, self.kind[rows], self.first[rows], self.stop[rows])

    def alone(self, row: int, rows: Index) -> Times:
        """Return the least of one of the passes, which is that of layers between the nearest places of blocks."""
        kind, least, (first, stop) = self.kind[rows], self.least[:, row], self.nearest[:, rows]
        return (least[:, kind, stop] - least[:, kind, first]).max(axis=0, initial=0)

    def values(self, rows: Index) -> NDArray[np.float64]:
        """Return the mean of the least of every known proportion, and of each pass alone, over some stages."""
        kind, (first, stop) = self.kind[rows], self.nearest[:, rows]
        alone = (self.least[:, :, kind, stop] - self.least[:, :, kind, first]).max(axis=0, initial=0)
        known = self.spans.all_least(kind, self.first[rows], self.stop[rows])
        return np.concatenate([known, alone]).sum(axis=1) / max(1, len(rows))


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Some of the stages of a slot, as ascending ``rows`` of all of them, with their targets and sources."""

    of: Stages
    rows: Index
    target: Index
    source: Index

    def where(self, some: NDArray[np.bool_]) -> Pairs:
        """Return some of them."""
        return Pairs(self.of, self.rows[some], self.target[some], self.source[some])


def pairs_of(spans: Spans, ways: Ways, least: Times, useful: Bits, *, last: bool) -> Pairs | None:
    """Return the pairs of useful stages, last ones or others; None if they are more than MOST_PAIRS."""
    some = np.flatnonzero((ways.source == NOTHING) == last)
    stages = {kind: np.nonzero(useful[kind]) for kind in np.unique(ways.kind[some]).tolist()}
    if sum(len(stages[kind][0]) for kind in ways.kind[some].tolist()) > MOST_PAIRS:
        return None
    end = spans.pace.shape[2] - 1
    rows: list[Index] = []
    for way in some.tolist():
        first, stop = stages[int(ways.kind[way])]
        here = stop == end if last else stop < end
        rows.append(np.stack([np.full(int(here.sum()), way), first[here], stop[here]]))
    way, first, stop = np.concatenate(rows, axis=1) if rows else np.zeros((3, 0), dtype=np.int64)
    return pairs_of_ways(spans, ways, least, way, first, stop)


def pairs_of_ways(spans: Spans, ways: Ways, least: Times, way: Index, first: Index, stop: Index) -> Pairs:
    """Return the pairs of stages (way, first layer, stop), sorted by the suffix they lead to, with their times."""
    places = spans.pace.shape[2]
    order = np.argsort(ways.target[way] * places + first, kind="stable")
    way, first, stop = way[order], first[order], stop[order]
    target, source = ways.target[way] * places + first, ways.source[way] * places + stop
    link, sent = ways.link[way], spans.boundaries
    fetched = np.stack([sent.fetched[ways.front[way], first], sent.returned[link, stop]])
    crossed = np.stack([sent.activation[link, stop], sent.gradient[link, stop]])
    nearest = np.stack([np.append(spans.place[1:] - 1, spans.place[-1])[first], spans.place[stop]])
    of = Stages(spans, least, ways.kind[way], way, first, stop, nearest, fetched, crossed)
    return Pairs(of, np.arange(len(way)), target, source)
