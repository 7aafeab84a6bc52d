"""What a solver claims, how strongly, and the check that every claim must pass.

``OPTIMAL`` is a claim that the rest of pipecut lives by: gap 0, and a plan that keeps every rule and whose
price, recomputed without the solver, equals the claimed objective to the nanosecond.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from formulation.evaluate import evaluate
from formulation.instance import Instance
from formulation.plan import Plan


class Proof(enum.StrEnum):
    """How strongly an outcome is held."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A solver's claim: a plan, its objective, a proven lower limit of all objectives, and the proof's strength.

    ``bound_ns`` is None where a solver proves nothing; ``notes`` say in words what a reader should know (for
    example which second method agreed).
    """

    solver: str
    proof: Proof
    plan: Plan | None = None
    objective_ns: int | None = None
    bound_ns: int | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def gap(self) -> float | None:
        """``(objective - bound) / objective``; None without both."""
        if self.objective_ns is None or self.bound_ns is None:
            return None
        return (self.objective_ns - self.bound_ns) / self.objective_ns if self.objective_ns else 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how a solver may search. Workers and seed make a search repeatable."""

    time_limit_s: float | None = None
    workers: int = 2
    seed: int = 0
    stopped: Callable[[], bool] = field(default=lambda: False, compare=False)
    """Asked often during a search; once true, the solver returns its best plan with an honest proof."""
    progress: Callable[[Progress], None] = field(default=lambda _: None, compare=False)
    """Told of every new best plan and bound."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Best objective and bound so far, in ns (None: none yet)."""

    objective_ns: int | None
    bound_ns: int | None


class FalseClaimError(Exception):
    """A solver's claim contradicts the evaluator: a defect in pipecut or in the solver below it."""


def checked(instance: Instance, outcome: Outcome) -> Outcome:
    """Return the outcome unchanged if its claim holds; raise FalseClaimError saying what does not.

    The plan is evaluated anew, its objective compared with ``==``, its bound and proof held to their meaning.
    """
    problems: list[str] = []
    if outcome.plan is not None:
        found = evaluate(instance, outcome.plan)
        if found.objective_ns != outcome.objective_ns:
            problems.append(f"claimed {outcome.objective_ns} ns, the evaluator finds {found.objective_ns} ns")
        problems += [violation.message for violation in found.violations]
    elif outcome.objective_ns is not None:
        problems.append(f"claimed {outcome.objective_ns} ns without a plan")
    if outcome.proof in (Proof.OPTIMAL, Proof.FEASIBLE) and outcome.plan is None:
        problems.append(f"claimed {outcome.proof} without a plan")
    if outcome.proof is Proof.INFEASIBLE and outcome.plan is not None:
        problems.append("claimed infeasible and returned a plan")
    if outcome.proof is Proof.OPTIMAL and outcome.bound_ns != outcome.objective_ns:
        problems.append(f"claimed optimal with bound {outcome.bound_ns} and objective {outcome.objective_ns}")
    if (
        outcome.bound_ns is not None
        and outcome.objective_ns is not None
        and outcome.bound_ns > outcome.objective_ns
    ):
        problems.append(f"bound {outcome.bound_ns} ns above the objective {outcome.objective_ns} ns")
    if problems:
        raise FalseClaimError(f"{outcome.solver}: " + "; ".join(problems))
    return outcome
