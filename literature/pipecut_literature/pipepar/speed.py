"""PipePar's comparison on one model: data parallelism, AccPar, PipePar, the optimum, and one GPU alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.ingest.errors import ModelError
from pipecut.ingest.scenario.load import load_scenario
from pipecut.ingest.scenario.shipped import SHIPPED
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.catalogue import all_names, find_any
from pipecut.solvers.crosscheck import solve_checked
from pipecut_literature.studies.study import StudyInputError

FOLDER = SHIPPED / "pipepar"
READINGS: Mapping[str, tuple[str, ...]] = {
    "boundaries charged": ("cost.boundary=both",),
    "boundaries free": ("cost.boundary=none",),
    "one after another": ("cost.boundary=both", "cost.combine=sum"),
}
"""Overrides of the shipped scenarios. Eq. (4) charges every transfer; Algorithm 2 adds none between stages; eq.
(1) is a sum, and gives the time of one minibatch that has the pipeline to itself."""
TIME_LIMIT_S = 60.0
"""Longest time of each search, if none is given."""
BASELINE, ACCPAR, PIPEPAR = "data_parallel", "accpar", "pipepar"


@dataclass(frozen=True, slots=True)
class MethodTimes:
    """Time of one minibatch, in ns; None for a planner that is not there or refuses.

    ``optimum`` is the best that is known where it is not ``proved``.
    """

    one_gpu: int
    baseline: int
    planners: Mapping[str, int | None]
    optimum: int
    proved: bool

    def over_baseline(self, name: str) -> float | None:
        """Return how many times as fast as data parallelism a planner's plan is."""
        time = self.planners[name]
        return None if time is None else self.baseline / time


def instance_of(model: str, batch: int, reading: str) -> Instance:
    """Return a model on the paper's cluster. Raises StudyInputError if it cannot be traced."""
    overrides = (f"training.global_batch={batch}", *READINGS[reading])
    try:
        return load_scenario(FOLDER / f"{model}.yaml", overrides).load()
    except ModelError as error:
        raise StudyInputError(str(error)) from error


def times_of(instance: Instance, limits: Limits) -> MethodTimes:
    """Run all planners and prove the optimum; every price is the evaluator's."""
    best = plan(instance, limits)
    baseline = planned(instance, BASELINE, limits)
    if best.objective is None or baseline is None:
        raise StudyInputError(f"{instance.name}: no plan within the time limit")
    planners = {name: planned(instance, name, limits) for name in (ACCPAR, PIPEPAR)}
    known = (best.objective, baseline, one_gpu := alone(instance), *planners.values())
    return MethodTimes(
        one_gpu=one_gpu,
        baseline=baseline,
        planners=planners,
        optimum=min(time for time in known if time is not None),
        proved=best.proof is Proof.OPTIMAL,
    )


def planned(instance: Instance, solver: str, limits: Limits) -> int | None:
    """Return the price of a solver's plan; None if there is no such solver, or it refuses the instance."""
    if solver not in all_names():
        return None
    try:
        return solve_checked(instance, find_any(solver), limits).objective
    except ValueError:
        return None


def alone(instance: Instance) -> int:
    """Return the price of the whole model on the first device."""
    span = Span(0, len(instance.layers))
    plan = Plan((Stage(span, Group.on_line(instance, 0, 1), (0,) * len(span)),))
    found = evaluate(instance, plan).objective
    if found is None:
        raise LookupError("the whole model on one device is a plan of every instance")
    return found
