"""``pipecut plan``: find the best plan of a scenario, prove it, show it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands.parts.certifying import refuse_uncertifiable, save_certificate
from commands.parts.double_checking import checks_to_list, double_checked, notes
from commands.parts.explaining import explanation_of, explanation_rows, explanation_to_dict
from commands.parts.task import EXIT_CODES, Task, open_task
from commands.terminal import output
from commands.terminal.failures import InputError, OutOfTimeError, output_path
from formulation.costs.megatron_forms import as_megatron
from formulation.evaluate import Evaluation, evaluate
from formulation.outcome import Outcome, Proof
from ingest.plans.plan_file import plan_to_dict, write_plan
from report.claims import goals_to_list, scope_to_dict

if TYPE_CHECKING:
    from formulation.problem.instance import Instance
    from solvers.crosscheck.routes import Check


def run(arguments: argparse.Namespace) -> int:
    """Plan and show the outcome; return the exit code of its proof."""
    out, proof = output_path(arguments.out), output_path(arguments.certificate)
    try:
        task = open_task(arguments, timed=True)
    except OutOfTimeError as error:
        unknown = Outcome(error.solver, Proof.UNKNOWN, seconds=error.seconds, notes=(str(error),))
        arguments.reply.put(outcome_to_dict(arguments.scenario.name, unknown))
        raise
    refuse_uncertifiable(task, proof)
    try:
        task, outcome = task.decide(cross_check=arguments.cross_check)
    except ValueError as error:
        raise InputError(f"{task.scenario.path}: {task.solver} cannot take this instance: {error}") from error
    outcome, checks = _double_checked(task, _compared(task, outcome), wanted=arguments.double_check)
    evaluation = None if outcome.plan is None else evaluate(task.instance, outcome.plan)
    failure = _save(task, outcome, evaluation, out) or save_certificate(task, outcome, proof)
    explanation = explanation_of(task, outcome)
    if arguments.json:
        why = {} if explanation is None else {"explanation": explanation_to_dict(explanation)}
        again = {} if checks is None else {"double_check": checks_to_list(checks)}
        arguments.reply.put(outcome_to_dict(task.scenario.name, outcome, task.instance, evaluation) | again | why)
    else:
        _show(task, outcome, evaluation, [] if explanation is None else explanation_rows(explanation))
    if failure is not None:
        raise failure
    return EXIT_CODES[outcome.proof]


def outcome_to_dict(
    name: str, outcome: Outcome, instance: Instance | None = None, evaluation: Evaluation | None = None
) -> dict[str, Any]:
    """Return an outcome as plain data: the plan as in a plan file, and the claim; its scope needs the instance."""
    content: dict[str, Any] = {"stages": []}
    if outcome.plan is not None and instance is not None and evaluation is not None:
        content = plan_to_dict(instance, outcome.plan, evaluation)
    return content | {
        "scenario": name,
        "solver": outcome.solver,
        "proof": str(outcome.proof),
        "objective": outcome.objective,
        "bound": outcome.bound,
        "any_order_bound": outcome.any_order_bound,
        "gap": outcome.gap if evaluation is not None and evaluation.feasible else None,
        "seconds": outcome.seconds,
        "goals": goals_to_list(outcome),
        "scope": None if instance is None else scope_to_dict(instance),
        "notes": [*(() if instance is None else instance.model.notes), *outcome.notes],
    }


def _compared(task: Task, outcome: Outcome) -> Outcome:
    """Note where the plan splits layers as a published system does."""
    found = as_megatron(task.instance, outcome.plan) if outcome.plan is not None else ""
    return replace(outcome, notes=(*outcome.notes, found)) if found else outcome


def _double_checked(task: Task, outcome: Outcome, *, wanted: bool) -> tuple[Outcome, list[Check] | None]:
    """Ask the other routes if that was asked for, and note their answers. Raises ClaimFailedError."""
    if not wanted:
        return outcome, None
    checks = double_checked(task, outcome)
    return replace(outcome, notes=(*outcome.notes, *notes(checks))), checks


def _save(task: Task, outcome: Outcome, evaluation: Evaluation | None, out: Path | None) -> InputError | None:
    """Write the plan file if one was asked for; return what went wrong, so that the plan is shown all the same."""
    if out is None:
        return None
    if outcome.plan is None or evaluation is None:
        output.remark(f"{out}: not written, as there is no plan")
        return None
    try:
        write_plan(out, task.instance, outcome.plan, evaluation)
    except OSError as error:
        return InputError(f"{out}: not written: {error.strerror}")
    output.remark(f"{out}: the plan, for pipecut evaluate and simulate --plan")
    return None


def _show(task: Task, outcome: Outcome, evaluation: Evaluation | None, why: list[tuple[str, str]]) -> None:
    from commands.tables.display import outcome_parts

    output.show(*outcome_parts(task.instance, outcome, evaluation, why))
