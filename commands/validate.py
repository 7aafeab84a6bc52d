"""``pipecut validate``: gradients beside the unsplit model's, times and memory beside the predicted ones."""

from __future__ import annotations

import argparse
import math
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
    from execution.running.validating import Difference


def run(arguments: argparse.Namespace) -> int:
    """Compare steps; exit with 1, what differs and both numbers, where rounding does not explain it.

    Then measure some steps. Under torchrun the first process tells of these.
    """
    task, job = job_of(arguments)
    profile = _checked_profile(task)
    from execution.measuring.steps import validate_and_measure
    from execution.running.validating import STEPS

    results = carried_out(arguments, job, validate_and_measure, lambda _: None)
    found = [one for result in results.values() for one in result.compared.differences]
    faults = [one for result in results.values() for one in result.compared.faults]
    measured = results[min(results)].measured
    tells = bool(measured) and (0 in results or not by_torchrun())
    content = measured_content(task, job, measured, profile) if tells else None
    worst = _worst_of_stages(found)
    unlike = [one for one in worst.values() if not one.equal]
    if arguments.json:
        arguments.reply.put(
            _to_dict(task.scenario.name, arguments.plan, worst, len(found), faults) | {"measured": content}
        )
    else:
        for one in worst.values():
            output.write(f"stage {one.stage}: largest difference {one.relative:.1e}, in {one.parameter}\n")
        for one in unlike:
            where = f"stage {one.stage}: {one.parameter}" + (f", step {one.step}" if one.step > 1 else "")
            output.write(f"{where}: {one.found!r}, the unsplit model {one.expected!r}\n")
        for fault in faults:
            output.write(f"{fault}\n")
        if not unlike and not faults:
            output.write(
                f"losses, gradients and buffers of {STEPS} steps ({human.count(len(found), 'tensor')} on "
                f"{human.count(job.layout.size, 'device')}) are those of the unsplit model\n"
            )
        if content is not None:
            write_measured(content)
    return ExitCode.NO_PLAN if unlike or faults else ExitCode.DONE


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
    """Return by stage the difference that exceeds most what is allowed."""
    worst: dict[int, Difference] = {}
    for one in sorted(found, key=lambda one: (one.stage, -one.relative / one.most)):
        worst.setdefault(one.stage, one)
    return worst


def _to_dict(
    scenario: str, plan: str, worst: dict[int, Difference], compared: int, faults: list[str]
) -> dict[str, Any]:
    return {
        "scenario": scenario,
        "plan": plan,
        "equal": all(one.equal for one in worst.values()) and not faults,
        "compared": compared,
        "faults": faults,
        "stages": [
            {
                "stage": one.stage,
                "parameter": one.parameter,
                "step": one.step,
                "found": _number(one.found),
                "expected": _number(one.expected),
                "relative_difference": _number(one.relative),
                "tolerance": one.most,
            }
            for one in worst.values()
        ],
    }


def _number(value: float) -> float | None:
    """Return a value for JSON, which has no word for what is no number."""
    return value if math.isfinite(value) else None
