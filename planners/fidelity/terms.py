"""What each physical term of the prediction is worth, and how much hangs on the row that gave the efficiency."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from formulation.timeline.durations import Transfers
from planners.common.accelerator import Accelerator, efficiency_for
from planners.fidelity.machines import estimated
from planners.fidelity.steps import compare, layer_errors
from planners.megatron.published import (
    ITERATION_TIMES,
    MEGATRON_TABLE_1,
    PublishedStep,
    nanoseconds,
)
from planners.megatron.transformer_step import predict
from planners.studies.study import StudyTable
from planners.studies.text import mean_absolute

__all__: list[str] = []

ERROR_COLUMNS = ("Table 4, layer", "Table 5", "SC'21 Table 1")


def _errors(machine: Accelerator, transfers: Transfers = Transfers.SENDER) -> tuple[str, ...]:
    tables = (
        layer_errors(machine),
        [row.error_percent for row in compare(ITERATION_TIMES, machine, transfers)],
        [row.error_percent for row in compare(MEGATRON_TABLE_1, machine, transfers)],
    )
    return tuple(f"{mean_absolute(errors):.1f} %" for errors in tables)


def terms_table(machine: Accelerator) -> StudyTable:
    """Return the mean absolute errors with each term left out, the efficiency estimated anew from the same row."""
    variants = (
        ("all terms", machine, Transfers.SENDER),
        (
            "without memory traffic between products",
            replace(machine, memory_bytes_per_second=None),
            Transfers.SENDER,
        ),
        ("without NVLink (tensor parallelism)", replace(machine, near_bytes_per_second=None), Transfers.SENDER),
        ("without InfiniBand (stages, replicas)", replace(machine, far_bytes_per_second=None), Transfers.SENDER),
        ("transfers between stages overlapped", machine, Transfers.OVERLAPPED),
        (
            "FLOPs and schedule only",
            replace(machine, memory_bytes_per_second=None, near_bytes_per_second=None, far_bytes_per_second=None),
            Transfers.SENDER,
        ),
    )
    rows = []
    for name, variant, transfers in variants:
        chosen = estimated(variant)
        rows.append((name, f"{float(chosen.efficiency):.3f}", *_errors(chosen, transfers)))
    return StudyTable(
        "What each term is worth: mean absolute errors",
        ("prediction", "efficiency", *ERROR_COLUMNS),
        tuple(rows),
        ("In every line the efficiency is estimated anew, from the same row.",),
    )


def efficiency_of_row(row: PublishedStep, machine: Accelerator) -> Fraction:
    """Return the efficiency at which the prediction of one published step is closest."""

    def predicted_ns(efficiency: Fraction) -> int:
        return predict(row.training, replace(machine, efficiency=efficiency)).iteration_ns

    return efficiency_for(predicted_ns, nanoseconds(row.iteration_s))


def anchors_table(machine: Accelerator) -> StudyTable:
    """Return, for every published step, the efficiency that it asks for, and the errors if all used it."""
    rows = []
    for source, table in (("Table 5", ITERATION_TIMES), ("SC'21", MEGATRON_TABLE_1)):
        for row in table:
            efficiency = efficiency_of_row(row, machine)
            errors = _errors(replace(machine, efficiency=efficiency))
            shape = row.training.shape
            rows.append((f"{source}: {row.name}", str(shape.hidden), f"{float(efficiency):.3f}", *errors))
    return StudyTable(
        "If another row had given the efficiency: mean absolute errors",
        ("row", "width", "its efficiency", *ERROR_COLUMNS),
        tuple(rows),
        (
            "No prediction above uses these efficiencies: they show how much hangs on the row that was chosen, "
            "and what one number cannot express. The row asked stands among those whose errors are averaged.",
        ),
    )
