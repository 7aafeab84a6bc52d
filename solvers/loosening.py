"""The limits of an instance one by one: what each says, how to leave it out, and how to loosen it by a number.

What always holds is no limit here: layers lie in stages in order, servers give the devices that they have, and a
layer takes a form that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from formulation.demands import with_constraints, with_servers
from formulation.evaluate import evaluate
from formulation.groups import possible_groups
from formulation.instance import Instance
from formulation.memory import optimizer_bytes
from formulation.options import Placement
from formulation.plan import Plan
from formulation.times import cut_bytes
from solvers import limit_words
from solvers.limit_words import count, size_text

MOST_FREE_GROUPS = 2_000
"""Device groups above which the placement is taken as given rather than loosened."""
LISTED = ("pins", "together", "apart", "no_cut", "forms", "reserve", "own")
"""Fields of Constraints with one limit for each entry."""
PATHS = {"pins": "pin"}
"""Fields of Constraints that a scenario calls otherwise."""


@dataclass(frozen=True, slots=True)
class Slack:
    """How a limit is loosened: ``by`` returns the instance with so much more room.

    ``used`` returns how much more room a plan needs; more never hurts. ``say`` puts an amount into words.
    """

    by: Callable[[Instance, int], Instance]
    used: Callable[[Instance, Plan], int]
    say: Callable[[int], str]
    unit: str


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
    return tuple([*_placement(instance), *_memory(instance), *_numbers(instance), *_listed(instance)])


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
    loose = with_constraints(instance, replace(old, **new))
    return more_memory(loose, {str(name) for kind, name in gone if kind == "memory"}, enough_bytes(instance))


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
    kept = max(slots, instance.training.micro_batches)
    weights = (slots + 1) * sum(instance.parameter_bytes)
    state = sum(optimizer_bytes(instance, layer) for layer in range(len(instance.layers)))
    received = max(cut_bytes(instance, cut) for cut in range(len(instance.layers) + 1))
    working = max(2 * (a + b) for a, b in zip(instance.input_bytes, instance.output_bytes, strict=True))
    # Every layer divides its parts among the devices and rounds them up: less than a byte for each part.
    return weights + state + kept * (sum(instance.stash_bytes) + received) + working + 1


def memory_slack(classes: Sequence[str]) -> Slack:
    """Return how the memory of all devices of these classes is loosened, by the same number of bytes."""
    names = " and ".join(classes)
    return Slack(
        by=lambda at, more: more_memory(at, classes, more),
        used=lambda at, plan: _over(at, plan, lambda one: at.servers[one].device_class.name in classes),
        say=lambda more: f"{size_text(more)} more memory on each device of {names}",
        unit="bytes",
    )


def _placement(instance: Instance) -> Iterator[Limit]:
    constraints = instance.constraints
    if constraints.placement is Placement.LINE and _can_be_free(instance):
        line = ", ".join(f"{server.devices} of {server.name}" for server in instance.servers)
        words = f"each stage takes the next devices of the line ({line})"
        yield Limit("constraints.placement", words, "placement")
    if constraints.max_servers is not None:
        words = f"a stage stretches over at most {count(constraints.max_servers, 'server')}"
        slack = _number("max_servers", "let a stage stretch over {} more", 1, _servers)
        yield Limit("constraints.max_servers", words, "max_servers", slack=slack)


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
        allowed = " or ".join(map(str, instance.demands.devices_per_stage))
        words = f"a stage has {allowed} devices ({have})"
        yield Limit("constraints.devices_per_stage", words, "devices_per_stage")
    if constraints.stages_at_most is not None:
        words = f"at most {count(constraints.stages_at_most, 'stage')} ({have})"
        slack = _number("stages_at_most", "allow {} more", 1, len)
        yield Limit("constraints.stages.at_most", words, "stages_at_most", slack=slack)
    if constraints.stages_at_least is not None:
        words = f"at least {count(constraints.stages_at_least, 'stage')} ({have})"
        slack = _number("stages_at_least", "ask for {} fewer", -1, len)
        yield Limit("constraints.stages.at_least", words, "stages_at_least", slack=slack)


def _number(name: str, words: str, sign: int, measure: Callable[[Plan], int]) -> Slack:
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


def _listed(instance: Instance) -> Iterator[Limit]:
    """Yield the limits that are lists: narrowing ones first, pins and the user's own last."""
    constraints = instance.constraints
    for at, row in enumerate(constraints.reserve):
        path = f"constraints.reserve.{row.server}"
        yield Limit(path, limit_words.reserve(row), "reserve", at, _reserve_slack(row.server))
    for name in ("forms", "no_cut", "together", "apart", "pins", "own"):
        for at in range(len(getattr(constraints, name))):
            words = limit_words.LISTED[name](instance, at)
            yield Limit(f"constraints.{PATHS.get(name, name)}[{at}]", words, name, at)


def _reserve_slack(server: str) -> Slack:
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


def _over(at: Instance, plan: Plan, counts: Callable[[int], bool]) -> int:
    """Return by how many bytes the fullest device of the servers that count is over its memory, or 0."""
    over = [
        cost.memory_bytes - at.servers[server].device_class.memory_bytes
        for stage, cost in zip(plan.stages, evaluate(at, plan).stages, strict=True)
        for server, _ in stage.group.counts
        if counts(server)
    ]
    return max(0, *over) if over else 0
