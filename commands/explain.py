"""What ``pipecut plan`` adds where no plan exists: which limits clash, and the least changes that help.

``pipecut explain``: why a plan is as it is, every statement a plan with its price; or why there is no plan.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipecut.commands.parts.reasons import claim_to_dict, reasons_to_dict
from pipecut.commands.parts.task import EXIT_CODES, Task, announced, open_task
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import ExitCode, InputError
from pipecut.commands.terminal.interrupt import run_stoppable
from pipecut.commands.terminal.progress import ProgressLine
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER
from pipecut.formulation.outcome import FalseClaimError, Limits, Outcome, Proof, checked
from pipecut.formulation.problem.plan import Plan
from pipecut.ingest.plans.plan_file import stage_to_dict
from pipecut.report.claims import scope_to_dict
from pipecut.solvers.choices.any_order import has_other_orders
from pipecut.solvers.choices.trainings import choice_in_words
from pipecut.solvers.goals import there_is
from pipecut.solvers.reasons.reasons import reasons

if TYPE_CHECKING:
    from pipecut.solvers.explain import Explanation, OpenedPlan
    from pipecut.solvers.reasons.reasons import Reasons

LEFT = "stopped before anything that clashes was found"
UNLIMITED_S = 20.0
"""Longest search for an explanation where the scenario sets no time limit."""


def explanation_of(task: Task, outcome: Outcome) -> Explanation | None:
    """Explain a proof that there is no plan, in what is left of the time limit; None for any other outcome.

    Ctrl-C ends the search with what is known. Raises ClaimFailedError if there is a plan after all.
    """
    if outcome.proof is not Proof.INFEASIBLE:
        return None
    from pipecut.solvers.explain import NOTHING_CLASHES, Explanation, explain

    began_s = time.monotonic()
    limits = replace(task.limits, stopped=task.stop.is_set)
    if limits.end_s is None:
        limits = limits.within(UNLIMITED_S)
    title = f"why {task.scenario.name} has no plan"
    with ProgressLine(title, quiet=task.quiet, deadline=limits.deadline) as line:
        try:
            found = run_stoppable(
                # A question that is stopped takes a little longer than it may.
                lambda: explain(task.instance, limits.share(1.1)),
                task.stop,
                announced(line, "with what is explained so far"),
                deadline=limits.deadline,
                instead=lambda: Explanation((), False, time.monotonic() - began_s, (LEFT,)),
            )
        except FalseClaimError as error:
            raise task.claim_failed(outcome.solver, str(error)) from error
    if NOTHING_CLASHES in found.notes:
        message = f"{outcome.solver} claims that no plan exists, but a search for what clashes finds one"
        raise task.claim_failed(outcome.solver, message)
    return found


def explanation_to_dict(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as plain data: sizes in bytes, ``amount`` null where a limit is left out."""
    return {
        "complete": explanation.complete,
        "seconds": explanation.seconds,
        "notes": list(explanation.notes),
        "left_out": list(explanation.left_out),
        "hopeless": explanation.hopeless,
        "opened": [
            {
                "set": list(way.lines),
                "micro_batches": way.instance.training.micro_batches,
                "proof": str(way.outcome.proof),
                "objective": way.outcome.objective,
                "bound": way.outcome.bound,
                "stages": [stage_to_dict(way.instance, stage) for stage in way.outcome.plan.stages]
                if way.outcome.plan
                else [],
            }
            for way in explanation.opened
        ],
        "clashes": [
            {
                "minimal": clash.minimal,
                "limits": [{"path": limit.path, "words": limit.words} for limit in clash.limits],
                "ways_out": [
                    {
                        "paths": list(way.paths),
                        "words": way.words,
                        "amount": way.amount,
                        "least": way.least,
                        "unit": way.unit,
                    }
                    for way in clash.ways_out
                ],
            }
            for clash in explanation.clashes
        ],
    }


