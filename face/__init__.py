"""pipecut in Python: state a problem, find its best plan with a proof, and look at it from every side.

    import pipecut

    problem = pipecut.load("scenarios/pipepar/vgg16.yaml")
    print(pipecut.plan(problem))

``docs/python.md`` lists every name with one line. What is behind a name is imported at its first use.
"""

from __future__ import annotations

# The command line begins here, and until it has begun Ctrl-C would be a traceback: so nothing is imported, and
# this is what type checkers take for true.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from pipecut.commands.parts.opening import read_plan, read_scenario
    from pipecut.commands.results import listing
    from pipecut.commands.results.files import certify, read_layers, read_schedule, trace, write_layers, write_plan
    from pipecut.commands.results.planned import Compared, Planned
    from pipecut.commands.results.simulated import Simulated, simulate
    from pipecut.execution.running.job import pipeline
    from pipecut.execution.running.pipeline import Pipeline
    from pipecut.execution.splitting.stages import ModelStages, stages
    from pipecut.formulation.certificates.check import Certificate, verify
    from pipecut.formulation.certificates.labels import CertificateError
    from pipecut.formulation.constraints.constraint import Violation
    from pipecut.formulation.constraints.devices.reserve import Reserve
    from pipecut.formulation.constraints.layers.forms import FormLimit
    from pipecut.formulation.constraints.layers.pin import Pin
    from pipecut.formulation.constraints.plans.at_most import GoalLimit
    from pipecut.formulation.constraints.plans.own import Own
    from pipecut.formulation.evaluate import Evaluation, evaluate
    from pipecut.formulation.outcome import FalseClaimError, GoalClaim, Limits, Outcome, Progress, Proof, Status
    from pipecut.formulation.predictor.curves import Measured
    from pipecut.formulation.problem.cluster import Cluster, DeviceClass, Server
    from pipecut.formulation.problem.constraints import Constraints, Goal, Placement, Recompute, Sharded
    from pipecut.formulation.problem.groups import Group
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.layers import Layer, LayerGraph, Split
    from pipecut.formulation.problem.modes import Mode
    from pipecut.formulation.problem.options import (
        AllReduce,
        Boundary,
        BoundaryCharge,
        Combine,
        CostModel,
        Count,
        Samples,
        Sharing,
        StageTime,
        Synchronisation,
    )
    from pipecut.formulation.problem.plan import Plan, Span, Stage
    from pipecut.formulation.problem.training import Schedule, Training
    from pipecut.formulation.problem.units import Link
    from pipecut.formulation.schedules.table import PipelineSchedule
    from pipecut.ingest.mistakes import ScenarioError
    from pipecut.ingest.plans.certificate_file import read_certificate, write_certificate
    from pipecut.ingest.plans.schedule_file import write_schedule
    from pipecut.ingest.scenario.load import Scenario
    from pipecut.solvers.explain import Explanation, explain
    from pipecut.solvers.reasons.differences import PlanDifference, differences
    from pipecut.solvers.reasons.reasons import Reasons, reasons

__all__ = [
    "AllReduce",
    "Boundary",
    "BoundaryCharge",
    "Certificate",
    "CertificateError",
    "Cluster",
    "Combine",
    "Compared",
    "Constraints",
    "CostModel",
    "Count",
    "DeviceClass",
    "Evaluation",
    "Explanation",
    "FalseClaimError",
    "FormLimit",
    "Goal",
    "GoalClaim",
    "GoalLimit",
    "Group",
    "Instance",
    "Layer",
    "LayerGraph",
    "Limits",
    "Link",
    "Measured",
    "Mode",
    "ModelStages",
    "Outcome",
    "Own",
    "Pin",
    "Pipeline",
    "PipelineSchedule",
    "Placement",
    "Plan",
    "PlanDifference",
    "Planned",
    "Progress",
    "Proof",
    "Reasons",
    "Recompute",
    "Reserve",
    "Samples",
    "Scenario",
    "ScenarioError",
    "Schedule",
    "Server",
    "Sharded",
    "Sharing",
    "Simulated",
    "Span",
    "Split",
    "Stage",
    "StageTime",
    "Status",
    "Synchronisation",
    "Training",
    "Violation",
    "build",
    "certify",
    "compare",
    "differences",
    "evaluate",
    "explain",
    "listing",
    "load",
    "pipeline",
    "plan",
    "read_certificate",
    "read_layers",
    "read_plan",
    "read_scenario",
    "read_schedule",
    "reasons",
    "simulate",
    "stages",
    "trace",
    "verify",
    "write_certificate",
    "write_layers",
    "write_plan",
    "write_schedule",
]

