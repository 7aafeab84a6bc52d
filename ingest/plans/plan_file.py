"""Plans as JSON files: what a solver found, what a paper printed, what a person wants to try.

A plan names layers and servers, never numbers them, so it can be read beside the model and survives a change of
the model's other layers. Reading is lenient about what rules judge (layers left out, devices taken twice: the
plan is read and found wrong later, with numbers) and strict about what cannot be a plan at all. The format is
described in ``docs/formats/plan.md``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from formulation.costs.prices import updates_ns
from formulation.evaluate import Evaluation
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan, Stage
from ingest.files import atomic_write, read_limited
from ingest.mistakes import MOST_SHOWN
from ingest.plans.as_planned import as_planned, choices_to_dict
from ingest.plans.plan_reader import plan_of
from ingest.strict_json import parse_json

LARGEST_FILE = 16 * 2**20
"""Bytes of the largest plan file that is read."""
FORMAT_VERSION = 1
"""The version of the format that is written, and the only one that is read."""


class PlanError(ValueError):
    """A plan file is wrong; ``str()`` gives one line for each mistake."""

    def __init__(self, mistakes: Iterable[str]) -> None:
        """Keep every mistake; spell out the first of them."""
        self.mistakes = tuple(mistakes)
        lines = list(self.mistakes[:MOST_SHOWN])
        if len(self.mistakes) > MOST_SHOWN:
            lines.append(f"... and {len(self.mistakes) - MOST_SHOWN} more")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type[PlanError], tuple[tuple[str, ...]]]:
        """Pickle by the mistakes, so that the error survives the way from another process."""
        return type(self), (self.mistakes,)


def plan_to_dict(instance: Instance, plan: Plan, evaluation: Evaluation) -> dict[str, Any]:
    """Return a plan with its price as plain data for JSON: times in ns, memory in bytes.

    A plan that is none (``evaluation`` without stages) comes without prices.
    """
    stages = [stage_to_dict(instance, stage) for stage in plan.stages]
    for row, stage, cost in zip(stages, plan.stages, evaluation.stages, strict=False):
        optimizer_ns = updates_ns(instance, stage)[1]
        sent = cost.communication_ns - optimizer_ns
        row.update(cost.fields(), communication_ns=sent, optimizer_ns=optimizer_ns)
    return {
        "format": "pipecut plan",
        "version": FORMAT_VERSION,
        "model": instance.name,
        **choices_to_dict(instance),
        "objective": evaluation.objective,
        "violations": [violation.message for violation in evaluation.violations],
        "stages": stages,
    }


def stage_to_dict(instance: Instance, stage: Stage) -> dict[str, Any]:
    """Return a stage by names, as plan files and certificates write it."""
    return {
        "layers": [instance.layers[layer].name for layer in stage.span.layers],
        "devices": {instance.servers[server].name: count for server, count in stage.group.counts},
        "forms": list(stage.forms),
        **stage.fields([layer.name for layer in instance.layers]),
        **({} if stage.warm_up is None else {"warm_up": stage.warm_up}),
    }


def write_plan(path: str | Path, instance: Instance, plan: Plan, evaluation: Evaluation) -> None:
    """Write a plan with its price; an existing file is replaced whole or not at all. Raises OSError."""
    atomic_write(Path(path), json.dumps(plan_to_dict(instance, plan, evaluation), indent=1) + "\n")


def read_plan(path: str | Path, instance: Instance) -> Plan:
    """Read a plan for an instance. Raises PlanError with every mistake, each with file and place."""
    source = Path(path)
    return _plan_of(source, _data_of(source), instance)


def read_plan_as_made(path: str | Path, instance: Instance) -> tuple[Instance, Plan]:
    """Read a plan; return the instance with the order of layers and the micro-batches that it chose, and the plan.

    The instance is the given one where the plan chose nothing. Raises PlanError as :func:`read_plan` does.
    """
    source = Path(path)
    data = _data_of(source)
    about = as_planned(data, instance)
    return about, _plan_of(source, data, about)


def _data_of(source: Path) -> object:
    """Return the plain data of a JSON file. Raises PlanError."""
    try:
        return parse_json(read_limited(source, LARGEST_FILE))
    except json.JSONDecodeError as error:
        raise PlanError([f"{source}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}"]) from error
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reason = "nested too deeply for a plan" if isinstance(error, RecursionError) else reason
        raise PlanError([f"{source}: {reason}"]) from error


def _plan_of(source: Path, data: object, instance: Instance) -> Plan:
    plan, mistakes = plan_of(data, instance)
    if plan is None or mistakes:
        raise PlanError(f"{source}: {mistake}" for mistake in mistakes)
    return plan
