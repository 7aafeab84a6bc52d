"""The Trace Event Format as importers hold it: a reader for tests, which refuses what an importer would drop.

Written from the format's description alone: it shares nothing with ``report.trace``.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}

Place = tuple[int, int]


@dataclass(frozen=True)
class Slice:
    """A complete event (``X``), in ns."""

    place: Place
    name: str
    category: str
    start: int
    stop: int
    args: dict[str, Any]


class Trace:
    """A trace that was read whole. Raises ValueError for the first event that breaks the format."""

    def __init__(self, text: str) -> None:
        whole = json.loads(text, parse_float=Decimal)
        if set(whole) != {"displayTimeUnit", "traceEvents"} or whole["displayTimeUnit"] not in ("ms", "ns"):
            raise ValueError(f"keys {sorted(whole)}, unit {whole.get('displayTimeUnit')}")
        self.names: dict[str, dict[Place, Any]] = defaultdict(dict)
        self.slices: list[Slice] = []
        self.counters: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
        self.flows: dict[tuple[str, str, Any], list[tuple[str, Place, int]]] = defaultdict(list)
        for event in whole["traceEvents"]:
            self._read(event)
        self._check_names()
        by_place: dict[Place, list[Slice]] = defaultdict(list)
        for one in self.slices:
            by_place[one.place].append(one)
        for slices in by_place.values():
            check_nesting(slices)
        for key, points in self.counters.items():
            if any(one[0] >= other[0] for one, other in itertools.pairwise(points)):
                raise ValueError(f"counter {key}: moments are not in order, or not different")
        for key, steps in self.flows.items():
            check_flow(key, steps, by_place)

    def _read(self, event: dict[str, Any]) -> None:
        place = (whole_number(event, "pid"), whole_number(event, "tid"))
        name, args = event["name"], event.get("args", {})
        if not isinstance(name, str) or not isinstance(args, dict):
            raise ValueError(f"{event}: name or args")
        match event["ph"]:
            case "M":
                key, kind = METADATA[name]
                if set(args) != {key} or type(args[key]) is not kind or place in self.names[name]:
                    raise ValueError(f"{event}: metadata")
                self.names[name][place] = args[key]
            case "X":
                start, lasts = nanoseconds(event, "ts"), nanoseconds(event, "dur")
                self.slices.append(Slice(place, name, event["cat"], start, start + lasts, args))
            case "C":
                if not args or any(type(value) not in (int, Decimal) for value in args.values()):
                    raise ValueError(f"{event}: a counter counts")
                self.counters[place[0], name].append((nanoseconds(event, "ts"), *args.values()))
            case "s" | "t" | "f" as phase:
                if phase == "f" and event.get("bp") != "e":
                    raise ValueError(f"{event}: without bp an arrow ends at the next slice, not at this one")
                step = (phase, place, nanoseconds(event, "ts"))
                self.flows[event["cat"], name, event["id"]].append(step)
            case _:
                raise ValueError(f"{event}: phase")

    def _check_names(self) -> None:
        """Every row and its process have a name and a place; no two rows of a process have the same."""
        for place in {one.place for one in self.slices}:
            for kind in ("thread_name", "thread_sort_index"):
                if place not in self.names[kind]:
                    raise ValueError(f"{place} has no {kind}")
        processes = {one.place[0] for one in self.slices} | {key[0] for key in self.counters}
        for kind in ("process_name", "process_sort_index"):
            if {place[0] for place in self.names[kind]} != processes:
                raise ValueError(f"{kind} of {sorted(self.names[kind])}, events of {sorted(processes)}")
        for kind in ("thread_name", "thread_sort_index"):
            values = [(place[0], value) for place, value in self.names[kind].items()]
            if len(set(values)) < len(values):
                raise ValueError(f"two rows have one {kind}")


def whole_number(event: dict[str, Any], key: str) -> int:
    if type(event.get(key)) is not int:
        raise ValueError(f"{event}: {key}")
    return event[key]


def nanoseconds(event: dict[str, Any], key: str) -> int:
    """A time in microseconds, as ns. Raises ValueError unless it is a number that says whole ns, 0 or more."""
    value = event[key]
    if type(value) not in (int, Decimal):
        raise ValueError(f"{event}: {key} is no number")
    scaled = Decimal(value) * 1000
    if scaled != int(scaled) or scaled < 0:
        raise ValueError(f"{event}: {key} is {value} microseconds")
    return int(scaled)


def check_nesting(slices: Iterable[Slice]) -> None:
    """Raise ValueError where two slices of one row overlap in part; one may lie inside the other."""
    opened: list[Slice] = []
    for one in sorted(slices, key=lambda one: (one.start, -one.stop)):
        while opened and opened[-1].stop <= one.start:
            opened.pop()
        if opened and one.stop > opened[-1].stop:
            raise ValueError(f"{one} and {opened[-1]} overlap in part")
        opened.append(one)


def check_flow(
    key: tuple[str, str, Any], steps: list[tuple[str, Place, int]], by_place: dict[Place, list[Slice]]
) -> None:
    """Raise ValueError unless an arrow starts once, ends once, never goes back, and touches a slice each time."""
    phases = "".join(phase for phase, _, _ in steps)
    if phases != "s" + "t" * (len(phases) - 2) + "f":
        raise ValueError(f"arrow {key}: {phases}")
    moments = [moment for _, _, moment in steps]
    if moments != sorted(moments):
        raise ValueError(f"arrow {key} goes back in time: {moments}")
    for phase, place, moment in steps:
        if not any(one.start <= moment < max(one.stop, one.start + 1) for one in by_place[place]):
            raise ValueError(f"arrow {key}: {phase} at {moment} touches no slice of {place}")
