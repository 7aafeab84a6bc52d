"""Which layers of a stage recompute: Piper's greedy choice, and the exact one.

Each layer of a stage takes one of two alternatives. Starting from the faster one everywhere, memory has to shrink
by ``need`` bytes: layer i can give ``saving_i`` for ``extra_i`` seconds::

    minimise sum of extra_i x_i    subject to    sum of saving_i x_i >= need,    x_i in {0, 1}

``GREEDY`` (the program's): switch layers in rising order of extra / saving until the need is met. It never goes
back, so a last, large layer may overshoot. ``EXACT``: branch over the layers in that order, keep the choices that
no other beats in both time and memory, and drop those whose fractional completion cannot beat the greedy answer.
``ALL_OR_NOTHING``: every layer that saves memory, or none; it bounds the others from above. ``FRACTIONAL``: parts
of a layer may switch (0 <= x_i <= 1), no plan; it bounds the others from below.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__: list[str] = []

Reals = NDArray[np.float64]
Flags = NDArray[np.bool_]
TOLERANCE = 1e-9
"""Bytes that the program lets a need stay open, and the smallest saving that it counts."""


class Knapsack(enum.Enum):
    """How the alternatives of the layers of one stage are chosen."""

    GREEDY = "greedy"
    EXACT = "exact"
    ALL_OR_NOTHING = "all or nothing"
    FRACTIONAL = "fractional"


@dataclass(frozen=True, slots=True)
class Range:
    """Stage times that matter: at or above ``bound`` they are not wanted, below ``floor`` no smaller one is."""

    floor: float = 0.0
    bound: float = np.inf


@dataclass(frozen=True, slots=True)
class StageAlternatives:
    """A stage whose layers (middle axis) have two alternatives each (last axis), with several numbers of replicas.

    ``seconds`` (first axis: replicas) is what an alternative adds to the stage time; with y micro-batches in
    flight it takes ``flying * y + fixed`` bytes of a device.
    """

    seconds: Reals
    flying: Reals
    fixed: Reals

    def best(
        self, kind: Knapsack, row: NDArray[np.int64], in_flight: Reals, limit: float, matters: Range
    ) -> tuple[Reals, Flags]:
        """Return the least time of each case, and which layers leave their first alternative.

        Case p is row ``row[p]`` of ``seconds`` with ``in_flight[p]`` micro-batches. Infinite where nothing fits
        into ``limit`` bytes, or where nothing below the bound was found.
        """
        fast = self.seconds[:, :, 1] < self.seconds[:, :, 0]
        least = np.where(fast, self.seconds[:, :, 1], self.seconds[:, :, 0]).sum(axis=1)[row]
        flying = np.where(fast, self.flying[:, 1], self.flying[:, 0]).sum(axis=1)[row]
        fixed = np.where(fast, self.fixed[:, 1], self.fixed[:, 0]).sum(axis=1)[row]
        used = flying * in_flight + fixed
        second = fast[row]
        value = np.where((used <= limit) & (least < matters.bound), least, np.inf)
        hard = np.flatnonzero((used > limit) & (least < matters.bound))
        memory = self.flying * in_flight[hard, None, None] + self.fixed
        fits = memory.min(axis=2).sum(axis=1) <= limit
        hard, memory = hard[fits], memory[fits]
        if len(hard):
            items = _Items.of(self.seconds[row[hard]], memory, second[hard], used[hard] - limit)
            parts = items.switched(kind, matters.floor - least[hard], matters.bound - least[hard])
            value[hard] = least[hard] + (parts * items.extra).sum(axis=1)
            second[hard] ^= parts == 1
        return np.where(value < matters.bound, value, np.inf), second


@dataclass(frozen=True, slots=True)
class _Items:
    """Cases in which something must give: what each layer can save, at which price, and how much is needed."""

    extra: Reals
    saving: Reals
    need: Reals
    order: NDArray[np.int64]

    @classmethod
    def of(cls, seconds: Reals, memory: Reals, fast: Flags, need: Reals) -> _Items:
        sign = np.where(fast, -1.0, 1.0)
        extra = (seconds[:, :, 1] - seconds[:, :, 0]) * sign
        saving = (memory[:, :, 0] - memory[:, :, 1]) * sign
        useful = saving > TOLERANCE
        saving = np.where(useful, saving, 0.0)
        ratio = np.where(useful, extra / np.where(useful, saving, 1.0), np.inf)
        return cls(extra, saving, need, np.argsort(ratio, axis=1, kind="stable"))

    def switched(self, kind: Knapsack, enough: Reals, room: Reals) -> Reals:
        """Return which part of each layer switches: 0 or 1, but for ``FRACTIONAL``.

        Nobody asks for less added time than ``enough``, or for a choice that adds ``room`` or more.
        """
        useful = self.saving > 0
        if kind is Knapsack.ALL_OR_NOTHING:
            return useful.astype(np.float64)
        saving = np.take_along_axis(self.saving, self.order, axis=1)
        still = self.need[:, None] - (np.cumsum(saving, axis=1) - saving)
        parts = np.zeros(useful.shape)
        if kind is Knapsack.FRACTIONAL:
            part = np.clip(still / np.where(saving > 0, saving, np.inf), 0.0, 1.0)
            np.put_along_axis(parts, self.order, part, axis=1)
            return parts
        # The program stops as soon as less than the tolerance is open.
        np.put_along_axis(parts, self.order, np.where(still >= TOLERANCE, 1.0, 0.0), axis=1)
        parts = np.where(useful, parts, 0.0)
        if kind is Knapsack.EXACT:
            spent = (parts * self.extra).sum(axis=1)
            for case in np.flatnonzero(spent > enough).tolist():
                parts[case] = self._exact(case, parts[case] == 1, float(enough[case]), float(room[case]))
        return parts

    def _exact(self, case: int, greedy: Flags, enough: float, room: float) -> Flags:
        """Improve on the greedy choice of one case, if that leads below ``room``; stop at ``enough`` seconds."""
        order = self.order[case][self.saving[case][self.order[case]] > 0]
        extra, saving, need = self.extra[case][order], self.saving[case][order], float(self.need[case])
        times = np.concatenate([[0.0], np.cumsum(extra)])
        sizes = np.concatenate([[0.0], np.cumsum(saving)])
        limit = min(room, float(self.extra[case][greedy].sum()))
        if np.interp(need, sizes, times) >= limit * (1 - 1e-12):
            return greedy
        best, spent, saved = None, np.zeros(1), np.zeros(1)
        picks = np.zeros((1, len(order)), dtype=bool)
        for item in range(len(order)):
            taken = picks.copy()
            taken[:, item] = True
            spent = np.concatenate([spent, spent + extra[item]])
            saved = np.concatenate([saved, saved + saving[item]])
            picks = np.concatenate([picks, taken])
            done = np.flatnonzero((saved > need - TOLERANCE) & (spent < limit))
            if len(done):
                best = picks[done[spent[done].argmin()]]
                limit = float(spent[done].min())
            # Least time to meet the rest of the need with parts of the layers still to come (linear relaxation).
            target = sizes[item + 1] + (need - saved)
            rest = np.interp(target, sizes, times) - times[item + 1]
            keep = (saved <= need - TOLERANCE) & (target <= sizes[-1] + TOLERANCE)
            keep &= spent + rest < limit * (1 - 1e-12)
            keep = np.flatnonzero(keep)
            keep = keep[_undominated(spent[keep], saved[keep])]
            spent, saved, picks = spent[keep], saved[keep], picks[keep]
            if not len(spent) or limit <= enough:
                break
        if best is None:
            return greedy
        chosen = np.zeros(len(greedy), dtype=bool)
        chosen[order[best]] = True
        return chosen


def _undominated(spent: Reals, saved: Reals) -> NDArray[np.int64]:
    """Return the indices of choices that no other choice beats or equals in both time and memory."""
    order = np.lexsort((-saved, spent))
    if not len(order):
        return order
    highest = np.maximum.accumulate(saved[order])
    first = np.concatenate([[True], saved[order][1:] > highest[:-1]])
    return order[first]
