"""(17) ``equal_stages``: all stages have equally many devices, in equally many replicas."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipecut.formulation.constraints.constraint import Constraint, Limit, Violation
from pipecut.formulation.problem.constraints import Key, Sharded, Written

if TYPE_CHECKING:
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan


@dataclass(frozen=True, slots=True)
class EqualStages(Constraint):
    """Whether all stages share their work alike, as programs want it that know one degree for all of them.

    With ``one_mode`` they do in all else, too, as a program is told it once: a scenario asks for it with the
    program that runs the plan. Replicas then get equally many samples of a micro-batch, and stages compute single
    blocks again all or none. Raises ValueError for one mode of stages that need not be equal.
    """

    number, rule, rank = 17, "equal_stages", 65
    key = Key(
        "equal_stages",
        Written.FLAG,
        "whether all stages have equally many devices, in equally many replicas",
        default=False,
    )

    equal_stages: bool = False
    one_mode: bool = False

    def __post_init__(self) -> None:
        if self.one_mode and not self.equal_stages:
            raise ValueError("one_mode is of equal stages: set equal_stages too")

    @classmethod
    def read(cls, found: Any, names: object) -> Mapping[str, Any]:  # noqa: ANN401
        """Return whether stages are alike."""
        return {"equal_stages": found}

    def check(self, instance: Instance, plan: Plan) -> Iterator[Violation]:
        """(17) Every stage has as many devices and replicas as the first; of one mode, does all as the first."""
        from pipecut.formulation.problem.cuts import single_blocks  # here: a mistake in a scenario needs no graphs

        some = any(stage.again for stage in plan.stages)
        for index, stage in enumerate(plan.stages if self.equal_stages else ()):
            mode, many, first = stage.group.mode, stage.group.replicas, plan.stages[0].group
            rows = [("devices", stage.group.devices, first.devices, ""), ("replicas", many, first.replicas, "")]
            if self.one_mode:
                again, blocks = len(stage.again), len(single_blocks(instance, stage.span, mode))
                alone, samples = many == 1 and mode.sharded is not Sharded.NONE, instance.training.micro_batch
                rows.append(("", int(alone), 0, "divides states among one replica"))
                rows.append(("samples", samples % many, 0, f"has {samples} samples for {many} replicas"))
                rows.append(("", int(mode != first.mode), 0, "shares or keeps its work otherwise than stage 0"))
                rows.append(("blocks", again, blocks * some, f"computes {again} of {blocks} blocks again"))
            for unit, found, limit, words in (row for row in rows if row[1] != row[2]):
                does = words or f"has {found} {unit}, stage 0 {limit}"
                message = f"constraints.{self.rule}: stage {index} {does}"
                yield Violation(self.rule, f"stage {index}", found, limit, unit, message)
                break

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield it, if it is asked for."""
        if self.equal_stages:
            words = "all stages have equally many devices and replicas"
            yield Limit(f"constraints.{self.rule}", words, self.rule)

    def without(self, gone: Collection[tuple[str, int | str]], instance: Instance) -> Mapping[str, Any]:
        """Return that stages may differ."""
        return {"equal_stages": False, "one_mode": False} if (self.rule, 0) in gone else {}
