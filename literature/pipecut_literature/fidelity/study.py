"""Study ``fidelity``: published times and memories beside those of the same runs as plans."""

from __future__ import annotations

from pipecut_literature.fidelity.gpipe import speed_table
from pipecut_literature.fidelity.memory import memory_table, statements_table, traced_table
from pipecut_literature.fidelity.runs import THOUSANDTHS, UPDATE, Constants
from pipecut_literature.fidelity.steps import MEGATRON, SOURCES, steps_table, variants_table
from pipecut_literature.studies.study import Study, StudyInputs, StudyTable, mean_absolute, words


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
        (
            summary,
            *tables,
            variants_table(constants),
            speeds,
            memory_table(),
            statements_table(),
            traced_table(),
        ),
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
