"""Study ``gpipe``: GPipe's Table 1, and how large a Transformer fits by the same rule."""

from __future__ import annotations

from pipecut_literature.gpipe import memory
from pipecut_literature.gpipe import published as paper
from pipecut_literature.gpipe.amoebanet import amoebanet_d
from pipecut_literature.gpipe.memory import GPipeBatch
from pipecut_literature.gpipe.published import TransformerRow, transformer
from pipecut_literature.studies.study import (
    GIB,
    Study,
    StudyInputs,
    StudyTable,
    error_percent,
    gib,
    mean_absolute,
    signed,
    words,
)

PARTS = (1, 2, 4, 8, 16, 32)
"""Numbers of micro-batches that a mini-batch of 32 has."""
CAPACITIES = ((16 * GIB, "16 GiB"), (16 * 10**9, "16 GB"))
"""A TPUv3 core has 16 GB, which the paper does not say to be decimal or binary."""


def run(inputs: StudyInputs) -> Study:
    """Compute Table 1 again. Needs no data."""
    del inputs
    batch = GPipeBatch(paper.SAMPLES, estimated_micro_batches())
    held, errors = transformer_table(batch)
    largest, largest_errors = largest_table(batch)
    return Study(
        "GPipe: how large a model fits",
        words(__file__, "reading", micro_batches=batch.micro_batches),
        (held, micro_batches_table(), largest, amoebanet_table()),
        {"micro_batches": batch.micro_batches, "activation_error_percent": mean_absolute(errors)}
        | {f"largest_layers_error_percent_{name}": error for name, error in largest_errors.items()},
    )


def estimated_micro_batches() -> int:
    """Return the number of micro-batches that comes closest to the activations of *Pipeline-1*."""
    row = paper.TRANSFORMER_ROWS[1]
    published = float(row.activation_g) * GIB

    def distance(parts: int) -> float:
        batch = GPipeBatch(paper.SAMPLES, parts)
        return abs(memory.pipeline_activation_bytes(transformer(row.layers), batch, row.accelerators) - published)

    return min(PARTS, key=distance)


def activation_bytes(row: TransformerRow, batch: GPipeBatch) -> int:
    """Return the activations of a row, summed over its accelerators."""
    shape = transformer(row.layers)
    if not row.accelerators:
        return memory.naive_activation_bytes(shape, batch.samples)
    return memory.pipeline_activation_bytes(shape, batch, row.accelerators)


def transformer_table(batch: GPipeBatch) -> tuple[StudyTable, list[float]]:
    """Return the Transformer rows of Table 1 beside ours, and the errors of activations in percent."""
    rows, errors = [], []
    for row in paper.TRANSFORMER_ROWS:
        count = memory.parameters(transformer(row.layers))
        held, activations = memory.parameter_bytes(count), activation_bytes(row, batch)
        printed_held, printed_activations = row.parameter_g, row.activation_g
        if not row.accelerators:
            printed_held, printed_activations = printed_activations, printed_held
        errors.append(error_percent(activations / GIB, float(printed_activations)))
        model = row.name, str(row.layers), row.parameters, f"{count / 10**6:,.1f}M"
        states = printed_held, gib(held), signed(error_percent(held / GIB, float(printed_held)))
        rows.append((*model, *states, printed_activations, gib(activations), signed(errors[-1])))
    columns = ("column", "L", "parameters", "ours", "their memory, G", "ours, GiB", "error")
    return StudyTable(
        f"Table 1, Transformer, {batch.micro_batches} micro-batches",
        (*columns, "activations, G", "ours, GiB", "error"),
        tuple(rows),
        words(__file__, "transformer"),
    ), errors


def micro_batches_table() -> StudyTable:
    """Return the activations of Table 1 for every number of micro-batches, since the paper does not give it."""
    names = [row for row in paper.TRANSFORMER_ROWS if row.accelerators]
    rows = [
        (str(parts), *(gib(activation_bytes(row, GPipeBatch(paper.SAMPLES, parts))) for row in names))
        for parts in PARTS
    ]
    return StudyTable(
        "Activations by number of micro-batches, GiB",
        ("micro-batches", *(row.name for row in names)),
        (("published", *(row.activation_g for row in names)), *rows),
        ("Only the row of *Pipeline-1* was used to choose; the same number fits the other three.",),
    )


def largest_table(batch: GPipeBatch) -> tuple[StudyTable, dict[str, float]]:
    """Return the most layers that fit, beside the published ones, and mean absolute errors by capacity."""
    columns: list[list[str]] = []
    means: dict[str, float] = {}
    for capacity, name in CAPACITIES:
        found = [_largest(row, batch, capacity) for row in paper.TRANSFORMER_ROWS]
        errors = [error_percent(ours, row.layers) for ours, row in zip(found, paper.TRANSFORMER_ROWS, strict=True)]
        means[name.replace(" ", "").lower()] = mean_absolute(errors)
        columns += [[str(ours) for ours in found], [signed(error) for error in errors]]
    rows = [
        (row.name, str(row.accelerators or 1), str(row.layers), *cells)
        for row, *cells in zip(paper.TRANSFORMER_ROWS, *columns, strict=True)
    ]
    heads = [cell for _, name in CAPACITIES for cell in (f"ours, {name}", "error")]
    return StudyTable(
        "The most layers that fit",
        ("column", "accelerators", "published L", *heads),
        tuple(rows),
        words(__file__, "largest"),
    ), means


def _largest(row: TransformerRow, batch: GPipeBatch, capacity: int) -> int:
    shape = transformer(1)
    if not row.accelerators:
        return memory.largest_naive_layers(shape, batch.samples, capacity)
    return memory.largest_layers(shape, batch, row.accelerators, capacity)


def amoebanet_table() -> StudyTable:
    """Return the AmoebaNet columns of Table 1: parameters, their memory, and what all activations would take."""
    rows = []
    for row in paper.AMOEBANET_ROWS:
        cells = amoebanet_d(*row.size)
        count = sum(cell.parameters for cell in cells)
        held = memory.parameter_bytes(count) / 10**9
        kept = memory.ELEMENT_BYTES * paper.IMAGES * sum(cell.kept_elements for cell in cells) / GIB
        model = row.name, "{}, {}".format(*row.size), row.printed, f"{count / 10**6:,.1f}M"
        states = row.parameter_g, f"{held:.2f}", signed(error_percent(held, float(row.parameter_g)))
        activations = row.activation_g, f"{kept:.1f}", f"{kept / float(row.activation_g):.1f}"
        rows.append((*model, signed(error_percent(count, row.parameters)), *states, *activations))
    columns = ("column", "L, D", "parameters", "ours", "error", "their memory, G", "ours, GB", "error")
    return StudyTable(
        "Table 1, AmoebaNet-D",
        (*columns, "activations, G", "all kept, GiB", "times the published"),
        tuple(rows),
        words(__file__, "amoebanet"),
    )
