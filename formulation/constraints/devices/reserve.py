"""``reserve``: memory kept for something else. No rule of its own: it lessens what rule 7 (``memory``) offers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipecut.formulation.constraints.constraint import Constraint, Limit, Slack, changed, overfull, size_text
from pipecut.formulation.problem.constraints import ByServer, Key, Names, Written

if TYPE_CHECKING:
    from pipecut.formulation.problem.constraints import Lookup
    from pipecut.formulation.problem.instance import Instance


@dataclass(frozen=True, slots=True)
class Reserve:
    """Memory in bytes that every device of a server keeps for something else."""

    server: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Reserves(Constraint):
    """All reserves; each server has at most one."""

    rule, rank, asked, of_servers = "reserve", 100, True, True
    key = Key(
        "reserve",
        ByServer(Written.NEEDED),
        "by server: memory that each of its devices keeps for something else",
    )

    reserve: tuple[Reserve, ...] = ()

    @classmethod
    def read(cls, found: Any, names: Names) -> Mapping[str, Any]:  # noqa: ANN401
        """Return the reserves; the common name of alike servers stands for each of them."""
        return {
            "reserve": tuple(
                Reserve(one, size) for name, size in found.items() for one in names.standing_for(name)
            )
        }

    @classmethod
    def mistakes(cls, found: Any, names: Names) -> Iterator[tuple[tuple[str | int, ...], str]]:  # noqa: ANN401
        """Yield reserves without a memory limit to lower, of no server, of one twice, and that leave nothing."""
        if names.servers is None or not found:
            return
        taken: dict[str, str] = {}
        if names.others and names.others.get("memory") is False:
            yield (), "has no effect, as constraints.memory is false"
        for name, size in found.items():
            if name not in names.servers:
                yield (name,), f"no server '{name}'{names.hint(str(name), names.servers)}"
                continue
            twice = [taken[one] for one in names.servers[name] if one in taken]
            if twice:
                yield (
                    (name,),
                    f"the same server as in constraints.reserve.{twice[0]}; give each server one reserve",
                )
            taken.update((one, str(name)) for one in names.servers[name])
            most = (names.memory_bytes or {}).get(names.servers[name][0])
            if size is not None and most is not None and size >= most:
                yield (name,), f"leaves nothing: {size} of the {most} bytes of each device"

    def resolve(self, look: Lookup) -> Mapping[str, Any]:
        """Return pairs (server, bytes), where each leaves some memory."""
        return {"reserve": tuple((_server(look, row), row.memory_bytes) for row in self.reserve)}

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield each reserve."""
        for at, row in enumerate(self.reserve):
            words = f"each device of {row.server} keeps {size_text(row.memory_bytes)} for something else"
            yield Limit(f"constraints.reserve.{row.server}", words, "reserve", at, _slack(row.server))


def _server(look: Lookup, row: Reserve) -> int:
    """Return the server of a reserve."""
    where = f"reserve.{row.server}"
    at, size = look.server(where, row.server), row.memory_bytes
    memory = look.all_servers[at].device_class.memory_bytes if at >= 0 else size + 1
    if not 0 <= size < memory:
        look.wrong(
            where, f"{size} bytes of devices that have {memory}; expected 0 or more, and less than they have"
        )
    return at


def _slack(server: str) -> Slack:
    """Return how a reserve is lowered."""

    def by(at: Instance, more: int) -> Instance:
        rows = tuple(
            replace(row, memory_bytes=max(0, row.memory_bytes - more)) if row.server == server else row
            for row in at.constraints.reserve
        )
        return changed(at, reserve=rows)

    return Slack(
        by=by,
        used=lambda at, plan: overfull(at, plan, lambda one: at.servers[one].name == server),
        say=lambda more: f"reserve {size_text(more)} less on each device of {server}",
        unit="bytes",
    )
