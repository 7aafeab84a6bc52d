"""The states of PipeDream's dynamic programme: downsets of the profile, with what its cost model reads off them.

A *state* is a downset ``D_j`` of the profiled graph: what the first stages of a pipeline compute. Two ways of
finding them are here, because PipeDream's own loses some:

``antichain_states``
    As the program (msr-fiddle/pipedream, ``graph/graph.py``): walk from the *first* source only, replacing one
    node of an augmented antichain by a successor. Graphs with several sources lose downsets (GNMT: 99 of 561).
    The output of a state sums the *augmented* antichain, which holds a predecessor of one of its nodes whenever
    that predecessor feeds anything else than that node or its other predecessors, although both may lie inside
    the downset: the bytes that cross the cut are counted too high (up to 3.05 times), never too low.

``downset_states``
    All downsets, and the true bytes that leave them: nodes with an edge to the outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipecut_literature.common.downsets import TooManyDownsetsError, bits, downsets, masks, reachable, topological
from pipecut_literature.pipedream.profile import ProfiledModel

NS_PER_SECOND = 1e9


@dataclass(frozen=True, slots=True)
class States:
    """States in topological order; the last one is the whole model.

    ``layers[j]`` is the mask of layers of state j; ``compute_s``, ``weight_bytes`` and ``stash_bytes`` are sums
    over them; ``output_bytes[j]`` is what the program takes to cross the cut behind state j;
    ``before[k, j]`` tells whether state k comes before state j, so that ``D_j - D_k`` can be a stage.
    """

    model: ProfiledModel
    layers: tuple[int, ...]
    compute_s: NDArray[np.float64]
    weight_bytes: NDArray[np.float64]
    stash_bytes: NDArray[np.float64]
    output_bytes: NDArray[np.float64]
    before: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.layers)

    def names(self, first: int, stop: int) -> tuple[str, ...]:
        """Return the layers of a stage that starts behind state ``first - 1`` and ends with ``stop - 1``."""
        inside = self.layers[stop - 1] & ~(self.layers[first - 1] if first else 0)
        return tuple(self.model.layers[node].name for node in bits(inside))


def downset_states(profile: ProfiledModel, limit: int = 20_000) -> States:
    """Return every downset of what PipeDream plans, with the true bytes that cross each cut.

    Raises TooManyDownsetsError beyond ``limit``, ValueError for an empty model.
    """
    graph = _Graph(profile.planned())
    found = downsets(graph.producers, limit + 1)
    sets = sorted(found[1:], key=int.bit_count)
    cuts = [sum(1 << node for node in bits(one) if graph.consumers[node] & ~one) for one in sets]
    before = np.array([[one & ~other == 0 and one != other for other in sets] for one in sets])
    return graph.states(sets, cuts, before)


def antichain_states(profile: ProfiledModel, limit: int = 20_000) -> States:
    """Return the states that PipeDream's program finds, with the bytes that it counts at each cut.

    Its order among states of equal size follows Python's hash seed; here it follows the search. Raises
    TooManyDownsetsError beyond ``limit``, ValueError for an empty model. Cost: states times their edges.
    """
    graph = _Graph(profile.planned())
    source = next(node for node, mask in enumerate(graph.producers) if mask == 0)
    index = {1 << source: 0}
    antichains, edges = [1 << source], []
    for number, antichain in enumerate(antichains):
        for following in graph.next_antichains(antichain):
            if following not in index:
                if len(antichains) >= limit:
                    raise TooManyDownsetsError(f"more than {limit} antichains; merge nodes of the profile")
                index[following] = len(antichains)
                antichains.append(following)
            edges.append((index[following], number))
    sets = [graph.downset(antichain) for antichain in antichains]
    order = sorted(range(len(sets)), key=lambda number: sets[number].bit_count())
    past = reachable(order, masks(len(sets), edges))
    before = np.array([[past[later] >> earlier & 1 == 1 for later in order] for earlier in order])
    cuts = [antichains[number] | graph.augmentation(antichains[number]) for number in order]
    return graph.states([sets[number] for number in order], cuts, before)


class _Graph:
    """A profile as bit masks: direct and transitive neighbours of each layer."""

    def __init__(self, model: ProfiledModel) -> None:
        if not model.layers:
            raise ValueError("the profile has no layer that could be planned")
        size = len(model.layers)
        self.model = model
        self.consumers = masks(size, model.edges)
        self.producers = masks(size, [(b, a) for a, b in model.edges])
        order = topological(self.producers)
        self.past = reachable(order, self.producers)
        self.future = reachable(order[::-1], self.consumers)
        self.extra = [
            sum(1 << other for other in bits(past) if self.consumers[other] & ~(past | 1 << node))
            for node, past in enumerate(self.past)
        ]

    def downset(self, antichain: int) -> int:
        """Return the antichain and everything before it."""
        found = antichain
        for node in bits(antichain):
            found |= self.past[node]
        return found

    def augmentation(self, antichain: int) -> int:
        """Return the earlier nodes that feed something besides the past of one node of the antichain."""
        found = 0
        for node in bits(antichain):
            found |= self.extra[node]
        return found

    def next_antichains(self, antichain: int) -> list[int]:
        """Return the antichains one step on: a node of the augmented antichain gives way to a successor."""
        augmented = antichain | self.augmentation(antichain)
        found = []
        for node in bits(augmented):
            for following in bits(self.consumers[node] & ~antichain):
                if self.future[following] & augmented == 0:
                    moved = augmented & ~(1 << node) | 1 << following
                    found.append(sum(1 << one for one in bits(moved) if self.future[one] & moved == 0))
        return found

    def states(self, sets: Sequence[int], cuts: Sequence[int], before: NDArray[np.bool_]) -> States:
        """Add up what the cost model needs of each state."""
        layers = self.model.layers
        activation = [layer.activation_bytes for layer in layers]
        return States(
            self.model,
            tuple(sets),
            _sums([layer.forward_ns + layer.backward_ns for layer in layers], sets) / NS_PER_SECOND,
            _sums([layer.parameter_bytes for layer in layers], sets),
            _sums(activation, sets),
            _sums(activation, cuts),
            before,
        )


def _sums(values: Sequence[int], sets: Sequence[int]) -> NDArray[np.float64]:
    return np.array([float(sum(values[node] for node in bits(one))) for one in sets])
