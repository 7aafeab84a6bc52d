"""Tables 1 to 3 of GPipe (Huang et al., NeurIPS 2019, arXiv 1811.06965), as data."""

from __future__ import annotations

from typing import NamedTuple

from pipecut_literature.megatron.transformer import TransformerShape

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


TRANSFORMER_ROWS = (
    TransformerRow("Naive-1", 0, 3, "282.2M", "11.7", "3.15"),
    TransformerRow("Pipeline-1", 1, 13, "785.8M", "8.8", "6.4"),
    TransformerRow("Pipeline-8", 8, 103, "5.3B", "59.5", "50.9"),
    TransformerRow("Pipeline-32", 32, 415, "21.0B", "235.1", "199.9"),
    TransformerRow("Pipeline-128", 128, 1663, "83.9B", "937.9", "796.1"),
)
"""As printed: the two memories of *Naive-1* stand in each other's place."""


class AmoebaNetRow(NamedTuple):
    """A column of Table 1: (normal layers, filters), parameters, and both memories in G, as printed."""

    name: str
    size: tuple[int, int]
    parameters: int
    printed: str
    parameter_g: str
    activation_g: str


AMOEBANET_ROWS = (
    AmoebaNetRow("Naive-1", (18, 208), 82_000_000, "82M", "1.05", "6.26"),
    AmoebaNetRow("Pipeline-1", (18, 416), 318_000_000, "318M", "3.8", "3.46"),
    AmoebaNetRow("Pipeline-2", (18, 544), 542_000_000, "542M", "6.45", "8.11"),
    AmoebaNetRow("Pipeline-4", (36, 544), 1_050_000_000, "1.05B", "12.53", "15.21"),
    AmoebaNetRow("Pipeline-8", (72, 512), 1_800_000_000, "1.8B", "24.62", "26.24"),
)


class SpeedRow(NamedTuple):
    """Throughputs of one number of micro-batches, by number of accelerators, relative to one of the entries."""

    micro_batches: int
    speeds: dict[int, float]


class SpeedTable(NamedTuple):
    """Rows of one network in Table 2 or 3; ``unit`` is the (accelerators, micro-batches) whose throughput is 1."""

    table: str
    network: str
    unit: tuple[int, int]
    rows: tuple[SpeedRow, ...]


SPEED_TABLES = (
    SpeedTable(
        "Table 2 (TPU)",
        "Transformer-48",
        (2, 1),
        (
            SpeedRow(1, {2: 1, 4: 1.07, 8: 1.3}),
            SpeedRow(4, {2: 1.7, 4: 3.2, 8: 4.8}),
            SpeedRow(32, {2: 1.8, 4: 3.4, 8: 6.3}),
        ),
    ),
    SpeedTable(
        "Table 2 (TPU)",
        "AmoebaNet-D (18, 256)",
        (2, 1),
        (
            SpeedRow(1, {2: 1, 4: 1.13, 8: 1.38}),
            SpeedRow(4, {2: 1.07, 4: 1.26, 8: 1.72}),
            SpeedRow(32, {2: 1.21, 4: 1.84, 8: 3.48}),
        ),
    ),
    SpeedTable("Table 3 (P100)", "Transformer-24", (2, 32), (SpeedRow(32, {2: 1, 4: 1.8, 8: 3.3}),)),
    SpeedTable("Table 3 (P100)", "AmoebaNet-D (18, 128)", (2, 32), (SpeedRow(32, {2: 1, 4: 1.7, 8: 2.7}),)),
)
