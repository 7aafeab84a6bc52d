"""(15) ``at_most``: no goal has a value above its limit: a required throughput, a deadline, a budget."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipecut.formulation.constraints.constraint import Constraint, Limit, Slack, Violation, changed
from pipecut.formulation.problem.constraints import Goal, Key, Keyed, Written

if TYPE_CHECKING:
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan

SECTION = Keyed(
    "AtMostSection",
    "Limits on what plans are judged by.",
    (
        Key("bottleneck", Written.DURATION, "steady-state time of a micro-batch, like '20 ms'"),
        Key("iteration_time", Written.DURATION, "time of an optimiser step, like '2 s'"),
        Key("cost", Written.PRICE, "price of all devices for an hour: a budget, like 24.8"),
        Key("memory", Written.MEMORY, "largest peak of any device, like '9 GiB'"),
        Key("devices", Written.WHOLE, "how many devices a plan takes"),
        Key("stages", Written.WHOLE, "how many stages a plan has"),
    ),
)


@dataclass(frozen=True, slots=True)
class GoalLimit:
    """A value that a goal may not exceed, in the goal's unit (a budget, a required throughput, a deadline)."""

    goal: Goal
    at_most: int

    def __post_init__(self) -> None:
        if self.at_most < 0:
            raise ValueError(f"at_most.{self.goal} is {self.at_most}, expected 0 or more")


@dataclass(frozen=True, slots=True)
class AtMost(Constraint):
    """Limits on goals, at most one for each."""

    number, rule, rank, demand = 15, "at_most", 90, False
    key = Key("at_most", SECTION, "limits on what plans are judged by")

    at_most: tuple[GoalLimit, ...] = ()

    def __post_init__(self) -> None:
        if len({limit.goal for limit in self.at_most}) < len(self.at_most):
            raise ValueError("at_most: a goal has two limits")

    @classmethod
    def read(cls, found: Any, names: object) -> Mapping[str, Any]:  # noqa: ANN401
        """Return the limits that are written, in the order of goals."""
        limits = ((goal, getattr(found, goal)) for goal in Goal if not goal.executed)
        return {"at_most": tuple(GoalLimit(goal, most) for goal, most in limits if most is not None)}

    def check(self, instance: Instance, plan: Plan) -> Iterator[Violation]:
        """(15) No goal has a value above its limit."""
        from pipecut.formulation.costs.amounts import goal_amount
        from pipecut.formulation.costs.goals import goal_value
        from pipecut.formulation.costs.prices import stage_costs

        for limit in self.at_most:
            value, unit = goal_value(limit.goal, instance, plan, stage_costs(instance, plan)), limit.goal.unit
            if value > limit.at_most:
                found, most = goal_amount(limit.goal, value), goal_amount(limit.goal, limit.at_most)
                message = f"constraints.at_most.{limit.goal}: the plan has {found}, expected at most {most}"
                yield Violation("at_most", "plan", value, limit.at_most, unit, message)

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield each limit."""
        for limit in self.at_most:
            path = f"constraints.at_most.{limit.goal}"
            yield Limit(path, goal_limit(instance, limit), "at_most", limit.goal, _slack(limit))

    def without(self, gone: Collection[tuple[str, int | str]], instance: Instance) -> Mapping[str, Any]:
        """Return the other limits."""
        return {"at_most": tuple(limit for limit in self.at_most if ("at_most", limit.goal) not in gone)}

    def numbers(self) -> Mapping[str, int]:
        """Return each limit."""
        return {f"at_most.{limit.goal}": limit.at_most for limit in self.at_most}


def goal_limit(instance: Instance, limit: GoalLimit) -> str:
    """Say what a limit on a goal asks for."""
    from pipecut.formulation.costs.amounts import goal_amount
    from pipecut.formulation.problem.options import Combine

    most = goal_amount(limit.goal, limit.at_most)
    slowest = "the slowest stage or boundary takes"
    if instance.cost.combine is not Combine.MAX:
        slowest = "all stages and boundaries together take"
    return {
        Goal.BOTTLENECK: f"{slowest} at most {most} for one micro-batch",
        Goal.ITERATION_TIME: f"one optimiser step takes at most {most}",
        Goal.STEP_TIME: f"one optimiser step, as executed, takes at most {most}",
        Goal.PERIOD: f"one micro-batch in the steady state, as executed, takes at most {most}",
        Goal.COST: f"all devices that stages take cost at most {most} ({_prices(instance)})",
        Goal.MEMORY: f"no device holds more than {most}",
        Goal.DEVICES: f"stages take at most {most} (the cluster has {instance.devices})",
        Goal.STAGES: f"at most {most}",
    }[limit.goal]


def _prices(instance: Instance) -> str:
    """Say what the cheapest device costs, and all devices together."""
    from pipecut.formulation.costs.amounts import price

    prices = [(server.device_class.price_per_hour, server.devices) for server in instance.servers]
    least, whole = min(prices)[0], sum(price * devices for price, devices in prices)
    return f"the cheapest device {price(least)}, all {instance.devices} together {price(whole)}"


def _slack(limit: GoalLimit) -> Slack:
    """Return how the limit on a goal is loosened."""
    from pipecut.formulation.costs.amounts import goal_amount
    from pipecut.formulation.costs.goals import goal_value
    from pipecut.formulation.costs.prices import stage_costs

    goal = limit.goal

    def by(at: Instance, more: int) -> Instance:
        rows = (replace(row, at_most=row.at_most + more * (row.goal is goal)) for row in at.constraints.at_most)
        return changed(at, at_most=tuple(rows))

    def used(at: Instance, plan: Plan) -> int:
        value = goal_value(goal, at, plan, stage_costs(at, plan))
        return max(0, value - sum(row.at_most for row in at.constraints.at_most if row.goal is goal))

    def say(more: int) -> str:
        raised = goal_amount(goal, limit.at_most + more)
        return f"raise constraints.at_most.{goal} by {goal_amount(goal, more)}, to {raised}"

    return Slack(by=by, used=used, say=say, unit=goal.unit)
