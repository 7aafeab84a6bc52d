"""``pipecut validate``: gradients beside the unsplit model's, times and memory beside the predicted ones."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from commands.parts.measuring import measured_content
from commands.parts.running import by_torchrun, carried_out, job_of
from commands.tables.measured_tables import write_measured
from commands.terminal import human, output
from commands.terminal.exit_codes import ExitCode
from commands.terminal.failures import InputError
from ingest.graphs.layer_profile import LayerProfile, machine_name, read_profile

if TYPE_CHECKING:
    from commands.parts.task import Task
    from execution.running.job import Difference

__all__: list[str] = []

TOLERANCE = 1e-10
"""The largest difference that rounding in float64 explains, as a share of the largest value of a gradient."""


def run(arguments: argparse.Namespace) -> int:
    """Compare gradients; exit with 1, the parameter and both numbers, where one differs by more than rounding.

    Then measure some steps. Under torchrun the first process tells of these.
    """
    task, job = job_of(arguments)
    profile = _checked_profile(task)
    from execution.measuring.steps import validate_and_measure

    results = carried_out(arguments, job, validate_and_measure, lambda _: None)
    found = [one for result in results.values() for one in result.differences]
    measured = results[min(results)].measured
    tells = bool(measured) and (0 in results or not by_torchrun())
    content = measured_content(task, job, measured, profile) if tells else None
    worst = _worst_of_stages(found)
    unlike = [one for one in worst.values() if one.relative > TOLERANCE]
    if arguments.json:
        arguments.reply.put(
            _to_dict(task.scenario.name, arguments.plan, worst, len(found)) | {"measured": content}
        )
    else:
        for one in worst.values():
            output.write(f"stage {one.stage}: largest difference {one.relative:.1e}, in {one.parameter}\n")
        for one in unlike:
            output.write(
                f"stage {one.stage}: {one.parameter}: {one.found!r}, the unsplit model {one.expected!r}\n"
            )
        if not unlike:
            counts = f"{human.count(len(found), 'gradient')} on {human.count(job.layout.size, 'device')}"
            output.write(f"{counts} are those of the unsplit model\n")
        if content is not None:
            write_measured(content)
    return ExitCode.NO_PLAN if unlike else ExitCode.DONE


def _checked_profile(task: Task) -> LayerProfile | None:
    """Return the scenario's profile. Raises InputError where it is of another processor or torch than these."""
    scenario = task.scenario
    if scenario.profile is None or not scenario.profile.endswith(".json"):  # a table does not say where it is from
        return None
    import torch

    path = scenario.path.parent / scenario.profile
    profile = read_profile(path)
    on_gpu = torch.cuda.is_available() and profile.machine != machine_name()
    processor = torch.cuda.get_device_name(0) if on_gpu else machine_name()
    here = {"processor": processor, "torch": torch.__version__}
    for what, found in (("processor", profile.machine), ("torch", profile.torch)):
        if found != here[what]:
            raise InputError(f"{path}: measured with {what} {found}, and here is {here[what]}: profile again here")
    return profile


def _worst_of_stages(found: list[Difference]) -> dict[int, Difference]:
    """Return the largest difference of each stage that has parameters, by stage."""
    worst: dict[int, Difference] = {}
    for one in sorted(found, key=lambda one: (one.stage, -one.relative)):
        worst.setdefault(one.stage, one)
    return worst


def _to_dict(scenario: str, plan: str, worst: dict[int, Difference], gradients: int) -> dict[str, Any]:
    return {
        "scenario": scenario,
        "plan": plan,
        "equal": all(one.relative <= TOLERANCE for one in worst.values()),
        "tolerance": TOLERANCE,
        "gradients": gradients,
        "stages": [
            {
                "stage": one.stage,
                "parameter": one.parameter,
                "found": one.found,
                "expected": one.expected,
                "relative_difference": one.relative,
            }
            for one in worst.values()
        ],
    }
