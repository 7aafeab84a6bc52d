"""Study ``fidelity``: published times and memories beside those of the same runs as plans."""

from __future__ import annotations

from pipecut_literature.fidelity.gpipe import speed_table
from pipecut_literature.fidelity.memory import memory_table, statements_table, traced_table
from pipecut_literature.fidelity.runs import THOUSANDTHS, UPDATE, Constants
from pipecut_literature.fidelity.steps import MEGATRON, SOURCES, steps_table, variants_table
from pipecut_literature.studies.study import Study, StudyInputs, StudyTable
from pipecut_literature.studies.text import mean_absolute


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
    return (
        "Every run of the first two tables is an instance with a plan: the model as a layer graph (products, "
        "and the bytes of Megatron-LM's fused kernels), nodes of the library (`dgx-a100`, an adapter for each "
        "card), Megatron-LM's forms (head and loss on parts of the vocabulary), with sequence parallelism "
        "those that leave rows between products, replicas, and recomputation of blocks or of their attention "
        "cores, never of embedding, head or loss. It is priced by the formulas that price every plan "
        "(`cost.compute: roofline`, `boundary_charge: receiver`, `samples: fractions`) and executed on the "
        "timeline, interleaved where the run was, with optimiser, head and loss. Fractions divide the "
        "LayerNorm at the front of a stage over its cards, which Megatron-LM computes whole on each: with whole "
        "samples the widest row takes 0.2 % longer. Errors are (ours - published) / published.",
        "**How the constants are found.** The roofline has a curve of two constants: a product runs at the "
        "share `largest` of the peak as if each of its three sizes were larger by `size`. This command finds "
        "them from the narrowest and the widest row of SC'21's table: whole numbers at which both come out. "
        "Three more are not on a data sheet and were measured by others on the same card: sums among the "
        f"eight cards of a node reach {constants.near} GB/s (nccl-tests, issue 228), a kernel reaches "
        f"{float(constants.memory):g} of the bandwidth of the memory (NVIDIA's forum, thread 339083, by Nsight "
        f"Compute), and an adapter {float(constants.far):g} GB/s (SC'21, §5.9: 12.9 TB/s through a bisection "
        f"that 512 rings cross twice). Megatron-LM's optimiser of 2021 moves {float(UPDATE):g} times the bytes "
        "that it must, counted in its source (`pipecut_literature/fidelity/runs.py`). All else is of data sheets. "
        "Nothing is estimated for a row, and nothing from Korthikanti et al.: their software is a year "
        "younger, and all of their rows are predicted with the constants of SC'21. Found are `largest` "
        f"{constants.largest / THOUSANDTHS:.3f} and `size` {constants.size}, and with the memory's share these "
        "are the defaults of `cost.roofline`.",
        "**What was known when this was decided.** The form of the curve, who pays for a boundary, that "
        "measurements stand in for data sheets, and which terms are there were decided by people who had seen "
        "errors of both tables under other constants. The table of variants says what other constants give, "
        "and [decision 0015](../../docs/decisions/0015-what-a-step-of-megatron-has-in-it.md) which terms were "
        "tried, with the errors under each.",
        "Every device sends the part of the rows that it works on over its own adapter, and the receiver "
        "waits for it. Replicas sum 16-bit gradients after the last backward pass (an assumption: their size "
        "is not published). Every micro-batch but the first adds its gradients to those before. Since 2022 "
        "Megatron-LM sums the gradient of a product's input beside the product for its weights (`cost.inside: "
        "overlapped`): that is the software of Korthikanti et al., not of SC'21. What else the papers hide "
        "behind other work, or fuse further, is not hidden here.",
    )
