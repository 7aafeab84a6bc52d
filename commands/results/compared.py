"""``pipecut.compare``: several solvers on one problem; it prints as the table of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from commands.parts.answered import answered
from commands.parts.comparison import KEEPS_RULES, ComparisonRow, broken_rules, strongest
from commands.terminal.human import WIDTH
from formulation.outcome import FalseClaimError, Limits, Outcome
from formulation.problem.instance import Instance
from planners.catalogue import find_any
from solvers.choices.standing import Standing
from solvers.crosscheck.checked_solve import contradiction, solve_checked


@dataclass(frozen=True, slots=True)
class Compared:
    """What each solver found, in the order in which they were asked, or why it found nothing.

    As text it is the table that ``pipecut compare`` prints.
    """

    instance: Instance = field(repr=False, compare=False)
    rows: tuple[ComparisonRow, ...]

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """The outcomes by solver, without those that could not take the problem."""
        return {row.solver: row.outcome for row in self.rows if row.outcome is not None}

    @property
    def refused(self) -> dict[str, str]:
        """Why each of the other solvers could not take the problem."""
        return {row.solver: row.reason for row in self.rows if row.outcome is None}

    @property
    def strongest(self) -> Outcome | None:
        """The outcome that says most: a proof, else the largest bound; gaps are measured to it."""
        return strongest(list(self.outcomes.values()))

    def __str__(self) -> str:
        """Return a row for each solver, without colours and 80 columns wide."""
        from commands.tables.comparison_table import comparison_parts
        from commands.terminal.output import drawn

        parts = comparison_parts(self.instance, list(self.rows), self.strongest)
        return drawn(*parts, width=WIDTH).rstrip("\n")

    def _repr_html_(self) -> str:
        """Return the text, for notebooks."""
        from commands.results.notebook import words_in_html

        return words_in_html(str(self))


def compare(instance: Instance, solvers: Sequence[str], limits: Limits) -> Compared:
    """Ask solvers one after another, each within the limits; ``pipecut.compare`` says what is raised."""
    rows = [_row(instance, name, limits) for name in solvers]
    kept = [row.outcome for row in rows if row.outcome is not None and row.outcome.proof in KEEPS_RULES]
    best = min(kept, key=lambda one: one.objective or 0, default=None)
    for row in rows:
        problem = None if row.outcome is None or best is None else contradiction(row.outcome, best)
        if problem:
            raise FalseClaimError(problem)
    return Compared(instance, tuple(rows))


def _row(instance: Instance, solver: str, limits: Limits) -> ComparisonRow:
    method, standing = find_any(solver), Standing(instance, alone=True)
    try:
        _, outcome = answered(
            lambda within: (instance, solve_checked(instance, method, within)), limits, standing, solver
        )
    except ValueError as error:
        return ComparisonRow(solver, reason=f"skipped: {error}")
    return ComparisonRow(solver, outcome, broken_rules(instance, outcome))
