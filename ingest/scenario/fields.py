"""The types of single fields of a scenario file: names, globs, quantities with units, goals."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from fractions import Fraction
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator
from pydantic import WithJsonSchema as Shown

from formulation.problem.options import Goal
from formulation.problem.precision import PRESETS, Precision
from ingest.graphs.module_calls import GRAINS
from ingest.mistakes import did_you_mean, shown
from ingest.text import quantities

__all__ = ["NumberFormat"]


class StrictPart(BaseModel):
    """A part of a file that a person writes: strict types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class Section(StrictPart):
    """A part of a scenario file."""


class NumberFormat(StrEnum):
    """A format that devices compute in. TF32 takes and gives numbers of four bytes."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"


def _name(text: str) -> str:
    """Keep a name that can be shown and typed. Raises ValueError for an empty, long or unprintable one."""
    if not text.strip() or len(text) > 100 or not text.isprintable():
        raise ValueError("expected a name of 1 to 100 printable characters")
    return text


def builder(text: str) -> str:
    """Keep the name of a Python function. Raises ValueError if it is not ``module:function``."""
    module, _, function = text.partition(":")
    if module.endswith(".py"):
        raise ValueError(
            f"name the module, not its file, like '{module[:-3].replace('/', '.').lstrip('.')}:{function}'"
        )
    if not all(part.isidentifier() for part in [*module.split("."), function]):
        raise ValueError("expected 'package.module:function', the function that builds the model")
    return text


def graph_file(text: str) -> str:
    """Keep the path of a graph file. Raises ValueError if its name does not say that it is JSON."""
    if not text.endswith(".json") or not text.isprintable():
        raise ValueError("expected the path of a traced layer graph, ending in .json")
    return text


def exported_file(text: str) -> str:
    """Keep the path of an exported model. Raises ValueError if its name does not say that it is one."""
    if not text.endswith(".pt2") or not text.isprintable():
        raise ValueError("expected the path of a model that torch.export.save has written, ending in .pt2")
    return text


def configuration(text: str) -> str:
    """Keep the path of a configuration. Raises ValueError for none."""
    if not text.strip() or not text.isprintable():
        raise ValueError("expected the path of a config.json, or of its folder")
    return text


def _glob(text: str) -> str:
    """Keep a glob on layer names. Raises ValueError for an empty, long or unprintable one."""
    if not text.strip() or len(text) > 200 or not text.isprintable():
        raise ValueError("expected the name of a layer or a glob like 'features.*'")
    return text


def _quantity(example: str) -> Shown:
    return Shown({"type": "string", "examples": [example]})


Name = Annotated[str, AfterValidator(_name)]
Glob = Annotated[str, AfterValidator(_glob)]
Whole = Annotated[int, Field(ge=1)]
Bandwidth = Annotated[int, BeforeValidator(quantities.bandwidth), _quantity("10 Gbit/s")]
Memory = Annotated[int, BeforeValidator(quantities.memory), _quantity("11 GiB")]
Speed = Annotated[int, BeforeValidator(quantities.speed), _quantity("13.4 TFLOP/s")]
Duration = Annotated[
    int,
    BeforeValidator(quantities.duration),
    Shown({"anyOf": [{"type": "string"}, {"const": 0}], "examples": ["5 us", "10 min"]}),
]
Ratio = Annotated[
    Fraction, PlainValidator(quantities.ratio), Shown({"type": ["number", "string"], "examples": [2, "3/2"]})
]
Price = Annotated[
    int, BeforeValidator(quantities.price), Shown({"type": ["number", "string"], "examples": [2.48]})
]
Byname = Field(strict=False)
"""An enum is written as its text."""


def _goals(value: object) -> object:
    """Take one goal or a list of different ones. Raises ValueError for none, and for one that is named twice."""
    goals = [value] if isinstance(value, str) else value
    if goals == []:
        raise ValueError("expected one goal or more, got an empty list")
    if isinstance(goals, list) and len({str(goal) for goal in goals}) < len(goals):
        raise ValueError("expected different goals, got one twice")
    return goals


def _cuts(value: object) -> object:
    """Take a word, or globs. Raises ValueError for anything else."""
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return tuple(_glob(one) for one in value)
    if isinstance(value, str) and value in GRAINS:
        return value
    hint = did_you_mean(value, GRAINS) if isinstance(value, str) else ""
    raise ValueError(f"expected {', '.join(GRAINS)} or a list of globs like [layers.*]{hint}")


KINDS = tuple(one.name for one in dataclasses.fields(Precision))


def _precision(value: object) -> object:
    """Take the name of a preset, or bytes of every kind. Raises ValueError for anything else."""
    if isinstance(value, str) and value in PRESETS:
        return PRESETS[value]
    if isinstance(value, dict) and set(value) == set(KINDS):
        return Precision(**value)
    hint = did_you_mean(value, PRESETS) if isinstance(value, str) else ""
    listed = ", ".join(f"{kind}: bytes" for kind in KINDS)
    raise ValueError(f"expected {', '.join(PRESETS)} or {{{listed}}}, got {shown(value)}{hint}")


Elements = Annotated[
    Precision,
    PlainValidator(_precision),
    Shown(
        {
            "anyOf": [
                {"enum": list(PRESETS)},
                {
                    "type": "object",
                    "properties": {kind: {"type": "integer", "minimum": 0} for kind in KINDS},
                    "required": list(KINDS),
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
CHOOSE = "choose"
"""A number of micro-batches that a search finds among all that divide the batch."""


def _micro_batches(value: object) -> object:
    """Take a number, a list of different ones to choose among, or ``choose``. Raises ValueError otherwise."""
    if value == CHOOSE or (type(value) is int and value >= 1):
        return value
    if isinstance(value, list) and value and all(type(one) is int and one >= 1 for one in value):
        if len(set(value)) < len(value):
            raise ValueError("expected different numbers, got one twice")
        return tuple(sorted(value))
    if isinstance(value, str) and value.isdecimal():
        raise ValueError(f"expected a whole number, got '{value}' (text; leave out the quotes)")
    hint = did_you_mean(value, [CHOOSE]) if isinstance(value, str) else ""
    raise ValueError(
        f"expected a whole number of 1 or more, a list of them, or '{CHOOSE}', got {shown(value)}{hint}"
    )


MicroBatches = Annotated[
    int | str | tuple[int, ...],
    PlainValidator(_micro_batches),
    Shown(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"const": CHOOSE},
                {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1},
            ]
        }
    ),
]
Places = Annotated[
    str | tuple[str, ...],
    PlainValidator(_cuts),
    Shown({"anyOf": [{"enum": list(GRAINS)}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
Goals = Annotated[
    Annotated[tuple[Annotated[Goal, Byname], ...], Field(strict=False)],
    BeforeValidator(_goals),
    Shown(
        {
            "anyOf": [
                {"enum": [str(goal) for goal in Goal]},
                {"type": "array", "items": {"enum": [str(goal) for goal in Goal]}, "minItems": 1},
            ]
        }
    ),
]
