"""The tables of the study of Sailor's runs: predictions as text beside measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from pipecut_literature.sailor.constants import MachineConstants, PredictedMemory, SailorRun
from pipecut_literature.sailor.profile import SailorPlan
from pipecut_literature.sailor.time import PredictedTime
from pipecut_literature.studies.study import StudyTable, words

GIB = 2**30
Machines = Mapping[tuple[str, ...], tuple[MachineConstants, Sequence[MachineConstants]]]
"""By kinds of card: the constants from all runs, and those from all runs but one, for each plan."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """A plan with its prediction, held out, and the prediction that needs no run at all (``bare``)."""

    plan: SailorPlan
    time: PredictedTime
    memory: PredictedMemory
    bare: SailorRun

    @property
    def time_error(self) -> float | None:
        """Predicted over measured iteration, minus 1; None if it was not measured."""
        return self.error_of(self.time.iteration_ns)

    @property
    def bare_time_error(self) -> float | None:
        """The same of the prediction that rests on no run."""
        return self.error_of(self.bare.time.iteration_ns)

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured peak memory, minus 1; None if it was not measured."""
        return _error(self.memory.peak_bytes, self.plan.measured.peak_memory_bytes)

    @property
    def sync_difference_ns(self) -> int | None:
        """Predicted less measured synchronisation; None if none was measured that can be believed."""
        measured = self.plan.measured.gradient_sync_ns
        if measured is None or not self.bare.sync_is_plausible:
            return None
        return self.time.gradient_sync_ns - measured

    def error_of(self, iteration_ns: int) -> float | None:
        """Return the error of some other iteration time."""
        return _error(iteration_ns, self.plan.measured.iteration_ns)


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return names without what all begin with, cut behind a ``/`` or ``_``; a single one keeps its last part."""
    if len(names) == 1:
        return {names[0]: names[0].rsplit("/", 1)[-1]}
    first, last = min(names), max(names)
    common = next((at for at, letter in enumerate(first) if letter != last[at : at + 1]), len(first))
    cut = max(first.rfind("/", 0, common), first.rfind("_", 0, common)) + 1
    return {name: name[cut:] or name for name in names}


def mean_percent(errors: Sequence[float | None]) -> float | None:
    """Return the mean absolute error in percent of those that there are; None if there is none."""
    found = [abs(error) for error in errors if error is not None]
    return 100 * sum(found) / len(found) if found else None


def error_table(rows: Mapping[str, Predicted]) -> StudyTable:
    """Return the mean absolute errors."""
    parts = {
        "iteration time": [row.time_error for row in rows.values()],
        "iteration time, without any constant from runs": [row.bare_time_error for row in rows.values()],
        "peak memory": [row.memory_error for row in rows.values()],
        "gradient synchronisation, as a share of the iteration": [_sync_error(row) for row in rows.values()],
    }
    lines = tuple(
        (name, str(sum(one is not None for one in errors)), _mean(errors), _largest(errors))
        for name, errors in parts.items()
    )
    columns = ("predicted", "runs", "mean absolute error", "largest")
    return StudyTable("Mean absolute errors", columns, lines, words(__file__, "published"))


def time_table(rows: Mapping[str, Predicted]) -> StudyTable:
    """Return predicted and measured iteration times."""
    columns = ("run", "cards", "replicas", "stages", "degrees")
    columns += ("micro-batch", "micro-batches", "predicted s", "measured s", "error")
    lines = tuple(
        (
            name,
            *_shape(row.plan),
            f"{row.time.iteration_ns / 1e9:.4f}",
            _seconds(row.plan.measured.iteration_ns),
            _percent(row.time_error),
        )
        for name, row in rows.items()
    )
    return StudyTable("Iteration time", columns, lines, words(__file__, "time"))


def breakdown_table(rows: Mapping[str, Predicted]) -> StudyTable:
    """Return the terms of the iteration time, and the synchronisation beside what was measured of it."""
    columns = ("run", "pipeline ms", "wait ms", "copies ms")
    columns += ("all-reduce ms", "synchronisation ms", "measured red_grads ms", "update ms")
    lines = tuple(
        (
            name,
            *(
                _milliseconds(one)
                for one in (
                    row.time.pipeline_ns,
                    row.time.wait_ns,
                    row.time.copies_ns,
                    row.time.all_reduce_ns,
                    row.time.gradient_sync_ns,
                    row.plan.measured.gradient_sync_ns,
                    row.time.update_ns,
                )
            ),
        )
        for name, row in rows.items()
    )
    doubtful = [name for name, row in rows.items() if not row.bare.sync_is_plausible]
    remarks = [
        *words(__file__, "terms"),
        *(one for name in doubtful for one in words(__file__, "doubtful", name=name)),
    ]
    return StudyTable("Where the time goes", columns, lines, tuple(remarks))


def memory_table(rows: Mapping[str, Predicted]) -> StudyTable:
    """Return predicted and measured peak memory, in GiB."""
    columns = ("run", "fullest stage", "parameters", "stash", "working set")
    columns += ("machine", "predicted GiB", "measured GiB", "error")
    lines = tuple(
        (
            name,
            str(row.memory.stage),
            *(
                _gib(one)
                for one in (
                    row.memory.parameter_bytes,
                    row.memory.stash_bytes,
                    row.memory.working_bytes,
                    row.memory.machine_bytes,
                    row.memory.peak_bytes,
                    row.plan.measured.peak_memory_bytes,
                )
            ),
            _percent(row.memory_error),
        )
        for name, row in rows.items()
    )
    margin = margin_of([row.memory_error for row in rows.values() if row.memory_error is not None])
    covered = "covers all of these runs: no measured peak is above its prediction by a larger share."
    remarks = () if margin is None else (f"`constraints.memory: {{margin: {margin:g}}}` {covered}",)
    return StudyTable("Peak memory of the fullest card", columns, lines, remarks)


def margin_of(errors: Sequence[float]) -> float | None:
    """Return the least margin, in whole percent, with which every prediction covers what was measured."""
    return ceil(max(0.0, *(1 / (1 + one) - 1 for one in errors)) * 100) / 100 if errors else None


def constants_table(machines: Machines) -> StudyTable:
    """Return the constants of each machine and what they rest on."""
    lines: list[tuple[str, ...]] = []
    for cards, (whole, held_out) in machines.items():
        every = (whole, *held_out)
        for name, runs, unit, values in (
            ("spread of replicas", whole.spread_runs, "%", [100 * one.spread for one in every]),
            ("hosts of a message", whole.message_runs, "ms", [one.message_ns / 1e6 for one in every]),
            ("unused blocks beside the stash", whole.memory_runs, "%", [100 * one.unused for one in every]),
            ("machine's share of memory", whole.memory_runs, "GiB", [one.machine_bytes / GIB for one in every]),
        ):
            own, *others = values
            around = f"{min(others):.2f} to {max(others):.2f} {unit}"
            lines.append((" ".join(cards), name, f"{own:.2f} {unit}", str(runs), around))
    columns = ("cards", "constant", "from all runs", "runs", "with one run left out")
    return StudyTable("Constants of the machine", columns, tuple(lines), words(__file__, "constants"))


def term_table(variants: Mapping[str, Sequence[float | None]]) -> StudyTable:
    """Return the error in time of each variant of the model."""
    lines = tuple((name, _mean(errors), _largest(errors)) for name, errors in variants.items())
    columns = ("iteration time with", "mean absolute error", "largest")
    return StudyTable("What the terms are worth", columns, lines)


def _shape(plan: SailorPlan) -> tuple[str, ...]:
    stages = [stage for stages in plan.pipelines for stage in stages]
    degrees = sorted({one.tensor_parallel_degree for stage in stages for one in stage.replicas})
    depths = sorted({len(stages) for stages in plan.pipelines})
    counts = (str(plan.replicas), " ".join(map(str, depths)), " ".join(map(str, degrees)))
    return (" ".join(plan.machine), *counts, str(plan.micro_batch), str(plan.micro_batches))


def _sync_error(row: Predicted) -> float | None:
    measured, difference = row.plan.measured.iteration_ns, row.sync_difference_ns
    return None if difference is None or not measured else difference / measured


def _error(predicted: int, measured: int | None) -> float | None:
    return predicted / measured - 1 if measured else None


def _percent(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:+.1f} %"


def _mean(errors: Sequence[float | None]) -> str:
    mean = mean_percent(errors)
    return "-" if mean is None else f"{mean:.2f} %"


def _largest(errors: Sequence[float | None]) -> str:
    return _percent(max((one for one in errors if one is not None), key=abs, default=None))


def _seconds(time_ns: int | None) -> str:
    return "-" if time_ns is None else f"{time_ns / 1e9:.4f}"


def _milliseconds(time_ns: int | None) -> str:
    return "-" if time_ns is None else f"{time_ns / 1e6:.1f}"


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{size / GIB:.2f}"
