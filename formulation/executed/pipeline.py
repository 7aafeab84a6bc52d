"""The passes of a pipeline in whole nanoseconds: all that its executed times depend on."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class PipelinePasses:
    """Times in ns, by stage: forward and backward pass (with what it computes again), synchronisation of a step.

    ``weight_ns`` is what of the backward pass is for the gradients of weights, where that is a pass of its own.
    ``activation_ns`` and ``gradient_ns`` are the transfers over the boundary behind each stage but the last. Links
    carry any number of transfers at once, each at full speed (``Contention.NONE`` of the timeline).
    """

    forward_ns: tuple[int, ...]
    backward_ns: tuple[int, ...]
    sync_ns: tuple[int, ...]
    activation_ns: tuple[int, ...]
    gradient_ns: tuple[int, ...]
    weight_ns: tuple[int, ...] = ()

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.forward_ns)

    def fetched(self) -> PipelinePasses:
        """Return the same with devices that stand still while they fetch what they receive.

        Fetching begins when a device comes to the pass and the tensor is there, so it is a part of that pass.
        """
        forward = map(sum, zip(self.forward_ns, (0, *self.activation_ns), strict=True))
        backward = map(sum, zip(self.backward_ns, (*self.gradient_ns, 0), strict=True))
        nothing = (0,) * (self.stages - 1)
        return replace(
            self,
            forward_ns=tuple(forward),
            backward_ns=tuple(backward),
            activation_ns=nothing,
            gradient_ns=nothing,
        )
