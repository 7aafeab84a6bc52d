"""(7) ``memory``: every stage fits into the smallest device of its group (``formulation.costs.memory``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from formulation.constraints.keys import Key, Written
from formulation.constraints.loosening import Limit, Slack, count, overfull, size_text
from formulation.constraints.violation import Violation, devices_of
from formulation.problem.constraints import Constraint

if TYPE_CHECKING:
    from formulation.problem.instance import Instance
    from formulation.problem.plan import Plan

__all__ = ["enough_bytes", "memory_slack", "more_memory"]


@dataclass(frozen=True, slots=True)
class Memory(Constraint):
    """Whether memory is limited."""

    number, rule, rank, asked = 7, "memory", 50, True
    key = Key("memory", Written.FLAG, "every stage fits into the memory of its devices", True, place=1)

    memory: bool = False

    def check(self, instance: Instance, plan: Plan) -> Iterator[Violation]:
        """(7) Every stage fits into the memory of the smallest device of its group, where memory is limited."""
        from formulation.costs.memory import capacity_bytes, stage_memory

        for index, stage in enumerate(plan.stages if self.memory else ()):
            needed, capacity = stage_memory(instance, plan, index).total, capacity_bytes(instance, stage.group)
            if needed > capacity:
                over = (needed - capacity) / (1 << 30)
                each = f"each of {devices_of(instance, stage.group.counts)}"
                message = (
                    f"stage {index} needs {size_text(needed)} on {each}, which have {size_text(capacity)}:"
                    f" {over:.2f} GiB too much"
                )
                yield Violation("memory", f"stage {index}", needed, capacity, "bytes", message)

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield the memory of each device class."""
        if not self.memory:
            return
        reserved = dict(instance.demands.reserve)
        for name in dict.fromkeys(one.name for one in instance.device_classes):
            rows = [(at, row) for at, row in enumerate(instance.servers) if row.device_class.name == name]
            devices = sum(row.devices for _, row in rows)
            memory = max(row.device_class.memory_bytes + reserved.get(at, 0) for at, row in rows)
            words = f"each of the {count(devices, 'device')} of {name} has {size_text(memory)} of memory"
            slack = memory_slack((name,))
            yield Limit(f"cluster.devices.{name}.memory", words, "memory", name, slack)

    def without(self, gone: Collection[tuple[str, int | str]], instance: Instance) -> Mapping[str, Any]:
        """Return nothing: the limits are those of the cluster (:func:`more_memory`)."""
        return {}


def more_memory(instance: Instance, classes: Iterable[str], more: int) -> Instance:
    """Return the instance with so many bytes more on every device of the named classes."""
    from formulation.problem.demands import with_servers

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
    from formulation.costs.memory import Keeps, undivided
    from formulation.costs.times import cut_bytes
    from formulation.problem.modes import ONE_COPY

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
        used=lambda at, plan: overfull(at, plan, lambda one: at.servers[one].device_class.name in classes),
        say=lambda more: f"{size_text(more)} more memory on each device of {names}",
        unit="bytes",
    )
