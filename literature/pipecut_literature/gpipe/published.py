"""Tables 1 to 3 of GPipe (Huang et al., NeurIPS 2019, arXiv 1811.06965); the numbers lie in ``published.yaml``."""

from __future__ import annotations

from typing import NamedTuple

from pipecut_literature.megatron.transformer import TransformerShape
from pipecut_literature.studies.study import published

_TABLES = published(__file__)
SAMPLES, IMAGES = 32, 128
"""Mini-batches of the Transformer and of AmoebaNet-D in Table 1."""


def transformer(layers: int) -> TransformerShape:
    """Return the Transformer of Table 1: width 2,048, 32 heads, 1,024 tokens, a vocabulary of 32,000."""
    return TransformerShape(layers, 2048, 32, 1024, 32000)


class TransformerRow(NamedTuple):
    """A column of Table 1: accelerators (0: *Naive-1*), layers, parameters as printed, and both memories in G."""

    name: str
    accelerators: int
    layers: int
    parameters: str
    parameter_g: str
    activation_g: str


TRANSFORMER_ROWS = tuple(TransformerRow(*row) for row in _TABLES["transformer"])


class AmoebaNetRow(NamedTuple):
    """A column of Table 1: (normal layers, filters), parameters, and both memories in G, as printed."""

    name: str
    size: tuple[int, int]
    parameters: int
    printed: str
    parameter_g: str
    activation_g: str


AMOEBANET_ROWS = tuple(
    AmoebaNetRow(name, (layers, filters), *rest) for name, layers, filters, *rest in _TABLES["amoebanet"]
)


class SpeedTable(NamedTuple):
    """Throughputs of one network in Table 2 or 3, by number of micro-batches and of accelerators.

    They are relative to that of ``unit``, (accelerators, micro-batches).
    """

    table: str
    network: str
    unit: tuple[int, int]
    speeds: dict[int, dict[int, float]]


def _speeds(row: list[float]) -> dict[int, float]:
    return {2**power: float(speed) for power, speed in enumerate(row, start=1)}


SPEED_TABLES = tuple(
    SpeedTable(
        one["table"], one["network"], tuple(one["unit"]), {many: _speeds(row) for many, *row in one["rows"]}
    )
    for one in _TABLES["speeds"]
)
