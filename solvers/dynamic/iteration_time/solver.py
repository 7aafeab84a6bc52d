"""The exact solver for the time of a step: latency and bottleneck weighed against each other, and proved.

A step of M micro-batches takes ``latency + (M - 1) * bottleneck`` with a flush, ``M * latency`` without a pipeline
and ``M * bottleneck`` without a flush (``formulation.costs.goals``). The last is the bottleneck again and goes to
the dynamic programme over device states (``solvers.dynamic.states``); for the others see
``solvers.dynamic.iteration_time.intervals``.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace

from pipecut.formulation.costs.bounds import ceiling, lower_bound
from pipecut.formulation.costs.tables import Tables, all_tables
from pipecut.formulation.limits import StoppedError
from pipecut.formulation.outcome import Limits, Outcome, Progress, begin
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import FORBIDDEN, Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.problem.units import ceil_div
from pipecut.solvers.dynamic.iteration_time.exactly import ExactLatency
from pipecut.solvers.dynamic.iteration_time.intervals import Intervals, Weights
from pipecut.solvers.dynamic.iteration_time.plans import Plans
from pipecut.solvers.dynamic.iteration_time.spans import StageSpans
from pipecut.solvers.dynamic.iteration_time.steps import flat_steps
from pipecut.solvers.dynamic.states import solver as states
from pipecut.solvers.dynamic.states.states import StateSpace, state_space
from pipecut.solvers.dynamic.tables.stage_table import StageTable
from pipecut.solvers.reference.line import AtomTables, atom_tables
from pipecut.solvers.search.first_plan import first_plan
from pipecut.solvers.search.incumbent import Incumbent
from pipecut.solvers.search.stoppable import stoppable, tell_first
from pipecut.solvers.search.support import Support, sized

NAME = "paced_dp"


def reason_against(instance: Instance) -> str | None:
    """Return None if the search sees the whole instance, else what it does not see."""
    if instance.goals[0] is not Goal.ITERATION_TIME:
        return f"{NAME} minimises the time of a step, the first goal is {instance.goals[0]}"
    return states.reason_against(_for_bottleneck(instance))


@sized
def accepts(instance: Instance) -> Support:
    """Say what the search makes of an instance (``solvers.search.support``). Cost: linear in device groups."""
    reason = reason_against(instance)
    return states.accepts(_for_bottleneck(instance)) if reason is None else Support(reason=reason)


def _for_bottleneck(instance: Instance) -> Instance:
    return replace(instance, goals=(Goal.BOTTLENECK,))


@stoppable(NAME, best=True)
def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Find the best plan and prove it, or the best within the limits with an honest bound.

    Raises ValueError where :func:`reason_against` has one, where there
    are too many states, and as ``solvers.reference.algorithm_1.StageTimes.of`` does.
    """
    reason = reason_against(instance)
    if reason is not None:
        raise ValueError(reason)
    limits = begin(limits)
    lower = tell_first(instance, limits)
    if not instance.training.schedule.flushes:
        return _without_flush(instance, limits)
    tables = all_tables(instance, limits.deadline)
    known = Incumbent(NAME, instance, limits, ceiling(tables, Goal.ITERATION_TIME) + 1, lower)
    known.offer(first_plan(tables))
    search = _StepSearch(known)
    with contextlib.suppress(StoppedError):
        search.run(tables)
    return search.outcome()


def weights_of(instance: Instance) -> Weights:
    """Return what the objective weighs latency and bottleneck with, for schedules with a flush."""
    steps = instance.training.micro_batches
    return Weights(steps, 0) if instance.training.schedule is Schedule.NAIVE else Weights(1, steps - 1)


def _without_flush(instance: Instance, limits: Limits) -> Outcome:
    """Return the outcome for the bottleneck, times the micro-batches."""
    steps = instance.training.micro_batches

    def times(value: int | None) -> int | None:
        return None if value is None else steps * value

    def tell(one: Progress) -> None:
        limits.progress(Progress(times(one.objective), times(one.bound), one.plan))

    below = None if limits.below is None else ceil_div(limits.below, steps)
    found = states.solve(_for_bottleneck(instance), replace(limits, progress=tell, below=below))
    return replace(
        found,
        solver=NAME,
        objective=times(found.objective),
        bound=times(found.bound),
        notes=(*found.notes, "a step without a flush takes the bottleneck once for every micro-batch"),
    )


@dataclass(slots=True)
class _StepSearch:
    """One search: what is known, and the bottlenecks that are looked at."""

    known: Incumbent
    _intervals: Intervals | None = field(default=None)

    def run(self, tables: Tables) -> None:
        """Search until the bound meets the plan, or the limits are used up, which StoppedError may tell."""
        known, atoms = self.known, atom_tables(tables, CutSpace.of(tables.instance))
        space = state_space(tables)
        spans, steps = StageSpans(atoms), flat_steps(space, tables)
        if known.plan is None:
            self._find_any(atoms, space)
        exact = ExactLatency(spans, steps, tables.deadline)
        low = lower_bound(_for_bottleneck(known.instance))
        plans = Plans(spans, steps, known.upper, self.take)
        self._intervals = intervals = Intervals(plans, exact, weights_of(known.instance), low)
        while not known.closed:
            known.lower = max(known.lower, intervals.bound)
            known.tell()
            if known.closed or known.over():
                break
            intervals.step()

    def _find_any(self, atoms: AtomTables, space: StateSpace) -> None:
        """Find any plan that keeps its memory, or that there is none (``solvers.dynamic.states``)."""
        judged = _for_bottleneck(self.known.instance)
        times = replace(atoms.times, tables=replace(atoms.times.tables, instance=judged))
        atoms = replace(atoms, fine=replace(atoms.fine, instance=judged), times=times)
        # Values of another goal are nobody's progress.
        quiet = replace(self.known.limits, progress=lambda _: None, below=None)
        found = Incumbent(NAME, judged, quiet, FORBIDDEN)
        if states.StateSearch(space, StageTable(atoms), found).ask(FORBIDDEN - 1) is False:
            self.known.lower = self.known.upper
        elif found.plan is not None:
            self.known.take(found.plan)

    def take(self, plan: Plan) -> int:
        """Keep a plan if it is the best so far; return the best price. Raises as ``Incumbent.take``."""
        self.known.take(plan)
        return self.known.upper

    def outcome(self) -> Outcome:
        """Say what came of the search."""
        asked = 0 if self._intervals is None else self._intervals.asked
        mended = 0 if self._intervals is None else len(self._intervals.plans.corrections)
        memory = f", {mended} stages made to fit into memory" if mended else ""
        return self.known.outcome(
            f"asked for the quickest plan within {asked} limits on the slowest stage{memory}"
        )
