"""(13) ``devices_per_stage``: every stage has one of these numbers of devices."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipecut.formulation.constraints.constraint import Constraint, Limit, Violation, one_of, sizes
from pipecut.formulation.problem.constraints import Key, Listed, Written, at_least_one

if TYPE_CHECKING:
    from pipecut.formulation.problem.constraints import Lookup
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan


@dataclass(frozen=True, slots=True)
class DevicesPerStage(Constraint):
    """How many devices a stage may have; empty: any number."""

    number, rule, rank = 13, "devices_per_stage", 60
    key = Key("devices_per_stage", Listed(Written.WHOLE, 1), "how many devices a stage may have, like [1, 2, 4]")

    devices_per_stage: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        at_least_one("devices_per_stage", self.devices_per_stage)

    def resolve(self, look: Lookup) -> Mapping[str, Any]:
        """Return the numbers, each once."""
        return {"devices_per_stage": tuple(sorted(set(self.devices_per_stage)))}

    def check(self, instance: Instance, plan: Plan) -> Iterator[Violation]:
        """(13) The number of devices of a stage is one of those allowed."""
        allowed = self.devices_per_stage
        for index, stage in enumerate(plan.stages if allowed else ()):
            devices = stage.group.devices
            if devices not in allowed:
                listed = ", ".join(map(str, allowed))
                message = (
                    f"constraints.devices_per_stage: stage {index} has {devices} devices, expected one of {listed}"
                )
                nearest = min(allowed, key=lambda one: abs(one - devices))
                yield Violation("devices_per_stage", f"stage {index}", devices, nearest, "devices", message)

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield the whole list, unless it has every number there is."""
        if self.devices_per_stage and {*range(1, instance.devices + 1)} - {*self.devices_per_stage}:
            words = f"a stage has {one_of(set(self.devices_per_stage), 'device')} ({sizes(instance)})"
            yield Limit("constraints.devices_per_stage", words, "devices_per_stage")

    def without(self, gone: Collection[tuple[str, int | str]], instance: Instance) -> Mapping[str, Any]:
        """Return that any number is allowed."""
        return {"devices_per_stage": ()} if ("devices_per_stage", 0) in gone else {}
