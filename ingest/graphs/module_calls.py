"""Which layers each call of a module holds: what is left of a model's modules in its layer graph.

A call holds a run of layers, and calls lie inside one another as the modules do. A layer graph keeps them, outer
calls first, in its attribute ``modules``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BLOCKS, MODULES, OPERATORS = GRAINS = ("blocks", "modules", "operators")
"""The words for where a model may be cut (``ingest.graphs.cut_places``)."""


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a module: its fully qualified ``name``, its class (``operator``), and the ends of its layers."""

    name: str
    operator: str
    first: str
    last: str


def check_calls(calls: Sequence[ModuleCall], layers: Sequence[str]) -> None:
    """Raise ValueError for an unknown layer, and for calls that overlap or stand before an outer one."""
    position = {name: index for index, name in enumerate(layers)}
    open_until: list[int] = []
    started = 0
    for call in calls:
        unknown = [name for name in (call.first, call.last) if name not in position]
        if unknown:
            raise ValueError(f"{call.name}: no layer {unknown[0]}")
        first, last = position[call.first], position[call.last]
        while open_until and open_until[-1] < first:
            open_until.pop()
        if first < started or not first <= last <= (open_until[-1] if open_until else last):
            ends = f"{call.first} to {call.last}"
            raise ValueError(f"{call.name}: its layers {ends} are none, or lie across those of another call")
        open_until.append(last)
        started = first
