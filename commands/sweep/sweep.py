"""``pipecut sweep``: the best plans of all points of a sweep file, from where an earlier run was ended."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands.sweep.executors import processes, scheduler
from commands.sweep.keys import key_of
from commands.sweep.outcome import SweepOutcome, SweepRow, csv_text, rows_to_list
from commands.sweep.pool import WorkPool
from commands.sweep.progress import following
from commands.sweep.results_file import ResultsFile
from commands.sweep.work import SweepWork, solved
from commands.terminal import output
from commands.terminal.exit_codes import ExitCode
from commands.terminal.failures import InputError, output_path, reading
from commands.terminal.interrupt import run_stoppable
from formulation.problem.instance import Instance
from ingest.files import atomic_write
from ingest.scenario.load import Scenario
from ingest.scenario.sweep_file import PointSweep, SweepPoint
from planners.catalogue import find_any

if TYPE_CHECKING:
    import networkx as nx

FALSE = "a claim failed its check"


def run(arguments: argparse.Namespace) -> int:
    """Plan every point that is not known yet, show and write what there is, and return the exit code."""
    written = [(output_path(arguments.svg), _svg), (output_path(arguments.csv), csv_text)]
    results = output_path(arguments.results or f"{Path(arguments.sweep).with_suffix('')}.results.jsonl")
    with reading(arguments.sweep):
        sweep = PointSweep.read(Path(arguments.sweep), arguments.overrides)
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
        from commands.sweep.table import sweep_parts

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
    from report.page.templating import standalone
    from report.pictures.pareto import pareto_picture

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
