"""The section ``constraints`` of a scenario, made from the keys of all constraints there are.

A constraint says what may be written in words of its own (``formulation.problem.constraints``); here these become
the models that read a file and that the schema for editors is made from.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, TypeAdapter, ValidationError, create_model

from formulation.problem.constraints import ByServer, Constraints, Key, Keyed, Listed, Names, Shape, Written, kinds
from formulation.problem.layers import EVERY_FORM
from ingest.scenario.fields import (
    LIST,
    WORD,
    Byname,
    Duration,
    Glob,
    Memory,
    Name,
    NeededMemory,
    Price,
    Ratio,
    Section,
    Whole,
)

_TYPES: Mapping[Written, Any] = MappingProxyType(
    {
        Written.FLAG: bool,
        Written.WHOLE: Whole,
        Written.INDEX: int,
        Written.FORM: Annotated[int, Field(ge=0, le=len(EVERY_FORM) - 1)],
        Written.NAME: Name,
        Written.GLOB: Glob,
        Written.MEMORY: Memory,
        Written.NEEDED: NeededMemory,
        Written.DURATION: Duration,
        Written.PRICE: Price,
        Written.RATIO: Ratio,
    }
)
LAST = 99
"""Where keys are listed that have neither a place nor a number."""


def constraints_section() -> type[Section]:
    """Return the model of the whole section."""
    words = "Limits that a plan must keep (``formulation.problem.constraints.Constraints``)."
    written = [(kind.key.place or kind.number or LAST, kind.key) for kind in kinds() if kind.key is not None]
    ordered = tuple(key for _, key in sorted(written, key=lambda row: row[0]))
    return _model(Keyed("ConstraintsSection", words, ordered))


def read_constraints(found: Section, names: Names) -> Constraints:
    """Return what a section says. Raises ValueError as Constraints does."""
    fields: dict[str, Any] = {}
    for kind in kinds():
        if kind.key is not None:
            fields |= kind.read(getattr(found, kind.key.name), names)
    return Constraints(**fields)


def sound_parts(shape: Shape, raw: object) -> Any:  # noqa: ANN401 (whatever the shape says)
    """Return what is written as the shape says, with None for the parts that are written otherwise."""
    if isinstance(shape, Listed):
        return [sound_parts(shape.of, row) for row in raw] if isinstance(raw, list) else []
    if isinstance(shape, ByServer):
        return {name: sound_parts(shape.of, one) for name, one in raw.items()} if isinstance(raw, dict) else {}
    try:
        return TypeAdapter(_annotation(shape)).validate_python(raw)
    except ValidationError:
        return None


@functools.cache
def _model(shape: Keyed) -> type[Section]:
    fields: dict[str, Any] = {key.name: _field(key) for key in shape.keys}
    return create_model(shape.name, __base__=Section, __doc__=shape.help, **fields)


def _annotation(shape: Shape) -> Any:  # noqa: ANN401 (a type with its limits)
    if isinstance(shape, Listed):
        entries = list[_annotation(shape.of)]
        return Annotated[entries, Field(min_length=shape.least)] if shape.least else entries
    if isinstance(shape, ByServer):
        return dict[Name, _annotation(shape.of)]
    if isinstance(shape, Keyed):
        return _model(shape)
    if isinstance(shape, tuple):
        word, listed = map(_annotation, shape)
        return Annotated[
            Annotated[word, Tag(WORD)] | Annotated[listed, Tag(LIST)],
            Discriminator(lambda found: LIST if isinstance(found, list | dict | Section) else WORD),
        ]
    return _TYPES[shape] if isinstance(shape, Written) else Annotated[shape, Byname]


def _field(key: Key) -> tuple[Any, Any]:
    """Return the type and the rest of a field: its default and its description."""
    kind, shape = _annotation(key.shape), key.shape
    if key.required:
        return kind, Field(description=key.help)
    if key.default is not None:
        return kind, Field(default=key.default, description=key.help)
    if isinstance(shape, Keyed):
        return kind, Field(default_factory=kind, description=key.help)
    if isinstance(shape, ByServer) or (isinstance(shape, Listed) and not shape.least):
        return kind, Field(default=[] if isinstance(shape, Listed) else {}, description=key.help)
    return kind | None, Field(default=None, description=key.help)
