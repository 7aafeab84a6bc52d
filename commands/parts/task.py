"""What every command begins with: a scenario made into an instance, and searches that can be stopped."""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NoReturn

from pipecut.commands.parts.answered import checked_in_time, decided_in_time, left_in_time
from pipecut.commands.parts.opening import PLAN, file_of
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import (
    ClaimFailedError,
    ExitCode,
    OutOfTimeError,
    reading,
    write_reproducer,
)
from pipecut.commands.terminal.progress import ProgressLine
from pipecut.formulation.costs.amounts import goal_text
from pipecut.formulation.evaluate import Evaluation
from pipecut.formulation.limits import Deadline
from pipecut.formulation.outcome import FalseClaimError, Limits, Outcome, Proof
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.ingest.plans.plan_file import read_plan_as_made
from pipecut.ingest.scenario.load import Scenario
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.choices.standing import Standing
from pipecut.solvers.choices.trainings import Decision
from pipecut.solvers.crosscheck import contradiction, solve_checked
from pipecut.solvers.reduce.best_grid import GridFound
from pipecut.solvers.search.stoppable import in_background

READING_S = 0.2
"""So much longer than the limit a model may be read, as without it there is not even a simple plan."""
EXIT_CODES: dict[Proof, ExitCode] = {
    Proof.OPTIMAL: ExitCode.DONE,
    Proof.FEASIBLE: ExitCode.NOT_PROVED,
    Proof.INFEASIBLE: ExitCode.NO_PLAN,
    Proof.UNKNOWN: ExitCode.NOT_PROVED,
}


@dataclass(frozen=True, slots=True)
class Task:
    """A scenario ready to be solved: the instance, which solver, its limits, and how to stop it.

    ``read_s`` is what it took from the start of the command until there was an instance, ``grid`` the best plain
    grid where one was looked for.
    """

    scenario: Scenario
    overrides: tuple[str, ...]
    instance: Instance
    solver: str
    limits: Limits
    quiet: bool
    stop: threading.Event = field(default_factory=threading.Event, compare=False)
    read_s: float = 0.0
    grid: GridFound | None = None

    def search(self, solver: str) -> Outcome:
        """Solve with a progress line, stoppable by Ctrl-C, and return the checked outcome.

        Nobody else is asked, to check it or in its place (``solvers.auto``). Raises ClaimFailedError,
        with a reproducer on file, if a claim fails its check, and ValueError if the solver cannot take the
        instance.
        """
        method, standing = find_any(solver), Standing(self.instance, alone=True)

        def work(limits: Limits) -> tuple[Instance, Outcome]:
            return self.instance, solve_checked(self.instance, method, limits)

        with self.followed(f"{solver} on {self.scenario.name}", self.limits, solver) as (line, limits):
            return left_in_time(work, limits, standing, solver, self.stop, announced(line, BEST))[1]

    def decide(self, *, cross_check: bool) -> tuple[Task, Outcome]:
        """Choose what the scenario leaves open, and search; return the task about what was chosen, and the claim.

        With ``cross_check`` the claim is checked by others. Raises as :meth:`search` does.
        """
        task, found = self.decided()
        return task, task.checked(found) if cross_check else found.outcome

    def decided(self) -> tuple[Task, Decision]:
        """Do the same without a check, which :meth:`checked` does.

        Another solver is asked where the instance is too large for the named one.
        """
        method, standing = find_any(self.solver), Standing(self.instance)

        def ask(instance: Instance, limits: Limits) -> Outcome:
            return plan(instance, limits, method, cross_check=False)

        with self.followed(f"{self.solver} on {self.scenario.name}", self.limits) as (line, limits):
            found = decided_in_time(
                self.instance,
                ask,
                self.solver,
                lambda work: left_in_time(work, limits, standing, self.solver, self.stop, announced(line, BEST)),
            )
        task = replace(self, instance=found.instance, grid=standing.grid)
        return task, replace(found, outcome=self._told_of_reading(found.outcome))

    def checked(self, found: Decision) -> Outcome:
        """Return a claim as others see it, with a progress line of its own; Ctrl-C stops no more than that.

        Raises ClaimFailedError, with a reproducer on file, if it is contradicted.
        """
        if found.outcome.of_first_goal().proof not in (Proof.OPTIMAL, Proof.INFEASIBLE):
            return found.outcome
        title = f"proved; checking {self.scenario.name} by other ways"
        with self.followed(title, found.to_check(self.limits)) as (line, limits):
            return checked_in_time(found, limits, self.stop, announced(line, CHECK))

    @contextlib.contextmanager
    def followed(self, title: str, limits: Limits, solver: str = "") -> Iterator[tuple[ProgressLine, Limits]]:
        """Work with a progress line, within limits that Ctrl-C ends, and which tell of progress there."""
        say, begun = partial(goal_text, self.instance.goals[0]), limits.begun()
        with ProgressLine(title, quiet=self.quiet, say=say, deadline=begun.deadline) as line:
            try:
                yield line, replace(begun, stopped=self.stop.is_set, progress=line.report)
            except FalseClaimError as error:
                raise self.claim_failed(solver or self.solver, str(error)) from error

    def out_of_time(self, what: str) -> Callable[[], NoReturn]:
        """Return what raises OutOfTimeError, with what was not found, for work that is left without an answer."""

        def answer() -> NoReturn:
            raise OutOfTimeError(f"{self.scenario.path}: {what}", self.solver, 0.0)

        return answer

    def _told_of_reading(self, outcome: Outcome) -> Outcome:
        """Say what of the time went into reading the model, where that may be why nothing is proved."""
        if self.limits.time_limit_s is None or outcome.proof not in (Proof.FEASIBLE, Proof.UNKNOWN):
            return outcome
        said = f"of {self.limits.time_limit_s:g} s the model took {self.read_s:.1f} s to be read"
        return replace(outcome, notes=(*outcome.notes, said))

    def with_plan(self, path: str) -> tuple[Task, Plan]:
        """Read a plan file; return the task in the order of layers that it cuts, and the plan.

        Raises InputError.
        """
        with reading(path):
            instance, plan = read_plan_as_made(file_of(path, PLAN), self.instance)
        return replace(self, instance=instance), plan

    def hold_to(self, best: Outcome, plan: Plan, evaluation: Evaluation) -> None:
        """Raise ClaimFailedError where the plan of a file keeps the rules and beats what was proved."""
        if evaluation.feasible:
            given = Outcome("the plan file", Proof.FEASIBLE, plan, evaluation.objective, goals=self.instance.goals)
            if problem := contradiction(best, given):
                raise self.claim_failed(best.solver, problem)

    def claim_failed(self, solver: str, message: str) -> ClaimFailedError:
        """Write a reproducer and return the error to raise, whose message names it."""
        try:
            path = write_reproducer(self.scenario.path, self.overrides, solver, self.limits, message)
            where = f"reproducer: {path}"
        except OSError as error:
            where = f"no reproducer written: {error.strerror}"
        return ClaimFailedError(f"a claim failed its check: {message}\nthis is a defect in pipecut; {where}")


