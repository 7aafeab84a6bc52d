"""GPipe's Tables 2 and 3, throughput against numbers of accelerators and micro-batches, beside the timeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from pipecut.formulation.predictor.roofline import Roofline
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.instance import build_instance
from pipecut.formulation.problem.layers import Layer, Split, layer_graph
from pipecut.formulation.problem.options import Compute, CostModel
from pipecut.formulation.problem.training import Training
from pipecut_literature.gpipe import time as gpipe_time
from pipecut_literature.gpipe.amoebanet import amoebanet_d
from pipecut_literature.gpipe.memory import GPipeBatch
from pipecut_literature.gpipe.published import IMAGES, SAMPLES, SPEED_TABLES, SpeedTable, transformer
from pipecut_literature.gpipe.time import Accelerator, LayerLine
from pipecut_literature.studies.study import Errors, StudyTable, error_percent, mean_absolute, signed, words

GIGA = 10**9
TPU_V3 = Accelerator("TPUv3 core", peak_flops_per_second=61_500 * GIGA, near_bytes_per_second=82 * GIGA)
"""Half a chip of 123 TFLOP/s; one 656 Gbit/s link between chips."""
TPU_V2 = Accelerator(
    "TPUv2 core", 22_500 * GIGA, memory_bytes_per_second=350 * GIGA, near_bytes_per_second=62 * GIGA
)
"""Half a chip of 45 TFLOP/s and 700 GB/s (Jouppi et al., CACM 2020); one 496 Gbit/s link between chips."""
P100 = Accelerator(
    "P100 on PCIe 3.0", 9_300 * GIGA, memory_bytes_per_second=732 * GIGA, near_bytes_per_second=15_750_000_000
)
"""32-bit products; 732 GB/s (NVIDIA's data sheet); 16 lanes of PCIe 3.0."""
NO_MATRIX_UNIT = Roofline(outer=0, inner=0)
"""Of a card that multiplies number by number: nothing is padded to the size of a matrix unit."""

MANY = 32
"""The number of micro-batches whose rows can be predicted."""
COLUMNS = ("table", "network", "M", "K", "published", "executed", "error", "closed form", "error")


def _is_transformer(table: SpeedTable) -> bool:
    return table.network.startswith("Transformer")


def _machine(table: SpeedTable) -> Accelerator:
    if "P100" in table.table:
        return P100
    return TPU_V3 if _is_transformer(table) else TPU_V2


def _sizes(table: SpeedTable) -> tuple[int, int]:
    layers, filters = map(int, table.network.split("(")[1].rstrip(")").split(","))
    return layers, filters


def _network(table: SpeedTable) -> LayerLine:
    """Return the network of a table: a Transformer as wide as that of Table 1, or AmoebaNet-D (L, D)."""
    element_bytes = 4 if _machine(table) is P100 else 2
    if _is_transformer(table):
        return gpipe_time.transformer_network(
            table.network, transformer(int(table.network.split("-")[1])), element_bytes
        )
    return gpipe_time.amoebanet_network(*_sizes(table), element_bytes)


@lru_cache(maxsize=32)
def _cell_passes(
    sizes: tuple[int, int], machine: Accelerator, roofline: Roofline, micro_batch: int
) -> tuple[tuple[int, int], ...]:
    """Return the passes of AmoebaNet's cells, in ns, as an instance has them: by sizes of products, and bytes."""
    cells = amoebanet_d(*sizes)
    layers = [
        Layer(one.name, "cell", Split.JOIN, 0, 0, 0, 0, one.flops // 2, allowed_forms=(0,), work=one.work)
        for one in cells
    ]
    names = [one.name for one in cells]
    graph = layer_graph("amoebanet", layers, [(one, other, 0) for one, other in pairwise(names)], element_bytes=1)
    speed, memory = int(machine.efficiency * machine.peak_flops_per_second), machine.memory_bytes_per_second or 0
    card = DeviceClass(machine.name, 1, speed, memory_bytes_per_second=memory)
    training = Training(micro_batch, bytes_per_element=4 if machine.name == P100.name else 2)
    cost = CostModel(compute=Compute.ROOFLINE, roofline=roofline)
    instance = build_instance(graph, cluster_graph("one card", [Server("one", card, 1, None)], ()), training, cost)
    return tuple(zip(instance.forward_ns[0], instance.backward_ns[0], strict=True))


def _speeds(
    table: SpeedTable, machine: Accelerator, roofline: Roofline | None = None
) -> Iterator[tuple[int, int, float, float, float]]:
    """Yield micro-batches, accelerators, and the published, executed and closed-form throughput in its unit."""
    network, samples = _network(table), SAMPLES if _is_transformer(table) else IMAGES

    def speed(cells: int, micro_batches: int) -> Fraction:
        batch, passes = GPipeBatch(samples, micro_batches), None
        if not _is_transformer(table):
            constants = roofline or (NO_MATRIX_UNIT if machine.name == P100.name else Roofline())
            passes = _cell_passes(_sizes(table), machine, constants, batch.micro_batch)
        return gpipe_time.samples_per_second(network, cells, batch, machine, passes)

    unit, closed_unit = speed(*table.unit), gpipe_time.closed_form_speed(*table.unit)
    for micro_batches, speeds in table.speeds.items():
        for count, published in speeds.items():
            closed = gpipe_time.closed_form_speed(count, micro_batches) / closed_unit
            found = speed(count, micro_batches) / unit
            yield micro_batches, count, published, float(found), float(closed)


def speed_table() -> tuple[StudyTable, dict[str, Errors]]:
    """Return Tables 2 and 3 beside the prediction, and the mean absolute errors of rows of 32 micro-batches."""
    rows: list[tuple[str, ...]] = []
    errors: dict[str, list[Errors]] = {"transformer": [], "amoebanet": []}
    for table in SPEED_TABLES:
        for micro_batches, count, published, executed, closed in _speeds(table, _machine(table)):
            error = Errors(error_percent(executed, published), error_percent(closed, published))
            if micro_batches == MANY and (count, micro_batches) != table.unit:
                errors["transformer" if _is_transformer(table) else "amoebanet"].append(error)
            case = (table.table, table.network, str(micro_batches), str(count))
            unit = (count, micro_batches) == table.unit
            ours, theirs = ("unit", "unit") if unit else (signed(error.executed), signed(error.closed_form))
            rows.append((*case, f"{published:g}", f"{executed:.2f}", ours, f"{closed:.2f}", theirs))
    means = {
        name: Errors(*(mean_absolute(column) for column in zip(*values, strict=True)))
        for name, values in errors.items()
    }
    return StudyTable(
        "GPipe, Tables 2 and 3: throughput relative to the row called unit", COLUMNS, tuple(rows), _remarks(means)
    ), means


def _remarks(means: dict[str, Errors]) -> tuple[str, ...]:
    return words(
        __file__,
        "speeds",
        many=MANY,
        transformers=means["transformer"].executed,
        amoebanet=means["amoebanet"].executed,
        largest={count: _largest_share(count) for count in (2, 4, 8)},
        first=", ".join(f"{_first_share(count):.0f}" for count in (2, 4, 8)),
        padded=_without_that(),
        change=_change_at_half_peak(),
        samples=SAMPLES,
        images=IMAGES,
    )


def _amoebanet(unit: tuple[int, int]) -> SpeedTable:
    return next(one for one in SPEED_TABLES if not _is_transformer(one) and one.unit == unit)


def _largest_share(cells: int) -> float:
    """Return the share of the slowest cell, in percent, if AmoebaNet's speed in Table 2 were imbalance alone.

    In the time of all work on one of 32 micro-batches, a step of 32 takes 1 + 31 x with the share x, and one whole
    micro-batch 32, whatever the cut.
    """
    speed = _amoebanet((2, 1)).speeds[MANY][cells]
    return (MANY / speed - 1) / (MANY - 1) * 100


def _first_share(cells: int) -> float:
    """Return the predicted share of the first of so many accelerators, in percent."""
    table = _amoebanet((2, 1))
    passes = _cell_passes(_sizes(table), TPU_V2, Roofline(), IMAGES // MANY)
    times = gpipe_time.gpipe_durations(_network(table), cells, GPipeBatch(IMAGES, MANY), TPU_V2, passes)
    each = [sum(one) for one in zip(times.forward_ns, times.backward_ns, times.recompute_ns, strict=True)]
    return 100 * each[0] / sum(each)


def _without_that() -> float:
    """Return AmoebaNet's mean error, in percent, were the P100 a card with a matrix unit."""
    tables = (_amoebanet((2, 1)), _amoebanet((2, MANY)))
    return mean_absolute(
        [
            error_percent(found, published)
            for table in tables
            for many, count, published, found, _ in _speeds(table, _machine(table), Roofline())
            if many == MANY and (count, many) != table.unit
        ]
    )


def _change_at_half_peak() -> float:
    """Return the largest change of a Transformer's entry if products ran at half the peak, in percent."""
    changes = []
    for table in filter(_is_transformer, SPEED_TABLES):
        machine = _machine(table)
        slower = replace(machine, efficiency=machine.efficiency / 2)
        for one, other in zip(_speeds(table, machine), _speeds(table, slower), strict=True):
            changes.append(abs(error_percent(other[3], one[3])))
    return max(changes)
