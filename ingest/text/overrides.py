"""Overrides of single values: the ``--set path=value`` texts of the command line.

A path is written as messages write it: ``training.global_batch``, ``cluster.servers[0].devices`` (or
``cluster.servers.0.devices``); a key that contains a dot stands in quotes, ``cluster.devices."GTX 1.0".memory``.
The value is one YAML scalar, or a list of them in brackets. An override may add what the file leaves out; whether
the result is a scenario is for the schema to say, with the override as the place of its mistakes.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipecut.ingest.mistakes import FilePlace, Mistake, ScenarioError, Where, path_text, shown
from pipecut.ingest.text.yaml_source import DEEPEST, Document, parse_scalar

_STEP = re.compile(r'\.?(?:"([^"]+)"|\[([0-9]{1,6})\]|([^.\[\]="]+))')
LONGEST_OVERRIDE = 1000
"""Characters of the longest override."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value for a path, and where somebody wrote it."""

    path: str
    value: object
    place: FilePlace


def apply_settings(document: Document, settings: Sequence[Setting]) -> Document:
    """Return the document with every value in its place; a value may be a section or a list.

    Mistakes (no such list entry, no path) are collected in the document that is returned.
    """
    data, places, mistakes = copy.deepcopy(document.data), dict(document.places), list(document.mistakes)
    for one in settings:
        try:
            _note(places, _set(data, _path(one.path), copy.deepcopy(one.value)), one.place)
        except LookupError as error:
            mistakes.append(Mistake(one.place, one.path, str(error.args[0])))
    return replace(document, data=data, places=places, mistakes=tuple(mistakes))


def _path(text: str) -> Where:
    """Return a path. Raises LookupError for what is none."""
    steps, end = _steps(text)
    if not steps or end < len(text) or text.startswith(".") or len(steps) > DEEPEST:
        raise LookupError("expected a path, like training.global_batch")
    return steps


def apply_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """Return the document with every override applied in turn; the original stays as it is.

    Mistakes (no such list entry, not ``path=value``) are collected in the document that is returned.
    """
    data = copy.deepcopy(document.data)
    places = dict(document.places)
    mistakes = list(document.mistakes)
    for text in overrides:
        place = FilePlace(f"--set {text if len(text) <= 100 and text.isprintable() else shown(text)}")
        try:
            where, value = _split(text)
            _note(places, _set(data, where, value), place)
        except ScenarioError as error:
            mistakes.append(Mistake(place, "", error.mistakes[0].message))
        except LookupError as error:
            mistakes.append(Mistake(place, "", str(error.args[0])))
    return replace(document, data=data, places=places, mistakes=tuple(mistakes))


def _split(text: str) -> tuple[Where, object]:
    """Split an override into path and value. Raises LookupError saying how one is written, or ScenarioError."""
    steps, position = _steps(text)
    bad = not steps or text[position : position + 1] != "=" or text.startswith(".")
    if bad or len(text) > LONGEST_OVERRIDE or len(steps) > DEEPEST:
        raise LookupError("expected path=value, like training.global_batch=128")
    return steps, parse_scalar(text[position + 1 :], "")


def _steps(text: str) -> tuple[Where, int]:
    """Return the path that a text begins with, and where it ends."""
    steps: list[str | int] = []
    position = 0
    while found := _STEP.match(text, position):
        quoted, index, plain = found.groups()
        steps.append(int(index) if index else quoted or plain.strip())
        position = found.end()
    return tuple(steps), position


def _set(data: object, where: Where, value: object) -> Where:
    """Put a value into nested data, adding sections on the way, and return its path with indices as numbers.

    Raises LookupError where there is no section or list to put it into.
    """
    current: Any = data
    path: list[str | int] = []
    for depth, step in enumerate(where, start=1):
        if not isinstance(current, dict | list):
            name = path_text(tuple(path)) or "the file"
            raise LookupError(f"{name} is no section that could hold {shown(step)}; it is {shown(current)}")
        key: Any = _index(current, step, tuple(path)) if isinstance(current, list) else str(step)
        path.append(key)
        if depth == len(where):
            current[key] = value
        elif isinstance(current, dict) and current.get(key) is None:
            current[key] = {}
        current = current[key]
    return tuple(path)


def _index(items: list[object], step: str | int, where: Where) -> int:
    """Return a step of a path as the index of an existing item. Raises LookupError."""
    name = path_text(where)
    if isinstance(step, str) and not re.fullmatch(r"[0-9]{1,6}", step):
        raise LookupError(f"{name} is a list; write an index, like {name}[0]")
    if int(step) >= len(items):
        entries = "1 entry" if len(items) == 1 else f"{len(items)} entries"
        raise LookupError(f"{name} has {entries}, counted from 0; there is no {name}[{step}]")
    return int(step)


def _note(places: dict[Where, FilePlace], path: Where, place: FilePlace) -> None:
    """Remember the override as the place of its value and of the sections that it added."""
    for old in [old for old in places if old[: len(path)] == path]:
        del places[old]
    for length in range(1, len(path) + 1):
        places.setdefault(path[:length], place)
