"""What pydantic found, said as a person would: where, what was expected, what stands there, what was meant."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from ingest.mistakes import Mistake, Where, did_you_mean, number_hint, path_text, shown
from ingest.scenario.schema import ScenarioFile, Section
from ingest.text.yaml_source import Document

__all__ = ["mistake_at", "mistakes_of"]

Found = dict[str, Any]
"""One entry of ``ValidationError.errors()``: ``type``, ``loc``, ``input``, ``ctx``, ``msg``."""


def mistakes_of(error: ValidationError, document: Document) -> list[Mistake]:
    """Return a mistake for everything that pydantic found wrong with a document."""
    return [_mistake(typing.cast(Found, found), document) for found in error.errors(include_url=False)]


def mistake_at(document: Document, where: Where, message: str) -> Mistake:
    """Return a mistake about the value at ``where``; an override names its path itself, so it is left out."""
    place = document.place(where)
    overridden = place.line == 0 and document.places.get(where) == place
    return Mistake(place, "" if overridden else path_text(where), message)


def _mistake(found: Found, document: Document) -> Mistake:
    where: Where = tuple(found["loc"])
    where = where[:-1] if where and where[-1] == "[key]" else where
    sentence = _SENTENCES.get(found["type"], _otherwise)
    return mistake_at(document, where, sentence(found, where))


def _unknown_key(found: Found, where: Where) -> str:
    section = section_at(where[:-1])
    return "unknown key" + (did_you_mean(str(where[-1]), section.model_fields) if section else "")


def _missing(found: Found, where: Where) -> str:
    section = section_at(where[:-1])
    field = section.model_fields.get(str(where[-1])) if section else None
    return f"missing: {field.description}" if field else "missing"


def _expected(what: str) -> Callable[[Found, Where], str]:
    def sentence(found: Found, where: Where) -> str:
        return f"expected {what}, got {shown(found['input'])}"

    return sentence


def _not_whole(found: Found, where: Where) -> str:
    return f"expected a whole number, got {shown(found['input'])}{number_hint(found['input'])}"


def _not_text(found: Found, where: Where) -> str:
    scalar = isinstance(found["input"], str | int) or hasattr(found["input"], "as_tuple")
    return f"expected text, got {shown(found['input'])}" + ("; put it in quotes" if scalar else "")


def _not_a_choice(found: Found, where: Where) -> str:
    choices = re.findall(r"'([^']*)'", found["ctx"]["expected"])
    given = found["input"]
    meant = did_you_mean(given, choices) if isinstance(given, str) else ""
    wanted = f"expected {found['ctx']['expected']}, got {shown(given)}"
    return wanted + (meant if "did you mean" in meant else "")


def _limit(text: str, key: str) -> Callable[[Found, Where], str]:
    def sentence(found: Found, where: Where) -> str:
        return f"expected {text.format(found['ctx'][key])}, got {shown(found['input'])}"

    return sentence


def _entries(found: Found, where: Where) -> str:
    context = found["ctx"]
    least = "min_length" in context
    limit = f"at least {context['min_length']}" if least else f"at most {context['max_length']}"
    return f"expected {limit} entries, got {context['actual_length']}"


def _own_words(found: Found, where: Where) -> str:
    return str(found["ctx"]["error"])


def _otherwise(found: Found, where: Where) -> str:
    return f"{found['msg']}, got {shown(found['input'])}"


_SENTENCES: dict[str, Callable[[Found, Where], str]] = {
    "extra_forbidden": _unknown_key,
    "missing": _missing,
    "int_type": _not_whole,
    "string_type": _not_text,
    "model_type": _expected("a section (keys with values)"),
    "dict_type": _expected("a section (names with values)"),
    "list_type": _expected("a list"),
    "enum": _not_a_choice,
    "greater_than": _limit("more than {}", "gt"),
    "greater_than_equal": _limit("{} or more", "ge"),
    "less_than": _limit("less than {}", "lt"),
    "less_than_equal": _limit("{} or less", "le"),
    "too_short": _entries,
    "too_long": _entries,
    "value_error": _own_words,
}
"""How each kind of pydantic error is said."""


def section_at(where: Where) -> type[Section] | None:
    """Return the section that the schema has at a path, or None where it has none."""
    current: Any = ScenarioFile
    for step in where:
        if isinstance(current, type) and issubclass(current, Section):
            field = current.model_fields.get(str(step))
            current = field.annotation if field else None
        else:
            current = next(reversed(typing.get_args(current)), None)
        if isinstance(current, types.UnionType):
            current = next(part for part in typing.get_args(current) if part is not type(None))
    return current if isinstance(current, type) and issubclass(current, Section) else None
