"""(16) ``stages_per_server``: no server has devices of more than so many stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipecut.formulation.constraints.constraint import Constraint, Limit, Violation, count, number_slack
from pipecut.formulation.problem.constraints import Key, Written, at_least_one

if TYPE_CHECKING:
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan


@dataclass(frozen=True, slots=True)
class StagesPerServer(Constraint):
    """The most stages that touch a server, that is, have a device of it; None: any number."""

    number, rule, rank, of_servers = 16, "stages_per_server", 80, True
    key = Key("stages_per_server", Written.WHOLE, "how many stages may have devices of the same server")

    stages_per_server: int | None = None

    def __post_init__(self) -> None:
        at_least_one("stages_per_server", self.stages_per_server)

    def check(self, instance: Instance, plan: Plan) -> Iterator[Violation]:
        """(16) Not too many stages touch a server."""
        most = self.stages_per_server
        for server, stages in sorted(_stages(plan).items()):
            if most is not None and stages > most:
                name, what = instance.servers[server].name, f"constraints.{self.rule}"
                message = f"{what}: {stages} stages touch server {name}, expected at most {most}"
                yield Violation(self.rule, name, stages, most, "stages", message)

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield the number."""
        if self.stages_per_server is not None:
            words = f"at most {count(self.stages_per_server, 'stage')} with devices of the same server"
            name, most = "stages_per_server", lambda plan: max(_stages(plan).values())
            slack = number_slack(name, "let {} more touch a server", "stage", most)
            yield Limit(f"constraints.{name}", words, name, slack=slack)


def _stages(plan: Plan) -> Counter[int]:
    """Count the stages that touch each server."""
    return Counter(server for stage in plan.stages for server, _ in stage.group.counts)
