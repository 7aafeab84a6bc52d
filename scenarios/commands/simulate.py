"""``pipecut simulate``: run a plan on the timeline, show it beside the formulas, and draw it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from formulation.evaluate import Evaluation, evaluate
from formulation.outcome import Outcome, Proof
from formulation.plan import Plan
from ingest.files import atomic_write
from ingest.plan_file import read_plan
from report.content import content_of
from report.simulation import simulate
from scenarios import human, output
from scenarios.commands import compare
from scenarios.exit_codes import ExitCode
from scenarios.failures import InputError, output_path, reading
from scenarios.running import MAIN_SOLVER, contradiction
from scenarios.task import EXIT_CODES, Task, open_task
from solvers.catalogue import solver_names

if TYPE_CHECKING:
    from rich.table import Table

    from report.simulation import Simulation

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Targets:
    """Where to write what was asked for."""

    page: Path | None
    trace: Path | None
    pictures: Path | None


def run(arguments: argparse.Namespace) -> int:
    """Find or read the plan, run it, write and show what was asked for; return the exit code."""
    targets = Targets(output_path(arguments.out), output_path(arguments.trace), _folder(arguments.svg))
    task = open_task(arguments)
    plan, outcome = _given(task, arguments.plan) if arguments.plan else _solved(task, arguments)
    evaluation = None if plan is None else evaluate(task.instance, plan)
    if plan is None or evaluation is None or evaluation.objective is None:
        return _show_nothing(task, outcome, evaluation, targets, as_json=arguments.json)
    simulation = simulate(task.instance, plan)
    compared, failure = None, None
    if arguments.compare and (targets.page or arguments.json):
        compared, failure = _comparison(task, simulation, outcome)
    content = content_of(
        simulation,
        scenario=task.scenario.name,
        outcome=outcome,
        comparison=compared,
        shown=arguments.micro_batches_shown,
    )
    unwritten = _write(simulation, content, targets)
    if arguments.json:
        output.write_json(content)
    else:
        _show(task, simulation, content, outcome)
    if unwritten is not None:
        raise unwritten
    return failure or _exit_code(outcome, evaluation)


def _folder(text: str | None) -> Path | None:
    """Return the folder to write pictures to, which may have to be made. Raises InputError before any work."""
    if text is None:
        return None
    path = Path(text)
    try:
        if not path.is_dir():
            if path.exists():
                raise InputError(f"{text}: is not a directory, expected a folder for pictures")
            return output_path(text)
    except (OSError, ValueError) as error:
        raise InputError(f"{text!r}: {error}") from error
    if not os.access(path, os.W_OK):
        raise InputError(f"{text}: no permission to write to it")
    return path.resolve()


def _given(task: Task, path: str) -> tuple[Plan, None]:
    with reading(path):
        return read_plan(path, task.instance), None


def _solved(task: Task, arguments: argparse.Namespace) -> tuple[Plan | None, Outcome]:
    try:
        outcome = task.search(task.solver, cross_check=arguments.cross_check and task.solver == MAIN_SOLVER)
    except ValueError as error:
        raise InputError(f"{task.scenario.path}: {task.solver} cannot take this instance: {error}") from error
    return outcome.plan, outcome


def _comparison(
    task: Task, simulation: Simulation, outcome: Outcome | None
) -> tuple[dict[str, Any], ExitCode | None]:
    """Return what ``pipecut compare --json`` would write, and how it failed; the outcome at hand is not redone.

    Raises ClaimFailedError if a given plan keeps the rules and beats what was proved.
    """
    rows = [
        compare.Row(name, outcome, compare.broken_rules(task, outcome))
        if outcome is not None and outcome.solver == name
        else compare.compared_row(task, name)
        for name in solver_names()
    ]
    rows = compare.held_to_the_best(task, rows)
    best = compare.strongest([row.outcome for row in rows if row.outcome is not None and row.failure is None])
    if outcome is None and best is not None and simulation.evaluation.feasible:
        given = Outcome("the plan file", Proof.FEASIBLE, simulation.plan, simulation.evaluation.objective)
        problem = contradiction(best, given)
        if problem:
            raise task.claim_failed(best.solver, problem)
    failures = [row.failure for row in rows if row.failure is not None]
    return compare.comparison_to_dict(task, rows, best), min(failures, default=None)


def _exit_code(outcome: Outcome | None, evaluation: Evaluation) -> ExitCode:
    if outcome is not None:
        return EXIT_CODES[outcome.proof]
    return ExitCode.DONE if evaluation.feasible else ExitCode.NO_PLAN


def _write(simulation: Simulation, content: dict[str, Any], targets: Targets) -> InputError | None:
    """Write files, each whole or not at all; return what went wrong, so that the numbers are still shown."""
    try:
        for path, text in _files(simulation, content, targets):
            path.parent.mkdir(exist_ok=True)
            atomic_write(path, text())
    except OSError as error:
        return InputError(f"{error.filename}: not written: {error.strerror}")
    return None


def _files(
    simulation: Simulation, content: dict[str, Any], targets: Targets
) -> list[tuple[Path, Callable[[], str]]]:
    """Return the files to write, and what makes each of them."""
    from report.page import page_of, pictures
    from report.trace import trace_of

    files: list[tuple[Path, Callable[[], str]]] = []
    if targets.page is not None:
        files.append((targets.page, lambda: page_of(content)))
    if targets.trace is not None:
        files.append((targets.trace, lambda: trace_of(simulation)))
    if targets.pictures is not None:
        folder = targets.pictures
        files += [(folder / f"{picture.name}.svg", picture.standalone) for picture in pictures(content)]
    return files


def _show_nothing(
    task: Task, outcome: Outcome | None, evaluation: Evaluation | None, targets: Targets, *, as_json: bool
) -> ExitCode:
    """Say why there is nothing to run: no plan was found, or the given one has no price."""
    from scenarios.display import claim_lines, key_lines, violation_rows

    for path in (targets.page, targets.trace, targets.pictures):
        if path is not None:
            output.remark(f"{path}: not written, as there is no plan to run")
    if as_json:
        broken = [f"{one.rule}: {one.message}" for one in evaluation.violations] if evaluation else []
        claim = {
            "solver": outcome.solver if outcome else None,
            "proof": str(outcome.proof) if outcome else None,
            "objective": None,
            "bound": outcome.bound if outcome else None,
            "notes": list(outcome.notes) if outcome else [],
            "broken_rules": broken,
        }
        output.write_json({"format": "pipecut simulation", "scenario": task.scenario.name, "claim": claim})
    elif outcome is not None:
        output.write(output.render(claim_lines(task.instance, outcome, evaluation)))
    else:
        output.write(output.render(key_lines(violation_rows(evaluation))))
    return EXIT_CODES[outcome.proof] if outcome is not None else ExitCode.NO_PLAN


def _show(task: Task, simulation: Simulation, content: dict[str, Any], outcome: Outcome | None) -> None:
    from scenarios.display import claim_lines, key_lines, violation_rows

    many, stages = content["micro_batches_run"], human.count(len(content["stages"]), "stage")
    head = f"{content['schedule']}, {many} {'micro-batch' if many == 1 else 'micro-batches'}, {stages}"
    if outcome is not None:
        lines = claim_lines(task.instance, outcome, simulation.evaluation)
    else:
        objective = human.exact_duration(simulation.evaluation.objective or 0)
        rules = violation_rows(simulation.evaluation) or [("rules", "the plan keeps every rule")]
        lines = key_lines([("objective", objective), *rules])
    output.write(output.render(head, "", _measure_table(content), "", _stage_table(content), "", lines))


def _measure_table(content: dict[str, Any]) -> Table:
    table = _table(("", "left"), ("timeline", "right"), ("", "left"), ("formula", "right"), ("which is", "left"))
    for row in content["measures"]:
        cells = (_number(row[key], row["unit"]) for key in ("timeline", "formula"))
        timeline, formula = cells
        table.add_row(row["name"], timeline, row["relation"], formula, row["source"])
    return table


def _stage_table(content: dict[str, Any]) -> Table:
    titles = ("stage", "busy, timeline", "busy, formula", "peak, timeline", "peak, formula", "limit")
    table = _table(*((title, "right") for title in titles))
    shares, sizes = ("utilisation", "utilisation_formula"), ("peak_bytes", "peak_bytes_formula", "capacity_bytes")
    for index, stage in enumerate(content["stages"]):
        busy = (_number(stage[key], "share") for key in shares)
        table.add_row(str(index), *busy, *(human.amount(stage[key]) for key in sizes))
    return table


def _table(*columns: tuple[str, str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title, side in columns:
        table.add_column(title, justify="right" if side == "right" else "left", overflow="fold")
    return table


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return NOTHING
    return f"{100 * value:.1f} %" if unit == "share" else human.duration(round(value))
