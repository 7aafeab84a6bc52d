"""``tensor_parallel_degrees``: over how many devices a replica may be split. A part of rule 2 (``devices``)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipecut.formulation.constraints.constraint import Constraint, Limit, Violation, one_of
from pipecut.formulation.problem.constraints import Key, Listed, Written, at_least_one

if TYPE_CHECKING:
    from pipecut.formulation.problem.groups import Group
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan


@dataclass(frozen=True, slots=True)
class TensorParallelDegrees(Constraint):
    """Over how many devices one replica of a stage may be split; the stage's other devices hold more replicas.

    Empty: one replica on all devices of a stage.
    """

    rule, rank, asked = "devices", 40, True
    key = Key(
        "tensor_parallel_degrees",
        Listed(Written.WHOLE, 1),
        "how many devices one replica of a stage may have, like [1, 2, 4]; the rest are more replicas",
    )

    tensor_parallel_degrees: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        at_least_one("tensor_parallel_degrees", self.tensor_parallel_degrees)

    @classmethod
    def read(cls, found: Any, names: object) -> Mapping[str, Any]:  # noqa: ANN401
        """Return the degrees, each once."""
        return {"tensor_parallel_degrees": tuple(sorted(set(found or ())))}

    def check_stage(self, instance: Instance, index: int, group: Group) -> Iterator[Violation]:
        """Yield a stage whose replicas do not share its devices evenly, or have a degree that is not allowed."""
        degree, allowed = group.tensor_parallel_degree, self.tensor_parallel_degrees or (group.devices,)
        if group.replicas * degree != group.devices or degree not in allowed:
            listed = ", ".join(map(str, allowed))
            copies = "1 replica" if group.replicas == 1 else f"{group.replicas} replicas"
            message = (
                f"stage {index} has {copies} on {group.devices} devices,"
                f" expected a tensor-parallel degree of {listed}"
            )
            yield Violation("devices", f"stage {index}", group.replicas, group.devices, "replicas", message)

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield the whole list, unless it has every degree there is."""
        name = "tensor_parallel_degrees"
        if self.tensor_parallel_degrees and {*range(1, instance.devices + 1)} - {*self.tensor_parallel_degrees}:
            words = f"a replica of a stage has {one_of(self.tensor_parallel_degrees, 'device')}"
            yield Limit(f"constraints.{name}", words, name, remedy=self._more)

    def _more(self, plan: Plan) -> str:
        used = {stage.group.tensor_parallel_degree for stage in plan.stages}
        missing = " and ".join(map(str, sorted(used - set(self.tensor_parallel_degrees))))
        return f"add {missing} to constraints.tensor_parallel_degrees"

    def without(self, gone: Collection[tuple[str, int | str]], instance: Instance) -> Mapping[str, Any]:
        """Return every degree there could be."""
        name = "tensor_parallel_degrees"
        return {name: tuple(range(1, instance.devices + 1))} if (name, 0) in gone else {}
