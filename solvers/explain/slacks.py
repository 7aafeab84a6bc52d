"""How limits are loosened by a number: so many bytes, stages or servers more or less."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from formulation.costs.goals import UNITS, goal_value
from formulation.costs.memory import Keeps, undivided
from formulation.costs.prices import stage_costs
from formulation.costs.times import cut_bytes
from formulation.evaluate import evaluate
from formulation.problem.amounts import goal_amount
from formulation.problem.demands import with_constraints, with_servers
from formulation.problem.instance import Instance
from formulation.problem.modes import ONE_COPY
from formulation.problem.options import GoalLimit
from formulation.problem.plan import Plan
from solvers.explain.limit_words import count, size_text


@dataclass(frozen=True, slots=True)
class Slack:
    """How a limit is loosened: ``by`` returns the instance with so much more room.

    ``used`` returns how much more room a plan needs; more never hurts. ``say`` puts an amount into words.
    """

    by: Callable[[Instance, int], Instance]
    used: Callable[[Instance, Plan], int]
    say: Callable[[int], str]
    unit: str


def more_memory(instance: Instance, classes: Iterable[str], more: int) -> Instance:
    """Return the instance with so many bytes more on every device of the named classes."""
    chosen = set(classes)
    return with_servers(
        instance,
        [
            replace(server, device_class=replace(one, memory_bytes=one.memory_bytes + more * (one.name in chosen)))
            for server, one in ((server, server.device_class) for server in instance.servers)
        ],
    )


def enough_bytes(instance: Instance) -> int:
    """Return an amount of memory in which any stage of any plan fits, nothing divided."""
    slots = min(len(instance.layers), instance.devices)
    most = Keeps(versions=max(slots, 2), in_flight=max(slots, instance.training.micro_batches))
    received = max(cut_bytes(instance, cut) for cut in range(len(instance.layers) + 1))
    # Every layer divides its parts among the devices and rounds them up: less than a byte for each part.
    return replace(undivided(instance), received=received).times(most, ONE_COPY).total + 1


def memory_slack(classes: Sequence[str]) -> Slack:
    """Return how the memory of all devices of these classes is loosened, by the same number of bytes."""
    names = " and ".join(classes)
    return Slack(
        by=lambda at, more: more_memory(at, classes, more),
        used=lambda at, plan: _over(at, plan, lambda one: at.servers[one].device_class.name in classes),
        say=lambda more: f"{size_text(more)} more memory on each device of {names}",
        unit="bytes",
    )


def number_slack(name: str, words: str, sign: int, measure: Callable[[Plan], int]) -> Slack:
    """Return how a number of the constraints is loosened: upwards (sign 1) or downwards (-1)."""

    def by(at: Instance, more: int) -> Instance:
        changed: dict[str, Any] = {name: max(1, getattr(at.constraints, name) + sign * more)}
        return with_constraints(at, replace(at.constraints, **changed))

    return Slack(
        by=by,
        used=lambda at, plan: max(0, sign * (measure(plan) - getattr(at.constraints, name))),
        say=lambda more: words.format(count(more, "stage" if "stages" in name else "server")),
        unit="stages" if "stages" in name else "servers",
    )


def reserve_slack(server: str) -> Slack:
    """Return how a reserve is lowered."""

    def by(at: Instance, more: int) -> Instance:
        rows = tuple(
            replace(row, memory_bytes=max(0, row.memory_bytes - more)) if row.server == server else row
            for row in at.constraints.reserve
        )
        return with_constraints(at, replace(at.constraints, reserve=rows))

    return Slack(
        by=by,
        used=lambda at, plan: _over(at, plan, lambda one: at.servers[one].name == server),
        say=lambda more: f"reserve {size_text(more)} less on each device of {server}",
        unit="bytes",
    )


def goal_slack(limit: GoalLimit) -> Slack:
    """Return how the limit on a goal is loosened."""
    goal = limit.goal

    def by(at: Instance, more: int) -> Instance:
        rows = (replace(row, at_most=row.at_most + more * (row.goal is goal)) for row in at.constraints.at_most)
        return with_constraints(at, replace(at.constraints, at_most=tuple(rows)))

    def used(at: Instance, plan: Plan) -> int:
        value = goal_value(goal, at, plan, stage_costs(at, plan))
        return max(0, value - sum(row.at_most for row in at.constraints.at_most if row.goal is goal))

    def say(more: int) -> str:
        raised = goal_amount(goal, limit.at_most + more)
        return f"raise constraints.at_most.{goal} by {goal_amount(goal, more)}, to {raised}"

    return Slack(by=by, used=used, say=say, unit=UNITS[goal])


def _over(at: Instance, plan: Plan, counts: Callable[[int], bool]) -> int:
    """Return by how many bytes the fullest device of the servers that count is over its memory, or 0."""
    over = [
        cost.memory_bytes - at.servers[server].device_class.memory_bytes
        for stage, cost in zip(plan.stages, evaluate(at, plan).stages, strict=True)
        for server, _ in stage.group.counts
        if counts(server)
    ]
    return max(0, *over) if over else 0
