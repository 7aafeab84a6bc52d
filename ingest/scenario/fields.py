"""The types of single fields of a scenario file: names, globs, quantities with units, goals."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from fractions import Fraction
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator
from pydantic import WithJsonSchema as Shown

from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.precision import Precision
from pipecut.formulation.problem.training import Schedule
from pipecut.ingest.graphs.module_calls import GRAINS
from pipecut.ingest.mistakes import did_you_mean, number_hint, shown
from pipecut.ingest.text import quantities


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


def times_file(text: str) -> str:
    """Keep the path of times of layers. Raises ValueError if its name does not say what it is."""
    if not text.endswith((".json", ".csv")) or not text.isprintable():
        raise ValueError(
            "expected the path of times of layers: a profile that 'pipecut profile' wrote, ending in .json, or a"
            " table with the columns layer, forward_ms, backward_ms, ending in .csv"
        )
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


def _one_or_more(one: dict[str, object], *words: dict[str, object]) -> Shown:
    return Shown({"anyOf": [one, *words, {"type": "array", "items": one, "minItems": 1}]})


Name = Annotated[str, AfterValidator(_name)]
Glob = Annotated[str, AfterValidator(_glob)]
Whole = Annotated[int, Field(ge=1)]
InputShape = Annotated[list[Annotated[int, Field(ge=1, le=10**9)]], Field(min_length=1, max_length=8)]
Bandwidth = Annotated[int, BeforeValidator(quantities.bandwidth), _quantity("10 Gbit/s")]
Memory = Annotated[int, BeforeValidator(quantities.memory), _quantity("11 GiB")]
"""What there is room for; parts of a byte are left out."""
NeededMemory = Annotated[
    int,
    BeforeValidator(quantities.needed_memory),
    Shown({"anyOf": [{"type": "string"}, {"const": 0}], "examples": ["2 GiB"]}),
]
"""What something needs; a part of a byte counts whole."""
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
CHOOSE = "choose"
"""What a search finds: micro-batches among all numbers that divide the batch, or the schedule."""
WORD, LIST = "[word]", "[list]"
"""Parts of the path of a mistake that say which of two shapes was meant; nobody wrote them."""
Byname = Field(strict=False)
"""An enum is written as its text."""


def _several(what: str, value: object) -> object:
    """Take one thing or a list of different ones. Raises ValueError for none, and for one that is named twice."""
    named = value if isinstance(value, list) else [value]
    if not named:
        raise ValueError(f"expected one {what} or more, got an empty list")
    if len({str(one) for one in named}) < len(named):
        raise ValueError(f"expected different {what}s, got one twice")
    return named


def _schedules(value: object) -> object:
    """Take schedules; ``choose`` is all with a flush, 1F1B first. Raises ValueError as :func:`_several` does."""
    flushing = [str(one) for one in reversed(Schedule) if one.flushes]
    return flushing if value == CHOOSE else _several("schedule", value)


def _cuts(value: object) -> object:
    """Take a word, or globs. Raises ValueError for anything else."""
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return tuple(_glob(one) for one in value)
    if isinstance(value, str) and value in GRAINS:
        return value
    hint = did_you_mean(value, GRAINS) if isinstance(value, str) else ""
    raise ValueError(f"expected {', '.join(GRAINS)} or a list of globs like [layers.*]{hint}")


FROZEN = "frozen"
KINDS = tuple(one.name for one in dataclasses.fields(Precision) if one.name != FROZEN)


def _precision(value: object) -> object:
    """Take the name of a preset, or bytes of every kind. Raises ValueError for anything else."""
    if isinstance(value, str) and value in Precision.presets():
        return Precision.presets()[value]
    if isinstance(value, dict) and set(value) - {FROZEN} == set(KINDS):
        return Precision(**{key: _bytes_of(key, one) for key, one in value.items()})
    hint = did_you_mean(value, Precision.presets()) if isinstance(value, str) else ""
    listed = ", ".join(f"{kind}: bytes" for kind in (*KINDS, FROZEN))
    raise ValueError(f"expected {', '.join(Precision.presets())} or {{{listed}}}, got {shown(value)}{hint}")


def _bytes_of(kind: str, value: object) -> Any:  # noqa: ANN401 (whole, of frozen weights a fraction)
    """Take whole bytes, of frozen weights parts of one, too. Raises ValueError for anything else."""
    if kind == FROZEN:
        return None if value is None else quantities.ratio(value)
    if type(value) is int:
        return value
    apart = "; weights that are not trained may have less: frozen: 0.5" if kind == "weights" else ""
    raise ValueError(f"{kind}: expected whole bytes, got {shown(value)}{apart}")


Elements = Annotated[
    Precision,
    PlainValidator(_precision),
    Shown(
        {
            "anyOf": [
                {"enum": list(Precision.presets())},
                {
                    "type": "object",
                    "properties": {kind: {"type": "integer", "minimum": 0} for kind in KINDS}
                    | {FROZEN: {"type": ["number", "string", "null"], "examples": [0.5, 1, 2]}},
                    "required": list(KINDS),
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


def _micro_batches(value: object) -> object:
    """Take a number, a list of different ones to choose among, or ``choose``. Raises ValueError otherwise."""
    if value == CHOOSE or (type(value) is int and value >= 1):
        return value
    if isinstance(value, list) and value and all(type(one) is int and one >= 1 for one in value):
        if len(set(value)) < len(value):
            raise ValueError("expected different numbers, got one twice")
        return tuple(sorted(value))
    hint = number_hint(value) or (did_you_mean(value, [CHOOSE]) if isinstance(value, str) else "")
    raise ValueError(
        f"expected a whole number of 1 or more, a list of them, or '{CHOOSE}', got {shown(value)}{hint}"
    )


MicroBatches = Annotated[
    int | str | tuple[int, ...],
    PlainValidator(_micro_batches),
    _one_or_more({"type": "integer", "minimum": 1}, {"const": CHOOSE}),
]


def _warm_up(value: object) -> object:
    """Take a way to warm up, or a number by stage, none above the one before it. Raises ValueError otherwise."""
    known = ("classic", "eager", CHOOSE)
    if isinstance(value, str) and value in known:
        return value
    if isinstance(value, list) and value and all(type(one) is int and one >= 1 for one in value):
        if value != sorted(value, reverse=True):
            raise ValueError(f"expected no number above the one before it, for which it would wait, got {value}")
        return tuple(value)
    hint = did_you_mean(value, known) if isinstance(value, str) else ""
    raise ValueError(f"expected {', '.join(known)}, or a list of whole numbers by stage, got {shown(value)}{hint}")


WarmUp = Annotated[
    str | tuple[int, ...],
    PlainValidator(_warm_up),
    Shown(
        {
            "anyOf": [
                {"enum": ["classic", "eager", CHOOSE]},
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
    BeforeValidator(partial(_several, "goal")),
    _one_or_more({"enum": [str(goal) for goal in Goal]}),
]
Schedules = Annotated[
    Annotated[tuple[Annotated[Schedule, Byname], ...], Field(strict=False)],
    BeforeValidator(_schedules),
    _one_or_more({"enum": [str(one) for one in Schedule]}, {"const": CHOOSE}),
]
MOST_CHUNKS = 64
Chunks = Annotated[
    Annotated[tuple[Annotated[int, Field(ge=1, le=MOST_CHUNKS)], ...], Field(strict=False)],
    BeforeValidator(partial(_several, "number")),
    _one_or_more({"type": "integer", "minimum": 1, "maximum": MOST_CHUNKS}),
]
