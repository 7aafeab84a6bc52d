"""(17) ``equal_stages``: all stages have equally many devices, in equally many replicas."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipecut.formulation.constraints.constraint import Constraint, Limit, Violation
from pipecut.formulation.problem.constraints import Key, Written

if TYPE_CHECKING:
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan


@dataclass(frozen=True, slots=True)
class EqualStages(Constraint):
    """Whether all stages share their work alike, as programs want it that know one degree for all of them.

    With ``equal_samples`` each replica also gets equally many samples of a micro-batch: a scenario asks for it
    with the program that runs the plan.
    """

    number, rule, rank = 17, "equal_stages", 65
    key = Key(
        "equal_stages",
        Written.FLAG,
        "whether all stages have equally many devices, in equally many replicas",
        default=False,
    )

    equal_stages: bool = False
    equal_samples: bool = False

    @classmethod
    def read(cls, found: Any, names: object) -> Mapping[str, Any]:  # noqa: ANN401
        """Return whether stages are alike."""
        return {"equal_stages": found}

    def check(self, instance: Instance, plan: Plan) -> Iterator[Violation]:
        """(17) Every stage has as many devices and replicas as the first, and replicas equally many samples."""
        samples = instance.training.micro_batch
        for index, stage in enumerate(plan.stages if self.equal_samples else ()):
            many = stage.group.replicas
            if samples % many:
                message = f"stage {index}: {many} replicas share micro-batches of {samples} samples unequally"
                yield Violation(self.rule, f"stage {index}", many, samples, "replicas", message)
        for index, stage in enumerate(plan.stages if self.equal_stages else ()):
            first = plan.stages[0].group
            for unit, found, wanted in (
                ("devices", stage.group.devices, first.devices),
                ("replicas", stage.group.replicas, first.replicas),
            ):
                if found != wanted:
                    message = f"constraints.{self.rule}: stage {index} has {found} {unit}, stage 0 {wanted}"
                    yield Violation(self.rule, f"stage {index}", found, wanted, unit, message)
                    break

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield it, if it is asked for."""
        if self.equal_stages:
            words = "all stages have equally many devices and replicas"
            yield Limit(f"constraints.{self.rule}", words, self.rule)

    def without(self, gone: Collection[tuple[str, int | str]], instance: Instance) -> Mapping[str, Any]:
        """Return that stages may differ."""
        return {"equal_stages": False, "equal_samples": False} if (self.rule, 0) in gone else {}
