"""``pipecut export``: a plan as other programs take it, or as a program of its own."""

from __future__ import annotations

import argparse

from commands.parts.task import open_task
from commands.terminal import output
from commands.terminal.exit_codes import ExitCode
from commands.terminal.failures import InputError, output_path, reading
from exchange.exports import Source, exported_plan
from exchange.whole_blocks import TargetError
from ingest.files import atomic_write

__all__: list[str] = []


def run(arguments: argparse.Namespace) -> int:
    """Write the plan for a target, to a file or to stdout. Raises InputError for what the target cannot run."""
    task, plan = open_task(arguments).with_plan(arguments.plan)
    scenario = task.scenario
    function = scenario.model if scenario.configured is None and ":" in scenario.model else None
    source = Source(arguments.plan, str(scenario.path), function)
    try:
        text = exported_plan(task.instance, plan, arguments.to, source)
    except TargetError as error:
        raise InputError(f"{arguments.plan}: {error}") from error
    out = output_path(arguments.out)
    if out is not None:
        with reading(out):
            atomic_write(out, text)
    if arguments.json:
        content = {"scenario": scenario.name, "plan": arguments.plan, "to": arguments.to}
        arguments.reply.put(content | {"out": arguments.out, "text": text})
    else:
        output.write(text if out is None else f"{arguments.out}: the plan for {arguments.to}\n")
    return ExitCode.DONE
