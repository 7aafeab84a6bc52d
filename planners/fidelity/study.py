"""Study ``fidelity``: published times and memories beside pipecut's, with one efficiency for a whole machine."""

from __future__ import annotations

import math

from planners.fidelity.gpipe import speed_table
from planners.fidelity.machines import A100, P100, TPU_V2, TPU_V3, estimated
from planners.fidelity.memory import memory_table, statements_table, traced_table
from planners.fidelity.steps import korthikanti_table, layer_errors, layer_table, megatron_table
from planners.fidelity.terms import anchors_table, terms_table
from planners.studies.study import Study, StudyInputs, StudyTable
from planners.studies.text import Errors, mean_absolute

__all__: list[str] = []


def run(inputs: StudyInputs) -> Study:
    """Predict every published run. Needs no data. Cost: half a minute."""
    del inputs
    machine = estimated(A100)
    korthikanti, korthikanti_errors = korthikanti_table(machine)
    megatron, megatron_errors = megatron_table(machine)
    speeds, speed_errors = speed_table()
    errors = {
        "layer": Errors(mean_absolute(layer_errors(machine)), math.nan),
        "korthikanti": korthikanti_errors,
        "megatron": megatron_errors,
        "gpipe_transformer": speed_errors["transformer"],
        "gpipe_amoebanet": speed_errors["amoebanet"],
    }
    figures: dict[str, float | int | str | None] = {"a100_efficiency": float(machine.efficiency)}
    figures |= {f"{name}_error_percent": error.executed for name, error in errors.items()}
    return Study(
        "Fidelity: published runs, predicted",
        _reading(float(machine.efficiency)),
        (
            summary_table(errors),
            machines_table(float(machine.efficiency)),
            layer_table(machine),
            korthikanti,
            megatron,
            terms_table(A100),
            anchors_table(A100),
            speeds,
            memory_table(),
            statements_table(),
            traced_table(),
        ),
        figures,
    )


def summary_table(errors: dict[str, Errors]) -> StudyTable:
    """Return the mean absolute errors of every published table that is predicted."""
    names = (
        "Korthikanti et al., Table 4: one layer, forward and backward",
        "Korthikanti et al., Table 5: iteration times",
        "Megatron-LM, SC'21, Table 1: iteration times",
        "GPipe, Tables 2 and 3, Transformers, 32 micro-batches: relative throughput",
        "GPipe, Tables 2 and 3, AmoebaNet-D, 32 micro-batches: relative throughput",
    )
    rows = [
        (name, *("-" if math.isnan(error) else f"{error:.1f} %" for error in both))
        for name, both in zip(names, errors.values(), strict=True)
    ]
    return StudyTable("Summary: mean absolute errors", ("published", "executed", "closed form"), tuple(rows))


def machines_table(efficiency: float) -> StudyTable:
    """Return the numbers that predictions rest on."""
    rows = [
        (
            machine.name,
            f"{machine.peak_flops_per_second / 10**12:g}",
            share,
            _gigabytes(machine.memory_bytes_per_second),
            _gigabytes(machine.near_bytes_per_second),
            _gigabytes(machine.far_bytes_per_second),
        )
        for machine, share in (
            (A100, f"{efficiency:.3f}"),
            *((one, "1 (ratios only)") for one in (TPU_V2, TPU_V3, P100)),
        )
    ]
    return StudyTable(
        "Machines",
        ("machine", "peak, TFLOP/s", "efficiency", "memory, GB/s", "link, GB/s", "network, GB/s"),
        tuple(rows),
        (
            "Per device and direction. A100: HBM2e, NVLink 3 (600 GB/s, half each way), one 200 Gbit/s HDR "
            "adapter. TPU: half of a chip's 45 or 123 TFLOP/s, one link of 496 or 656 Gbit/s. P100: 32-bit "
            "products, PCIe 3.0 with 16 lanes. The efficiency is the share of the peak that matrix products "
            "reach; memory and links count at their nominal speed.",
        ),
    )


def _gigabytes(bytes_per_second: int | None) -> str:
    return "-" if bytes_per_second is None else f"{bytes_per_second / 10**9:g}"


def _reading(efficiency: float) -> tuple[str, ...]:
    return (
        "Every time below is predicted by executing the schedule on pipecut's timeline (1F1B, interleaved 1F1B "
        "or GPipe), with durations from FLOPs and bytes; a closed form stands beside it. Errors are (ours - "
        "published) / published.",
        f"One number is estimated, once: the efficiency {efficiency:.3f} of matrix products on A100, from the "
        "forward and backward pass of one 22B layer without recomputation (Korthikanti et al., Table 4, first "
        "row: 19.6 ms). It is used for every other row of three tables; no row has a number of its own.",
        "A layer takes 24Bsh² + 4Bs²h FLOPs forward and twice as many backward, divided by t; LayerNorms, "
        "dropouts, GELU and softmax move bytes at full memory bandwidth; tensor parallelism adds two ring "
        "all-reduces in either direction over NVLink. Korthikanti et al. overlap the all-reduce of an input "
        "gradient with the weight gradient (their §6.2); for SC'21, a year earlier, nothing is overlapped: an "
        "assumption.",
        "Between stages, each device sends 1/t of the activation over its own adapter, and the receiving node "
        "gathers it over NVLink (scatter/gather); the sender stands still meanwhile. Replicas all-reduce "
        "16-bit gradients after the last backward pass (an assumption: their size is not published); the rings "
        "of a node share its adapters. The optimiser moves 40 bytes a parameter. The last stage also computes "
        "the head and the loss.",
        "The closed form is (v m + p - 1)(f + b), with f and b of the same layers, and without head, "
        "transfers, all-reduce and optimiser; its bubble is (p - 1)/(v m). The executed bubble is the time in "
        "which ranks do not compute over the time in which they do, until the last backward pass, averaged "
        "over ranks: it also holds transfers, and the wait for the last stage with its head.",
    )
