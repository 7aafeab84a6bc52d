"""``pipecut export``: a plan as other programs take it, or as a program of its own, and what these make of it."""

from __future__ import annotations

import argparse

from pipecut.commands.parts.running import check_runs
from pipecut.commands.parts.tables import objective_text
from pipecut.commands.parts.task import Task, open_task
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import ExitCode, InputError, output_path, reading
from pipecut.exchange.exports import SCRIPT, Export, Source, exported_plan
from pipecut.exchange.whole_blocks import TargetError
from pipecut.formulation.costs.amounts import goal_amount
from pipecut.formulation.evaluate import Evaluation
from pipecut.formulation.problem.plan import Plan
from pipecut.ingest.files import atomic_write
from pipecut.ingest.graphs.runtimes import RUNTIMES


def run(arguments: argparse.Namespace) -> int:
    """Write the plan for a target, to a file or to stdout, and say what it takes as the target runs it.

    Raises InputError for what the target cannot run.
    """
    task, plan = open_task(arguments).with_plan(arguments.plan)
    exported = _exported(arguments, task, plan)
    out = output_path(arguments.out)
    if out is not None:
        with reading(out):
            atomic_write(out, exported.text)
    said = _said(task, exported, arguments.to)
    if arguments.json:
        arguments.reply.put(
            {
                "scenario": task.scenario.name,
                "plan": arguments.plan,
                "to": arguments.to,
                "out": arguments.out,
                "text": exported.text,
                "objective": exported.planned.objective,
                "runs": exported.priced.objective,
                "memory_bytes": _memory(exported.priced),
                "divided_otherwise": exported.otherwise,
                "notes": said,
            }
        )
        return ExitCode.DONE
    if out is None:
        output.write(exported.text)
    else:
        output.write(f"{arguments.out}: the plan for {arguments.to}\n")
    for line in said:
        (output.remark if out is None else _line)(line)
    return ExitCode.DONE


def _exported(arguments: argparse.Namespace, task: Task, plan: Plan) -> Export:
    scenario = task.scenario
    function = scenario.model if scenario.configured is None and ":" in scenario.model else None
    source = Source(arguments.plan, str(scenario.path), function)
    try:
        exported = exported_plan(task.instance, plan, arguments.to, source)
    except TargetError as error:
        raise InputError(f"{arguments.plan}: {error}") from error
    if arguments.to == SCRIPT:
        check_runs(task, plan, arguments.plan)
    return exported


def _line(text: str) -> None:
    output.write(f"{text}\n")


def _said(task: Task, exported: Export, target: str) -> list[str]:
    """Say what the plan takes as the target runs it, and what it does otherwise."""
    planned, runs = exported.planned.objective or 0, exported.priced.objective or 0
    goal, many = task.instance.goals[0], exported.otherwise
    does = f"it divides {output.count(many, 'layer')} otherwise" if many else "it divides layers as planned"
    who = "pipecut" if target == SCRIPT else RUNTIMES[target].name
    said = f"as {who} runs it: {objective_text(task.instance, runs)}"
    if runs == planned:
        said += ", as planned" if not many else f", the same as planned, though {does}"
    else:
        said += f", not {goal_amount(goal, planned)} ({100 * (runs - planned) / max(planned, 1):+.1f} %): {does}"
    lines, memory = [said], _memory(exported.priced)
    if memory != _memory(exported.planned):
        planned_memory = output.amount(_memory(exported.planned))
        lines.append(f"it fills {output.amount(memory)} of a device, the plan {planned_memory}")
    return [*lines, *exported.notes]


def _memory(evaluation: Evaluation) -> int:
    """Return the largest peak of any stage."""
    return max(stage.memory_bytes for stage in evaluation.stages)
