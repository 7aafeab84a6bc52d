"""``--show-model``: what is handed to CP-SAT, in words and numbers, and who answers if somebody else does."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pipecut.commands.parts.task import Task, announced
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import InputError
from pipecut.commands.terminal.interrupt import run_stoppable
from pipecut.formulation.limits import StoppedError
from pipecut.formulation.outcome import Limits
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers import catalogue

if TYPE_CHECKING:
    from pipecut.solvers.cpsat.words import ModelPart

SHOWN = {"cpsat_types": "pipecut.solvers.cpsat.on_types.type_words", catalogue.MAIN: "pipecut.solvers.cpsat.words"}
"""Methods whose model can be shown, and who says what it is: the one that is meant first comes first."""
NAMES = 12
"""Columns of names at the left."""
STOPPED = "no model in time: building one takes the tables of its stages"


def show_model(task: Task) -> None:
    """Write what the model of a task is; nothing is searched, but for a first plan.

    Raises InputError where no model that can be shown takes the question, and OutOfTimeError.
    """
    from pipecut.solvers.choices.trainings import instances_of

    choices, left = [*instances_of(task.instance)], task.out_of_time(STOPPED)
    entry, taken, refused = _shown(task, choices)
    # Of numbers of micro-batches that are to be chosen among the middle one.
    instance = taken[len(taken) // 2]

    def build(limits: Limits) -> list[ModelPart]:
        try:
            return importlib.import_module(SHOWN[entry.name]).model_words(instance, limits)
        except ValueError as error:
            raise InputError(f"{task.scenario.path}: {error}") from error
        except StoppedError:
            left()

    with task.followed(f"the model of {entry.name}", task.limits, entry.name) as (line, limits):
        told = announced(line, "the model")
        parts = run_stoppable(lambda: build(limits), task.stop, told, deadline=limits.deadline, instead=left)
    lines = [*_lines(_heading(task, entry, instance, len(choices), refused))]
    for part in parts:
        lines += ["", part.title, *_lines((f"  {name}", words) for name, words in part.rows)]
    output.write("\n".join((*lines, "")))


def _shown(task: Task, choices: Sequence[Instance]) -> tuple[catalogue.SolverEntry, list[Instance], list[str]]:
    """Return whose model is shown, which of the choices it takes, and why that of nobody before it is."""
    reasons = list[str]()
    for name in (task.solver,) if task.solver in SHOWN else SHOWN:
        entry = catalogue.find_any(name)
        support = [(one, entry.accepts(one)) for one in choices]
        if able := [one for one, said in support if said.takes]:
            return entry, able, reasons
        reasons.append(support[0][1].reason)
    raise InputError(f"{task.scenario.path}: there is no model to show: {'; '.join(reasons)}")


def _heading(
    task: Task, entry: catalogue.SolverEntry, instance: Instance, choices: int, refused: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield whose model this is, who answers if it is somebody else, and what of the question is shown."""
    from pipecut.solvers.auto.solve import first_asked

    yield "model", f"{entry.name}, {entry.summary}"
    auto = task.solver == catalogue.AUTO.name
    asked = first_asked(instance) if auto else catalogue.find_any(task.solver)
    if asked is None or asked.name != entry.name:
        by = "nobody with a proof" if asked is None else f"{asked.name}, {asked.summary}"
        yield "answered", f"by {by}; this is what --solver {entry.name} builds"
    yield from (("not shown", reason) for reason in refused)
    if choices > 1:
        many = output.count(instance.training.micro_batches, "micro-batch")
        yield "choices", f"{choices} choices of the training, each with models of its own; here {many}"


def _lines(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield names and what is said of each, in as many lines as a narrow terminal needs."""
    for name, words in rows:
        said = f"{name:<{NAMES}} {words}".replace("``", "")
        yield from textwrap.wrap(said, output.WIDTH, subsequent_indent=" " * (NAMES + 1))
