"""What a solver claims, how strongly, and the check that every claim must pass.

``OPTIMAL`` is a claim that the rest of pipecut lives by: gap 0, and a plan that keeps every rule and whose
price, recomputed without the solver, equals the claimed objective to the nanosecond.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from formulation.deadline import Deadline
from formulation.evaluate import evaluate
from formulation.goals import UNITS
from formulation.instance import Instance
from formulation.options import Goal
from formulation.plan import Plan


class Proof(enum.StrEnum):
    """How strongly an outcome is held."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GoalClaim:
    """What is claimed of a goal after the first: its value, and a lower limit where those before are best."""

    goal: Goal
    value: int
    bound: int | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A solver's claim: a plan, its objective, a proven lower limit of all objectives, and the proof's strength.

    The objective is the value of the instance's first goal (``formulation.goals``), ``further`` what is claimed of
    the others. ``bound`` is None where a solver proves nothing; ``notes`` say in words what a reader should know
    (for example which second method agreed). ``blind_to`` names rules that the solver cannot see: its plan may
    break them, and its bound, that of a relaxation, still holds.
    """

    solver: str
    proof: Proof
    plan: Plan | None = None
    objective: int | None = None
    bound: int | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    blind_to: tuple[str, ...] = ()
    further: tuple[GoalClaim, ...] = ()

    @property
    def gap(self) -> float | None:
        """``(objective - bound) / objective``; None without both."""
        if self.objective is None or self.bound is None:
            return None
        return (self.objective - self.bound) / self.objective if self.objective else 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how a solver may search. Workers and seed make a search repeatable.

    ``time_limit_s`` counts from when the limits are begun, at the latest by the solver that gets them; what is
    begun keeps its end, whoever it is handed on to.
    """

    time_limit_s: float | None = None
    workers: int = 2
    seed: int = 0
    stopped: Callable[[], bool] = field(default=lambda: False, compare=False)
    """Asked often during a search; once true, the solver returns its best plan with an honest proof."""
    progress: Callable[[Progress], None] = field(default=lambda _: None, compare=False)
    """Told of every new best plan and bound."""
    end_s: float | None = field(default=None, compare=False)
    """When the time ends, in seconds of ``time.monotonic``; None before it begins, or without a limit."""

    def begun(self, since_s: float | None = None) -> Limits:
        """Return these limits with the clock running, since now or since an earlier ``time.monotonic()``."""
        if self.end_s is not None or self.time_limit_s is None:
            return self
        began = time.monotonic() if since_s is None else since_s
        return replace(self, end_s=began + self.time_limit_s)

    def within(self, seconds: float) -> Limits:
        """Return limits that end after so many seconds, or when these do if that is earlier."""
        return replace(self, end_s=self.begun().deadline.within(seconds).end_s)

    def share(self, parts: float) -> Limits:
        """Return limits that end after a part of the time that is left."""
        return replace(self, end_s=self.begun().deadline.share(parts).end_s)

    @property
    def deadline(self) -> Deadline:
        """The deadline of limits that are begun."""
        return Deadline(self.end_s, self.stopped)


def begin(limits: Limits | None) -> Limits:
    """Return the limits with the clock running; None: without limits."""
    return (limits or Limits()).begun()


@dataclass(frozen=True, slots=True)
class Progress:
    """Best objective and bound so far (None: none yet)."""

    objective: int | None
    bound: int | None


class FalseClaimError(Exception):
    """A solver's claim contradicts the evaluator: a defect in pipecut or in the solver below it."""


def checked(instance: Instance, outcome: Outcome) -> Outcome:
    """Return the outcome if its claim holds; raise FalseClaimError saying what does not.

    The plan is evaluated anew, its objective compared with ``==``, its bound and proof held to their meaning.
    A plan that breaks rules which its solver is blind to proves nothing: it is returned as UNKNOWN, with the
    broken rules in its notes.
    """
    problems = _contradictions(outcome)
    unseen: list[str] = []
    if outcome.plan is not None:
        found = evaluate(instance, outcome.plan)
        if found.objective != outcome.objective:
            unit = UNITS[instance.goals[0]]
            problems.append(f"claimed {outcome.objective} {unit}, the evaluator finds {found.objective} {unit}")
        problems += _further_problems(outcome, found.further)
        for violation in found.violations:
            (unseen if violation.rule in outcome.blind_to else problems).append(violation.message)
    if problems:
        raise FalseClaimError(f"{outcome.solver}: " + "; ".join(problems))
    if unseen:
        return replace(outcome, proof=Proof.UNKNOWN, notes=(*outcome.notes, *unseen))
    return outcome


def _further_problems(outcome: Outcome, values: tuple[int, ...]) -> list[str]:
    """Return what is wrong with the claims about the goals after the first."""
    return [
        f"claimed {claim.goal} {claim.value} with bound {claim.bound}, the evaluator finds {value}"
        for claim, value in zip(outcome.further, values, strict=False)
        if claim.value != value or (claim.bound is not None and claim.bound > value)
    ]


def _contradictions(outcome: Outcome) -> list[str]:
    """Return what is wrong with a claim in itself, whatever the instance."""
    plan, objective, bound, proof = outcome.plan, outcome.objective, outcome.bound, outcome.proof
    checks = (
        (plan is None and objective is not None, f"claimed {objective} without a plan"),
        (plan is None and proof in (Proof.OPTIMAL, Proof.FEASIBLE), f"claimed {proof} without a plan"),
        (plan is not None and proof is Proof.INFEASIBLE, "claimed infeasible and returned a plan"),
        (
            proof is Proof.OPTIMAL and bound != objective,
            f"claimed optimal with bound {bound} and objective {objective}",
        ),
        (
            bound is not None and objective is not None and bound > objective,
            f"bound {bound} above the objective {objective}",
        ),
    )
    return [message for wrong, message in checks if wrong]
