"""``pipecut diff``: what one plan does otherwise than another, step by step, with the effect of every step."""

from __future__ import annotations

import argparse

from pipecut.commands.parts.reasons import difference_to_dict
from pipecut.commands.parts.task import open_task
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import ExitCode, InputError
from pipecut.solvers.reasons.differences import differences


def run(arguments: argparse.Namespace) -> int:
    """Compare the two plans and return the exit code."""
    task, plan = open_task(arguments).with_plan(arguments.plan)
    there, other = task.with_plan(arguments.other)
    if [layer.name for layer in there.instance.layers] != [layer.name for layer in task.instance.layers]:
        raise InputError(f"{arguments.other}: cuts another order of the layers than {arguments.plan}")
    try:
        found = differences(task.instance, plan, other)
    except ValueError as error:
        raise InputError(f"{arguments.plan}, {arguments.other}: {error}") from error
    if arguments.json:
        named = {"scenario": task.scenario.name, "plans": [arguments.plan, arguments.other]}
        arguments.reply.put(named | difference_to_dict(found))
        return ExitCode.DONE
    from pipecut.commands.parts.reasons import difference_rows
    from pipecut.commands.parts.tables import KeyLines

    output.show(KeyLines(difference_rows(found)))
    return ExitCode.DONE
