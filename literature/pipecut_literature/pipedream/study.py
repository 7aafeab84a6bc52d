"""Study ``pipedream``: the program on its own profiles, the best plans in its model, and the paper's Table 1.

What the program prints for its own profiles, and Table 1 of the paper, lie in ``published.yaml``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pipecut.ingest.graphs.foreign import FormatError
from pipecut_literature.pipedream import paper as pipedream_paper
from pipecut_literature.pipedream.code import MachineLevel, Options, PipeDreamPlan, PipeDreamStage, optimise_states
from pipecut_literature.pipedream.paper import LayerRow
from pipecut_literature.pipedream.profile import ProfiledModel, read_profile
from pipecut_literature.pipedream.states import States, antichain_states, downset_states
from pipecut_literature.studies.study import Study, StudyInputError, StudyInputs, StudyTable, published, words

_TABLES = published(__file__)


class ProgramRow(NamedTuple):
    """One run of the program: profile, states, machines, Gbit/s, then what it prints.

    ``charged`` is the plan with ``--activation_compression_ratio 1`` and its seconds per minibatch, with the
    speed-up over one machine and over data parallelism; ``free`` the plan without that switch, where no transfer
    between stages is charged. Numbers stay texts: they are compared digit by digit.
    """

    profile: str
    states: int
    machines: int
    gbit: int
    charged: tuple[str, str]
    speedups: tuple[str, str]
    free: tuple[str, str]


PROGRAM_ROWS = tuple(
    ProgramRow(profile, states, machines, gbit, tuple(charged), tuple(speedups), tuple(free))
    for profile, states, machines, gbit, charged, speedups, free in _TABLES["program"]
)


class PaperRow(NamedTuple):
    """A row of Table 1 of the paper: model, machines, cluster, and measured speed-ups over one machine.

    ``plan`` and ``speedup`` are PipeDream's, ``bsp`` data parallelism's; ``saved`` percent of its communication.
    """

    model: str
    machines: int
    cluster: str
    gbit: int
    bsp: str
    plan: str
    speedup: str
    over_bsp: str
    saved: str


PAPER_ROWS = tuple(PaperRow(*row) for row in _TABLES["paper"])


BYTES_PER_GBIT = 125_000_000
MACHINES, SPEEDS_GBIT = (4, 8, 16), (25, 10)
DIGITS = 10
"""Significant digits that the program's results are known to."""
FREE = Options(compression=None)
CLOSE = 1e-12
"""Relative difference of two sums of the same times in another order."""


def run(inputs: StudyInputs) -> Study:
    """Run the program's recurrence on its profiles. Raises StudyInputError without the folder of profiles."""
    models = {name: _profile(inputs.data, name) for name in dict.fromkeys(row.profile for row in PROGRAM_ROWS)}
    walked = {name: antichain_states(model) for name, model in models.items()}
    charged, free = charged_table(walked), free_table(walked)
    exact, losses = exact_table(walked, {name: downset_states(model) for name, model in models.items()})
    equal = sum(row[-1] == "yes" for table in (charged, free) for row in table.rows)
    return Study(
        "PipeDream: its program, its model, its paper",
        words(__file__, "reading", digits=DIGITS),
        (charged, free, exact, paper_table(walked["vgg16"], pipedream_paper.row(models["vgg16"]))),
        {
            "program_rows": len(charged.rows) + len(free.rows),
            "program_rows_equal": equal,
            "exact_rows": len(exact.rows),
            "exact_rows_better": len(losses),
            "largest_loss_percent": max(losses, default=0.0),
        },
    )


def _profile(data: Path | None, name: str) -> ProfiledModel:
    if data is None:
        raise StudyInputError("--data: expected the folder that holds pipedream-profiles/MODEL/graph.txt")
    path = data / "pipedream-profiles" / name / "graph.txt"
    try:
        return read_profile(path)
    except OSError as error:
        raise StudyInputError(f"{path}: {error.strerror}") from error
    except FormatError as error:
        raise StudyInputError(str(error)) from error


def _levels(machines: int, gbit: int) -> list[MachineLevel]:
    return [MachineLevel(machines, gbit * BYTES_PER_GBIT)]


def charged_table(walked: dict[str, States]) -> StudyTable:
    """Return the program's runs with transfers charged, beside ours."""
    rows: list[tuple[str, ...]] = []
    for row in PROGRAM_ROWS:
        plan = optimise_states(walked[row.profile], _levels(row.machines, row.gbit))
        ours = (plan.configuration, _seconds(plan.period_s), *_speedups(plan))
        equal = ours == (*row.charged, *row.speedups) and plan.states == row.states
        rows.append((*_case(row), *row.charged, *row.speedups, *ours, "yes" if equal else "no"))
    columns = ("plan", "s", "x of one", "x of DP")
    return StudyTable(
        "The program with transfers charged (`--activation_compression_ratio 1`)",
        ("profile", "machines", "Gbit/s", *columns, *(f"ours: {name}" for name in columns), "equal"),
        tuple(rows),
        ("*x of one*: speed-up over one machine. *x of DP*: over data parallelism on all machines.",),
    )


