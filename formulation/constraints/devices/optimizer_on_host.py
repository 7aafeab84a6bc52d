"""``optimizer_on_host``: whether the optimiser's state is in the host's memory. A part of rule 2 (``devices``)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipecut.formulation.constraints.constraint import Constraint, Limit, Violation
from pipecut.formulation.problem.constraints import Goal, Key, OnHost

if TYPE_CHECKING:
    from pipecut.formulation.problem.constraints import Lookup
    from pipecut.formulation.problem.groups import Group
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan


@dataclass(frozen=True, slots=True)
class OptimizerOnHost(Constraint):
    """Whether stages may, must or must not keep the state of the optimiser in the memory of their hosts.

    Where they may, every device class that a server has needs a link to its host.
    """

    rule, rank, asked = "devices", 32, True
    key = Key(
        "optimizer_on_host",
        OnHost,
        "whether stages may keep the state of the optimiser in the memory of their hosts",
        OnHost.NEVER,
    )

    optimizer_on_host: OnHost = OnHost.NEVER

    @property
    def limits(self) -> bool:
        """Never is what solvers that do not know of it do."""
        return self.optimizer_on_host is OnHost.ALWAYS

    def resolve(self, look: Lookup) -> Mapping[str, Any]:
        """Note every device class without a link to its host."""
        if self.optimizer_on_host is not OnHost.NEVER:
            classes = dict.fromkeys(server.device_class for server in look.all_servers)
            missing = dict.fromkeys(one.name for one in classes if one.host_link is None)
            for name in missing:
                look.wrong(
                    "optimizer_on_host",
                    f"'{self.optimizer_on_host}' needs the link of every device to its host; give"
                    f" cluster.devices.{name}.host_link",
                )
        return {}

    def check_stage(self, instance: Instance, index: int, group: Group) -> Iterator[Violation]:
        """Yield a stage that does what is not allowed, or not what is asked for."""
        on_host = group.mode.optimizer_on_host
        if self.optimizer_on_host is (OnHost.NEVER if on_host else OnHost.ALWAYS):
            where = "its host" if on_host else "its devices"
            message = (
                f"stage {index} keeps the optimiser on {where}, constraints.optimizer_on_host is"
                f" '{self.optimizer_on_host}'"
            )
            yield Violation("devices", f"stage {index}", int(on_host), int(not on_host), "", message)

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield that all must, where time is limited: what goes to the host and back takes some."""
        judged = {limit.goal for limit in instance.constraints.at_most}
        if self.limits and judged & {Goal.BOTTLENECK, Goal.ITERATION_TIME}:
            words = "all stages keep the optimiser on the host"
            yield Limit("constraints.optimizer_on_host", words, "optimizer_on_host", remedy=self._allow)

    def _allow(self, plan: Plan) -> str:
        return "set constraints.optimizer_on_host to allowed: stages may then keep the optimiser on their devices"

    def without(self, gone: Collection[tuple[str, int | str]], instance: Instance) -> Mapping[str, Any]:
        """Return that stages may choose."""
        return {"optimizer_on_host": OnHost.ALLOWED} if ("optimizer_on_host", 0) in gone else {}
