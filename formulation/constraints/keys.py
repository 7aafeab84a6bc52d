"""What may be written in a scenario, said without the library that reads it: shapes of values, and keys with help.

``ingest.scenario.constraints_section`` makes the section ``constraints`` of the schema from these.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


class Written(enum.Enum):
    """One word or number, as it reads in a scenario and what it becomes."""

    FLAG = "true or false"
    WHOLE = "1, 2, ..."
    INDEX = "any whole number"
    FORM = "a parallel form, 0 to 7, or a pair of forms, 8 to 33"
    NAME = "the name of a server or of a device class"
    GLOB = "layers by name, like 'features.*'"
    MEMORY = "an amount like '2 GiB'; bytes, a part of one left out"
    NEEDED = "an amount like '2 GiB' that something needs; bytes, a part of one counted whole"
    DURATION = "a time like '20 ms'; nanoseconds"
    PRICE = "a price per hour like 24.8; millionths"
    RATIO = "a number of 0 or more like 0.05 or 1/20"


@dataclass(frozen=True, slots=True)
class Listed:
    """A list with at least so many entries."""

    of: Shape
    least: int = 0


@dataclass(frozen=True, slots=True)
class ByServer:
    """Values by the names of servers."""

    of: Shape


@dataclass(frozen=True, slots=True)
class Keyed:
    """Keys with values; ``name`` is what the schema calls it."""

    name: str
    help: str
    keys: tuple[Key, ...]


Shape = Written | type[enum.StrEnum] | Listed | ByServer | Keyed | tuple["Shape", Listed | Keyed]
"""A tuple: either of these."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key: what may be written, and a line of help.

    Without a ``default`` of its own a key that is not ``required`` may be left out: a list or a section is then
    empty, anything else None. ``place`` is where messages list it among the keys beside it, by default its
    constraint's number.
    """

    name: str
    shape: Shape
    help: str
    default: Any = None
    required: bool = False
    place: int | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """What names of a scenario stand for. None where a mistake elsewhere in the file leaves it open.

    ``servers``: by the name of a server, or of alike ones, their names. ``classes``: the device classes of the
    file, ``used`` those of servers; ``memory_bytes`` by server. ``others`` is all that ``constraints`` says, as it
    is written. ``hint`` returns words about the name that was meant.
    """

    servers: Mapping[str, tuple[str, ...]] | None
    classes: Iterable[str] | None = None
    used: frozenset[str] | None = None
    memory_bytes: Mapping[str, int | None] | None = None
    others: Mapping[str, Any] | None = None
    hint: Callable[[str, Iterable[str]], str] = lambda word, known: ""

    def standing_for(self, server: str) -> tuple[str, ...]:
        """Return the servers that a name stands for: of alike servers each."""
        return (self.servers or {}).get(server, (server,))
