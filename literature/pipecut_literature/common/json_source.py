"""Strict JSON: a size limit, no repeated keys, no NaN, and a pydantic model that forbids what it does not know.

Problems are named by their path in the file, ``nodes[3].fpgaLatency``, as many at once as the model can find.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from pipecut.formulation.problem.units import NS_PER_SECOND, ceil_fraction
from pipecut.ingest.files import parse_json, read_limited
from pipecut.ingest.graphs.foreign import FormatError, quoted

LARGEST_FILE = 16 * 2**20
"""Bytes of the largest file that is read; the largest published one has 10 MB."""
LARGEST_NUMBER = 1e18
"""Seconds, bytes, bytes/s: nothing real is larger, and sums of such numbers stay exact enough."""


class Strict(BaseModel):
    """Base of all models of a file: no unknown key, no conversion between types, no change afterwards."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _number(value: object) -> object:
    """Refuse truth values, which Python counts among the numbers, and integers that no float can hold."""
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) > LARGEST_NUMBER):
        raise ValueError("a number of sensible size")
    return value


def _flag(value: object) -> object:
    if value in (0, 1) and isinstance(value, int):
        return bool(value)
    raise ValueError("0, 1, true or false")


def as_tuple(value: object) -> object:
    """Let a list of JSON stand where a model has a tuple, of fixed length and mixed types."""
    return tuple(value) if isinstance(value, list) else value


Real = Annotated[float, Field(ge=0, le=LARGEST_NUMBER, allow_inf_nan=False), BeforeValidator(_number)]
"""A number of 0 or more."""
Positive = Annotated[float, Field(gt=0, le=LARGEST_NUMBER, allow_inf_nan=False), BeforeValidator(_number)]
"""A number above 0."""
Signed = Annotated[
    float, Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER, allow_inf_nan=False), BeforeValidator(_number)
]
"""Any finite number."""
Whole = Annotated[int, Field(ge=0, le=10**18)]
"""A whole number of 0 or more."""
Count = Annotated[int, Field(ge=1, le=10**9)]
"""A whole number above 0."""
Flag = Annotated[bool, BeforeValidator(_flag)]
"""A truth value, also written as 0 or 1."""

Model = TypeVar("Model", bound=BaseModel)


def read_json(path: Path, model: type[Model]) -> Model:
    """Read a file as a model. Raises FormatError with every problem; OSError if the file cannot be read."""
    data = _parsed(path)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise FormatError(path, [_problem(row) for row in error.errors(include_url=False)]) from None


def ns_of_seconds(seconds: float) -> int:
    """Return a time as whole ns, rounded up from the decimal number that the file shows."""
    return ceil_fraction(Fraction(repr(seconds)) * NS_PER_SECOND)


def _parsed(path: Path) -> object:
    try:
        text = read_limited(path, LARGEST_FILE)
        return parse_json(text)
    except json.JSONDecodeError as error:
        place = f":{error.lineno}:{error.colno}"
        raise FormatError(path, [f"{place}: not JSON: {error.msg}"]) from None
    except RecursionError:
        raise FormatError(path, [": nested too deeply"]) from None
    except ValueError as error:
        raise FormatError(path, [f": {error}"]) from None


_EXPECTED: Mapping[str, str] = {
    "float_type": "a number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "finite_number": "a finite number",
    "string_type": "a text",
    "list_type": "a list",
    "tuple_type": "a list",
    "too_long": "a shorter list",
    "too_short": "a longer list",
    "dict_type": "an object",
    "model_type": "an object",
}
"""What each error of pydantic expected, in the words of a JSON file."""


def _problem(row: Mapping[str, object]) -> str:
    """Turn one error of pydantic into: place, what was found, what was expected."""
    kind, location, context = str(row["type"]), row["loc"], row.get("ctx", {})
    place = ": " + "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}"
        for step in (location if isinstance(location, tuple) else ())
    ).removeprefix(".")
    if kind == "missing":
        return f"{place}: found nothing, expected this key"
    if kind == "extra_forbidden":
        return f"{place}: unknown key"
    limits = {"greater_than_equal": "at least", "greater_than": "more than", "less_than_equal": "at most"}
    if kind in limits and isinstance(context, dict):
        expected = f"{limits[kind]} {next(iter(context.values()))}"
    else:
        message = str(row["msg"]).removeprefix("Value error, ")
        expected = _EXPECTED.get(kind, message[:1].lower() + message[1:])
    return f"{place}: found {quoted(row['input'])}, expected {expected}"
