"""What is wrong with a file that a person wrote: every mistake, each with its place, in one error."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, TypeVar

Where = tuple[str | int, ...]
"""The way to a value in nested sections: keys and list indices, outermost first."""

LONGEST_SHOWN = 60
"""Characters of a foreign text that a message repeats."""
MOST_SHOWN = 20
"""Mistakes that one error spells out; the rest is counted."""


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Where something was written: a file with a line (0: none) and column, or the text of an override."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return ":".join([self.source, *(str(number) for number in (self.line, self.column) if number)])


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong: its place, the path of the value (empty: clear from the place), a sentence."""

    place: FilePlace
    path: str
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in (str(self.place), self.path, self.message) if part)


_M = TypeVar("_M")


class MistakesError(ValueError, Generic[_M]):
    """A file is wrong; ``str()`` gives one line for each mistake, of the first ones."""

    def __init__(self, mistakes: Iterable[_M]) -> None:
        """Keep every mistake; spell out the first of them."""
        self.mistakes = tuple(mistakes)
        lines = [str(mistake) for mistake in self.mistakes[:MOST_SHOWN]]
        if len(self.mistakes) > MOST_SHOWN:
            lines.append(f"... and {len(self.mistakes) - MOST_SHOWN} more")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type[MistakesError[_M]], tuple[tuple[_M, ...]]]:
        """Pickle by the mistakes, so that the error survives the way from another process."""
        return type(self), (self.mistakes,)


class ScenarioError(MistakesError[Mistake]):
    """A scenario file (or an override) is wrong; ``str()`` gives one line for each mistake, in file order."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        """Keep the mistakes by line; those of overrides, which have no line, come last."""
        super().__init__(sorted(mistakes, key=lambda one: (one.place.line == 0, one.place.line)))


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the closest name, or all of them if few."""
    names = [name for name in choices if name.isprintable()]
    folded = {name.casefold(): name for name in reversed(names)}
    near = difflib.get_close_matches(word.casefold(), folded, n=1)
    if near:
        return f"; did you mean '{folded[near[0]]}'?"
    listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return f"; known: {listed}" if names else ""


def path_text(where: Where) -> str:
    """Write a path as messages and overrides do: ``cluster.servers[0].devices``, ``devices."GTX 1.0"``."""
    text = ""
    for step in where:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if step.isprintable() and len(step) <= LONGEST_SHOWN else shown(step)
            name = f'"{name}"' if any(mark in name for mark in ".[]=") else name
            text += f".{name}" if text else name
    return text


def shown(value: object) -> str:
    """Show a foreign value in a message: quoted if text, at a bounded length, never with control characters."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return f"{'a' if value else 'an empty'} {'section' if isinstance(value, dict) else 'list'}"
    text = repr(value[: LONGEST_SHOWN + 1]) if isinstance(value, str) else str(value)
    return text if len(text) <= LONGEST_SHOWN + 2 else text[:LONGEST_SHOWN] + "..."


_WANTED = {
    "int_type": "a whole number",
    "string_type": "text",
    "string_pattern_mismatch": "text like {pattern}",
    "model_type": "a section (keys with values)",
    "dict_type": "a section (names with values)",
    "list_type": "a list",
    "enum": "{expected}",
    "literal_error": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
}
"""What each kind of pydantic error says that it wanted."""


def said(found: Mapping[str, Any]) -> str:
    """Say one of pydantic's errors as a person would: what was expected, and what stands there instead."""
    if found["type"] in ("missing", "extra_forbidden"):
        return "missing" if found["type"] == "missing" else "unknown key"
    if found["type"] not in _WANTED:
        return f"{found['msg']}, got {shown(found['input'])}"
    hint = number_hint(found["input"]) if found["type"] == "int_type" else ""
    return f"expected {_WANTED[found['type']].format(**found.get('ctx', {}))}, got {shown(found['input'])}{hint}"


def problems_of(found: Sequence[Mapping[str, Any]], most: int) -> list[str]:
    """Return pydantic's errors in a file, each with its path, ``layers[3].macs: missing``: the first ones."""
    rows = [f"{path_text(one['loc']) or 'the file'}: {said(one)}" for one in found[:most]]
    return rows + [f"and {len(found) - most} more"] * (len(found) > most)


def number_hint(value: object) -> str:
    """Explain a text that looks like a number or a switch in other YAML readers, but is text here."""
    if not isinstance(value, str):
        return ""
    if value.casefold() in ("yes", "no", "on", "off", "y", "n"):
        return " (text in YAML 1.2; only true and false are switches)"
    try:
        number = Decimal(value.replace("_", "")) if len(value) <= 40 else Decimal("NaN")
    except ArithmeticError:
        return ""
    if not number.is_finite() or number.adjusted() > 20:
        return " (too large)" if number.is_finite() else ""
    digits = f"{number.normalize():f}"
    return f" (text; write {digits})" if digits != value else " (text; leave out the quotes)"
