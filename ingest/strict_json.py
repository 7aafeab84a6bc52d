"""JSON as its standard has it: no repeated keys, no NaN, no infinity; and not more of it than fits into memory."""

from __future__ import annotations

import json

MOST_VALUES = 4_000_000
"""Values in one document: an object takes 50 times its text and more, so bytes alone bound nothing."""
LONGEST_KEY = 60
"""Characters of a key that a message shows."""


def parse_json(text: str | bytes) -> object:
    """Parse strict JSON. Raises ValueError for what is none, RecursionError for what is nested too deeply.

    ValueError, too, for text with signs of more than MOST_VALUES values, before any is made: every value but the
    first follows a comma or the begin of a list or an object, and in text that is ASCII these are single bytes.
    """
    signs = (",", "[", "{") if isinstance(text, str) else (b",", b"[", b"{")
    values = 1 + sum(text.count(sign) for sign in signs)  # type: ignore[arg-type]
    if values > MOST_VALUES:
        raise ValueError(f"about {values} values, expected at most {MOST_VALUES}")
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
