"""Study ``fidelity``: published times and memories beside those of the same runs as plans.

Times are those of SC'21 and of Korthikanti et al., beside those of the plans as executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipecut_literature.fidelity.gpipe import speed_table
from pipecut_literature.fidelity.memory import memory_table, statements_table, traced_table
from pipecut_literature.fidelity.runs import THOUSANDTHS, UPDATE, Constants, data_sheet, fitted, step_s
from pipecut_literature.megatron.published import ITERATION_TIMES, MEGATRON_TABLE_1, TERA, PublishedStep
from pipecut_literature.megatron.transformer import iteration_flops, megatron_bubble
from pipecut_literature.studies.study import (
    Study,
    StudyInputs,
    StudyTable,
    error_percent,
    mean_absolute,
    share,
    signed,
    words,
)


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A published table; ``ends`` are two of its rows, narrow and wide, from which constants can be estimated."""

    name: str
    title: str
    rows: tuple[PublishedStep, ...]
    ends: tuple[int, int]

    def fitted(self, known: Constants | None = None) -> Constants:
        """Return the constants by the two rows, with the link and the memory of ``known``."""
        return fitted(self.rows[self.ends[0]], self.rows[self.ends[1]], known)


MEGATRON = PublishedTable(
    "megatron", "Megatron-LM, SC'21, Table 1: iteration times and FLOP rates", MEGATRON_TABLE_1, (0, 9)
)
"""Its narrowest and its widest row give the constants."""
KORTHIKANTI = PublishedTable(
    "korthikanti", "Korthikanti et al., Table 5: iteration times", ITERATION_TIMES, (0, 7)
)
SOURCES = (MEGATRON, KORTHIKANTI)


def errors_of(source: PublishedTable, constants: Constants) -> list[float]:
    """Return by row how much longer the executed step is than the published one, in percent."""
    return [error_percent(step_s(row.training, constants), row.iteration_s) for row in source.rows]


COLUMNS = (
    *("model", "t, p, v, d", "micro-batches", "(p - 1)/(v m)"),
    *("published, s", "executed, s", "error", "TFLOP/s", "ours"),
)
VARIANTS = (
    *("constants", "products reach", "counted larger by", "links, GB/s", "memory"),
    *("SC'21, mean", "largest", "Korthikanti, mean", "largest"),
)


def steps_table(
    source: PublishedTable, constants: Constants, given: Sequence[int] = ()
) -> tuple[StudyTable, list[float]]:
    """Return a published table beside what is executed, and the errors of the rows that gave no constant."""
    errors = errors_of(source, constants)
    rest = [error for at, error in enumerate(errors) if at not in given]
    mean, largest = mean_absolute(rest), signed(max(rest, key=abs))
    what = f"The {len(rest)} rows that are not in brackets" if given else f"All {len(rest)} rows"
    remark = f"{what}: mean absolute error {mean:.1f} %, largest {largest}."
    rows = tuple(
        _cells(row, error, at in given) for at, (row, error) in enumerate(zip(source.rows, errors, strict=True))
    )
    return StudyTable(source.title, COLUMNS, rows, (remark,)), rest


def variants_table(constants: Constants) -> StudyTable:
    """Return the errors of both tables with constants of data sheets, and of two rows of the other source."""
    variants = {
        "two rows of SC'21; links and memory as measured": (constants, {MEGATRON: MEGATRON.ends}),
        "the same, with adapters of the data sheet": (
            MEGATRON.fitted(replace(constants, far=data_sheet().far)),
            {MEGATRON: MEGATRON.ends},
        ),
        "the same, with links and memory of the data sheet": (
            MEGATRON.fitted(data_sheet()),
            {MEGATRON: MEGATRON.ends},
        ),
        "two rows of Korthikanti et al.; links and memory as measured": (
            KORTHIKANTI.fitted(),
            {KORTHIKANTI: KORTHIKANTI.ends},
        ),
    }
    rows = []
    for name, (one, given) in variants.items():
        links = f"{one.near}, {float(one.far):g}"
        cells = [name, f"{one.largest / THOUSANDTHS:.3f}", str(one.size), links, f"{float(one.memory):g}"]
        for source in SOURCES:
            rest = [found for at, found in enumerate(errors_of(source, one)) if at not in given.get(source, ())]
            cells += [f"{mean_absolute(rest):.1f} %", signed(max(rest, key=abs))]
        rows.append(tuple(cells))
    return StudyTable(
        "What the constants are worth", VARIANTS, tuple(rows), ("Rows that gave constants left out.",)
    )


def _cells(row: PublishedStep, error: float, given: bool) -> tuple[str, ...]:
    training = row.training
    degrees = training.degree, training.ranks, training.chunks, training.replicas
    flops = iteration_flops(training.shape, training.global_batch, training.recompute)
    rate = float(flops / (training.devices * row.iteration_s)) / TERA
    bubble = megatron_bubble(training.ranks, training.micro_batches, training.chunks)
    plan = (row.name, ", ".join(map(str, degrees)), str(training.micro_batches), share(bubble))
    scale = 1 + error / 100
    seconds = float(row.iteration_s)
    shown = f"({signed(error)})" if given else signed(error)
    return (*plan, f"{seconds:.2f}", f"{seconds * scale:.2f}", shown, f"{rate:.0f}", f"{rate / scale:.0f}")


def run(inputs: StudyInputs) -> Study:
    """Predict every published run. Needs no data. Cost: a minute."""
    del inputs
    tables: list[StudyTable] = []
    means: list[tuple[str, float, float | None]] = []
    figures: dict[str, float | int | str | None] = {}
    constants = MEGATRON.fitted()
    figures |= {"largest": constants.largest / THOUSANDTHS, "size": constants.size}
    for source in SOURCES:
        table, rest = steps_table(source, constants, source.ends if source is MEGATRON else ())
        tables.append(table)
        mean, largest = mean_absolute(rest), max(map(abs, rest))
        means.append((source.title, mean, largest))
        figures |= {f"{source.name}_error_percent": mean, f"{source.name}_largest_error_percent": largest}
    speeds, errors = speed_table()
    for name, title in (("transformer", "Transformers"), ("amoebanet", "AmoebaNet-D")):
        name_of = f"GPipe, Tables 2 and 3, {title}, 32 micro-batches: relative throughput"
        means.append((name_of, errors[name].executed, None))
        figures[f"gpipe_{name}_error_percent"] = errors[name][0]
    summary = StudyTable(
        "Summary: rows that gave no constant",
        ("published", "mean absolute error", "largest"),
        tuple((title, f"{mean:.1f} %", "-" if most is None else f"{most:.1f} %") for title, mean, most in means),
    )
    return Study(
        "Fidelity: published runs, predicted",
        _reading(constants),
        (summary, *tables, variants_table(constants), speeds, memory_table(), statements_table(), traced_table()),
        figures,
    )


def _reading(constants: Constants) -> tuple[str, ...]:
    return words(
        __file__,
        "reading",
        near=constants.near,
        memory=float(constants.memory),
        far=float(constants.far),
        update=float(UPDATE),
        largest=constants.largest / THOUSANDTHS,
        size=constants.size,
    )
