"""``pipecut simulate``: run a plan on the timeline, show it beside the formulas, and draw it.

A second plan, run in the same way, whose numbers and pictures are shown beside those of the first.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipecut.commands.orders import Order, order_of
from pipecut.commands.parts import comparison
from pipecut.commands.parts.drawing import Targets, say_what_was_written, targets_of, write_files
from pipecut.commands.parts.task import EXIT_CODES, Task, open_task
from pipecut.commands.searched_order import SearchedOrder, search_order, with_order_content
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import ExitCode, InputError, OutOfTimeError
from pipecut.commands.terminal.reply import Reply
from pipecut.formulation.evaluate import Evaluation, evaluate
from pipecut.formulation.outcome import Outcome, Proof
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.schedules.table import ScheduleError
from pipecut.report.content import content_of
from pipecut.report.simulation import simulate
from pipecut.solvers.catalogue import all_names

if TYPE_CHECKING:
    from pipecut.commands.parts.tables import KeyLines
    from pipecut.report.simulation import Simulation


def check_against(task: Task, path: str | None, order: Order | None) -> None:
    """Raise InputError, before any search, for a plan that cannot be shown beside another."""
    if path is None:
        return
    if order is not None and order.searched:
        raise InputError("--against: not with --schedule best, an order that is made for one plan alone")
    task.with_plan(path)


def content_of_other(
    task: Task, path: str | None, order: Order | None, shown: int | None
) -> dict[str, Any] | None:
    """Run the other plan in the same way and return its content; None where there is none. Raises InputError."""
    if path is None:
        return None
    other, plan = task.with_plan(path)
    try:
        ran = simulate(other.instance, plan, order.schedule(other.instance, plan) if order else None)
    except (ScheduleError, ValueError) as error:
        raise InputError(f"--against {path}: {error}") from error
    name = Path(path).name
    return with_order_content(content_of(ran, scenario=task.scenario.name, shown=shown, plan_name=name), None)


def run(arguments: argparse.Namespace) -> int:
    """Find or read the plan, run it, write and show what was asked for; return the exit code."""
    targets = targets_of(arguments.out, arguments.trace, arguments.svg, arguments.png)
    order, reply = order_of(arguments), arguments.reply
    try:
        task = open_task(arguments, timed=True)
    except OutOfTimeError as error:
        unknown = Outcome(error.solver, Proof.UNKNOWN, notes=(str(error),))
        reply.put(_nothing(arguments.scenario.name, unknown))
        raise
    check_against(task, arguments.against, order)
    task, plan, outcome = _planned(task, arguments)
    evaluation = None if plan is None else evaluate(task.instance, plan)
    if plan is None or evaluation is None or evaluation.objective is None:
        return _show_nothing(task, outcome, evaluation, targets, reply)
    best = search_order(task, plan) if order is not None and order.searched else None
    if best is not None and best.order is None:
        return _show_nothing(task, outcome, evaluation, targets, reply, best=best)
    simulation = _simulated(task, plan, order, best)
    compared, failure, problems = None, None, []
    if arguments.compare and (targets.page or arguments.json):
        compared, failure, problems = _comparison(task, plan, evaluation, outcome)
    content = content_of(
        simulation,
        scenario=task.scenario.name,
        outcome=outcome,
        comparison=compared,
        shown=arguments.micro_batches_shown,
        against=content_of_other(task, arguments.against, order, arguments.micro_batches_shown),
        plan_name=Path(arguments.plan).name if arguments.plan else None,
    )
    content = with_order_content(content, best)
    unwritten = _write(simulation, content, targets)
    if arguments.json:
        reply.put(content, problems)
    else:
        _show(task, simulation, content, outcome, best)
    if unwritten is not None:
        raise unwritten
    return failure or _exit_code(outcome, simulation, best)


def _simulated(task: Task, plan: Plan, order: Order | None, best: SearchedOrder | None) -> Simulation:
    """Run the plan, in a given order if there is one. Raises InputError where plan and order do not fit."""
    try:
        if best is not None:
            return simulate(task.instance, plan, best.schedule)
        return simulate(task.instance, plan, order.schedule(task.instance, plan) if order else None)
    except ScheduleError as error:
        raise InputError(f"{task.scenario.path}: {error}") from error


def _planned(task: Task, arguments: argparse.Namespace) -> tuple[Task, Plan | None, Outcome | None]:
    """Return the plan that is given, or the best one with the claim about it."""
    if arguments.plan:
        return *task.with_plan(arguments.plan), None
    try:
        task, outcome = task.decide(cross_check=arguments.cross_check)
        return task, outcome.plan, outcome
    except ValueError as error:
        raise InputError(f"{task.scenario.path}: {task.solver} cannot take this instance: {error}") from error


def _comparison(
    task: Task, plan: Plan, evaluation: Evaluation, outcome: Outcome | None
) -> tuple[dict[str, Any], ExitCode | None, list[str]]:
    """Return what ``pipecut compare --json`` would write, how it failed, and why; ``outcome`` is not redone.

    Raises ClaimFailedError if a given plan keeps the rules and beats what was proved.
    """
    rows = [
        comparison.ComparisonRow(name, outcome, comparison.broken_rules(task.instance, outcome))
        if outcome is not None and outcome.solver == name
        else comparison.compared_row(task, name)
        for name in all_names()
    ]
    rows = comparison.held_to_the_best(task, rows)
    best = comparison.strongest([row.outcome for row in rows if row.outcome is not None and row.failure is None])
    if outcome is None and best is not None:
        task.hold_to(best, plan, evaluation)
    failures = [row.failure for row in rows if row.failure is not None]
    return (
        comparison.comparison_to_dict(task, rows, best),
        min(failures, default=None),
        comparison.problems_of(rows),
    )


def _exit_code(outcome: Outcome | None, simulation: Simulation, best: SearchedOrder | None) -> ExitCode:
    """Return the code of the proof; where it says nothing (a plan or an order is given), that of the rules.

    The best order has a proof of its own: without it the code is never "done".
    """
    if (outcome is None or not simulation.priced) and not simulation.evaluation.feasible:
        return ExitCode.NO_PLAN
    codes = [EXIT_CODES[one.proof] for one in (outcome, best) if one is not None]
    return max(codes, default=ExitCode.DONE)


def _write(simulation: Simulation, content: dict[str, Any], targets: Targets) -> InputError | None:
    """Write files; return what went wrong, so that the numbers are still shown."""
    try:
        write_files(simulation, content, targets)
        say_what_was_written(targets)
    except OSError as error:
        return InputError(f"{error.filename}: not written: {error.strerror}")
    return None


def _nothing(name: str, outcome: Outcome | None, broken: Sequence[str] = ()) -> dict[str, Any]:
    """Return as plain data that nothing was run, what was claimed and which rules a given plan breaks."""
    claim = {
        "solver": outcome.solver if outcome else None,
        "proof": str(outcome.proof) if outcome else None,
        "objective": None,
        "bound": outcome.bound if outcome else None,
        "notes": [*outcome.notes, *outcome.checks] if outcome else [],
        "broken_rules": list(broken),
    }
    return {"format": "pipecut simulation", "scenario": name, "claim": claim}


def _show_nothing(
    task: Task,
    outcome: Outcome | None,
    evaluation: Evaluation | None,
    targets: Targets,
    reply: Reply,
    best: SearchedOrder | None = None,
) -> ExitCode:
    """Say why there is nothing to run: no plan was found, the given one has no price, or no order of it fits."""
    from pipecut.commands.parts.tables import KeyLines, result_rows, search_rows, violation_rows

    for path in targets.paths:
        output.remark(f"{path}: not written, as there is no plan to run")
    if reply.wanted:
        broken = [f"{one.rule}: {one.message}" for one in evaluation.violations] if evaluation else []
        searched = {} if best is None else {"order": best.to_dict()}
        reply.put(_nothing(task.scenario.name, outcome, broken) | searched)
    elif outcome is not None:
        rows = result_rows(task.instance, outcome, evaluation) + search_rows(task.instance, outcome, evaluation)
        output.show(KeyLines(rows), *order_lines(best))
    else:
        output.show(KeyLines(violation_rows(evaluation)), *order_lines(best))
    return EXIT_CODES[outcome.proof] if outcome is not None and best is None else ExitCode.NO_PLAN


def order_lines(best: SearchedOrder | None) -> list[KeyLines]:
    """Return what the search for the best order claims, as lines for people; none for any other order."""
    from pipecut.commands.parts.tables import KeyLines

    return [] if best is None else [KeyLines(best.rows())]


def _show(
    task: Task,
    simulation: Simulation,
    content: dict[str, Any],
    outcome: Outcome | None,
    best: SearchedOrder | None,
) -> None:
    from pipecut.commands.parts.tables import (
        KeyLines,
        beside_table,
        measure_lines,
        objective_text,
        rank_table,
        result_rows,
        rules_rows,
        run_name,
        search_rows,
    )

    instance, evaluation = task.instance, simulation.evaluation
    if outcome is not None:
        found, done = result_rows(instance, outcome, evaluation), search_rows(instance, outcome, evaluation)
    else:
        found = [("objective", objective_text(instance, evaluation.objective or 0)), *rules_rows(evaluation)]
        done = []
    tables = (run_name(content), "", *measure_lines(content), "", rank_table(content))
    beside = ("", beside_table(content)) if content["against"] else ()
    below = (*beside, *(("", KeyLines(done)) if done else ()))
    output.show(KeyLines(found), *order_lines(best), "", *tables, *below)
