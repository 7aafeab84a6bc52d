"""JSON as its standard has it: no repeated keys, no NaN, no infinity."""

from __future__ import annotations

import json

__all__ = ["parse_json"]

LONGEST_KEY = 60
"""Characters of a key that a message shows."""


def parse_json(text: str | bytes) -> object:
    """Parse strict JSON. Raises ValueError for what is none, RecursionError for what is nested too deeply."""
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key[:LONGEST_KEY]!r} appears twice in one object")
        found[key] = value
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number of JSON")
