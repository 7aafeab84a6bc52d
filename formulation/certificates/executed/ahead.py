"""What the stages before and behind a stage take at least, by weighed paths: sums of passes, counted so often.

Stages that are in no plan whose sum is within a limit are left out: such a plan takes longer than the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.certificates.executed.best_passes import RoomOfStages
from pipecut.formulation.certificates.executed.paths import WeighedPaths
from pipecut.formulation.certificates.executed.sums import NEVER_NS, Sums
from pipecut.formulation.certificates.executed.ways import NodeMoves
from pipecut.formulation.limits import NEVER, Deadline
from pipecut.formulation.suffixes import End, State

Bits = NDArray[np.bool_]
"""By kind, and by the places where stages begin and stop."""


@dataclass(frozen=True, slots=True, eq=False)
class Around:
    """Sums of plans of so many stages, within ``most``.

    ``ahead[slot]``, by node and place, is the least of all stages before a suffix that begins there, with the
    transfers to it. ``rooms[slot]`` says by kind what stages may take in plans within the limit.
    """

    ahead: list[Sums]
    rooms: list[dict[int, RoomOfStages]]

    def left(self, allowed: Sequence[Bits]) -> list[Bits]:
        """Return by slot the stages that have room."""
        found = [np.zeros_like(one) for one in allowed[: len(self.rooms)]]
        for bits, own in zip(found, self.rooms, strict=True):
            for kind, one in own.items():
                bits[kind, one.first, one.stop] = True
        return found


class SumsAround:
    """Works such sums out, for plans within a limit on the step."""

    def __init__(self, ways: NodeMoves, most_ns: int, deadline: Deadline = NEVER) -> None:
        self._ways, self._most_ns, self._deadline = ways, most_ns, deadline

    def of(self, weighed: WeighedPaths, by_kind: Sums, allowed: Sequence[Bits]) -> Around:
        """Return the sums of paths around every suffix, up to ``weight * most_ns``.

        ``by_kind[kind, stage, begin, stop]`` are the least sums of the stages of the paths, and ``allowed`` by
        slot the stages that there are, by kind, begin and stop. Raises StoppedError after the deadline. Cost: for
        each slot, all moves times the square of the places.
        """
        often, most = np.array(weighed.often(), dtype=np.int64), weighed.weight * self._most_ns
        costs: list[Sums] = []
        for slot in range(len(often)):
            own = by_kind[:, len(often) - 1 - slot]
            costs.append(np.where(allowed[slot] & (own <= most), own, NEVER_NS))
        ahead = self._ahead(often, costs, most)
        rooms: list[dict[int, RoomOfStages]] = []
        behind: Sums | None = None
        for slot, own in enumerate(costs):
            counts, others = often[len(costs) - 1 - slot], np.full_like(own, NEVER_NS)
            behind = self._before(counts, own, (ahead[slot], behind), most, others)
            rooms.append(_rooms(counts[:3], own, others, most))
        return Around(ahead, rooms)

    def _ahead(self, often: Sums, costs: list[Sums], most: int) -> list[Sums]:
        ways, total = self._ways, len(self._ways.places) - 1
        last: Sums = np.full((len(ways.whole), total + 1), NEVER_NS, dtype=np.int64)
        last[ways.whole, 0] = 0
        found = [last]
        for stage in range(len(costs) - 1):
            own, ahead = costs[len(costs) - 1 - stage], found[-1]
            behind: Sums = np.full_like(last, NEVER_NS)
            for state, end, moves in ways:
                self._deadline.check()
                best: Sums = np.full(total + 1, NEVER_NS, dtype=np.int64)
                for way in moves if state in ways.nodes else ():
                    some = np.flatnonzero(ahead[way.node] < NEVER_NS)
                    for kind in way.kinds if len(some) else ():
                        np.minimum(best, (ahead[way.node][some, None] + own[kind][some]).min(axis=0), out=best)
                for node, first in ways.nodes[state] if (best <= most).any() else ():
                    crossed = often[stage, 3:] @ np.minimum(ways.boundary(end, first), self._most_ns + 1)
                    np.minimum(behind[node], best + crossed, out=behind[node])
            found.append(np.where(behind > most, NEVER_NS, behind))
        return found[::-1]

    def _before(self, often: Sums, own: Sums, around: tuple[Sums, Sums | None], most: int, others: Sums) -> Sums:
        """Return the least sums of suffixes with a stage put before those behind it.

        ``others`` are lowered to the least that all other stages of a plan take beside each.
        """
        ways, (ahead, behind) = self._ways, around
        found: Sums = np.full_like(ahead, NEVER_NS)
        for state, end, moves in ways:
            self._deadline.check()
            added = self._added(often, state, end, behind, most)
            stops = np.flatnonzero(added < NEVER_NS)
            for way in moves if len(stops) else ():
                for kind in way.kinds:
                    sums = own[kind][:, stops] + added[stops]
                    np.minimum(found[way.node], sums.min(axis=1), out=found[way.node])
                    beside = ahead[way.node][:, None] + added[stops]
                    others[kind][:, stops] = np.minimum(others[kind][:, stops], beside)
        return np.where(found > most, NEVER_NS, found)

    def _added(self, often: Sums, state: State, end: End, behind: Sums | None, most: int) -> Sums:
        """Return by place the least sum behind a stage with this end that stops there."""
        ways = self._ways
        found: Sums = np.full(len(ways.places), NEVER_NS, dtype=np.int64)
        if behind is None:
            found[-1] = 0 if state in ways.empty else NEVER_NS
            return found
        for node, first in ways.nodes.get(state, ()):
            crossed = often[3:] @ np.minimum(ways.boundary(end, first), self._most_ns + 1)
            np.minimum(found, behind[node] + crossed, out=found)
        return np.where(found > most, NEVER_NS, found)


def _rooms(often: Sums, own: Sums, others: Sums, most: int) -> dict[int, RoomOfStages]:
    """Return by kind what is left for stages that keep to a limit together with the least of all others."""
    found: dict[int, RoomOfStages] = {}
    for kind in range(len(own)):
        first, stop = np.nonzero(own[kind] + others[kind] <= most)
        if len(first):
            found[kind] = RoomOfStages(often, first, stop, most - others[kind][first, stop])
    return found
