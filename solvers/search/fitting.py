"""Simple plans that fit into memory, if luck has it: a quick "yes" to the question whether there is a plan.

The line of devices, or a part of it that ends with a server, is cut into 1, 2, 3, ... groups of nearly equal size,
all of which hold their stages in the same mode; every layer takes the same form where it can. First stages get
nearly equal work, as far as memory lets them (:func:`balanced_plans`); then each takes as many layers as fit, from
the front.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formulation.costs.forms import forms_on
from formulation.costs.memory import capacity_bytes, keeps, layer_parts, received_bytes, stage_parts
from formulation.problem.cuts import cut_space
from formulation.problem.groups import Group, group_kind, line_group
from formulation.problem.instance import Instance
from formulation.problem.layers import FORMS, Split
from formulation.problem.modes import Mode, modes
from formulation.problem.plan import Plan, Span, Stage

__all__: list[str] = []

HALVINGS = 24
"""How exactly work is balanced: to one part in 2**24 of all."""


def fitting_plans(instance: Instance, *, thorough: bool = False) -> Iterator[Plan]:
    """Yield plans that keep the memory limit; other rules are not looked at. All devices, or thorough: parts too.

    Cost: O(devices * layers * log(layers)) for each of at most ``3 * devices`` tries in each mode, thorough: times
    the servers.
    """
    ends = list(itertools.accumulate(server.devices for server in instance.servers))
    yield from balanced_plans(instance)
    for used in (1, *ends) if thorough else ends[-1:]:
        for stages in range(1, min(used, len(instance.layers)) + 1):
            for groups, form in itertools.product(_divided(instance, used, stages), FORMS):
                plan = _filled(instance, groups, form)
                if plan is not None:
                    yield plan


def balanced_plans(instance: Instance) -> Iterator[Plan]:
    """Yield plans of nearly equal work on groups of a server, a half of one, ... each, in all modes and forms.

    What fits is worked out from sums over layers, in which a layer that follows another is counted at the larger
    of what it may hold, so a plan that fits barely can be missed. Cost: O(layers) for each mode, form and number
    of stages.
    """
    sums: dict[tuple[int, Mode, int], _Sums] = {}
    smallest = min(server.devices for server in instance.servers)
    sizes = [size for size in range(smallest, 0, -1) if all(one.devices % size == 0 for one in instance.servers)]
    for size in sizes:
        stages = instance.devices // size
        if stages > cut_space(instance).stops:
            break
        for groups, form in itertools.product(_divided(instance, instance.devices, stages), FORMS):
            key = (size, groups[0].mode, form)
            if key not in sums:
                sums[key] = _Sums.of(instance, groups[0], form)
            cuts = _balanced(sums[key], groups)
            if cuts is not None:
                spans = (Span(first, stop) for first, stop in itertools.pairwise(cuts))
                pairs = zip(spans, groups, strict=True)
                yield Plan(tuple(_stage(instance, span, group, form) for span, group in pairs))


@dataclass(frozen=True, slots=True)
class _Sums:
    """Prefix sums over the layers, at the places to cut, for one kind of group and one form of all layers.

    Bytes of one version of the weights, of gradients and optimiser state, and of the stash of one micro-batch.
    """

    instance: Instance
    places: NDArray[np.int64]
    work: NDArray[np.int64]
    weights: NDArray[np.int64]
    fixed: NDArray[np.int64]
    stash: NDArray[np.int64]
    working: int

    @classmethod
    def of(cls, instance: Instance, group: Group, form: int) -> _Sums:
        whole, shares = Span(0, len(instance.layers)), group_kind(instance, group).shares
        stage = _stage(instance, whole, group, form)
        alone = (_stage(instance, Span(layer, layer + 1), group, form) for layer in whole.layers)
        pairs = (
            (layer_parts(instance, stage, layer, shares), layer_parts(instance, one, layer, shares))
            for layer, one in zip(whole.layers, alone, strict=True)
        )
        parts = [max(pair, key=lambda found: found.total) for pair in pairs]
        slowest = instance.class_index(group.counts[0][0])
        spent = np.add(instance.forward_ns[slowest], instance.backward_ns[slowest])
        return cls(
            instance,
            np.array(cut_space(instance).places, dtype=np.int64),
            _prefix(spent.tolist()),
            _prefix([one.weights for one in parts]),
            _prefix([one.gradients + one.optimizer for one in parts]),
            _prefix([one.stash for one in parts]),
            max(one.working_set for one in parts),
        )

    def furthest(self, first: int, most_ns: int, group: Group, index: int, stages: int) -> int:
        """Return the last place at which a stage that begins at ``first`` may end."""
        kept, places = keeps(self.instance.training, index, stages), self.places[self.places > first]
        allowed = self.work[places] - self.work[first] <= most_ns
        if self.instance.constraints.memory:
            received = kept.in_flight * received_bytes(self.instance, group_kind(self.instance, group), first)
            held = (
                kept.versions * (self.weights[places] - self.weights[first])
                + (self.fixed[places] - self.fixed[first])
                + kept.stashes(group.mode) * (self.stash[places] - self.stash[first])
            )
            allowed &= held + received + self.working <= capacity_bytes(self.instance, group)
        fitting = places[allowed]
        return int(fitting[-1]) if len(fitting) else first


def _prefix(values: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.array(values, dtype=np.int64))])


def _balanced(sums: _Sums, groups: Sequence[Group]) -> list[int] | None:
    """Return the cuts under the least work that any stage may have; None if the layers do not fit anyhow."""
    low, high, best = 0, int(sums.work[-1]), None
    for _ in range(HALVINGS):
        middle = (low + high + 1) // 2 if best is not None else high
        cuts = [0]
        for index, group in enumerate(groups):
            left = len(groups) - index - 1
            stop = sums.furthest(cuts[-1], middle, group, index, len(groups))
            stop = min(stop, int(sums.places[-1 - left]))
            cuts.append(stop)
        if cuts[-1] == sums.places[-1] and all(one < other for one, other in itertools.pairwise(cuts)):
            best, high = cuts, middle
        elif best is None:
            return None
        else:
            low = middle
        if high - low <= 1:
            break
    return best


def _divided(instance: Instance, used: int, stages: int) -> Iterator[list[Group]]:
    """Yield so many groups of nearly equal size of the first devices of the line, all in one mode."""
    cuts = [index * used // stages for index in range(stages + 1)]
    sizes = [stop - first for first, stop in itertools.pairwise(cuts)]
    for mode in modes(instance, sizes[0]):
        if all(mode in modes(instance, size) for size in set(sizes)):
            yield [line_group(instance, first, size, mode) for first, size in zip(cuts, sizes, strict=False)]


def _filled(instance: Instance, groups: Sequence[Group], form: int) -> Plan | None:
    """Fill group after group; None if layers are left over, or too few to go round."""
    places, at = cut_space(instance).places, 0
    stages: list[Stage] = []
    for index, group in enumerate(groups):
        low, high = at, len(places) - 1 - (len(groups) - index - 1)
        while low < high:
            middle = (low + high + 1) // 2
            span = Span(places[at], places[middle])
            if _fits(instance, _stage(instance, span, group, form), index, len(groups)):
                low = middle
            else:
                high = middle - 1
        if low == at:
            return None
        stages.append(_stage(instance, Span(places[at], places[low]), group, form))
        at = low
    return Plan(tuple(stages)) if at == len(places) - 1 else None


def _fits(instance: Instance, stage: Stage, index: int, stages: int) -> bool:
    """Tell whether a stage fits; its memory depends on the others only by their number."""
    if not instance.constraints.memory:
        return True
    held = stage_parts(instance, stage).times(keeps(instance.training, index, stages), stage.group.mode)
    return held.total <= capacity_bytes(instance, stage.group)


def _stage(instance: Instance, span: Span, group: Group, form: int) -> Stage:
    choices = [
        FORMS[:1] if row.split is Split.FOLLOW else forms_on(row.allowed_forms, group.tensor_parallel_degree)
        for row in instance.layers[span.first : span.stop]
    ]
    return Stage(span, group, tuple(form if form in row else row[0] for row in choices))
