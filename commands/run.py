"""``pipecut run``: train for some steps as a plan says, and tell losses and times."""

from __future__ import annotations

import argparse
import math
import statistics
from typing import TYPE_CHECKING, Any

from pipecut.commands.parts.running import by_torchrun, carried_out, job_of, predicted_ns
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import ExitCode, InputError, output_path, reading
from pipecut.ingest.files import atomic_write
from pipecut.report.trace import measured_trace

if TYPE_CHECKING:
    from pipecut.execution.running.job import RunJob, StepNews


def run(arguments: argparse.Namespace) -> int:
    """Run the plan; the progress line has loss, time of the step, and what was predicted for the devices."""
    trace = output_path(arguments.trace)
    task, job = job_of(arguments)
    if trace is not None and by_torchrun():
        raise InputError("--trace: the processes of torchrun may have clocks of their own; leave torchrun out")
    predicted = predicted_ns(task, job)
    steps: list[StepNews] = []

    def heard(news: StepNews) -> None:
        steps.append(news)
        if not arguments.quiet:
            output.remark(_line(news, job.steps + news.step - len(steps), predicted))

    from pipecut.execution.running.job import train

    actions = carried_out(arguments, job, train, heard)
    if trace is not None:
        with reading(trace):
            atomic_write(trace, measured_trace([(_place(job, one), actions[one]) for one in sorted(actions)]))
    content: dict[str, Any] = {
        "scenario": task.scenario.name,
        "plan": arguments.plan,
        "schedule": job.layout.schedule.name,
        "processes": job.layout.size,
        "steps": [_step(one) for one in steps],
        "predicted_step_ns": predicted,
    }
    if arguments.json:
        arguments.reply.put(content)
    elif steps:
        median = output.duration(int(statistics.median(one.time_ns for one in steps)))
        devices = output.count(job.layout.size, "device")
        losses = f"loss {steps[0].loss:.6g} to {steps[-1].loss:.6g}"
        output.write(f"{output.count(len(steps), 'step')} on {devices}: {losses}, median step {median}\n")
    return ExitCode.DONE


def _place(job: RunJob, process: int) -> str:
    stages = job.layout.stages_of(process)
    held = f"stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}"
    return f"{held}: process {process}"


def _step(news: StepNews) -> dict[str, Any]:
    """Return a step as plain data; JSON has no number for a loss that is none."""
    loss = news.loss if math.isfinite(news.loss) else None
    return {"step": news.step, "loss": loss, "time_ns": news.time_ns, "snapshot": news.snapshot}


def _line(news: StepNews, steps: int, predicted: int | None) -> str:
    expected = "" if predicted is None else f", predicted for the scenario's devices {output.duration(predicted)}"
    saved = "" if news.snapshot is None else f", written to {news.snapshot}"
    return f"step {news.step} of {steps}: loss {news.loss:.6g}, {output.duration(news.time_ns)}{expected}{saved}"
