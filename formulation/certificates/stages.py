"""Whether a stage fits: within a time and, where memory is limited, its devices, whatever the forms of its layers.

For checking certificates: from the formulas alone, and exact. Sums of what each layer takes at least, whatever its
form, settle most cases; then the exact least time (``formulation.costs.least``); and last, where either limit
alone could be kept, a search for forms that keep both at once (``formulation.certificates.forms``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate

from formulation.certificates.forms import FormSearch
from formulation.costs.least import StagePrices
from formulation.problem.groups import GroupKind
from formulation.problem.instance import Instance
from formulation.problem.options import StageTime
from formulation.schedules.keeps import Keeps


class StageFits:
    """Answers for one instance and threshold; what was found is remembered by kind, rule, start and stop."""

    def __init__(self, instance: Instance, kinds: tuple[GroupKind, ...], threshold_ns: int) -> None:
        self._instance, self._kinds, self._threshold_ns = instance, kinds, threshold_ns
        self._prices = StagePrices(instance)
        self._forms = FormSearch(instance, self._prices)
        self._overlap = instance.cost.stage_time is StageTime.OVERLAP
        rules = [Keeps.in_slot(instance.training, slot) for slot in range(instance.devices)]
        self._rules = rules if instance.constraints.memory else [None] * len(rules)
        self._capacity = [min(instance.device_classes[one].memory_bytes for one in kind.classes) for kind in kinds]
        self._time_floor = cache(lambda kind: self._prices.floors(self._kinds[kind]))
        self._byte_floor = cache(self._byte_floors)
        self._fit = cache(self._fits)

    def first_that_fits(self, slot: int, kind: int, starts: Sequence[int], stop: int) -> int | None:
        """Return one of the starts, ascending, from which a stage up to ``stop`` fits, or None.

        Sums over single layers only grow towards the front, so where they exclude a start they exclude all before.
        """
        rule = self._rules[slot]
        for start in reversed(starts):
            if self._excluded(kind, rule, start, stop):
                return None
            if self._fit(kind, rule, start, stop):
                return start
        return None

    def _excluded(self, kind: int, rule: Keeps | None, start: int, stop: int) -> bool:
        compute, communication = self._time_floor(kind)
        if (
            self._time(compute[stop] - compute[start], communication[stop] - communication[start])
            > self._threshold_ns
        ):
            return True
        if rule is None:
            return False
        held = self._byte_floor(kind, rule)
        return held[stop] - held[start] > self._capacity[kind]

    def _fits(self, kind: int, rule: Keeps | None, start: int, stop: int) -> bool:
        compute, _ = self._time_floor(kind)
        computing = compute[stop] - compute[start]
        least = self._prices.communication_ns(self._kinds[kind], start, stop)
        if self._time(computing, least) > self._threshold_ns:
            return False
        if rule is None:
            return True
        left = self._threshold_ns if self._overlap else self._threshold_ns - computing
        return self._forms.exist(self._kinds[kind], rule, (start, stop), left, self._capacity[kind])

    def _time(self, computing: int, communicating: int) -> int:
        return max(computing, communicating) if self._overlap else computing + communicating

    def _byte_floors(self, kind: int, rule: Keeps) -> list[int]:
        """Return prefix sums of what each layer keeps at least, without working sets and what was received."""
        own = (self._forms.least_held(self._kinds[kind], rule, at) for at in range(len(self._instance.layers)))
        return [0, *accumulate(own)]
