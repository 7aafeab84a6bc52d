"""``max_servers``: over how many servers one stage may stretch. A part of rule 2 (``devices``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipecut.formulation.constraints.constraint import Constraint, Limit, Violation, count, number_slack
from pipecut.formulation.problem.constraints import Key, Written, at_least_one

if TYPE_CHECKING:
    from pipecut.formulation.problem.groups import Group
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan


@dataclass(frozen=True, slots=True)
class MaxServers(Constraint):
    """The most servers of one stage; None: any number."""

    rule, rank, asked = "devices", 20, True
    key = Key("max_servers", Written.WHOLE, "over how many servers one stage may stretch", place=3)

    max_servers: int | None = None

    def __post_init__(self) -> None:
        at_least_one("max_servers", self.max_servers)

    def check_stage(self, instance: Instance, index: int, group: Group) -> Iterator[Violation]:
        """Yield a stage that stretches over too many servers."""
        most, servers = self.max_servers, len(group.counts)
        if most is not None and servers > most:
            message = f"stage {index} stretches over {servers} servers, expected at most {most}"
            yield Violation("devices", f"stage {index}", servers, most, "servers", message)

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield the number."""
        if self.max_servers is not None:
            words = f"a stage stretches over at most {count(self.max_servers, 'server')}"
            slack = number_slack("max_servers", "let a stage stretch over {} more", "server", _servers)
            yield Limit("constraints.max_servers", words, "max_servers", slack=slack)


def _servers(plan: Plan) -> int:
    return max(len(stage.group.counts) for stage in plan.stages)