def explanation_rows(explanation: Explanation) -> list[tuple[str, str]]:
    """Return lines of an explanation as pairs of key and words."""
    rows: list[tuple[str, str]] = []
    if explanation.left_out and explanation.hopeless:
        rows.append(("way out", "none by what is left out: no plan exists with all of it either, proved"))
    rows += [("way out", output.printable(_opened(way))) for way in explanation.opened]
    for clash in explanation.clashes:
        proved = "cannot hold" if len(clash.limits) == 1 else "cannot hold together"
        rows.append(("because", proved + (":" if clash.minimal else " (perhaps some of them do):")))
        rows += [("", output.printable(f"{limit.path}: {limit.words}")) for limit in clash.limits]
        rows += [("way out", output.printable(way.words)) for way in clash.ways_out]
        if explanation.complete and not clash.ways_out:
            rows.append(("way out", "none by changing only one of these"))
    if explanation.left_out and not explanation.opened and not explanation.hopeless:
        rows.append(("note", "what is left out was tried, and no plan found in time"))
    return rows + [("note", note) for note in explanation.notes]


def _opened(way: OpenedPlan) -> str:
    """Say what is to be written, and what a plan then takes."""
    outcome, training = way.outcome, way.instance.training
    value = "" if outcome.objective is None else outcome.amount(outcome.objective)
    proved = "proved best" if outcome.proof is Proof.OPTIMAL else "perhaps not the best"
    many = f" in {output.count(training.micro_batches, 'micro-batch')}" if training.left_open else ""
    return f"{'; '.join(way.lines)}: a plan of {value}{many}, {proved}"


SEARCH_S, REASONS_S = 10.0, 8.0
"""How long the best plan, and then reasons, may be searched for where no time limit is given."""


def run(arguments: argparse.Namespace) -> int:
    """Explain the plan, or the best one, or that there is none; return the exit code."""
    timed = arguments.time_limit is not None
    opened, outcome = open_task(arguments, timed=timed), None
    task = opened
    if arguments.plan is not None:
        task, plan = task.with_plan(arguments.plan)
    else:
        task, outcome = _planned(task, timed=timed)
        plan = outcome.plan
    why = None if outcome is None else explanation_of(task, outcome)
    limits = (task.limits if timed else task.limits.within(REASONS_S)).begun()
    found = None
    if plan is not None and (outcome is None or outcome.proof is Proof.OPTIMAL):
        found = _reasons(task, plan, limits)
    elif plan is not None and outcome is not None:
        outcome, found = _of_the_best(task, outcome, plan, limits)
    if found is not None:
        found = replace(found, notes=(*_held_fixed(opened, task), *found.notes))
    if found is not None and outcome is not None:
        _refuse_better(task, outcome, found)
    if arguments.json:
        arguments.reply.put(_to_dict(task, arguments.plan, outcome, found, why))
    else:
        _show(task, outcome, found, why)
    if outcome is not None:
        return EXIT_CODES[outcome.proof]
    return ExitCode.DONE if found is not None and found.priced.feasible else ExitCode.NO_PLAN


def _planned(task: Task, *, timed: bool) -> tuple[Task, Outcome]:
    """Search for the best plan, for half of the time where it is limited."""
    limits = task.limits
    some = limits.share(2) if timed else limits.within(SEARCH_S)
    try:
        found, outcome = replace(task, limits=some).decide(cross_check=True)
    except ValueError as error:
        raise InputError(f"{task.scenario.path}: {task.solver} cannot take this instance: {error}") from error
    return replace(found, limits=limits), outcome


