"""Sailor's real runs: iteration time and peak memory predicted from layer profiles, beside what was measured.

A folder of Sailor's measurements, read as a whole: what was profiled of one model, and plans (docs/formats).

::

    layer_sizes.json
    network_coeffs_<any>.json
    training_config_<any>.json          optional: the global batch of plans that do not name one
    profiles/<model>/<card>.json
    measured/<any>/<plan>.json          plans that were run
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pipecut.ingest.graphs.foreign import FormatError
from pipecut_literature.common.json_source import Count, read_json
from pipecut_literature.sailor import tables
from pipecut_literature.sailor.constants import (
    MachineConstants,
    SailorRun,
    constants_for,
    constants_of,
    predict_memory,
)
from pipecut_literature.sailor.plan_file import read_sailor_plan
from pipecut_literature.sailor.profile import LinkFit, NotProfiledError, ProfiledMachine, SailorLinks, SailorPlan
from pipecut_literature.sailor.profile_file import read_links, read_sizes, read_times
from pipecut_literature.sailor.tables import Predicted, mean_percent
from pipecut_literature.sailor.time import predict_time
from pipecut_literature.studies.study import Study, StudyInputError, StudyInputs, StudyTable, words


class _Training(BaseModel):
    """A training set-up, of which only the global batch is of interest here."""

    model_config = ConfigDict(strict=True, frozen=True)
    global_batch_size: Count


def read_machine(folder: Path) -> ProfiledMachine:
    """Read everything that was profiled of the one model in a folder.

    Raises FormatError for a file that is missing or of another format; OSError if a file cannot be read.
    """
    sizes_file = _one(folder, "layer_sizes.json")
    links = read_links(_one(folder, "network_coeffs_*.json"))
    sizes = read_sizes(sizes_file)
    profiled = sorted(path.name for path in (folder / "profiles").glob("*") if path.is_dir())
    models = [model for model in profiled if model in sizes]
    if len(models) != 1:
        found = ", ".join(profiled) or "no folder"
        raise FormatError(
            folder / "profiles",
            [f": found {found}, expected one folder named like a model of {sizes_file.name} ({', '.join(sizes)})"],
        )
    cards = sorted((folder / "profiles" / models[0]).glob("*.json"))
    if not cards:
        raise FormatError(folder / "profiles" / models[0], [": found no profile, expected <card>.json"])
    profiles = {path.stem: read_times(path) for path in cards}
    counts = {len(layers) for layers in sizes[models[0]].values()}
    for path in cards:
        if not profiles[path.stem]:
            raise FormatError(path, [": found no layer times"])
        expected = max(counts, default=0)
        problems = [
            f": {size}.{degree}: found {len(layers)} layers, expected {expected}, as in {sizes_file.name}"
            for (size, degree), layers in profiles[path.stem].items()
            if counts != {len(layers)}
        ]
        if problems:
            raise FormatError(path, problems)
    return ProfiledMachine.of(profiles, sizes[models[0]], links)


def read_global_batch(folder: Path) -> int | None:
    """Return the global batch of the training set-up in a folder; None where there is not exactly one set-up.

    Raises FormatError for a file of another format; OSError if it cannot be read.
    """
    found = sorted(folder.glob("training_config*.json"))
    return read_json(found[0], _Training).global_batch_size if len(found) == 1 else None


def read_plans(folder: Path, global_batch: int | None) -> dict[str, SailorPlan]:
    """Read every plan below a folder, by its path there without the suffix, in the order of names.

    Raises FormatError with the problems of all of them, or where there is no plan; OSError if one cannot be read.
    """
    found: dict[str, SailorPlan] = {}
    problems: list[str] = []
    for path in _in_order(folder.rglob("*.json")):
        try:
            found[path.relative_to(folder).with_suffix("").as_posix()] = read_sailor_plan(path, global_batch)
        except FormatError as error:
            problems += [f"/{path.relative_to(folder).as_posix()}{text}" for text in error.problems]
    if problems or not found:
        raise FormatError(folder, problems or [": found no plan, expected <name>.json"])
    return found


def _in_order(paths: Iterable[Path]) -> list[Path]:
    """Sort paths so that numbers in names count as numbers: N2 before N16."""

    def key(path: Path) -> list[tuple[int, str]]:
        parts: list[tuple[int, str]] = []
        text = ""
        for letter in path.as_posix():
            if text and letter.isdecimal() != text[-1].isdecimal():
                parts.append(_numbered(text))
                text = ""
            text += letter
        return [*parts, _numbered(text)]

    return sorted(paths, key=key)


def _numbered(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdecimal() else (-1, text)


def _one(folder: Path, pattern: str) -> Path:
    """Return the one file of this name. Raises FormatError for none or several."""
    found = sorted(path for path in folder.glob(pattern) if path.is_file())
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "no such file"
        raise FormatError(folder / pattern, [f": found {names}, expected one file"])
    return found[0]


TITLE = "Sailor: real runs predicted from layer profiles"
LONGEST = 1_000_000
"""Micro-batches times stages that are executed; more would take minutes and gigabytes."""
NO_TIME = LinkFit(0.0, 0.0, 1e9, 1e18)
"""A link on which everything is there at once: 10^9 GB/s."""


def run(inputs: StudyInputs) -> Study:
    """Predict every plan. Raises StudyInputError for data or plans that are missing or wrong."""
    if inputs.data is None:
        raise StudyInputError("study sailor: expected --data DIR, the folder with profiles/ and layer_sizes.json")
    data = _Data.read(inputs.data, inputs.plans)
    names = tables.short_names(list(data.plans))
    rows = {names[name]: data.predicted(name, plan) for name, plan in data.plans.items()}
    time = mean_percent([row.time_error for row in rows.values()])
    memory = mean_percent([row.memory_error for row in rows.values()])
    shown = (
        tables.error_table(rows),
        tables.time_table(rows),
        tables.breakdown_table(rows),
        tables.memory_table(rows),
        tables.constants_table(data.constants(rows)),
        *_terms(data, rows),
    )
    figures: dict[str, float | int | str | None] = {
        "runs": len(rows),
        "time_error_percent": time,
        "memory_error_percent": memory,
        "time_error_without_runs_percent": mean_percent([row.bare_time_error for row in rows.values()]),
    }
    for name, row in rows.items():
        figures[f"{name}: iteration_ns"] = row.time.iteration_ns
        figures[f"{name}: peak_memory_bytes"] = row.memory.peak_bytes
    return Study(TITLE, words(__file__, "reading"), shown, figures)


@dataclass(frozen=True, slots=True)
class _Data:
    """What was read: a machine, the plans to predict, and all runs that constants may be taken from."""

    machine: ProfiledMachine
    plans: Mapping[str, SailorPlan]
    folder: Path
    runs: Sequence[SailorRun]

    @classmethod
    def read(cls, folder: Path, chosen: Path | None) -> _Data:
        """Read a folder, and the plans from another one if it is named. Raises StudyInputError."""
        measured = folder / "measured"
        plans_folder = measured if chosen is None else chosen
        try:
            machine, batch = read_machine(folder), read_global_batch(folder)
            known = read_plans(measured, batch) if chosen is None or any(measured.rglob("*.json")) else {}
            plans = known if chosen is None else read_plans(chosen, batch)
        except (FormatError, OSError) as error:
            raise StudyInputError(str(error)) from error
        every = [(measured / f"{name}.json", plan) for name, plan in known.items()]
        every += [(plans_folder / f"{name}.json", plan) for name, plan in plans.items()]
        runs: list[SailorRun] = []
        for path, plan in every:
            if not any(run.plan.same_work(plan) for run in runs):
                runs.append(_run(machine, path, plan))
        return cls(machine, plans, plans_folder, runs)

    def predicted(self, name: str, plan: SailorPlan) -> Predicted:
        """Predict a plan with the constants of all other runs."""
        constants = constants_for(plan, self.runs)
        time = predict_time(self.machine, plan, constants.spread, constants.message_ns)
        memory = predict_memory(self.machine, plan, constants.machine_bytes, constants.unused)
        return Predicted(plan, time, memory, _run(self.machine, self.folder / f"{name}.json", plan))

    def constants(
        self, rows: Mapping[str, Predicted]
    ) -> dict[tuple[str, ...], tuple[MachineConstants, list[MachineConstants]]]:
        """Return for each machine its constants from all runs, and from all but one, for each plan."""
        found: dict[tuple[str, ...], tuple[MachineConstants, list[MachineConstants]]] = {}
        for row in rows.values():
            whole = constants_of(row.plan, self.runs)
            found.setdefault(row.plan.machine, (whole, []))[1].append(constants_for(row.plan, self.runs))
        return found


def _run(machine: ProfiledMachine, path: Path, plan: SailorPlan) -> SailorRun:
    """Predict a plan without constants. Raises StudyInputError with the file for what was not profiled."""
    passes = plan.micro_batches * max(len(stages) for stages in plan.pipelines)
    if passes > LONGEST:
        raise StudyInputError(f"{path}: {passes} passes of micro-batches, at most {LONGEST}")
    try:
        return SailorRun.of(machine, plan)
    except NotProfiledError as error:
        raise StudyInputError(f"{path}: {error}") from error


def _terms(data: _Data, rows: Mapping[str, Predicted]) -> tuple[StudyTable, ...]:
    """Return what the error in time becomes when one term is read otherwise or left out."""
    if not any(row.time_error is not None for row in rows.values()):
        return ()
    machine = data.machine
    widest = {card: machine.links.inter[card, count] for card, count in sorted(machine.links.inter)}
    whole = _with_single_card(machine, widest)
    at_once = _with_single_card(machine, dict.fromkeys(widest, NO_TIME))
    changes: dict[str, tuple[ProfiledMachine, dict[str, int]]] = {
        "all terms": (machine, {}),
        "profile as it stands, host-bound entries included": (machine.uncleaned(), {}),
        "boundaries at the bandwidth of all cards of a node": (whole, {}),
        "boundaries that take no time": (at_once, {}),
        "no wait for the slowest replica": (machine, {"spread": 0}),
        "no time of hosts for a message": (machine, {"message_ns": 0}),
    }
    found: dict[str, list[float | None]] = {name: [] for name in changes}
    for name, (variant, without) in changes.items():
        for row in rows.values():
            one = replace(constants_for(row.plan, data.runs), **without)
            time = predict_time(variant, row.plan, one.spread, one.message_ns)
            found[name].append(row.error_of(time.iteration_ns))
    return (tables.term_table(found),)


def _with_single_card(machine: ProfiledMachine, fits: Mapping[str, LinkFit]) -> ProfiledMachine:
    """Return a machine whose links between nodes, used by one card of a node, are others: those of boundaries."""
    inter = {**machine.links.inter, **{(card, 1): fit for card, fit in fits.items()}}
    return replace(machine, links=SailorLinks(inter, machine.links.intra))
