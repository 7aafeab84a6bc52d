"""What is still to come of a stage takes at least so much, in any forms: labels that it makes too long go.

A stage may take at most so much: of a step, of its memory, and of what paths of a mixture leave for it
(``solvers.step_time.bounds.mixtures``). Each is a sum over layers and changes of layout (working sets are left out
of what is to come), so the least of it from any layer on to the end, for any forms of the live layers, is found
backwards from the end (Bellman 1958). A label that with this least is above the room is in no stage within it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.limits import Deadline, in_time
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.solvers.atoms.programs import OUTSIDE, LayerStep

MANY = 256
"""So many labels are worth a look ahead."""
MOST_KEYS = 1 << 12
"""With more forms of live layers than that nobody looks ahead."""
MOST_LIVE = 62 // (1 + OUTSIDE).bit_length()
"""Nor with more live layers."""
NEVER = 1 << 60
"""More than any sum that counts; sums of a layer stay below half of it."""
NO_LIMIT = NEVER >> 1
Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Put:
    """One layer more, for some rows of forms of the live layers, form by form of the new one.

    ``before``: the row; ``form`` of the layer; ``added`` to each column of passes, and bytes; ``working`` bytes;
    ``live``: the forms of the live layers after it.
    """

    before: Index
    form: Index
    added: Times
    working: Times
    live: Times


@dataclass(frozen=True, slots=True)
class Room:
    """What stages that stop behind so many layers may take: ``often`` each column, a row a sum, at most ``most``.

    They keep to the first ``every`` of these sums, and to all of one choice at least of the others, if there are
    any; a choice are so ``many``, one behind another.
    """

    stop: int
    often: Times
    most: Times
    every: int
    many: int = 1

    def holds(self, sums: Times) -> NDArray[np.bool_]:
        """Tell which rows of sums are within it."""
        within = sums <= self.most
        kept = np.asarray(within[:, : self.every].all(axis=1))
        if self.every == len(self.most):
            return kept
        starts = range(self.every, len(self.most), self.many)
        choices = [np.asarray(within[:, start : start + self.many].all(axis=1)) for start in starts]
        return kept & np.logical_or.reduce(choices)


@dataclass(slots=True)
class Further:
    """Looks ahead along ``steps``, the layers from ``first`` on, where there are many labels.

    ``put`` puts a layer behind forms of live ones; ``rooms`` are of the stages that are asked for.
    """

    first: int
    steps: list[LayerStep]
    put: Callable[[LayerStep, Times], Put]
    rooms: list[Room]
    deadline: Deadline
    _least: dict[int, tuple[Index, list[Times]]] = field(default_factory=dict)
    _given_up: bool = False

    def kept(self, layer: int, keys: Times, rows: Times) -> NDArray[np.bool_]:
        """Tell which labels may become stages; ``rows`` are their columns of passes, and bytes with a working set.

        ``keys``: the forms of the live layers after so many layers. Nothing is left out of stages that stop behind
        all that are asked for. Raises StoppedError after the deadline. Cost: at first some sums over all
        forms of live layers, layer by layer.
        """
        every = np.ones(len(rows), dtype=np.bool_)
        if layer > max(room.stop for room in self.rooms) or self._given_up:
            return every
        if layer not in self._least and (len(rows) <= MANY or not self._look(layer, keys)):
            return every
        numbers, least = self._least[layer]
        at = np.searchsorted(numbers, _numbers(keys))
        open_rooms = [(room, own) for room, own in zip(self.rooms, least, strict=True) if room.stop >= layer]
        return np.logical_or.reduce([room.holds(rows @ room.often.T + own[at]) for room, own in open_rooms])

    def _look(self, layer: int, keys: Times) -> bool:
        """Go through the layers from one on, and back; return False for too many forms."""
        last = max(room.stop for room in self.rooms)
        found, ways = list[Times](), list[tuple[Put, Index]]()
        for step in in_time((None, *self.steps[layer - self.first : last - self.first]), self.deadline):
            put = None if step is None else self.put(step, found[-1])
            live = keys if put is None else put.live
            self._given_up = live.shape[1] > MOST_LIVE or len(_distinct(live)) > MOST_KEYS
            if self._given_up:
                return False
            found.append(_distinct(live))
            if put is not None:
                ways.append((put, np.searchsorted(_numbers(found[-1]), _numbers(live))))
        least = [np.full((len(found[-1]), len(room.most)), NEVER, dtype=np.int64) for room in self.rooms]
        for place in in_time(reversed(range(layer, last + 1)), self.deadline):
            if place < last:
                least = self._back(found[place - layer], *ways[place - layer], least)
            for own, room in zip(least, self.rooms, strict=True):
                if room.stop == place:
                    own[:] = 0
            self._least[place] = _numbers(found[place - layer]), least
        return True

    def _back(self, keys: Times, put: Put, after: Index, behind: list[Times]) -> list[Times]:
        """Return the least from a layer on, by forms of live layers before it, from what is behind it."""
        never: NDArray[np.bool_] = np.any(put.added >= FORBIDDEN, axis=1)
        added = np.where(never[:, None], 0, put.added)
        found: list[Times] = []
        for room, own in zip(self.rooms, behind, strict=True):
            # What would leave 64 bits counts less than it is: the sums are still no more than those of any stage.
            sums = np.minimum(added, _cap(room)) @ room.often.T + own[after]
            sums = np.where(never[:, None], NEVER, np.minimum(sums, NEVER))
            found.append(sums.reshape(-1, len(keys), sums.shape[1]).min(axis=0, initial=NEVER))
        return found


def countable(often: tuple[int, ...], most_ns: int) -> bool:
    """Tell whether sums of columns so often, none above a limit on the step, stay far from 64 bits."""
    return (1 + sum(often)) * (most_ns + 1) < NEVER >> 1


def _cap(room: Room) -> int:
    return (NEVER >> 1) // (1 + int(room.often.sum(axis=1).max()))


def _numbers(keys: Times) -> Index:
    """Return a number for each row of forms, ascending as the rows are."""
    found = np.zeros(len(keys), dtype=np.int64)
    for column in keys.T:
        found = found * (1 + OUTSIDE) + column
    return found


def _distinct(keys: Times) -> Times:
    """Return the rows that there are, once each, ascending."""
    return keys[np.unique(_numbers(keys), return_index=True)[1]]
