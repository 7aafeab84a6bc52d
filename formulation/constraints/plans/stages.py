"""(8) ``stages``: the number of stages is within its bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipecut.formulation.constraints.constraint import Constraint, Limit, Violation, count, number_slack, sizes
from pipecut.formulation.problem.constraints import Key, Keyed, Written, at_least_one

if TYPE_CHECKING:
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan

SECTION = Keyed(
    "StagesSection",
    "How many stages a plan may have.",
    (
        Key("at_least", Written.WHOLE, "fewest stages of a plan"),
        Key("at_most", Written.WHOLE, "most stages of a plan"),
    ),
)


@dataclass(frozen=True, slots=True)
class StageCount(Constraint):
    """How many stages a plan has."""

    number, rule, rank = 8, "stages", 70
    key = Key("stages", SECTION, "how many stages a plan may have")

    stages_at_least: int | None = None
    stages_at_most: int | None = None

    def __post_init__(self) -> None:
        least, most = self.stages_at_least, self.stages_at_most
        at_least_one("at_least", least)
        at_least_one("at_most", most)
        if least is not None and most is not None and least > most:
            raise ValueError(f"at least {least} stages and at most {most}: no number is both")

    @property
    def limits(self) -> bool:
        """Every plan has one stage or more."""
        return (self.stages_at_least or 0) > 1 or self.stages_at_most is not None

    @classmethod
    def read(cls, found: Any, names: object) -> Mapping[str, Any]:  # noqa: ANN401
        """Return the two bounds."""
        return {"stages_at_least": found.at_least, "stages_at_most": found.at_most}

    @classmethod
    def mistakes(cls, found: Any, names: object) -> Iterator[tuple[tuple[str | int, ...], str]]:  # noqa: ANN401
        """Yield bounds that leave no number."""
        if found and found.at_least and found.at_most and found.at_least > found.at_most:
            yield ("at_least",), f"at_least {found.at_least} is more than at_most {found.at_most}"

    def check(self, instance: Instance, plan: Plan) -> Iterator[Violation]:
        """(8) The number of stages lies within its bounds."""
        least, most, stages = self.stages_at_least, self.stages_at_most, len(plan)
        if least is not None and stages < least:
            message = f"the plan has {stages} stages, constraints.stages wants at least {least}"
            yield Violation("stages", "plan", stages, least, "stages", message)
        if most is not None and stages > most:
            message = f"the plan has {stages} stages, constraints.stages wants at most {most}"
            yield Violation("stages", "plan", stages, most, "stages", message)

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield the upper and the lower bound."""
        if self.stages_at_most is not None:
            words = f"at most {count(self.stages_at_most, 'stage')} ({sizes(instance)})"
            slack = number_slack("stages_at_most", "allow {} more", "stage", len)
            yield Limit("constraints.stages.at_most", words, "stages_at_most", slack=slack)
        if self.stages_at_least is not None:
            words = f"at least {count(self.stages_at_least, 'stage')} ({sizes(instance)})"
            slack = number_slack("stages_at_least", "ask for {} fewer", "stage", len, sign=-1)
            yield Limit("constraints.stages.at_least", words, "stages_at_least", slack=slack)
