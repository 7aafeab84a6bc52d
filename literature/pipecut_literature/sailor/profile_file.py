"""Sailor's measurements: layer times by card, layer sizes, and bandwidth by message size (docs/formats).

Times are seconds in the files and whole ns here, rounded up. Sizes are bytes for a micro-batch of one sample.
``*_floats`` counts elements and is not kept: ids are 8 bytes each, so bytes are not always four times as many.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BeforeValidator, ConfigDict, RootModel

from pipecut.ingest.graphs.foreign import FormatError, quoted
from pipecut_literature.common.json_source import (
    Positive,
    Real,
    Signed,
    Strict,
    Whole,
    as_tuple,
    ns_of_seconds,
    read_json,
)
from pipecut_literature.sailor.profile import LayerSizes, LayerTimes, LinkFit, SailorLinks

STRICT_ROOT = ConfigDict(strict=True, frozen=True)
Triple = Annotated[tuple[Real, Real, Real], BeforeValidator(as_tuple)]
Coefficients = Annotated[tuple[Signed, Signed, Signed], BeforeValidator(as_tuple)]
Fit = Annotated[tuple[Coefficients, Positive], BeforeValidator(as_tuple)]
Row = TypeVar("Row")


class _Times(RootModel[dict[str, dict[str, dict[str, Triple]]]]):
    model_config = STRICT_ROOT


class _LayerSizes(Strict):
    params_floats: Whole
    act_output_floats: Whole
    act_input_floats: Whole
    act_mem_floats: Whole
    params_bytes: Whole
    act_output_bytes: Whole
    act_input_bytes: Whole
    act_mem_bytes: Whole


class _Sizes(RootModel[dict[str, dict[str, dict[str, _LayerSizes]]]]):
    model_config = STRICT_ROOT


class _Links(Strict):
    inter: dict[str, dict[str, Fit]]
    intra: dict[str, dict[str, Fit]]


def read_times(path: Path) -> dict[tuple[int, int], tuple[LayerTimes, ...]]:
    """Read the layer times of one card, by (micro-batch size, tensor-parallel degree), layers in order.

    Raises FormatError; OSError if the file cannot be read.
    """
    problems: list[str] = []
    found: dict[tuple[int, int], tuple[LayerTimes, ...]] = {}
    for batch, degrees in read_json(path, _Times).root.items():
        for degree, layers in degrees.items():
            at = f": {batch}.{degree}"
            key = number(f": {batch}", batch, problems), number(at, degree, problems)
            rows = in_order(at, layers, problems)
            found[key] = tuple(LayerTimes(*(ns_of_seconds(seconds) for seconds in row)) for row in rows)
    if problems:
        raise FormatError(path, problems)
    return found


def read_sizes(path: Path) -> dict[str, dict[int, tuple[LayerSizes, ...]]]:
    """Read layer sizes, by model and tensor-parallel degree, layers in order.

    Raises FormatError; OSError if the file cannot be read.
    """
    problems: list[str] = []
    found: dict[str, dict[int, tuple[LayerSizes, ...]]] = {}
    for model, degrees in read_json(path, _Sizes).root.items():
        for degree, layers in degrees.items():
            at = f": {model}.{degree}"
            rows = in_order(at, layers, problems)
            found.setdefault(model, {})[number(at, degree, problems)] = tuple(
                LayerSizes(row.params_bytes, row.act_input_bytes, row.act_output_bytes, row.act_mem_bytes)
                for row in rows
            )
    if problems:
        raise FormatError(path, problems)
    return found


def read_links(path: Path) -> SailorLinks:
    """Read the fits between and inside nodes (``network_coeffs_*.json``).

    Raises FormatError; OSError if the file cannot be read.
    """
    file = read_json(path, _Links)
    problems: list[str] = []
    links = SailorLinks(_by_card(": inter.", file.inter, problems), _by_card(": intra.", file.intra, problems))
    if problems:
        raise FormatError(path, problems)
    return links


def _by_card(
    at: str, fits: Mapping[str, Mapping[str, tuple[tuple[float, float, float], float]]], problems: list[str]
) -> dict[tuple[str, int], LinkFit]:
    return {
        (card, number(f"{at}{card}", count, problems)): LinkFit(*coefficients, peak)
        for card, counts in fits.items()
        for count, (coefficients, peak) in counts.items()
    }


def number(at: str, key: str, problems: list[str]) -> int:
    """Return a key as a number above 0; anything else becomes a problem."""
    if re.fullmatch(r"[1-9][0-9]{0,5}", key, re.ASCII):
        return int(key)
    problems.append(f"{at}: found key {quoted(key)}, expected a whole number above 0")
    return 0


def in_order(at: str, layers: Mapping[str, Row], problems: list[str]) -> tuple[Row, ...]:
    """Return the values of keys "0", "1", ... in order; a gap becomes a problem."""
    keys = [str(index) for index in range(len(layers))]
    if set(keys) != set(layers):
        odd = next(key for key in layers if key not in keys)
        problems.append(f"{at}: found layer {quoted(odd)}, expected 0 to {len(layers) - 1} without a gap")
        return ()
    return tuple(layers[key] for key in keys)
