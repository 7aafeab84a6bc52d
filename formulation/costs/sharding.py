"""What it costs that the devices which hold the same weights divide what they keep of them (ZeRO, FSDP).

The *holders* of a layer are the devices among which its gradients are summed: all devices of a stage by rows, one
of every replica by the other forms. Instead of a copy each, every holder keeps an equal part
(``formulation.problem.constraints.Sharded``), and sends what the others lack:

=========  ===========================================  ========================================================
divided    once a step                                  for every micro-batch
=========  ===========================================  ========================================================
nothing    gradients summed                             nothing
optimizer  gradients summed to parts, weights gathered  nothing
gradients  weights gathered                             gradients summed to parts: nobody can add them up whole
weights    nothing                                      weights gathered before every pass, forward or backward;
                                                        gradients summed to parts
=========  ===========================================  ========================================================

A sum to parts (reduce-scatter) and a gathering (all-gather) are the two halves of an all-reduce (ZeRO, arXiv
1910.02054, §7; PyTorch FSDP, arXiv 2304.11277, §3.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from formulation.costs.forms import all_reduce, half_of_all_reduce
from formulation.problem.constraints import Sharded
from formulation.problem.options import AllReduce
from formulation.problem.units import NOTHING, Volume


@dataclass(frozen=True, slots=True)
class Shared:
    """Bytes of one layer that so many ``holders`` each would hold alike; ``updated`` are the trained weights.

    Its methods return what a device sends, as the table of this module says.
    """

    holders: int
    weights: Fraction
    updated: Fraction
    gradients: Fraction
    kind: AllReduce

    def once(self, sharded: Sharded) -> Volume:
        """Return what is sent at the end of a step."""
        if sharded is Sharded.NONE:
            return all_reduce(self.gradients, self.holders, self.kind)
        if sharded is Sharded.WEIGHTS:
            return NOTHING
        gathered = self._half(self.updated)
        if sharded is Sharded.GRADIENTS:
            return gathered
        summed = self._half(self.gradients)
        return Volume(summed.amount_bytes + gathered.amount_bytes, summed.messages + gathered.messages)

    def gathered(self, sharded: Sharded) -> Volume:
        """Return what is sent before each pass of a micro-batch, forward or backward."""
        return self._half(self.weights) if sharded.divides_weights else NOTHING

    def scattered(self, sharded: Sharded) -> Volume:
        """Return what is sent after the backward pass of each micro-batch."""
        return self._half(self.gradients) if sharded.divides_gradients else NOTHING

    def through_host(self, sharded: Sharded) -> Volume:
        """Return what a device sends to and from its host in a step: its gradients there, new weights back.

        Who has a part of the optimiser's state sends and gets this part only.
        """
        parts = self.holders if sharded.divides_optimizer else 1
        messages = (self.gradients > 0) + (self.updated > 0)
        return Volume((self.gradients + self.updated) / parts, messages) if messages else NOTHING

    def _half(self, size_bytes: Fraction) -> Volume:
        return half_of_all_reduce(size_bytes, self.holders, self.kind)
