"""What a scenario is known by in a file of results: a hash of all that a plan depends on, and of no name."""

from __future__ import annotations

import enum
import hashlib
import json
from dataclasses import fields, is_dataclass
from typing import Any

from formulation.problem.instance import Instance

NAMES = {"Cluster": "name", "LayerGraph": "name"}
"""Names that nothing depends on, by the class that has them; those of layers, servers and devices count."""
WRITTEN = ("model", "cluster", "training", "cost", "constraints", "goals")
"""What an instance is made of; all else in it follows from these."""
VERSION = 1
"""Of what is hashed; a change of what a plan costs raises it."""


def key_of(instance: Instance) -> str:
    """Return the key of an instance: 32 hexadecimal digits. Cost: linear in the instance."""
    content = [VERSION, *(_plain(getattr(instance, name)) for name in WRITTEN)]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plain(value: object) -> Any:  # noqa: ANN401 (JSON)
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        name = type(value).__name__
        kept = (one.name for one in fields(value) if one.init and NAMES.get(name) != one.name)
        return [name, *(_plain(getattr(value, one)) for one in kept)]
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return sorted([str(key), _plain(one)] for key, one in value.items())
    if isinstance(value, frozenset | set):
        return sorted(json.dumps(_plain(one), sort_keys=True) for one in value)
    return str(value)