_HOMES = {
    "pipecut.commands.parts.opening": "read_plan read_scenario",
    "pipecut.commands.results.files": "certify read_layers read_schedule trace write_layers write_plan",
    "pipecut.commands.results.planned": "Compared Planned",
    "pipecut.commands.results.simulated": "Simulated simulate",
    "pipecut.execution.running.job": "pipeline",
    "pipecut.execution.running.pipeline": "Pipeline",
    "pipecut.execution.splitting.stages": "ModelStages stages",
    "pipecut.formulation.certificates.check": "Certificate verify",
    "pipecut.formulation.certificates.labels": "CertificateError",
    "pipecut.formulation.constraints.constraint": "Violation",
    "pipecut.formulation.constraints.devices.reserve": "Reserve",
    "pipecut.formulation.constraints.layers.forms": "FormLimit",
    "pipecut.formulation.constraints.layers.pin": "Pin",
    "pipecut.formulation.constraints.plans.at_most": "GoalLimit",
    "pipecut.formulation.constraints.plans.own": "Own",
    "pipecut.formulation.evaluate": "Evaluation evaluate",
    "pipecut.formulation.outcome": "FalseClaimError GoalClaim Limits Outcome Progress Proof Status",
    "pipecut.formulation.predictor.curves": "Measured",
    "pipecut.formulation.problem.cluster": "Cluster DeviceClass Server",
    "pipecut.formulation.problem.constraints": "Constraints Goal Placement Recompute Sharded",
    "pipecut.formulation.problem.groups": "Group",
    "pipecut.formulation.problem.instance": "Instance",
    "pipecut.formulation.problem.layers": "Layer LayerGraph Split",
    "pipecut.formulation.problem.modes": "Mode",
    "pipecut.formulation.problem.options": (
        "AllReduce Boundary BoundaryCharge Combine CostModel Count Samples Sharing StageTime Synchronisation"
    ),
    "pipecut.formulation.problem.plan": "Plan Span Stage",
    "pipecut.formulation.problem.training": "Schedule Training",
    "pipecut.formulation.problem.units": "Link",
    "pipecut.formulation.schedules.table": "PipelineSchedule",
    "pipecut.ingest.mistakes": "ScenarioError",
    "pipecut.ingest.plans.certificate_file": "read_certificate write_certificate",
    "pipecut.ingest.plans.schedule_file": "write_schedule",
    "pipecut.ingest.scenario.load": "Scenario",
    "pipecut.solvers.explain": "Explanation explain",
    "pipecut.solvers.reasons.differences": "PlanDifference differences",
    "pipecut.solvers.reasons.reasons": "Reasons reasons",
}
"""Where the names come from that are not defined here."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 (a module attribute can be anything)
    from importlib import import_module

    if name == "listing":
        return import_module("pipecut.commands.results.listing")
    home = next((home for home, names in _HOMES.items() if name in names.split()), None)
    if home is not None:
        return getattr(import_module(home), name)
    raise AttributeError(f"module 'pipecut' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def load(path: str | Path, overrides: Sequence[str] = ()) -> Instance:
    """Read a scenario with ``key=value`` overrides, build its model (this runs its code), return the problem.

    The scenario is a file, or the name of one that ships, as for ``pipecut plan``.

    Raises ScenarioError with every mistake, and ValueError for a model that cannot be had, and for overrides of
    the solver, which :func:`read_scenario` reads.
    """
    of_solver = [override for override in overrides if override.startswith("solver.")]
    if of_solver:
        raise ValueError(f"{of_solver[0]}: no part of the problem; give plan() a solver and limits")
    from pipecut.commands.parts.opening import read_scenario

    return read_scenario(path, overrides).load()


def build(
    layers: LayerGraph,
    cluster: Cluster,
    training: Training,
    *,
    cost: CostModel | None = None,
    constraints: Constraints | None = None,
    goals: Sequence[Goal] = (),
) -> Instance:
    """Return the problem of planning these layers on this cluster.

    Without ``cost``, ``constraints`` and ``goals`` those of a scenario that says nothing of them: the goal then is
    the executed time, of a step or, without a flush, of a micro-batch. Of several goals a later one counts among
    plans equal in all before it. Raises ValueError where the parts make no problem.
    """
    from pipecut.formulation.counted import with_counted_choices
    from pipecut.formulation.problem.constraints import Constraints
    from pipecut.formulation.problem.instance import build_instance
    from pipecut.formulation.problem.options import CostModel, default_goals

    cost = cost or CostModel.on_devices(server.device_class for server in cluster.servers)
    asked, judged = constraints or Constraints(), tuple(goals) or default_goals(training, cost)

    def make(one: Training) -> Instance:
        return build_instance(layers, cluster, one, cost, asked, judged)

    return with_counted_choices(make, training)


def plan(
    instance: Instance, *, solver: str | None = None, limits: Limits | None = None, cross_check: bool = True
) -> Planned:
    """Find the best plan and prove it. The outcome prints as the table of the command line.

    Without ``solver`` whoever is fastest is asked, without ``limits`` until it is done. The outcome has passed the
    evaluator's check, and the notes say which second exact method a proof agrees with, unless ``cross_check`` is
    false. Ctrl-C stops the search and raises KeyboardInterrupt; to have the best plan so far instead, stop it
    through ``limits``. Raises FalseClaimError if a check fails, and ValueError for wrong input.
    """
    from pipecut.commands.results import planned
    from pipecut.formulation.outcome import Limits

    return planned.plan(instance, solver, limits or Limits(), cross_check=cross_check)


def compare(instance: Instance, solvers: Sequence[str], *, limits: Limits | None = None) -> Compared:
    """Ask several solvers, one after another and each within the limits; prints as the command line's table.

    A solver that cannot take the problem is a row that says why. Raises FalseClaimError where a claim fails its
    check or another solver's plan refutes it, and KeyboardInterrupt on Ctrl-C.
    """
    from pipecut.commands.results import planned as compared
    from pipecut.formulation.outcome import Limits

    return compared.compare(instance, solvers, limits or Limits())