def open_task(arguments: argparse.Namespace, *, timed: bool = False) -> Task:
    """Trace the model of a command's scenario and collect the limits.

    With ``timed`` the time limit is one for the whole command, from its start; without, one for each search.
    Raises InputError for a wrong model, and OutOfTimeError where the time is over before there is an instance.
    """
    scenario: Scenario = arguments.scenario
    given = {
        "time_limit_s": arguments.time_limit,
        "workers": arguments.workers,
        "seed": arguments.seed,
    }
    limits = replace(scenario.solver.limits(), **{key: value for key, value in given.items() if value is not None})
    solver = getattr(arguments, "solver", None) or scenario.solver.name
    if timed:
        limits = limits.begun(arguments.began_s)
    # Not in the main thread, so that Ctrl-C and the deadline do not wait for what a model's own code does.
    arguments.starting.done()
    most = limits.deadline if limits.end_s is None else Deadline(limits.end_s + READING_S)
    with reading(scenario.path):
        instance = in_background(scenario.load, most.over)
    if instance is None:
        spent_s = time.monotonic() - arguments.began_s
        raise OutOfTimeError(
            f"{scenario.path}: no plan found in time: the time limit of {limits.time_limit_s:g} s was over while "
            f"the model was read ({spent_s:.1f} s); allow more, or plan a graph that pipecut trace has written",
            solver,
            spent_s,
        )
    read_s = time.monotonic() - arguments.began_s
    return Task(
        scenario, tuple(arguments.overrides), instance, solver, limits, quiet=arguments.quiet, read_s=read_s
    )


BEST, CHECK = "with the best plan so far", "the check; the proof stands"
"""What is stopped, and with what."""


def announced(line: ProgressLine, what: str) -> Callable[[], None]:
    """Return what happens at the first Ctrl-C: a line of its own, or the progress line where there is one."""

    def announce() -> None:
        if line.shown:
            line.stopping()
        else:
            output.remark(f"stopping {what} (Ctrl-C again to abort)")

    return announce
