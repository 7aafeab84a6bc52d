"""``pipecut plan``: find the best plan of a scenario, prove it, show it.

``pipecut plan --certificate``: write a proof beside the plan, and say how much it proves.

``pipecut plan --double-check``: ask every other route, say what each answered, stop at a disagreement.

``pipecut plan --show-model``: say what is handed to CP-SAT, in place of a search (``commands.parts.models``).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipecut.commands.explain import explanation_of, explanation_rows, explanation_to_dict
from pipecut.commands.parts.task import EXIT_CODES, Task, announced, open_task
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import (
    ClaimFailedError,
    ExitCode,
    InputError,
    OutOfTimeError,
    output_path,
    write_reproducer,
)
from pipecut.commands.terminal.interrupt import run_stoppable
from pipecut.formulation.certificates.check import Certificate, certifiable
from pipecut.formulation.costs.megatron_forms import as_megatron
from pipecut.formulation.evaluate import Evaluation, evaluate
from pipecut.formulation.outcome import Limits, Outcome, Proof
from pipecut.ingest.plans.plan_file import plan_to_dict, write_plan
from pipecut.report.claims import goals_to_list, scope_to_dict

if TYPE_CHECKING:
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan
    from pipecut.solvers.crosscheck import Check, Claim
    from pipecut.solvers.explain import Explanation


def refuse_uncertifiable(task: Task, path: Path | None) -> None:
    """Raise InputError before a search whose bound no certificate could carry."""
    reason = certifiable(task.instance) if path is not None else None
    if reason is not None:
        raise InputError(f"{task.scenario.path}: no certificate for this scenario: {reason}")


def save_certificate(task: Task, outcome: Outcome, path: Path | None) -> InputError | None:
    """Write the certificate if one was asked for; return what went wrong, as the plan is shown all the same."""
    if path is None:
        return None
    if outcome.plan is None or outcome.objective is None or outcome.proof is Proof.UNKNOWN:
        output.remark(f"{path}: not written, as there is no plan that keeps every rule")
        return None
    from pipecut.ingest.plans.certificate_file import write_certificate
    from pipecut.solvers.certifying import certify

    try:
        certificate = certify(task.instance, outcome.plan, outcome.objective)
    except ValueError as error:
        return InputError(f"{path}: not written: {error}")
    try:
        write_certificate(path, task.instance, certificate)
    except OSError as error:
        return InputError(f"{path}: not written: {error.strerror}")
    output.remark(f"{path}: {_proves(certificate)}; check it with pipecut verify")
    return None


def _proves(certificate: Certificate) -> str:
    if certificate.optimal:
        return "proves that the plan is optimal"
    return f"proves that no plan takes less than {certificate.bound} ns, not that the plan is optimal"


UNLIMITED_S = 600.0
"""Longest double check where the scenario sets no time limit."""
NOTHING_PROVED = "not double-checked: nothing is proved"
NOT_CONFIRMED = "not double-checked: no route that is independent of {} proves the same"


def double_checked(task: Task, outcome: Outcome) -> list[Check]:
    """Ask every route about an outcome, in what is left of the time limit.

    Ctrl-C leaves the rest out of time.

    Raises ClaimFailedError, with a reproducer on file, at the first route that disagrees.
    """
    from pipecut.solvers.crosscheck import Verdict, double_check

    limits = task.limits if task.limits.end_s is not None else task.limits.within(UNLIMITED_S)
    with task.followed(f"double-checking {task.scenario.name}", limits) as (line, limits):
        checks: list[Check] = []

        def work() -> list[Check]:
            for check in double_check(task.instance, outcome, limits):
                if check.answer.verdict is Verdict.DISAGREED:
                    raise _failed(task, limits, check)
                checks.append(check)
            return checks

        def left() -> list[Check]:
            out_of_time = list(double_check(task.instance, outcome, limits.within(0)))
            return [*checks, *out_of_time[len(checks) :]]

        return run_stoppable(
            work, task.stop, announced(line, "the double check"), deadline=limits.deadline, instead=left
        )


def notes(checks: Sequence[Check]) -> list[str]:
    """Say in a sentence each what the routes answered."""
    if not checks:
        return [NOTHING_PROVED]
    goals = tuple(dict.fromkeys(check.goal for check in checks))
    found: list[str] = []
    for goal in goals:
        about = [check for check in checks if check.goal == goal]
        said = [_note(check) for check in about]
        if not any(check.confirms for check in about):
            said.append(NOT_CONFIRMED.format(about[0].claim.solver))
        found += [f"{goal}: {one}" for one in said] if len(goals) > 1 else said
    return found


def checks_to_list(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """Return the answers as plain data."""
    return [
        {
            "route": check.route.name,
            "goal": str(check.goal),
            "verdict": str(check.answer.verdict),
            "seconds": check.seconds,
            "reason": check.answer.reason,
            "independent": check.shared == (),
            "shares": [one.words for one in check.shared or ()],
            "common_ground": [one.words for one in check.ground],
        }
        for check in checks
    ]


def _note(check: Check) -> str:
    from pipecut.solvers.crosscheck import Verdict

    name, answer = check.route.summary, check.answer
    if check.confirms:
        ground = ", ".join(one.words for one in check.ground)
        return f"double-checked: {name} agrees ({check.seconds:.1f} s)" + (
            f"; both read {ground}" if ground else ""
        )
    if answer.verdict is Verdict.AGREED:
        rests = ", ".join(one.words for one in check.shared or ()) or "nobody knows what"
        return f"asked again: {name} agrees ({check.seconds:.1f} s), resting on {rests} like {check.claim.solver}"
    return f"not double-checked: {name} is {answer.verdict}: {answer.reason}"


def _failed(task: Task, limits: Limits, check: Check) -> ClaimFailedError:
    """Write a reproducer and return the error to raise."""
    route, claim, answer = check.route, check.claim, check.answer
    message = f"{claim.solver}: {_claimed(claim)}; {route.name} ({route.summary}) disagrees: {answer.reason}"
    details = {
        "route": route.name,
        "goal": str(claim.goal),
        "claimed": {
            "proof": "infeasible" if claim.plan is None else "optimal",
            "objective": claim.objective,
            "plan": _plan(claim, claim.plan),
        },
        "counter_plan": _plan(claim, answer.counter_plan),
    }
    try:
        path = write_reproducer(task.scenario.path, task.overrides, task.solver, limits, message, details)
        where = f"reproducer: {path}"
    except OSError as error:
        where = f"no reproducer written: {error.strerror}"
    return ClaimFailedError(f"a claim failed its double check: {message}\nthis is a defect; {where}")


def _claimed(claim: Claim) -> str:
    if claim.objective is None:
        return "claims that no plan exists"
    return f"claims that no plan is better than {claim.words(claim.objective)} ({claim.goal})"


def _plan(claim: Claim, plan: Plan | None) -> dict[str, Any] | None:
    return None if plan is None else plan_to_dict(claim.instance, plan, evaluate(claim.instance, plan))


def run(arguments: argparse.Namespace) -> int:
    """Plan and show the outcome; return the exit code of its proof."""
    out, proof = output_path(arguments.out), output_path(arguments.certificate)
    try:
        task = open_task(arguments, timed=True)
    except OutOfTimeError as error:
        unknown = Outcome(error.solver, Proof.UNKNOWN, seconds=error.seconds, notes=(str(error),))
        arguments.reply.put(outcome_to_dict(arguments.scenario.name, unknown))
        raise
    if arguments.show_model:
        from pipecut.commands.parts.models import show_model

        show_model(task)
        return ExitCode.DONE
    refuse_uncertifiable(task, proof)
    try:
        task, found = task.decided()
    except ValueError as error:
        raise InputError(f"{task.scenario.path}: {task.solver} cannot take this instance: {error}") from error
    found = replace(found, outcome=_compared(task, found.outcome))
    shown = not arguments.json and found.outcome.plan is not None and output.stdout().isatty()
    if shown:
        _show(task, found.outcome, None, verbose=arguments.verbose)
    outcome = task.checked(found) if arguments.cross_check else found.outcome
    outcome, checks = _double_checked(task, outcome, wanted=arguments.double_check)
    evaluation = None if outcome.plan is None else evaluate(task.instance, outcome.plan)
    failure = _save(task, outcome, evaluation, out) or save_certificate(task, outcome, proof)
    explanation = explanation_of(task, outcome)
    if arguments.json:
        why = {} if explanation is None else {"explanation": explanation_to_dict(explanation)}
        again = {} if checks is None else {"double_check": checks_to_list(checks)}
        grid = {} if task.grid is None else {"plain_grid": task.grid.fields()}
        content = outcome_to_dict(task.scenario.name, outcome, task.instance, evaluation)
        arguments.reply.put(content | grid | again | why)
    elif shown:
        _show_checks(outcome)
    else:
        _show(task, outcome, explanation, verbose=arguments.verbose)
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
        "notes": [*(() if instance is None else instance.model.notes), *outcome.notes, *outcome.checks],
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
    return replace(outcome, checks=(*outcome.checks, *notes(checks))), checks


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


def _show(task: Task, outcome: Outcome, explanation: Explanation | None, *, verbose: bool) -> None:
    from pipecut.commands.parts.tables import outcome_parts

    why, left = (explanation_rows(explanation), explanation.left_out) if explanation else ((), None)
    grid = [] if task.grid is None else [("plain grid", task.grid.beside(task.instance, outcome))]
    evaluation = None if outcome.plan is None else evaluate(task.instance, outcome.plan)
    output.show(*outcome_parts(task.instance, outcome, evaluation, [*grid, *why], verbose=verbose, left=left))


def _show_checks(outcome: Outcome) -> None:
    from pipecut.commands.parts.tables import KeyLines, check_rows

    if outcome.checks:
        output.show(KeyLines(check_rows(outcome)))
