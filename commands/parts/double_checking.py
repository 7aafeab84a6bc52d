"""``pipecut plan --double-check``: ask every other route, say what each answered, stop at a disagreement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from commands.parts.task import Task
from commands.terminal import output
from commands.terminal.failures import ClaimFailedError
from commands.terminal.interrupt import run_stoppable
from commands.terminal.progress import ProgressLine
from commands.terminal.reproducer import write_reproducer
from formulation.evaluate import evaluate
from formulation.outcome import Limits, Outcome
from ingest.plans.plan_file import plan_to_dict

if TYPE_CHECKING:
    from formulation.problem.plan import Plan
    from solvers.crosscheck.claim import Claim
    from solvers.crosscheck.routes import Check

UNLIMITED_S = 600.0
"""Longest double check where the scenario sets no time limit."""
NOTHING_PROVED = "not double-checked: nothing is proved"
NOT_CONFIRMED = "not double-checked: no route that is independent of {} proves the same"


def double_checked(task: Task, outcome: Outcome) -> list[Check]:
    """Ask every route about an outcome, in what is left of the time limit.

    Ctrl-C leaves the rest out of time.

    Raises ClaimFailedError, with a reproducer on file, at the first route that disagrees.
    """
    from solvers.crosscheck.claim import Verdict
    from solvers.crosscheck.routes import double_check

    limits = replace(task.limits, stopped=task.stop.is_set)
    if limits.end_s is None:
        limits = limits.within(UNLIMITED_S)
    title = f"double-checking {task.scenario.name}"
    with ProgressLine(title, quiet=task.quiet, deadline=limits.deadline) as line:

        def announce() -> None:
            if line.shown:
                line.stopping()
            else:
                output.remark("stopping the double check (Ctrl-C again to abort)")

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

        return run_stoppable(work, task.stop, announce, deadline=limits.deadline, instead=left)


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
    from solvers.crosscheck.claim import Verdict

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
