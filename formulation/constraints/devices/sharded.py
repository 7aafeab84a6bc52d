"""``sharded``: what devices with the same weights divide among them. A part of rule 2 (``devices``)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipecut.formulation.constraints.constraint import Constraint, Limit, Violation
from pipecut.formulation.problem.constraints import Goal, Key, Listed, Sharded

if TYPE_CHECKING:
    from pipecut.formulation.problem.groups import Group
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan


@dataclass(frozen=True, slots=True)
class ShardedKinds(Constraint):
    """What devices that hold the same weights may divide among them; each stage has one of these kinds.

    A stage of one device divides nothing, whatever is listed; nor does a single replica where a program is told
    of all stages at once, as it divides among replicas.
    """

    rule, rank, asked = "devices", 35, True
    key = Key(
        "sharded",
        Listed(Sharded, 1),
        "what devices with the same weights may divide among them, like [none, weights] (ZeRO, FSDP)",
        (Sharded.NONE,),
    )

    sharded: tuple[Sharded, ...] = (Sharded.NONE,)

    def __post_init__(self) -> None:
        if not self.sharded:
            raise ValueError(f"sharded lists nothing, expected some of {', '.join(Sharded)}")

    @classmethod
    def read(cls, found: Any, names: object) -> Mapping[str, Any]:  # noqa: ANN401
        """Return the kinds, each once."""
        return {"sharded": tuple(one for one in Sharded if one in found)}

    @property
    def limits(self) -> bool:
        """To divide nothing is what solvers that do not know of it do."""
        return Sharded.NONE not in self.sharded

    def check_stage(self, instance: Instance, index: int, group: Group) -> Iterator[Violation]:
        """Yield a stage that divides what it may not."""
        told = instance.constraints.one_mode
        alone = (group.replicas if told else group.devices) == 1
        allowed = (Sharded.NONE,) if alone else self.sharded
        if group.mode.sharded not in allowed:
            single = f"a single {'replica' if told else 'device'} can only have"
            why = single if alone else "constraints.sharded allows"
            message = f"stage {index} has sharded '{group.mode.sharded}', {why} {', '.join(allowed)}"
            found, expected = _place(group.mode.sharded), _place(allowed[-1])
            yield Violation("devices", f"stage {index}", found, expected, "", message)

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield a list that was written: dividing more takes less memory, and less often less time."""
        judged = {limit.goal for limit in instance.constraints.at_most}
        binds = instance.constraints.memory or judged & {Goal.MEMORY, Goal.BOTTLENECK, Goal.ITERATION_TIME}
        if binds and set(self.sharded) not in ({Sharded.NONE}, set(Sharded)):
            words = f"a stage divides {' or '.join(self.sharded)} among devices with the same weights"
            yield Limit("constraints.sharded", words, "sharded", remedy=self._more)

    def _more(self, plan: Plan) -> str:
        used = {stage.group.mode.sharded for stage in plan.stages if stage.group.devices > 1}
        missing = " and ".join(one for one in Sharded if one in used - set(self.sharded))
        return f"add {missing} to constraints.sharded" if missing else "list more in constraints.sharded"

    def without(self, gone: Collection[tuple[str, int | str]], instance: Instance) -> Mapping[str, Any]:
        """Return that stages may divide anything."""
        return {"sharded": tuple(Sharded)} if ("sharded", 0) in gone else {}


def _place(kind: Sharded) -> int:
    """Return a number for a kind, from 1: how much it divides."""
    return tuple(Sharded).index(kind) + 1
