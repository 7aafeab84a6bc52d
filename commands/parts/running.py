"""What ``pipecut run`` and ``pipecut validate`` share: a plan made into work for processes, and these started."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipecut.commands.orders import order_of
from pipecut.commands.parts.task import Task, open_task
from pipecut.commands.searched_order import search_order
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import InputError, reading
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.schedules.catalogue import schedule_of
from pipecut.formulation.schedules.table import PipelineSchedule, ScheduleError
from pipecut.report.simulation import simulate

if TYPE_CHECKING:
    from pipecut.execution.running.job import RunJob
    from pipecut.execution.running.layout import RunLayout

OF_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun sets in the environment of every process that it starts."""


def job_of(arguments: argparse.Namespace) -> tuple[Task, RunJob]:
    """Read scenario and plan of a command line; return the task and the work. Raises InputError."""
    task, plan = open_task(arguments).with_plan(arguments.plan)
    schedule = _schedule(task, plan, arguments)
    layout = layout_for(task, plan, arguments.plan, schedule)
    from pipecut.execution.running.job import RunJob

    layers = tuple(layer.name for layer in task.instance.layers)
    scenario = task.scenario
    return task, RunJob(
        model=scenario.model,
        configured=scenario.configured,
        folder=scenario.path.parent.resolve(),
        plan=plan,
        layers=layers,
        layout=layout,
        steps=getattr(arguments, "steps", 1),
        seed=arguments.run_seed,
        learning_rate=getattr(arguments, "learning_rate", None),
        timeout_s=arguments.wait,
        optimizer=getattr(arguments, "optimizer", "sgd"),
        precision=task.instance.training.precision,
        loss=arguments.loss,
        snapshots=_folder(arguments, "snapshot"),
        save_every=getattr(arguments, "save_every", 0),
        resume=_folder(arguments, "resume"),
        by_torch=arguments.backend == "torch",
    )


def layout_for(task: Task, plan: Plan, path: str, schedule: PipelineSchedule | None = None) -> RunLayout:
    """Return the processes that run a plan of a file, without a schedule in the order of its training.

    Raises InputError for a plan that cannot be run, and where there is no PyTorch.
    """
    training = task.instance.training
    try:
        from pipecut.execution.errors import StagesError
        from pipecut.execution.running.layout import layout_of
        from pipecut.execution.running.precision import Formats
    except ImportError as error:
        raise InputError(
            "running a plan needs PyTorch, which is not installed: pip install 'pipecut[torch]'"
        ) from error
    try:
        Formats(training.precision)
        order = schedule or schedule_of(training, len(plan), warm_ups=plan.warm_ups(training))
        return layout_of(plan, order, training.micro_batch, task.instance)
    except (StagesError, ScheduleError) as error:
        raise InputError(f"{path}: {error}") from error


def check_runs(task: Task, plan: Plan, path: str) -> None:
    """Split the model of a task as a plan of a file says, without its weights, and run nothing.

    Raises InputError for a plan that cannot be run.
    """
    layout = layout_for(task, plan, path)
    import torch

    from pipecut.execution.running.parts_of_model import check_parts
    from pipecut.ingest.torch.source import load_model

    scenario, layers = task.scenario, tuple(layer.name for layer in task.instance.layers)
    with reading(scenario.path), torch.device("meta"):
        model, inputs = load_model(scenario.model, scenario.configured, scenario.path.parent.resolve())
    try:
        check_parts(model, inputs, plan, layout, layers)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def _folder(arguments: argparse.Namespace, option: str) -> Path | None:
    """Return a folder of snapshots. Raises InputError where it is not as a run needs it."""
    named = getattr(arguments, option, None)
    if named is None:
        return None
    folder = Path(named).resolve()
    there = folder.is_dir() and any(folder.glob("step-*"))
    if option == "resume" and not there:
        raise InputError(f"--resume: {named} holds no snapshot, expected folders step-N as --snapshot writes them")
    if option == "snapshot" and there and (arguments.resume is None or Path(arguments.resume).resolve() != folder):
        raise InputError(
            f"--snapshot: {named} holds snapshots of another run: name another folder, or --resume it"
        )
    return folder


def _schedule(task: Task, plan: Plan, arguments: argparse.Namespace) -> PipelineSchedule:
    order, training = order_of(arguments), task.instance.training
    try:
        if order is None:
            return schedule_of(training, len(plan), warm_ups=plan.warm_ups(training))
        if not order.searched:
            return order.schedule(task.instance, plan)
        found = search_order(task, plan).order
    except ScheduleError as error:
        raise InputError(f"{arguments.plan}: {error}") from error
    if found is None:
        raise InputError(f"{arguments.plan}: no order of its actions was found that fits the memory")
    return found


def predicted_ns(task: Task, job: RunJob) -> int | None:
    """Return the time of a step on the scenario's devices, by the timeline; None for a plan without a price."""
    try:
        return simulate(task.instance, job.plan, job.layout.schedule).timeline.makespan_ns
    except ValueError:
        return None


def by_torchrun() -> bool:
    """Tell whether torchrun has started this process."""
    return all(name in os.environ for name in OF_TORCHRUN)


def carried_out(
    arguments: argparse.Namespace, job: RunJob, work: Callable[..., Any], heard: Callable[[Any], None]
) -> dict[int, Any]:
    """Do the work in a process for every device; return the results by process.

    Under torchrun this process is one of them, and returns its own. Raises InputError where the plan cannot be
    run, and where a process fails.
    """
    from pipecut.execution.errors import RunFailedError, StagesError
    from pipecut.execution.processes.local import as_one_of, in_processes
    from pipecut.ingest.errors import ModelError

    try:
        if by_torchrun():
            return as_one_of(job.layout.size, work, (job,), heard, _told(arguments.plan))
        return dict(enumerate(in_processes(job.layout.size, work, (job,), lambda _, told: heard(told))))
    except (RunFailedError, StagesError, ModelError) as error:
        raise InputError(f"{arguments.plan}: {error}") from error


def _told(plan: str) -> Callable[[str], None]:
    """Return what tells why a process of torchrun ends: it ends right behind it."""

    def tell(why: str) -> None:
        output.remark(f"{plan}: {why}")
        sys.stderr.flush()

    return tell
