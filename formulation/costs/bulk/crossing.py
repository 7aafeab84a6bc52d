"""What crosses every cut point, all of them in one pass over the edges (``formulation.costs.times.cut_bytes``)."""

from __future__ import annotations

from itertools import accumulate

from pipecut.formulation.problem.instance import Instance


def crossing_bytes(instance: Instance) -> list[int]:
    """Return the bytes of activations that cross each cut point 0 .. layers, one way.

    Cost: edges, sorted, and layers; asking ``cut_bytes`` for each cut costs their product.
    """
    steps = [0] * (len(instance.layers) + 2)
    left: dict[int, int] = {}
    last: dict[int, int] = {}
    # From its furthest user back, what a tensor sends over a cut grows by each user that lies behind the cut.
    for edge in sorted(instance.edges, key=lambda edge: edge.consumer, reverse=True):
        producer, sent = edge.producer, left.get(edge.producer, 0)
        most = instance.output_bytes[producer]
        if producer in last:
            steps[edge.consumer + 1] += min(sent, most)
            steps[last[producer] + 1] -= min(sent, most)
        left[producer], last[producer] = sent + edge.size_bytes, edge.consumer
    for producer, sent in left.items():
        size = min(sent, instance.output_bytes[producer])
        steps[producer + 1] += size
        steps[last[producer] + 1] -= size
    return list(accumulate(steps))[:-1]
