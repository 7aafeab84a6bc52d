"""(7) ``memory``: every stage fits into the smallest device of its group (``formulation.costs.memory``).

With a margin it fits also if it takes that share more than is predicted: a device then offers its memory, without
what is reserved, over one more than the margin, rounded down (``formulation.problem.demands.lessened``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from pipecut.formulation.constraints.constraint import (
    Constraint,
    Limit,
    Slack,
    Violation,
    count,
    devices_of,
    overfull,
    size_text,
)
from pipecut.formulation.problem.constraints import Key, Keyed, Written
from pipecut.formulation.problem.units import ceil_fraction

if TYPE_CHECKING:
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan

NO_MARGIN = Fraction(0)
MARGIN = Key("margin", Written.RATIO, "by which share more than predicted a stage may take", required=True)


@dataclass(frozen=True, slots=True)
class Memory(Constraint):
    """Whether memory is limited, and by which share a stage may take more than is predicted, at most twice."""

    number, rule, rank, asked = 7, "memory", 50, True
    key = Key(
        "memory",
        (Written.FLAG, Keyed("MemorySection", "How memory is limited.", (MARGIN,))),
        "every stage fits into the memory of its devices: true, false, or with a margin",
        True,
        place=1,
    )

    memory: bool = False
    memory_margin: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        if not 0 <= self.memory_margin <= 1:
            raise ValueError(f"memory_margin is {self.memory_margin}, expected 0 to 1")

    @classmethod
    def read(cls, found: Any, names: object) -> Mapping[str, Any]:  # noqa: ANN401
        """Return whether memory is limited, and the margin where one is given."""
        if isinstance(found, bool):
            return {"memory": found}
        return {"memory": True, "memory_margin": found.margin}

    @classmethod
    def mistakes(cls, found: Any, names: object) -> Iterator[tuple[tuple[str | int, ...], str]]:  # noqa: ANN401
        """Yield a margin above 1."""
        margin = getattr(found, "margin", None)
        if margin is not None and margin > 1:
            yield ("margin",), f"expected at most 1, twice the predicted memory, got {float(margin):g}"

    def check(self, instance: Instance, plan: Plan) -> Iterator[Violation]:
        """(7) Every stage fits into the memory of the smallest device of its group, where memory is limited."""
        from pipecut.formulation.costs.prices import stage_costs

        costs = stage_costs(instance, plan)[: instance.training.ranks(len(plan))] if self.memory else ()
        for index, (stage, cost) in enumerate(zip(plan.stages, costs, strict=False)):
            needed, capacity = cost.memory_bytes, cost.capacity_bytes
            if needed > capacity:
                each = f"each of {devices_of(instance, stage.group.counts)}"
                left = f" beside a margin of {float(100 * self.memory_margin):g} %" if self.memory_margin else ""
                held = instance.training.stages_of(index, len(plan))
                where = f"stage {index} needs" if len(held) == 1 else f"stages {', '.join(map(str, held))} need"
                message = (
                    f"{where} {size_text(needed)} on {each}, which have {size_text(capacity)}{left}:"
                    f" {size_text(needed - capacity)} too much"
                )
                yield Violation("memory", f"stage {index}", needed, capacity, "bytes", message)

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield the memory of each device class, and the margin."""
        if not self.memory:
            return
        if self.memory_margin:
            words = f"a stage may take {float(100 * self.memory_margin):g} % more memory than is predicted"
            yield Limit("constraints.memory.margin", words, "memory_margin")
        for name in dict.fromkeys(one.name for one in instance.device_classes):
            rows = [row for row in instance.cluster.servers if row.device_class.name == name]
            devices = sum(row.devices for row in rows)
            memory = max(row.device_class.memory_bytes for row in rows)
            words = f"each of the {count(devices, 'device')} of {name} has {size_text(memory)} of memory"
            slack = memory_slack((name,), self.memory_margin)
            yield Limit(f"cluster.devices.{name}.memory", words, "memory", name, slack)

    def without(self, gone: Collection[tuple[str, int | str]], instance: Instance) -> Mapping[str, Any]:
        """Return the margin; the other limits are those of the cluster (:func:`more_memory`)."""
        return {"memory_margin": Fraction(0)} if ("memory_margin", 0) in gone else {}


def more_memory(instance: Instance, classes: Iterable[str], more: int) -> Instance:
    """Return the instance with so many bytes more on every device of the named classes."""
    from pipecut.formulation.problem.instance import with_servers

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
    from pipecut.formulation.costs.bulk.crossing import crossing_bytes
    from pipecut.formulation.costs.memory import MemoryParts
    from pipecut.formulation.problem.modes import ONE_COPY
    from pipecut.formulation.schedules.keeps import Keeps

    slots = min(len(instance.layers), instance.training.chunks * instance.devices)
    kept = max(slots, instance.training.micro_batches)
    most = Keeps(versions=max(slots, 2), in_flight=kept, again=kept)
    received = max(crossing_bytes(instance))
    # Every layer divides its parts among the devices and rounds them up: less than a byte for each part.
    stage = replace(MemoryParts.undivided(instance), received=received).times(most, ONE_COPY).total
    return instance.training.chunks * stage + 1


def memory_slack(classes: Sequence[str], margin: Fraction = NO_MARGIN) -> Slack:
    """Return how the memory of all devices of these classes is loosened, by the same number of bytes.

    They count without the margin, which is in the words.
    """
    names = " and ".join(classes)
    return Slack(
        by=lambda at, more: more_memory(at, classes, more),
        used=lambda at, plan: overfull(at, plan, lambda one: at.servers[one].device_class.name in classes),
        say=lambda more: f"{size_text(ceil_fraction(more * (1 + margin)))} more memory on each device of {names}",
        unit="bytes",
    )
