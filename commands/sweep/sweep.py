"""``pipecut sweep``: the best plans of all points of a sweep file, from where an earlier run was ended.

What a scenario is known by in a file of results: a hash of all that a plan depends on, and of no name.

How far a sweep is, on one line: a bar, how many points, and about how long the others take.

The file that a sweep appends its results to, a line of JSON each: what a killed sweep goes on from.

A line is written whole, with its end, and is on the disk before the next one is. A sweep that is killed in the
middle of a line leaves it without an end: the next one that writes cuts it off, and plans its point again.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pipecut.commands.parts.opening import SWEEP, file_of
from pipecut.commands.sweep.outcome import SweepOutcome, SweepRow, csv_text, rows_to_list
from pipecut.commands.sweep.work import SweepWork, WorkPool, processes, scheduler, solved
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import ExitCode, InputError, output_path, reading
from pipecut.commands.terminal.interrupt import run_stoppable
from pipecut.commands.terminal.progress import ProgressLine
from pipecut.formulation.problem.instance import Instance
from pipecut.ingest.files import atomic_write
from pipecut.ingest.scenario.load import Scenario
from pipecut.ingest.scenario.sweep_file import PointSweep, SweepPoint
from pipecut.solvers.catalogue import find_any

if TYPE_CHECKING:
    import networkx as nx

NAMES = {"Cluster": "name", "LayerGraph": "name"}
"""Names that nothing depends on, by the class that has them; those of layers, servers and devices count."""
WRITTEN = ("model", "cluster", "training", "cost", "constraints", "goals")
"""What an instance is made of; all else in it follows from these."""
VERSION = 1
"""Of what is hashed; a change of what a plan costs raises it."""


def key_of(instance: Instance) -> str:
    """Return the key of an instance: 32 hexadecimal digits. Cost: linear in the instance."""
    content = [VERSION, *(_plain(getattr(instance, name)) for name in WRITTEN)]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plain(value: object) -> Any:  # noqa: ANN401 (JSON)
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        name = type(value).__name__
        kept = (one.name for one in fields(value) if one.init and NAMES.get(name) != one.name)
        return [name, *(_plain(getattr(value, one)) for one in kept)]
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return sorted([str(key), _plain(one)] for key, one in value.items())
    if isinstance(value, frozenset | set):
        return sorted(json.dumps(_plain(one), sort_keys=True) for one in value)
    return str(value)


WIDE = 24
TIMES = ((3600, "h"), (60, "min"), (1, "s"))


class SweepLine:
    """The progress line of a sweep: :meth:`done` is told how many points are known."""

    def __init__(self, name: str, total: int, kept: int, line: ProgressLine) -> None:
        self._name, self._total, self._kept, self._line = name, total, kept, line
        self._began = time.monotonic()
        self.done(kept)

    def done(self, known: int) -> None:
        """Show how many points are known."""
        seconds = time.monotonic() - self._began
        self._line.title = bar_text(self._name, known, self._total, known - self._kept, seconds)

    def stopping(self) -> None:
        """Say that no more points are planned."""
        if self._line.shown:
            self._line.stopping()
        else:
            output.remark("stopping with the points so far (Ctrl-C again to abort)")


def bar_text(name: str, known: int, total: int, now: int, seconds: float) -> str:
    """Return the line: ``budget.yaml [##--] 20 of 40, about 5 min left``; ``now`` came in so many seconds."""
    full = WIDE * known // total if total else WIDE
    words = f"{name} [{'#' * full}{'-' * (WIDE - full)}] {known} of {total}"
    if not now or known >= total:
        return words
    left = (total - known) * seconds / now
    size, unit = next(((size, unit) for size, unit in TIMES if left >= size), TIMES[-1])
    return f"{words}, about {max(1, round(left / size))} {unit} left"


@contextlib.contextmanager
def following(name: str, total: int, kept: int, *, quiet: bool) -> Iterator[tuple[SweepLine, threading.Event]]:
    """Provide the line of a sweep, and what is set once somebody asks to stop."""
    if not quiet and kept:
        output.remark(f"{kept} of {output.count(total, 'point')} {'is' if kept == 1 else 'are'} known already")
    with ProgressLine(name, quiet=quiet) as line:
        yield SweepLine(name, total, kept, line), threading.Event()


PROVED = ("optimal", "infeasible")

try:
    import fcntl
except ImportError:  # a system without such locks: two sweeps at once on one file are not noticed
    fcntl = None


class ResultsFile:
    """A file of results, open for one sweep alone; ``known`` has what it holds, by key, the last line of a key.

    Raises InputError for a file that is none, that cannot be written, or that another sweep writes just now.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, dict[str, Any]] = {}
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error
        try:
            self._lock()
            self._read()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a result. Raises InputError where it cannot be written (a full disk)."""
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            raise InputError(f"{self.path}: not written: {error.strerror}") from error
        self.known[row["key"]] = dict(row)

    def settled(self, key: str, search: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what is known of a key, if a search like this one would find no more."""
        found = self.known.get(key)
        if found is None or found["proof"] is None:
            return None
        return found if found["proof"] in PROVED or found["search"] == dict(search) else None

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(f"{self.path}: another sweep writes this file; give --results another one") from error

    def _read(self) -> None:
        raw = self.path.read_bytes()
        whole = raw.rfind(b"\n") + 1
        for number, line in enumerate(raw[:whole].splitlines(), start=1):
            try:
                row = json.loads(line)
                self.known[str(row["key"])] = {"proof": row["proof"], "search": row["search"]} | row
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{self.path}:{number}: no result of a sweep; give --results another file"
                ) from error
        if whole < len(raw):
            os.ftruncate(self._file, whole)


FALSE = "a claim failed its check"


def run(arguments: argparse.Namespace) -> int:
    """Plan every point that is not known yet, show and write what there is, and return the exit code."""
    written = [(output_path(arguments.svg), _svg), (output_path(arguments.csv), csv_text)]
    with reading(arguments.sweep):
        file = file_of(arguments.sweep, SWEEP)
    beside = Path(arguments.sweep if file == arguments.sweep else Path(file).name)  # nothing beside what ships
    results = output_path(arguments.results or f"{beside.with_suffix('')}.results.jsonl")
    with reading(arguments.sweep):
        sweep = PointSweep.read(Path(file), arguments.overrides)
    graphs = _Graphs()
    with reading(arguments.sweep):
        items = [(point, *_item(point, graphs, arguments)) for point in sweep.points]
    if results is None:
        raise InputError(f"{arguments.sweep}: no file for results")
    provided = scheduler(arguments.scheduler) if arguments.scheduler else processes(arguments.processes)
    with provided as made, ResultsFile(results) as file:  # in this order: without a scheduler there is no file
        outcome = _swept(sweep, items, file, made, quiet=arguments.quiet)
    output.remark(f"{results}: the results, which the same command goes on from")
    for path, make in written:
        if path is not None:
            atomic_write(path, make(outcome))
            output.remark(f"{path}: written")
    if arguments.json:
        arguments.reply.put(_to_dict(sweep, results, outcome))
    else:
        from pipecut.commands.sweep.outcome import sweep_parts

        output.show(*sweep_parts(outcome))
    return _exit_code(outcome)


class _Graphs:
    """Layer graphs of models, each built once for all points that have it alike."""

    def __init__(self) -> None:
        self._graphs: dict[object, nx.DiGraph] = {}

    def instance(self, scenario: Scenario) -> Instance:
        key = (scenario.model, scenario.configured, scenario.cuts, scenario.operators, scenario.path.parent)
        if key not in self._graphs:
            self._graphs[key] = scenario.layers()
        return scenario.instance(self._graphs[key])


def _item(point: SweepPoint, graphs: _Graphs, arguments: argparse.Namespace) -> tuple[str, SweepWork]:
    """Return the key of a point, and the work. Raises InputError, naming the point, where it makes no problem."""
    limits = point.scenario.solver.limits()
    name = ", ".join(path for path, _ in point.settings)
    try:
        find_any(point.scenario.solver.name)
        instance = graphs.instance(point.scenario)
    except ValueError as error:
        values = SweepRow(point.settings, None).name() or name
        raise InputError(f"{arguments.sweep}: {values}: {error}") from error
    work = SweepWork(
        instance,
        point.scenario.solver.name,
        limits.time_limit_s if arguments.time_limit is None else arguments.time_limit,
        limits.workers if arguments.workers is None else arguments.workers,
        limits.seed if arguments.seed is None else arguments.seed,
        arguments.cross_check,
    )
    return key_of(instance), work


def _swept(
    sweep: PointSweep,
    items: list[tuple[SweepPoint, str, SweepWork]],
    file: ResultsFile,
    made: tuple[Callable[[], Executor], int],
    *,
    quiet: bool,
) -> SweepOutcome:
    """Plan what is not known, each key once, and return everything about the points.

    ``made`` starts an executor, and says how many points it may have at once.
    """
    settings = {key: point.settings for point, key, _ in reversed(items)}
    work = {key: work for _, key, work in items}
    before = {key: file.settled(key, one.search()) for key, one in work.items()}
    kept = {key: one for key, one in before.items() if one is not None}
    missing = [(key, one) for key, one in work.items() if key not in kept]
    found: dict[str, dict[str, Any]] = dict(kept)

    def heard(results: Iterator[tuple[str, dict[str, Any]]], line: Any) -> None:  # noqa: ANN401
        for key, result in results:
            if stop.is_set():
                return  # what is told now was cut short
            plain = SweepOutcome((SweepRow(settings[key], None),), 0, 0)
            row = {"key": key, "settings": rows_to_list(plain)[0]["settings"]}
            file.add(row | {"search": work[key].search(), "at": int(time.time())} | result)
            found[key] = file.known[key]
            line.done(len(found))

    with following(sweep.path.name, len(work), len(kept), quiet=quiet) as (line, stop):
        pool = WorkPool(made[0], solved, made[1], stop.is_set)
        if missing:
            run_stoppable(lambda: heard(pool.results(missing), line), stop, line.stopping)
    rows = tuple(SweepRow(point.settings, found.get(key)) for point, key, _ in items)
    return SweepOutcome(rows, len(kept), len(found) - len(kept))


def _svg(outcome: SweepOutcome) -> str:
    from pipecut.report.page import standalone
    from pipecut.report.pictures.pareto import pareto_picture

    price = "price of the cluster per hour" if outcome.priced() else "devices of the cluster"
    return standalone(pareto_picture(outcome.points(), price))


def _to_dict(sweep: PointSweep, results: Path, outcome: SweepOutcome) -> dict[str, Any]:
    return {
        "sweep": str(sweep.path),
        "scenario": str(sweep.scenario),
        "results": str(results),
        "kept": outcome.kept,
        "searched": outcome.searched,
        "points": rows_to_list(outcome),
    }


def _exit_code(outcome: SweepOutcome) -> ExitCode:
    if any(row.found is not None and row.found["reason"].startswith(FALSE) for row in outcome.rows):
        return ExitCode.FALSE_CLAIM
    return ExitCode.DONE if all(row.proved for row in outcome.rows) else ExitCode.NOT_PROVED
