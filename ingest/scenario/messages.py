"""What pydantic found, said as a person would: where, what was expected, what stands there, what was meant."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import ValidationError

from pipecut.ingest.mistakes import Mistake, Where, did_you_mean, path_text, said
from pipecut.ingest.scenario.fields import LIST, WORD, StrictPart
from pipecut.ingest.scenario.schema import ScenarioFile
from pipecut.ingest.text.yaml_source import Document

Found = dict[str, Any]
"""One entry of ``ValidationError.errors()``: ``type``, ``loc``, ``input``, ``ctx``, ``msg``."""
Sentence = Callable[[Found, Where, type[StrictPart]], str]
"""Says an entry, given the path of its value and the shape of the whole document."""


def mistakes_of(
    error: ValidationError, document: Document, root: type[StrictPart] = ScenarioFile
) -> list[Mistake]:
    """Return a mistake for everything that pydantic found wrong with a document whose shape is ``root``."""
    return [_mistake(typing.cast(Found, found), document, root) for found in error.errors(include_url=False)]


def mistake_at(document: Document, where: Where, message: str) -> Mistake:
    """Return a mistake about the value at ``where``; an override names its path itself, so it is left out."""
    place = document.place(where)
    overridden = place.line == 0 and document.places.get(where) == place
    return Mistake(place, "" if overridden else path_text(where), message)


def _mistake(found: Found, document: Document, root: type[StrictPart]) -> Mistake:
    where: Where = tuple(part for part in found["loc"] if part not in (WORD, LIST))
    # A key of a mapping, and one value that stands where there may be a list of them, have no path of their own.
    unwritten = where and (where[-1] == "[key]" or (isinstance(where[-1], int) and where not in document.places))
    where = where[:-1] if unwritten else where
    sentence = _SENTENCES.get(found["type"], lambda found, _where, _root: said(found))
    return mistake_at(document, where, sentence(found, where, root))


def _unknown_key(found: Found, where: Where, root: type[StrictPart]) -> str:
    """Name the key that was meant: the one section that has what is written inside, else what reads alike."""
    section = section_at(where[:-1], root)
    if section is None:
        return "unknown key"
    inside = set(found["input"]) if isinstance(found["input"], dict) else set()
    known = {name: section_at((*where[:-1], name), root) for name in section.model_fields}
    fit = [name for name, part in known.items() if inside and part and inside <= {*part.model_fields}]
    meant = f"; did you mean '{fit[0]}'?" if len(fit) == 1 else did_you_mean(str(where[-1]), known)
    if "did you mean" not in meant:
        places = {str(path[-1]): path for path in sorted(_places(root), key=len, reverse=True)}
        near = difflib.get_close_matches(str(where[-1]), places, n=1, cutoff=0.65)
        meant = f"; did you mean {path_text(places[near[0]])}?" if near else meant
    return f"unknown key{meant}"


def _places(root: type[StrictPart], at: Where = ()) -> Iterator[Where]:
    """Yield the paths of all keys of a shape; of entries of lists, and of what has any name, the first one's."""
    for section, inside in ((section_at(path, root), path) for path in (at, (*at, 0))):
        for name in section.model_fields if section else ():
            yield (*inside, name)
            yield from _places(root, (*inside, name))


def _missing(found: Found, where: Where, root: type[StrictPart]) -> str:
    section = section_at(where[:-1], root)
    field = section.model_fields.get(str(where[-1])) if section else None
    return f"missing: {field.description}" if field else "missing"


def _not_text(found: Found, where: Where, root: type[StrictPart]) -> str:
    scalar = isinstance(found["input"], str | int) or hasattr(found["input"], "as_tuple")
    return said(found) + ("; put it in quotes" if scalar else "")


def _not_a_choice(found: Found, where: Where, root: type[StrictPart]) -> str:
    choices = re.findall(r"'([^']*)'", found["ctx"]["expected"])
    given = found["input"]
    meant = did_you_mean(given, choices) if isinstance(given, str) else ""
    return said(found) + (meant if "did you mean" in meant else "")


def _entries(found: Found, where: Where, root: type[StrictPart]) -> str:
    context = found["ctx"]
    limit = f"{context['min_length']} or more" if "min_length" in context else f"at most {context['max_length']}"
    return f"expected {limit} entries, got {context['actual_length']}"


_SENTENCES: dict[str, Sentence] = {
    "extra_forbidden": _unknown_key,
    "missing": _missing,
    "string_type": _not_text,
    "enum": _not_a_choice,
    "too_short": _entries,
    "too_long": _entries,
    "value_error": lambda found, where, root: str(found["ctx"]["error"]),
}
"""How a kind of pydantic error is said where more is known than ``ingest.mistakes`` says of it."""


def section_at(where: Where, root: type[StrictPart] = ScenarioFile) -> type[StrictPart] | None:
    """Return the section that a schema has at a path, or None where it has none."""
    current: Any = root
    for step in where:
        if isinstance(current, type) and issubclass(current, StrictPart):
            field = current.model_fields.get(str(step))
            current = field.annotation if field else None
        else:
            current = next(reversed(typing.get_args(current)), None)
        if isinstance(current, types.UnionType):
            current = next(part for part in typing.get_args(current) if part is not type(None))
        if typing.get_origin(current) is typing.Annotated:
            current = typing.get_args(current)[0]
        if typing.get_origin(current) is typing.Union:  # of a word and a section: only this has keys
            parts = [(typing.get_args(one) or (one,))[0] for one in typing.get_args(current)]
            current = next((one for one in parts if isinstance(one, type) and issubclass(one, StrictPart)), None)
    return current if isinstance(current, type) and issubclass(current, StrictPart) else None
