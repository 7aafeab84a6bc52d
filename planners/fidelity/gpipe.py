"""GPipe's Tables 2 and 3, throughput against numbers of accelerators and micro-batches, beside the timeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planners.common.accelerator import Accelerator
from planners.fidelity.machines import P100, TPU_V2, TPU_V3
from planners.gpipe.memory import GPipeBatch
from planners.gpipe.published import IMAGES, SAMPLES, SPEED_TABLES, SpeedTable, transformer
from planners.gpipe.time import (
    LayerLine,
    amoebanet_network,
    closed_form_speed,
    samples_per_second,
    transformer_network,
)
from planners.studies.study import StudyTable
from planners.studies.text import Errors, error_percent, mean_absolute, signed

__all__: list[str] = []

MANY = 32
"""The number of micro-batches whose rows can be predicted."""
COLUMNS = ("table", "network", "M", "K", "published", "executed", "error", "closed form", "error")


def _is_transformer(table: SpeedTable) -> bool:
    return table.network.startswith("Transformer")


def _machine(table: SpeedTable) -> Accelerator:
    if "P100" in table.table:
        return P100
    return TPU_V3 if _is_transformer(table) else TPU_V2


def _network(table: SpeedTable) -> LayerLine:
    """Return the network of a table: a Transformer as wide as that of Table 1, or AmoebaNet-D (L, D)."""
    element_bytes = 4 if _machine(table) is P100 else 2
    if _is_transformer(table):
        return transformer_network(table.network, transformer(int(table.network.split("-")[1])), element_bytes)
    layers, filters = map(int, table.network.split("(")[1].rstrip(")").split(","))
    return amoebanet_network(layers, filters, element_bytes)


def _speeds(table: SpeedTable, machine: Accelerator) -> Iterator[tuple[int, int, float, float, float]]:
    """Yield micro-batches, accelerators, and the published, executed and closed-form throughput in its unit."""
    network, samples = _network(table), SAMPLES if _is_transformer(table) else IMAGES
    cells, micro_batches = table.unit
    unit = samples_per_second(network, cells, GPipeBatch(samples, micro_batches), machine)
    closed_unit = closed_form_speed(cells, micro_batches)
    for row in table.rows:
        for count, published in row.speeds.items():
            speed = samples_per_second(network, count, GPipeBatch(samples, row.micro_batches), machine)
            closed = closed_form_speed(count, row.micro_batches) / closed_unit
            yield row.micro_batches, count, published, float(speed / unit), float(closed)


def speed_table() -> tuple[StudyTable, dict[str, Errors]]:
    """Return Tables 2 and 3 beside the prediction, and the mean absolute errors of rows of 32 micro-batches."""
    rows: list[tuple[str, ...]] = []
    errors: dict[str, list[Errors]] = {"transformer": [], "amoebanet": []}
    for table in SPEED_TABLES:
        for micro_batches, count, published, executed, closed in _speeds(table, _machine(table)):
            error = Errors(error_percent(executed, published), error_percent(closed, published))
            if micro_batches == MANY and (count, micro_batches) != table.unit:
                errors["transformer" if _is_transformer(table) else "amoebanet"].append(error)
            cells = (
                table.table,
                table.network,
                str(micro_batches),
                str(count),
                f"{published:g}",
                f"{executed:.2f}",
            )
            unit = (count, micro_batches) == table.unit
            both = ("unit", f"{closed:.2f}", "unit")
            rows.append(
                (*cells, *both)
                if unit
                else (*cells, signed(error.executed), f"{closed:.2f}", signed(error.closed_form))
            )
    means = {
        name: Errors(*(mean_absolute(column) for column in zip(*values, strict=True)))
        for name, values in errors.items()
    }
    return StudyTable(
        "GPipe, Tables 2 and 3: throughput relative to the row called unit", COLUMNS, tuple(rows), _remarks(means)
    ), means


def _remarks(means: dict[str, Errors]) -> tuple[str, ...]:
    return (
        f"Rows of {MANY} micro-batches: mean absolute error {means['transformer'].executed:.1f} % for "
        f"Transformers, {means['amoebanet'].executed:.1f} % for AmoebaNet-D.",
        "Rows of 1 and 4 micro-batches do not follow, and no formula of the paper makes them: with one "
        "micro-batch only one accelerator works at a time, so more of them cannot help (executed and closed "
        "form: 1), and with 4 on 8 at most 2.91 is possible. The paper says that batch sizes were adjusted to "
        "fit memory, without saying to what. Where more accelerators let a larger batch in, products get more "
        "efficient; that is not the pipeline's doing and is not predicted.",
        "AmoebaNet-D is cut by the FLOPs of its cells, which are nearly equal. That comes close to Table 3, "
        "whose unit has 32 micro-batches too, and fails for Table 2, whose unit has one: taken as imbalance "
        f"alone, its 1.21 for 32 micro-batches on 2 accelerators would put {_largest_share(2):.0f} % of the "
        f"work on one of them; but its 3.48 on 8 would mean that no layer has more than {_largest_share(8):.0f} "
        f"%, and then two cells can be cut with at most {50 + _largest_share(8) / 2:.0f} % in one. So one large "
        "micro-batch must run at a better rate there than 32 small ones, which is not predicted.",
        "No absolute throughput is published for these machines, so no efficiency can be estimated: products "
        "run at the peak here, which makes transfers weigh most. At half the peak no entry changes by more "
        f"than {_change_at_half_peak():.2f} %. Sizes of Transformers and mini-batches are those of Table 1, "
        f"{SAMPLES} sequences and {IMAGES} images; a step re-materialises every cell. AmoebaNet-D is taken to "
        "run on TPUv2 and the Transformer on TPUv3, as in Table 1.",
    )


def _largest_share(cells: int) -> float:
    """Return the share of the slowest cell, in percent, if AmoebaNet's speed in Table 2 were imbalance alone.

    In the time of all work on one of 32 micro-batches, a step of 32 takes 1 + 31 x with the share x, and one whole
    micro-batch 32, whatever the cut.
    """
    table = next(one for one in SPEED_TABLES if one.network.startswith("AmoebaNet") and one.unit == (2, 1))
    speed = next(row.speeds[cells] for row in table.rows if row.micro_batches == MANY)
    return (MANY / speed - 1) / (MANY - 1) * 100


def _change_at_half_peak() -> float:
    """Return the largest change of any executed entry if products ran at half the peak, in percent."""
    changes = []
    for table in SPEED_TABLES:
        machine = _machine(table)
        slower = replace(machine, efficiency=machine.efficiency / 2)
        for one, other in zip(_speeds(table, machine), _speeds(table, slower), strict=True):
            changes.append(abs(error_percent(other[3], one[3])))
    return max(changes)
