"""Times of SC'21 and of Korthikanti et al., predicted: iterations on the timeline, and single layers."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from formulation.problem.units import NS_PER_SECOND
from formulation.timeline.durations import Transfers
from planners.common.accelerator import Accelerator
from planners.megatron.published import (
    ITERATION_TIMES,
    LAYER_SHAPE,
    LAYER_TIMES,
    MEGATRON_TABLE_1,
    TERA,
    PublishedStep,
)
from planners.megatron.transformer import LayerRecompute, iteration_flops
from planners.megatron.transformer_step import TransformerStep, predict
from planners.megatron.transformer_time import layer_passes
from planners.studies.study import StudyTable
from planners.studies.text import Errors, error_percent, mean_absolute, share, signed

__all__: list[str] = []

MS = 1000


@dataclass(frozen=True, slots=True)
class StepComparison:
    """A published run beside its prediction."""

    published: PublishedStep
    step: TransformerStep

    @property
    def iteration_s(self) -> Fraction:
        """Predicted time of the executed step."""
        return Fraction(self.step.iteration_ns, NS_PER_SECOND)

    @property
    def closed_form_s(self) -> Fraction:
        """Predicted time of the closed form."""
        return Fraction(self.step.closed_form_ns, NS_PER_SECOND)

    @property
    def error_percent(self) -> float:
        """How much longer the executed step is than the published one."""
        return error_percent(self.iteration_s, self.published.iteration_s)

    @property
    def closed_form_error_percent(self) -> float:
        """How much longer the closed form is than the published time."""
        return error_percent(self.closed_form_s, self.published.iteration_s)


def compare(
    rows: tuple[PublishedStep, ...], machine: Accelerator, transfers: Transfers = Transfers.SENDER
) -> tuple[StepComparison, ...]:
    """Predict published runs."""
    return tuple(StepComparison(row, predict(row.training, machine, transfers)) for row in rows)


def mean_errors(rows: tuple[StepComparison, ...]) -> Errors:
    """Return the mean absolute errors of a table."""
    return Errors(
        mean_absolute(row.error_percent for row in rows),
        mean_absolute(row.closed_form_error_percent for row in rows),
    )


def layer_errors(machine: Accelerator) -> list[float]:
    """Return the errors of Table 4 of Korthikanti et al., forward and backward, row by row, in percent."""
    errors = []
    for row in LAYER_TIMES:
        passes = layer_passes(LAYER_SHAPE, row.setting, machine)
        errors.append(error_percent(passes.forward_s * MS, row.forward_ms))
        errors.append(error_percent((passes.backward_s + passes.recompute_s) * MS, row.backward_ms))
    return errors


def layer_table(machine: Accelerator) -> StudyTable:
    """Return Table 4 of Korthikanti et al. beside the prediction."""
    errors = layer_errors(machine)
    rows = []
    for at, row in enumerate(LAYER_TIMES):
        passes = layer_passes(LAYER_SHAPE, row.setting, machine)
        backward_ms = float(passes.backward_s + passes.recompute_s) * MS
        rows.append(
            (
                row.name,
                f"{float(row.forward_ms):.1f}",
                f"{float(passes.forward_s) * MS:.2f}",
                signed(errors[2 * at]),
                f"{float(row.backward_ms):.1f}",
                f"{backward_ms:.2f}",
                signed(errors[2 * at + 1]),
            )
        )
    return StudyTable(
        "Korthikanti et al., Table 4: one layer of the 22B model, ms",
        ("configuration", "forward", "ours", "error", "backward", "ours", "error"),
        tuple(rows),
        (
            f"Mean absolute error {mean_absolute(errors):.1f} %. The first row gave the efficiency, by the sum "
            "of its two times; how they share it, and the other rows, are predictions. Recomputation is part "
            "of the backward pass, as in the paper.",
        ),
    )


STEP_COLUMNS = (
    "model",
    "t, p, v, d",
    "micro-batches",
    "published, s",
    "executed, s",
    "error",
    "closed form, s",
    "error",
    "bubble, executed",
    "(p - 1)/(v m)",
)


def _step_cells(row: StepComparison) -> tuple[str, ...]:
    training = row.published.training
    plan = (training.setting.tensor_parallel_degree, training.ranks, training.chunks, training.replicas)
    return (
        row.published.name,
        ", ".join(map(str, plan)),
        str(training.micro_batches),
        f"{float(row.published.iteration_s):.2f}",
        f"{float(row.iteration_s):.2f}",
        signed(row.error_percent),
        f"{float(row.closed_form_s):.2f}",
        signed(row.closed_form_error_percent),
        share(row.step.bubble),
        share(row.step.closed_form_bubble),
    )


def korthikanti_table(machine: Accelerator) -> tuple[StudyTable, Errors]:
    """Return Table 5 of Korthikanti et al. beside the prediction, and its mean absolute errors."""
    rows = compare(ITERATION_TIMES, machine)
    errors = mean_errors(rows)
    replicated = next(row for row in rows if row.published.training.replicas > 1)
    alone = rows[rows.index(replicated) - 1]
    ours = float(replicated.iteration_s - alone.iteration_s)
    theirs = float(replicated.published.iteration_s - alone.published.iteration_s)
    return StudyTable(
        "Korthikanti et al., Table 5: iteration times",
        STEP_COLUMNS,
        tuple(map(_step_cells, rows)),
        (
            f"Mean absolute error {errors.executed:.1f} %. Errors grow with the width of the model: its "
            "products are more efficient than those of the 22B layer, and one efficiency cannot say so (see "
            "the efficiencies below).",
            f"The closed form's is {errors.closed_form:.1f} %, but not because it says more: it leaves out the "
            "head, which makes the last stage the slowest and every other wait, and so makes up for the "
            "efficiency that is too low for wide models.",
            f"Eight replicas of the 530B model cost {ours:.2f} s more than one here, {theirs:.2f} s in the "
            "paper, which does not overlap this all-reduce either: gradients of 16 bits at the full speed of "
            "an adapter are too hopeful an assumption.",
        ),
    ), errors


def megatron_table(machine: Accelerator) -> tuple[StudyTable, Errors]:
    """Return Table 1 of SC'21 beside the prediction, and the mean absolute errors of its times."""
    rows = compare(MEGATRON_TABLE_1, machine)
    errors = mean_errors(rows)
    cells = []
    for row in rows:
        training = row.published.training
        flops = iteration_flops(training.shape, training.global_batch, LayerRecompute.FULL)
        rate = float(flops / (training.devices * row.iteration_s)) / TERA
        cells.append((*_step_cells(row), str(row.published.tflops), f"{rate:.0f}"))
    return StudyTable(
        "Megatron-LM, SC'21, Table 1: iteration times and FLOP rates",
        (*STEP_COLUMNS, "published, TFLOP/s", "executed, TFLOP/s"),
        tuple(cells),
        (
            f"Mean absolute error {errors.executed:.1f} %, of the closed form {errors.closed_form:.1f} %. The "
            "paper prints rates; published seconds are its FLOPs, eq. (3), over the rate of all devices. "
            "Nothing of this table was used to estimate anything.",
        ),
    ), errors
