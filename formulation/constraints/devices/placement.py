"""(3) ``placement``: on the line a stage takes the next devices in server order; placed freely, any devices."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipecut.formulation.constraints.constraint import Constraint, Limit, Violation, changed, devices_of
from pipecut.formulation.problem.constraints import Key, Placement

if TYPE_CHECKING:
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan

MOST_FREE_GROUPS = 2_000
"""Device groups above which the placement is taken as given rather than loosened."""


@dataclass(frozen=True, slots=True)
class StagePlacement(Constraint):
    """Which device groups a stage may have."""

    number, rule, rank, asked = 3, "line", 10, True
    key = Key(
        "placement",
        Placement,
        "which devices a stage may have: the next of the line, or any",
        Placement.LINE,
        place=2,
    )

    placement: Placement = Placement.LINE

    @property
    def limits(self) -> bool:
        """The line does."""
        return self.placement is Placement.LINE

    def check(self, instance: Instance, plan: Plan) -> Iterator[Violation]:
        """(3) On the line devices stand in server order; each stage takes the next ones; idle ones come last.

        Where a group holds several stages, it takes them once.
        """
        from pipecut.formulation.problem.groups import Group

        position = 0
        groups = plan.stages[: instance.training.ranks(len(plan))]
        for index, stage in enumerate(groups if self.limits else ()):
            expected = Group.on_line(instance, position, stage.group.devices)
            if expected.counts != stage.group.counts:
                message = (
                    f"stage {index} runs on {devices_of(instance, stage.group.counts)}, but the next "
                    f"{stage.group.devices} of the line are {devices_of(instance, expected.counts)}"
                )
                own = dict(expected.counts)
                found = sum(min(own.get(server, 0), count) for server, count in stage.group.counts)
                where, unit = f"stage {index}", "devices of the line"
                yield Violation("line", where, found, stage.group.devices, unit, message)
            position += stage.group.devices

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield the line, where free placement has not too many groups."""
        if self.limits and can_be_free(instance):
            line = ", ".join(f"{server.devices} of {server.name}" for server in instance.servers)
            words = f"each stage takes the next devices of the line ({line})"
            free = "set constraints.placement to free"
            yield Limit("constraints.placement", words, "placement", remedy=lambda plan: free)

    def without(self, gone: Collection[tuple[str, int | str]], instance: Instance) -> Mapping[str, Any]:
        """Return free placement."""
        return {"placement": Placement.FREE} if ("placement", 0) in gone else {}


def can_be_free(instance: Instance) -> bool:
    """Tell whether free placement is another than the line, with few enough groups of devices to be searched."""
    from pipecut.formulation.problem.groups import Group

    try:
        free = changed(instance, placement=Placement.FREE, max_servers=None)
        return len(instance.servers) > 1 and len(Group.possible(free)) <= MOST_FREE_GROUPS
    except ValueError:
        return False