def free_table(walked: dict[str, States]) -> StudyTable:
    """Return the program's runs without the switch, so that transfers between stages cost nothing."""
    rows: list[tuple[str, ...]] = []
    for row in PROGRAM_ROWS:
        plan = optimise_states(walked[row.profile], _levels(row.machines, row.gbit), FREE)
        ours = (plan.configuration, _seconds(plan.period_s))
        rows.append((*_case(row), *row.free, *ours, "yes" if ours == row.free else "no"))
    return StudyTable(
        "The program as it runs by default: transfers between stages are free",
        ("profile", "machines", "Gbit/s", "plan", "s", "ours: plan", "ours: s", "equal"),
        tuple(rows),
        ("Pipelines come out as long as with transfers charged, or longer: nothing speaks against a cut.",),
    )


def exact_table(walked: dict[str, States], all_states: dict[str, States]) -> tuple[StudyTable, list[float]]:
    """Return the program's answers beside the least period of the same model, and the losses in percent."""
    rows: list[tuple[str, ...]] = []
    losses: list[float] = []
    for name, states in walked.items():
        for machines in MACHINES:
            for gbit in SPEEDS_GBIT:
                found = optimise_states(states, _levels(machines, gbit))
                best = optimise_states(all_states[name], _levels(machines, gbit))
                lost = best.period_s < found.period_s * (1 - CLOSE)
                percent = 100 * (found.period_s - best.period_s) / best.period_s
                losses += [percent] if lost else []
                plans = (cell for one in (found, best) for cell in (one.configuration, _seconds(one.period_s)))
                loss = f"{percent:.2f} %" if lost else "-"
                rows.append((name, str(machines), str(gbit), *plans, loss))
    return StudyTable(
        "The best plan of the program's own model",
        ("profile", "machines", "Gbit/s", "program", "s", "best", "best: s", "loss"),
        tuple(rows),
        words(
            __file__,
            "exact",
            lost=len(losses),
            rows=len(rows),
            counted=_overcounts(walked, all_states),
            downsets=len(all_states["gnmt"]),
            found=len(walked["gnmt"]),
        ),
    ), losses


def _overcounts(walked: dict[str, States], all_states: dict[str, States]) -> str:
    """Say for each profile how often the program counts more bytes than cross, and the worst ratio."""
    parts: list[str] = []
    for name, states in walked.items():
        true = dict(zip(all_states[name].layers, all_states[name].output_bytes.tolist(), strict=True))
        pairs = zip(states.layers, states.output_bytes.tolist(), strict=True)
        ratios = [counted / true[one] for one, counted in pairs if true[one]]
        high = [ratio for ratio in ratios if ratio > 1]
        parts += [f"{name} {len(high)} of {len(ratios)} cuts, up to {max(high):.4g} times"] if high else []
    return "; ".join(parts)


def paper_table(states: States, layers: LayerRow) -> StudyTable:
    """Return Table 1 of the paper beside what the published profile of VGG-16 gives."""
    rows: list[tuple[str, ...]] = []
    for row in PAPER_ROWS:
        levels = _levels(row.machines, row.gbit)
        plan = optimise_states(states, levels)
        paper = pipedream_paper.optimise(layers, levels)
        rows.append(
            (
                f"{row.model}, {row.machines} ({row.cluster})",
                *(row.plan, row.bsp, row.speedup, row.over_bsp, f"{row.saved} %"),
                plan.configuration,
                f"{plan.one_machine_s / plan.data_parallel_s:.2f}",
                f"{plan.one_machine_s / plan.period_s:.2f}",
                f"{plan.data_parallel_s / plan.period_s:.2f}",
                f"{100 * saved(layers, plan.stages, row.machines):.0f} %",
                "-".join(str(stage.replicas) for stage in paper.stages),
                f"{sum(layers.compute_s) / paper.period_s:.2f}",
            )
        )
    columns = ("plan", "DP x", "x", "over DP", "saved")
    recurrence = ("SOSP recurrence: plan", "SOSP recurrence: x")
    return StudyTable(
        "Table 1 of arXiv 1806.03377, and what the published profile gives",
        ("model, machines (cluster)", *columns, *(f"program: {name}" for name in columns), *recurrence),
        tuple(rows),
        words(__file__, "paper", profiles=", ".join(dict.fromkeys(row.model for row in PAPER_ROWS))),
    )


def saved(layers: LayerRow, stages: Sequence[PipeDreamStage], machines: int) -> float:
    """Return the part of data parallelism's communication that a plan of one level saves, at most 1."""
    whole = 2 * (machines - 1) / machines * sum(layers.weight_bytes)
    weights = sum(
        2 * (stage.replicas - 1) / stage.replicas * sum(layers.weight_bytes[stage.first : stage.stop])
        for stage in stages
    )
    crossing = sum(2 * layers.crossing_bytes[stage.stop - 1] for stage in stages[:-1])
    return 1 - (weights + crossing) / whole


def _case(row: ProgramRow) -> tuple[str, str, str]:
    return row.profile, str(row.machines), str(row.gbit)


def _seconds(period_s: float) -> str:
    return f"{period_s:.{DIGITS}g}"


def _speedups(plan: PipeDreamPlan) -> tuple[str, str]:
    return f"{plan.one_machine_s / plan.period_s:.4f}", f"{plan.data_parallel_s / plan.period_s:.4f}"