def _of_the_best(task: Task, outcome: Outcome, plan: Plan, limits: Limits) -> tuple[Outcome, Reasons]:
    """Look for reasons of a plan that is not proved best; where a better one turns up on the way, of that one.

    Half of the time is kept for it. Returns the claim with the plan that is explained. When no time is left
    nothing better turns up, so this ends.
    """
    found = _reasons(task, plan, limits.share(2))
    while (better := found.better_plan) is not None:
        found = _reasons(task, better, limits)
        note = "this plan turned up while reasons were looked for"
        if outcome.objective is not None:
            note += f"; the search itself had {outcome.amount(outcome.objective)}"
        claim = there_is(task.instance, better, outcome.solver)
        kept = replace(outcome, plan=better, objective=claim.objective, further=claim.further, proof=claim.proof)
        try:
            outcome = checked(task.instance, kept)
        except FalseClaimError as error:
            raise task.claim_failed(outcome.solver, str(error)) from error
        found = replace(found, notes=(note, *found.notes))
    return outcome, found


def _held_fixed(opened: Task, task: Task) -> Iterator[str]:
    """Say what was chosen with the plan: everything said is about plans with the same."""
    training, kept = opened.instance.training, list[str]()
    kept += [choice_in_words(task.instance)] if training.left_open else []
    kept += ["this order of the layers"] if has_other_orders(task.instance) else []
    if kept:
        yield f"all plans spoken of have {' and '.join(kept)}, as this one"


def _reasons(task: Task, plan: Plan, limits: Limits) -> Reasons:
    """Look for reasons, stoppable by Ctrl-C. Raises InputError for a plan without a price."""
    limits = replace(limits, stopped=task.stop.is_set)
    title = f"reasons for the plan of {task.scenario.name}"
    with ProgressLine(title, quiet=task.quiet, deadline=limits.deadline) as line:
        try:
            return run_stoppable(
                lambda: reasons(task.instance, plan, limits),
                task.stop,
                announced(line, "with the reasons so far"),
                deadline=NEVER if task.limits.end_s is None else limits.deadline,
                instead=task.out_of_time("no reasons were found in time"),
            )
        except FalseClaimError as error:
            raise task.claim_failed("the best plan with more devices", str(error)) from error
        except ValueError as error:
            raise InputError(f"{task.scenario.path}: {error}") from error


def _refuse_better(task: Task, outcome: Outcome, found: Reasons) -> None:
    """Raise ClaimFailedError where a neighbour is better than what was proved to be best."""
    if outcome.proof is not Proof.OPTIMAL:
        return
    if found.better is not None:
        raise task.claim_failed(outcome.solver, f"a plan one move away is better: {found.better.what}")
    more = None if found.idle is None else found.idle.outcome
    if more is None or more.objective is None or outcome.objective is None or more.proof is Proof.UNKNOWN:
        return
    if more.objective < outcome.objective:
        raise task.claim_failed(outcome.solver, "a plan with more devices is better than the best one")


def _to_dict(
    task: Task, path: str | None, outcome: Outcome | None, found: Reasons | None, why: Explanation | None
) -> dict[str, Any]:
    return {
        "scenario": task.scenario.name,
        "plan": path,
        "scope": scope_to_dict(task.instance),
        "optimum": None if outcome is None else claim_to_dict(outcome),
        "reasons": None if found is None else reasons_to_dict(found),
        "explanation": None if why is None else explanation_to_dict(why),
    }


def _show(task: Task, outcome: Outcome | None, found: Reasons | None, why: Explanation | None) -> None:
    from pipecut.commands.parts import tables
    from pipecut.commands.parts.reasons import reasons_rows

    rows: list[tables.Row] = []
    if outcome is not None:
        rows = [("proof", tables.proof_text(task.instance, outcome))]
        rows += tables.left_out_rows(task.instance, outcome, why and why.left_out)
    rows += [] if why is None else explanation_rows(why)
    if found is None:
        output.show(tables.KeyLines(rows))
        return
    plan = found.priced.plan
    evaluation = evaluate(task.instance, plan)
    rows = [("objective", tables.objective_text(task.instance, found.priced.values[0])), *rows]
    rows += tables.rules_rows(evaluation) if outcome is None else []
    said = tables.KeyLines(reasons_rows(found))
    output.show(tables.KeyLines(rows), "", tables.StageLines(task.instance, plan, evaluation), "", said)
