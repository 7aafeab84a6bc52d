"""The limits of an instance one by one: what each says, how to leave it out, and how to loosen it by a number.

What always holds is no limit here: layers lie in stages in order, servers give the devices that they have, and a
layer takes a form that it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from formulation.problem.demands import with_constraints
from formulation.problem.groups import possible_groups
from formulation.problem.instance import Instance
from formulation.problem.options import Goal, Placement, Recompute
from formulation.problem.plan import Plan
from solvers.explain import limit_words
from solvers.explain.limit_words import count, size_text
from solvers.explain.slacks import (
    Slack,
    enough_bytes,
    goal_slack,
    memory_slack,
    more_memory,
    number_slack,
    reserve_slack,
)

MOST_FREE_GROUPS = 2_000
"""Device groups above which the placement is taken as given rather than loosened."""
LISTED = ("pins", "together", "apart", "no_cut", "forms", "reserve", "own")
"""Fields of Constraints with one limit for each entry."""
PATHS = {"pins": "pin"}
"""Fields of Constraints that a scenario calls otherwise."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit: its path in a scenario file, and what it says, with its numbers.

    ``kind`` (a field of Constraints, or memory) and ``entry`` (an index, or a device class) say which it is;
    ``slack`` is None where no number can be changed.
    """

    path: str
    words: str
    kind: str
    entry: int | str = 0
    slack: Slack | None = field(default=None, repr=False, compare=False)


def limits_of(instance: Instance) -> tuple[Limit, ...]:
    """Return every limit of an instance, those first that an explanation should rather do without."""
    parts = (_placement, _sharing, _memory, _numbers, _judged, _listed)
    return tuple(limit for part in parts for limit in part(instance))


def without(instance: Instance, limits: Iterable[Limit]) -> Instance:
    """Return the instance without some of its limits."""
    gone = {(limit.kind, limit.entry) for limit in limits}
    old = instance.constraints
    new: dict[str, Any] = {}
    for name in LISTED:
        new[name] = tuple(row for at, row in enumerate(getattr(old, name)) if (name, at) not in gone)
    for name, nothing in (("max_servers", None), ("stages_at_least", None), ("stages_at_most", None)):
        new[name] = nothing if (name, 0) in gone else getattr(old, name)
    new["devices_per_stage"] = () if ("devices_per_stage", 0) in gone else old.devices_per_stage
    new["placement"] = Placement.FREE if ("placement", 0) in gone else old.placement
    new["recompute"] = Recompute.ALLOWED if ("recompute", 0) in gone else old.recompute
    if ("tensor_parallel_degrees", 0) in gone:
        new["tensor_parallel_degrees"] = tuple(range(1, instance.devices + 1))
    new["at_most"] = tuple(limit for limit in old.at_most if ("at_most", limit.goal) not in gone)
    loose = with_constraints(instance, replace(old, **new))
    return more_memory(loose, {str(name) for kind, name in gone if kind == "memory"}, enough_bytes(instance))


def _placement(instance: Instance) -> Iterator[Limit]:
    constraints = instance.constraints
    if constraints.placement is Placement.LINE and _can_be_free(instance):
        line = ", ".join(f"{server.devices} of {server.name}" for server in instance.servers)
        words = f"each stage takes the next devices of the line ({line})"
        yield Limit("constraints.placement", words, "placement")
    if constraints.max_servers is not None:
        words = f"a stage stretches over at most {count(constraints.max_servers, 'server')}"
        slack = number_slack("max_servers", "let a stage stretch over {} more", 1, _servers)
        yield Limit("constraints.max_servers", words, "max_servers", slack=slack)


def _sharing(instance: Instance) -> Iterator[Limit]:
    """Yield how stages may work, where that takes something away."""
    constraints = instance.constraints
    if _recompute_binds(instance):
        yield Limit("constraints.recompute", limit_words.recompute(constraints.recompute), "recompute")
    if constraints.tensor_parallel_degrees:
        words = f"a replica of a stage has {limit_words.one_of(constraints.tensor_parallel_degrees, 'device')}"
        yield Limit("constraints.tensor_parallel_degrees", words, "tensor_parallel_degrees")


def _recompute_binds(instance: Instance) -> bool:
    """Tell whether another choice could help: recomputing takes less memory, keeping activations less time."""
    constraints = instance.constraints
    judged = {limit.goal for limit in constraints.at_most}
    if constraints.recompute is Recompute.NEVER:
        return constraints.memory or Goal.MEMORY in judged
    return constraints.recompute is Recompute.ALWAYS and bool(judged & {Goal.BOTTLENECK, Goal.ITERATION_TIME})


def _judged(instance: Instance) -> Iterator[Limit]:
    for limit in instance.constraints.at_most:
        words = limit_words.goal_limit(instance, limit)
        yield Limit(f"constraints.at_most.{limit.goal}", words, "at_most", limit.goal, goal_slack(limit))


def _servers(plan: Plan) -> int:
    return max(len(stage.group.counts) for stage in plan.stages)


def _can_be_free(instance: Instance) -> bool:
    free = replace(instance.constraints, placement=Placement.FREE, max_servers=None)
    try:
        return len(possible_groups(replace(instance, constraints=free))) <= MOST_FREE_GROUPS
    except ValueError:
        return False


def _memory(instance: Instance) -> Iterator[Limit]:
    if not instance.constraints.memory:
        return
    reserved = dict(instance.demands.reserve)
    for name in dict.fromkeys(one.name for one in instance.device_classes):
        rows = [(at, row) for at, row in enumerate(instance.servers) if row.device_class.name == name]
        devices = sum(row.devices for _, row in rows)
        memory = max(row.device_class.memory_bytes + reserved.get(at, 0) for at, row in rows)
        words = f"each of the {count(devices, 'device')} of {name} has {size_text(memory)} of memory"
        slack = memory_slack((name,))
        yield Limit(f"cluster.devices.{name}.memory", words, "memory", name, slack)


def _numbers(instance: Instance) -> Iterator[Limit]:
    constraints = instance.constraints
    have = f"the model has {count(len(instance.layers), 'layer')}, the cluster {count(instance.devices, 'device')}"
    if constraints.devices_per_stage:
        words = f"a stage has {limit_words.one_of(instance.demands.devices_per_stage, 'device')} ({have})"
        yield Limit("constraints.devices_per_stage", words, "devices_per_stage")
    if constraints.stages_at_most is not None:
        words = f"at most {count(constraints.stages_at_most, 'stage')} ({have})"
        slack = number_slack("stages_at_most", "allow {} more", 1, len)
        yield Limit("constraints.stages.at_most", words, "stages_at_most", slack=slack)
    if constraints.stages_at_least is not None:
        words = f"at least {count(constraints.stages_at_least, 'stage')} ({have})"
        slack = number_slack("stages_at_least", "ask for {} fewer", -1, len)
        yield Limit("constraints.stages.at_least", words, "stages_at_least", slack=slack)


def _listed(instance: Instance) -> Iterator[Limit]:
    """Yield the limits that are lists: narrowing ones first, pins and the user's own last."""
    constraints = instance.constraints
    for at, row in enumerate(constraints.reserve):
        path = f"constraints.reserve.{row.server}"
        yield Limit(path, limit_words.reserve(row), "reserve", at, reserve_slack(row.server))
    for name in ("forms", "no_cut", "together", "apart", "pins", "own"):
        for at in range(len(getattr(constraints, name))):
            words = limit_words.LISTED[name](instance, at)
            yield Limit(f"constraints.{PATHS.get(name, name)}[{at}]", words, name, at)
