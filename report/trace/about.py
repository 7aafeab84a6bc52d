"""What slices say of themselves: stage, layers, micro-batch, bytes, and whether they are critical.

``bytes`` is, of a message, what it sends; of a forward pass, what each device holds from then on for the backward
pass; of a backward pass, what each device has no more to hold; of a synchronisation or an update, the weights of
the stage.
"""

from __future__ import annotations

from dataclasses import dataclass

from formulation.costs import times
from formulation.schedules.actions import Kind
from formulation.timeline.critical import critical_chain
from report.simulation import Simulation
from report.trace.events import quoted
from report.wording import printable


@dataclass(frozen=True, slots=True)
class About:
    """The ``args`` of slices, as JSON. ``bytes_of[stage][kind]`` of passes, ``weights[stage]`` of updates."""

    stages: tuple[str, ...]
    bytes_of: tuple[dict[int, int], ...]
    weights: tuple[int, ...]
    cuts: tuple[int, ...]
    critical: frozenset[tuple[int, bool]]

    @classmethod
    def of(cls, simulation: Simulation) -> About:
        """Collect what is the same for all slices of a stage."""
        instance, plan = simulation.instance, simulation.plan
        footprint = simulation.made.footprint
        spans = [stage.span for stage in plan.stages]
        names: list[str] = []
        for index, span in enumerate(spans):
            first, last = (printable(instance.layers[at].name) for at in (span.first, span.stop - 1))
            layers = first if len(span) == 1 else f"{first} … {last} ({len(span)})"
            names.append(f'"stage":{index},"layers":{quoted(layers)}')
        return cls(
            stages=tuple(names),
            bytes_of=tuple(
                {
                    Kind.FORWARD: whole,
                    Kind.BACKWARD: whole,
                    Kind.INPUT_GRADIENT: whole - rest,
                    Kind.WEIGHT_GRADIENT: rest,
                }
                for whole, rest in zip(footprint.stash_bytes, footprint.weight_stash_bytes, strict=True)
            ),
            weights=tuple(sum(instance.parameter_bytes[span.first : span.stop]) for span in spans),
            cuts=tuple(times.cut_bytes(instance, span.first) for span in spans[1:]),
            critical=frozenset((event.entry, event.transfer) for event in critical_chain(simulation.timeline)),
        )

    def entry(self, at: int, stage: int, kind: int, micro_batch: int) -> str:
        """Return the args of a pass, a synchronisation or an update."""
        size = self.bytes_of[stage].get(kind, self.weights[stage])
        return self._args(f"{self.stages[stage]}", micro_batch, size, (at, False))

    def message(self, at: int, stage: int, forward: bool, micro_batch: int) -> str:
        """Return the args of the message that an entry of a stage sends."""
        to, boundary = (stage + 1, stage) if forward else (stage - 1, stage - 1)
        return self._args(f'{self.stages[stage]},"to_stage":{to}', micro_batch, self.cuts[boundary], (at, True))

    def _args(self, head: str, micro_batch: int, size: int, step: tuple[int, bool]) -> str:
        critical = "true" if step in self.critical else "false"
        return f'{{{head},"micro_batch":{micro_batch},"bytes":{size},"critical":{critical}}}'
