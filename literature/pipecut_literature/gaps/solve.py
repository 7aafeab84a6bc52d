"""Every solver on every case of the gap table, each claim checked, and the strongest bound of each case.

Which solvers prove is not written down anywhere: those that once gave a bound. From then on they run after the
planners, quickest first, and only until one of them proves the case. The first cases are the smallest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from pipecut.commands.parts.comparison import KEEPS_RULES, ComparisonRow, compared_row, held_to_the_best, strongest
from pipecut.commands.parts.task import Task
from pipecut.formulation.outcome import Limits, Outcome, Proof
from pipecut.formulation.problem.constraints import Goal
from pipecut_literature.gaps.cases import GapTableCase, Series, number_of_cases, smallest_fit, with_memory


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What all solvers made of a case. ``best`` says most about its optimum (None: nobody proved a bound)."""

    case: GapTableCase
    goal: Goal
    rows: tuple[ComparisonRow, ...]
    best: Outcome | None

    @property
    def proved(self) -> bool:
        """Tell whether the optimum is known: one solver proved it, or one found what another one's bound is."""
        return _known(self.rows) and not self.impossible

    @property
    def impossible(self) -> bool:
        """Tell whether it is proved that no plan exists."""
        return self.best is not None and self.best.proof is Proof.INFEASIBLE

    @property
    def cheapest(self) -> Outcome | None:
        """The best plan that keeps the rules."""
        return _cheapest(self.rows)


@dataclass(slots=True)
class Provers:
    """The solvers that gave a bound so far, with the seconds that they took and how often they ran."""

    seconds: dict[str, float] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)

    def note(self, row: ComparisonRow) -> None:
        """Take note of what a solver did."""
        found = row.outcome
        if found is None or not (row.solver in self.runs or proves(found)):
            return
        self.seconds[row.solver] = self.seconds.get(row.solver, 0.0) + found.seconds
        self.runs[row.solver] = self.runs.get(row.solver, 0) + 1

    def split(self, solvers: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the solvers that never proved anything, in their order, and the others, quickest first."""
        others = [name for name in solvers if name in self.runs]
        quickest = sorted(others, key=lambda name: self.seconds[name] / self.runs[name])
        return [name for name in solvers if name not in self.runs], quickest


def proves(outcome: Outcome) -> bool:
    """Tell whether an outcome says anything about all plans."""
    return outcome.bound is not None or outcome.proof is Proof.INFEASIBLE


@dataclass(frozen=True, slots=True)
class GapTableSearch:
    """How the cases are searched: by whom, within which limits, and who can end it."""

    solvers: tuple[str, ...]
    limits: Limits
    overrides: tuple[str, ...]
    quiet: bool
    stop: threading.Event = field(default_factory=threading.Event, compare=False)

    def task(self, series: Series, case: GapTableCase, count: str) -> Task:
        """Return the task of a case without a memory limit; ``count`` tells how far the work has come."""
        scenario = replace(series.scenario, name=f"{count}: {case.name}")
        name = series.scenario.solver.name
        return Task(scenario, self.overrides, series.unlimited, name, self.limits, self.quiet, self.stop)


def run_series(
    series: Sequence[Series], search: GapTableSearch, done: Callable[[CaseResult], None] = lambda _: None
) -> list[CaseResult]:
    """Return the results of all cases; after a stop, of those that were finished before it."""
    provers, total = Provers(), number_of_cases(series)
    results: list[CaseResult] = []
    for one in series:
        for result in _cases_of(one, search, provers, lambda: f"case {len(results) + 1} of {total}"):
            if search.stop.is_set():
                return results
            results.append(result)
            done(result)
    return results


def _cases_of(
    one: Series, search: GapTableSearch, provers: Provers, count: Callable[[], str]
) -> Iterator[CaseResult]:
    """Yield the case without a memory limit, and those with one if the first has any plan to start from."""
    case = GapTableCase(one.scenario.name, one.variant.name, one.variant.family, None)
    unlimited = solved_case(case, search.task(one, case, count()), search.solvers, provers)
    yield unlimited
    best = unlimited.cheapest
    if best is None or best.plan is None:
        return
    fits = smallest_fit(one.unlimited, best.plan)
    for percent in one.variant.percents:
        limited = replace(case, family=one.variant.limited_family, percent=percent)
        instance = with_memory(one.unlimited, fits * Fraction(percent, 100))
        task = replace(search.task(one, limited, count()), instance=instance)
        yield solved_case(limited, task, search.solvers, provers)


def solved_case(case: GapTableCase, task: Task, solvers: Sequence[str], provers: Provers) -> CaseResult:
    """Run the planners, then those that prove until one does, and hold all claims against the best plan."""
    planners, exact = provers.split(solvers)
    rows: list[ComparisonRow] = []
    for name in (*planners, *exact):
        if name in exact and _known(rows):
            break
        rows.append(compared_row(task, name))
        provers.note(rows[-1])
    held = held_to_the_best(task, rows)
    return CaseResult(case, task.instance.goals[0], tuple(held), strongest(_believed(held)))


def _believed(rows: Sequence[ComparisonRow]) -> list[Outcome]:
    return [row.outcome for row in rows if row.outcome is not None and row.failure is None]


def _cheapest(rows: Sequence[ComparisonRow]) -> Outcome | None:
    kept = [one for one in _believed(rows) if one.proof in KEEPS_RULES]
    return min(kept, key=lambda one: one.objective or 0, default=None)


def _known(rows: Sequence[ComparisonRow]) -> bool:
    """Tell whether the optimum is known, or that no plan exists."""
    best, cheapest = strongest(_believed(rows)), _cheapest(rows)
    if best is None or best.proof in (Proof.OPTIMAL, Proof.INFEASIBLE):
        return best is not None
    return cheapest is not None and cheapest.objective == best.bound
