"""``pipecut sensitivity``: the best plan if one thing were otherwise, for many things; each told as it comes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

from commands.parts.task import EXIT_CODES, Task, open_task
from commands.terminal import output
from commands.terminal.exit_codes import ExitCode
from commands.terminal.failures import InputError
from commands.terminal.interrupt import run_stoppable
from commands.terminal.progress import ProgressLine
from commands.whatif.data import answers_to_dict
from commands.whatif.library import other_devices
from commands.whatif.lines import answer_line, sensitivity_parts
from formulation.outcome import FalseClaimError, Limits, Outcome, Proof
from formulation.problem.instance import Instance
from planners.catalogue import find_any
from solvers.auto.solve import plan
from solvers.choices.decide import decide
from solvers.whatif.answers import ChangedAnswer, answers
from solvers.whatif.variants import ChangedInstance, ChangeKind


def run(arguments: argparse.Namespace) -> int:
    """Ask about every variant, show the answers, and return the exit code."""
    task = open_task(arguments, timed=True)
    changed = _variants(task, arguments)
    found = _answered(task, changed, cross_check=arguments.cross_check)
    if arguments.json:
        arguments.reply.put(answers_to_dict(task, found))
    else:
        output.show(*sensitivity_parts(found))
    base = found[0].outcome
    if base is None or base.proof is not Proof.OPTIMAL:
        return ExitCode.NOT_PROVED if base is None else EXIT_CODES[base.proof]
    asked = [one for one in found if one.outcome is not None or one.variant.instance is not None]
    return ExitCode.DONE if all(one.proved for one in asked) else ExitCode.NOT_PROVED


def _variants(task: Task, arguments: argparse.Namespace) -> list[ChangedInstance]:
    kinds = arguments.only or tuple(ChangeKind)
    classes = []
    if ChangeKind.DEVICES in kinds:
        classes = other_devices(task.scenario, task.overrides, task.instance, arguments.devices)
    return [one for one in ChangedInstance.variants(task.instance, classes) if one.kind in kinds]


def _answered(task: Task, changed: list[ChangedInstance], *, cross_check: bool) -> list[ChangedAnswer]:
    """Ask about all of them with a progress line, stoppable by Ctrl-C; return the latest answer about each.

    Raises InputError where no solver takes the scenario itself.
    """
    method = find_any(task.solver)
    limits = replace(task.limits.begun(), stopped=task.stop.is_set)
    latest: dict[str, ChangedAnswer] = {}

    def ask(instance: Instance, within: Limits) -> tuple[Instance, Outcome]:
        def alone(one: Instance, left: Limits) -> Outcome:
            return plan(one, left, method, cross_check=cross_check)

        return decide(instance, alone, within, cross_check=cross_check)

    total = len(changed) + 1
    with ProgressLine(f"what if, on {task.scenario.name}", quiet=task.quiet, deadline=limits.deadline) as line:

        def work() -> None:
            for answer in _heard(answers(task.instance, changed, ask, limits)):
                again = answer.variant.what in latest
                latest[answer.variant.what] = answer
                line.title = f"what if, {len(latest)} of {total}, on {task.scenario.name}"
                if not task.quiet:
                    base = next(iter(latest.values()))
                    line.tell(f"{'again' if again else f'{len(latest)} of {total}'}: {answer_line(base, answer)}")

        def announce() -> None:
            if line.shown:
                line.stopping()
            else:
                output.remark("stopping with the answers so far (Ctrl-C again to abort)")

        try:
            run_stoppable(work, task.stop, announce, deadline=limits.deadline, instead=lambda: None)
        except FalseClaimError as error:
            raise task.claim_failed(task.solver, str(error)) from error
    if not latest:
        task.out_of_time("nothing is known of the scenario as it is")()
    return list(latest.values())


def _heard(found: Iterator[ChangedAnswer]) -> Iterator[ChangedAnswer]:
    """Yield answers; raise InputError where there is none about the scenario itself."""
    for at, answer in enumerate(found):
        if not at and answer.outcome is None:
            raise InputError(f"the scenario as it is: {answer.reason}")
        yield answer
