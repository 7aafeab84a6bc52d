"""Which rows of a stage that grows may still be of use: by the least that its other layers add to sums.

A *room* is a sum of the passes of a stage up to some place, and what it may be at most: what paths take elsewhere
in any plan of so many stages is known (``formulation.certificates.executed.ahead``), and the rest is left for the
stage. A row is of use if it keeps to one room of a place where the stage may stop, and there to all limits of a
stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.certificates.executed.unbeaten import Rows

NEVER_NS = 1 << 60
"""The least of layers that lead nowhere."""
NO_LIMIT = 1 << 58
"""A limit of so many bytes is none."""
PRICES = (0.25, 1.0, 4.0)
"""Bytes are added to sums at such prices: so many times what both have to spend."""
Forms = tuple[int, ...]
Choices = Mapping[Forms, Sequence[tuple[Forms, Rows]]]
"""By the forms that are looked at before a layer: those behind it, and what it adds to rows."""


@dataclass(frozen=True, slots=True, eq=False)
class RoomsFrom:
    """Rooms of stages from one place on, by ascending ``stop``, the number of a place.

    ``often[:, r] @ row <= most[:, r]``, all of them, for one room r of a stop, and ``limits``, all of them, too.
    """

    stop: NDArray[np.intp]
    often: Rows
    most: NDArray[np.int64]
    limits: tuple[Rows, NDArray[np.int64]]

    @staticmethod
    def of(
        stop: NDArray[np.intp], often: Rows, most: NDArray[np.int64], limits: tuple[Rows, NDArray[np.int64]]
    ) -> RoomsFrom:
        """Return rooms for sums of passes, and with each those together with bytes that are held at some prices.

        The last of the limits is that on bytes: whoever keeps to both keeps to their sum at any price.
        """
        order, (every, whole) = np.argsort(stop, kind="stable"), limits
        parts, mosts = [often[order]], [most[order]]
        for share in PRICES if whole[-1] < NO_LIMIT else ():
            price = np.maximum(1, (share * (most[order] / max(1, int(whole[-1])))).astype(np.int64))
            parts.append(often[order] + price[:, None] * every[-1])
            mosts.append(most[order] + price * whole[-1])
        return RoomsFrom(stop[order], np.stack(parts), np.stack(mosts), limits)


class LookAhead:
    """Tells which rows may be of use, layer by layer. ``choices`` are those of the layers from ``begin`` on."""

    def __init__(self, rooms: RoomsFrom, places: Sequence[int], begin: int, choices: Sequence[Choices]) -> None:
        self.stops, self._starts = np.unique(rooms.stop, return_index=True)
        every, most = rooms.limits
        self._sums, self._rooms, self._limits = len(rooms.often), len(rooms.stop), len(most)
        own = rooms.often.reshape(-1, rooms.often.shape[2])
        self._often = np.concatenate([own, np.tile(every, (len(self.stops), 1))])
        self._most = np.concatenate([rooms.most.reshape(-1), np.tile(most, len(self.stops))])
        at = np.concatenate([np.tile(rooms.stop, self._sums), np.repeat(self.stops, len(most))])
        self._least = self._work_back(np.array(places)[at], begin, choices)

    def _work_back(
        self, ends: NDArray[np.int64], begin: int, choices: Sequence[Choices]
    ) -> list[dict[Forms, Rows]]:
        """Return by layer and forms the least that layers from there on add to each room."""
        last = [key for rows in choices[-1].values() for key, _ in rows]
        found = [{key: np.where(ends == begin + len(choices), 0, NEVER_NS) for key in last}]
        for layer, own in reversed(list(enumerate(choices, begin))):
            behind, now = found[-1], dict[Forms, Rows]()
            for forms, rows in own.items():
                added = np.stack([cell for _, cell in rows]) @ self._often.T
                least = (added + np.stack([behind[key] for key, _ in rows])).min(axis=0)
                stopped = np.where(ends == layer, 0, NEVER_NS)
                now[forms] = np.where(ends > layer, np.minimum(least, NEVER_NS), stopped)
            found.append(now)
        return found[::-1]

    def useful(self, layers: int, forms: Forms, rows: Rows) -> NDArray[np.bool_]:
        """Return by row and stop whether a row of so many layers that ends in these forms may be of use there."""
        kept = rows @ self._often.T + self._least[layers][forms] <= self._most
        many = self._sums * self._rooms
        all_sums = kept[:, :many].reshape(len(rows), self._sums, self._rooms).all(axis=1)
        one = np.logical_or.reduceat(all_sums, self._starts, axis=1)
        every = kept[:, many:].reshape(len(rows), len(self.stops), self._limits).all(axis=2)
        return np.asarray(one & every)
