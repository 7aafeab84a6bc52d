"""What tensors stay because blocks are computed again, written out a second time: by pairs of a layer and a block.

A tensor that a block reads stays for it if the block is computed again, and if it is not and the layer that made
the tensor is; unless a block before it keeps its activations and counts it.
The specification is ``formulation.costs.memory.lent_by_runs``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import Instance


@dataclass(frozen=True, slots=True)
class Reading:
    """What a block reads of a layer; ``last`` is the last of its layers that does.

    ``again_bytes`` stay if the block is computed again; ``kept_bytes`` if it is not and the layer is. ``counts``:
    if it is not, the tensor counts as stash of the block, and nothing stays beside for blocks behind it.
    """

    producer: int
    own: int
    block: int
    last: int
    again_bytes: int
    kept_bytes: int
    counts: bool

    @staticmethod
    def all(instance: Instance, space: CutSpace) -> Iterator[Reading]:
        """Yield what blocks read of layers, by layer, then by block; of its own block only where that counts it.

        Cost: linear in layers and edges.
        """
        block_of = [at for at, (first, stop) in enumerate(space.atoms()) for _ in range(first, stop)]
        taken = [0] * len(block_of)
        for edge in instance.edges:
            taken[edge.consumer] += edge.size_bytes
        found: dict[tuple[int, int], list[tuple[int, int, bool]]] = {}
        for edge in sorted(instance.edges, key=lambda one: one.consumer):
            counts = instance.stash_bytes[edge.consumer] >= taken[edge.consumer]
            row = found.setdefault((edge.producer, block_of[edge.consumer]), [])
            row.append((edge.size_bytes, edge.consumer, counts))
        for (producer, block), row in sorted(found.items()):
            own, counted = block_of[producer], any(counts for *_, counts in row)
            if own == block and not counted:
                continue
            most = 0 if own == block else instance.output_bytes[producer]
            kept = (size for size, _, _ in takewhile(lambda one: not one[2], row))
            again, stays = min(most, sum(size for size, *_ in row)), min(most, max(kept, default=0))
            yield Reading(producer, own, block, row[-1][1], again, stays, counted)
