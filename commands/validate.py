"""``pipecut validate``: one step of a plan in float64, its gradients beside those of the unsplit model."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from commands.parts.running import carried_out, job_of
from commands.terminal import human, output
from commands.terminal.exit_codes import ExitCode

if TYPE_CHECKING:
    from execution.running.job import Difference

__all__: list[str] = []

TOLERANCE = 1e-10
"""The largest difference that rounding in float64 explains, as a share of the largest value of a gradient."""


def run(arguments: argparse.Namespace) -> int:
    """Compare gradients; exit with 1, the parameter and both numbers, where one differs by more than rounding."""
    task, job = job_of(arguments)
    from execution.running.job import validate

    results = carried_out(arguments, job, validate, lambda _: None)
    found = [one for differences in results.values() for one in differences]
    worst = _worst_of_stages(found)
    unlike = [one for one in worst.values() if one.relative > TOLERANCE]
    if arguments.json:
        arguments.reply.put(_to_dict(task.scenario.name, arguments.plan, worst, len(found)))
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
    return ExitCode.NO_PLAN if unlike else ExitCode.DONE


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
