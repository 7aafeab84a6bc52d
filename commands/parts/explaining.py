"""What ``pipecut plan`` adds where no plan exists: which limits clash, and the least changes that help."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from commands.parts.task import Task
from commands.terminal import human, output
from commands.terminal.interrupt import run_stoppable
from commands.terminal.progress import ProgressLine
from formulation.outcome import FalseClaimError, Outcome, Proof
from ingest.plans.plan_file import stage_to_dict

if TYPE_CHECKING:
    from solvers.explain.explain import Explanation, OpenedPlan

LEFT = "stopped before anything that clashes was found"
UNLIMITED_S = 60.0
"""Longest search for an explanation where the scenario sets no time limit."""


def explanation_of(task: Task, outcome: Outcome) -> Explanation | None:
    """Explain a proof that there is no plan, in what is left of the time limit; None for any other outcome.

    Ctrl-C ends the search with what is known. Raises ClaimFailedError if there is a plan after all.
    """
    if outcome.proof is not Proof.INFEASIBLE:
        return None
    from solvers.explain.explain import NOTHING_CLASHES, Explanation, explain

    began_s = time.monotonic()
    limits = replace(task.limits, stopped=task.stop.is_set)
    if limits.end_s is None:
        limits = limits.within(UNLIMITED_S)
    title = f"why {task.scenario.name} has no plan"
    with ProgressLine(title, quiet=task.quiet, deadline=limits.deadline) as line:

        def announce() -> None:
            if line.shown:
                line.stopping()
            else:
                output.remark("stopping with what is explained so far (Ctrl-C again to abort)")

        try:
            found = run_stoppable(
                lambda: explain(task.instance, limits),
                task.stop,
                announce,
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
    rows += [("way out", human.printable(_opened(way))) for way in explanation.opened]
    for clash in explanation.clashes:
        proved = "cannot hold" if len(clash.limits) == 1 else "cannot hold together"
        rows.append(("because", proved + (":" if clash.minimal else " (perhaps some of them do):")))
        rows += [("", human.printable(f"{limit.path}: {limit.words}")) for limit in clash.limits]
        rows += [("way out", human.printable(way.words)) for way in clash.ways_out]
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
    many = f" in {training.micro_batches} micro-batches" if training.left_open else ""
    return f"{'; '.join(way.lines)}: a plan of {value}{many}, {proved}"
