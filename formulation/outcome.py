"""What a solver claims, how strongly, and the check that every claim must pass.

``OPTIMAL`` is a claim that the rest of pipecut lives by: gap 0 for every goal that was asked, and a plan that
keeps every rule and whose values, recomputed without the solver, equal the claimed ones to the last unit.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pipecut.formulation.constraints.constraint import Violation, told
from pipecut.formulation.costs.amounts import goal_amount
from pipecut.formulation.costs.memory import MemoryParts, capacity_bytes
from pipecut.formulation.evaluate import Evaluation, evaluate
from pipecut.formulation.limits import NEVER, Deadline, ProvedBound
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan


class Proof(enum.StrEnum):
    """How strongly an outcome is held."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


class Status(enum.StrEnum):
    """What is known of one goal."""

    PROVED = "proved"
    OPEN = "open"
    NOT_LOOKED_AT = "not looked at"


@dataclass(frozen=True, slots=True)
class GoalClaim:
    """What is claimed of one goal: the plan's value, and a lower limit where the goals before it are best.

    ``bound`` is None where nothing is proved. A goal is only looked at once all before it are proved. ``by`` are
    the methods that the claim rests on, the one that found the plan first; nobody: those of the outcome.
    """

    goal: Goal
    value: int
    bound: int | None
    looked_at: bool = True
    by: tuple[str, ...] = field(default=(), compare=False)

    @property
    def status(self) -> Status:
        """Tell whether the value is proved best, open, or nobody looked."""
        if not self.looked_at:
            return Status.NOT_LOOKED_AT
        return Status.PROVED if self.bound == self.value else Status.OPEN

    @property
    def gap(self) -> float | None:
        """``(value - bound) / value``; None without a bound."""
        if self.bound is None:
            return None
        return (self.value - self.bound) / self.value if self.value else 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A solver's claim: a plan, its objective, a proven lower limit of all objectives, and the proof's strength.

    The objective is the value of the first of the ``goals`` (``formulation.costs.goals``), ``further`` what is
    claimed of the others: OPTIMAL means that every one is proved. ``bound`` is None where a solver proves nothing;
    ``notes`` say in words what a reader should know, ``checks`` what others made of what is proved. ``blind_to``
    names rules that the solver cannot see: its plan may break them, and its bound, that of a relaxation, still
    holds.
    ``goals`` are those of the instance from :func:`checked` on. ``any_order_bound`` holds for every order of the
    layers, where the claim itself is about the order of the instance; None: not asked, or there is no other order.
    ``unused`` names what the method can rest on and this claim does not (``solvers.ingredients``); ``bound_by``
    the methods on whose proof the claim rests beside its solver's.
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
    goals: tuple[Goal, ...] = (Goal.BOTTLENECK,)
    any_order_bound: int | None = None
    unused: tuple[str, ...] = ()
    bound_by: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()

    @property
    def claims(self) -> tuple[GoalClaim, ...]:
        """What is claimed of every goal, in order; nothing without a plan."""
        if self.objective is None:
            return ()
        return (GoalClaim(self.goals[0], self.objective, self.bound), *self.further)

    @property
    def gap(self) -> float | None:
        """``(value - bound) / value`` of the first goal that is not proved, 0 if all are; None without a bound."""
        if self.objective is None:
            return None
        return next((claim.gap for claim in self.claims if claim.status is not Status.PROVED), 0.0)

    def of_first_goal(self) -> Outcome:
        """Return what is claimed of the first goal alone, which may be proved where others are open."""
        (first, *_), proof = self.claims or (None,), self.proof
        if first is not None and first.status is Status.PROVED and proof is Proof.FEASIBLE:
            proof = Proof.OPTIMAL
        return replace(self, proof=proof, further=(), goals=self.goals[:1])

    def amount(self, value: int) -> str:
        """Write a value of the first goal with its unit."""
        return goal_amount(self.goals[0], value)


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
    start: Plan | None = field(default=None, compare=False)
    """A plan that is known, for a search to begin with; the evaluator prices it, and whoever cannot leaves it."""
    known: ProvedBound | None = field(default=None, compare=False)
    """What others proved, for a search to begin at; a claim that rests on it says so (``Outcome.bound_by``)."""
    below: int | None = field(default=None, compare=False)
    """Only plans of less than this, by the first goal, are of use: as good a one is known of another instance. A
    search may end without a plan, UNKNOWN, once its bound is this or more (:meth:`ruled_out`)."""
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

    def ruled_out(self, outcome: Outcome) -> bool:
        """Tell whether an outcome says that no plan is of use."""
        return self.below is not None and outcome.bound is not None and outcome.bound >= self.below

    @property
    def deadline(self) -> Deadline:
        """The deadline of limits that are begun."""
        return Deadline(self.end_s, self.stopped)


def begin(limits: Limits | None) -> Limits:
    """Return the limits with the clock running; None: without limits."""
    return (limits or Limits()).begun()


@dataclass(frozen=True, slots=True)
class Progress:
    """Best objective and bound so far (None: none yet); where known the plan, and what it is a plan of.

    ``whole``: the bound is that of everything that was asked, else of what a method is looking at.
    """

    objective: int | None
    bound: int | None
    plan: Plan | None = field(default=None, compare=False, repr=False)
    instance: Instance | None = field(default=None, compare=False, repr=False)
    whole: bool = field(default=False, compare=False)


class FalseClaimError(Exception):
    """A solver's claim contradicts the evaluator: a defect in pipecut or in the solver below it."""


PLAIN_S = 1.0  # what is of no use may be looked for that long: each look may price a plan of hundreds of stages


def checked(instance: Instance, outcome: Outcome, deadline: Deadline = NEVER) -> Outcome:
    """Return the outcome, about the goals of the instance, if its claim holds.

    The plan is evaluated anew, its values of all goals compared with ``==``, bounds and proof held to their
    meaning: OPTIMAL needs every goal of the instance proved, and a plan of which every one is becomes so. A plan
    that breaks rules which its solver is blind to proves nothing: it is returned as UNKNOWN, with the broken rules
    in its notes. A grid of devices that no layer makes use of is left out of the plan, where that changes nothing,
    and no block is computed again where the plan keeps its values and the same rules without, as far as that is
    found out before the deadline and in a moment (``PLAIN_S``). Raises FalseClaimError saying what does not hold.
    """
    outcome = outcome if outcome.goals == instance.goals else replace(outcome, goals=instance.goals)
    problems = [*_contradictions(outcome), *_further_problems(outcome)]
    unseen: list[Violation] = []
    if outcome.plan is not None:
        found = evaluate(instance, outcome.plan)
        plain = _plain(instance, outcome.plan, found, deadline.within(PLAIN_S))
        outcome = outcome if plain == outcome.plan else replace(outcome, plan=plain)
        problems += _wrong_values(outcome, found)
        unseen = [one for one in found.violations if one.rule in outcome.blind_to]
        problems += [said for _, said in told(one for one in found.violations if one.rule not in outcome.blind_to)]
    if problems:
        raise FalseClaimError(f"{outcome.solver}: " + "; ".join(problems))
    if unseen:
        broken = (message for _, message in told(unseen))
        return replace(outcome, proof=Proof.UNKNOWN, notes=tuple(dict.fromkeys((*outcome.notes, *broken))))
    statuses = [claim.status for claim in outcome.claims]
    if outcome.proof is Proof.FEASIBLE and statuses == [Status.PROVED] * len(instance.goals):
        return replace(outcome, proof=Proof.OPTIMAL)
    return outcome


def _plain(instance: Instance, plan: Plan, found: Evaluation, deadline: Deadline) -> Plan:
    """Return the plan without what is of no use in it; ``found`` is what it is worth.

    Cost: what its stage holds for every block that is computed again, and an evaluation where it could be kept.
    """
    plain, before = plan.plain(), None
    # Of devices with several stages all of these fill the memory: no look at one says whether there is room.
    limited = instance.constraints.memory and instance.training.chunks == 1
    if plain != plan and evaluate(instance, plain) == found:
        plan = plain
    while plan != before:  # one block less may leave room for another
        before = plan
        for at, run in [(at, run) for at, stage in enumerate(plan.stages) for run in stage.again]:
            if deadline.over():
                return plan
            less, group = plan.keeping(run), plan.stages[at].group
            if limited and MemoryParts.of_stage(instance, less, at).total > capacity_bytes(instance, group):
                continue
            one = evaluate(instance, less)
            if (one.violations, one.objective, one.further) == (found.violations, found.objective, found.further):
                plan = less
    return plan


def _wrong_values(outcome: Outcome, found: Evaluation) -> list[str]:
    """Return which values of goals are not those of the evaluator."""
    wrong: list[str] = []
    if found.objective != outcome.objective:
        both = outcome.objective, found.objective
        one, other = ("no price" if value is None else outcome.amount(value) for value in both)
        wrong.append(f"claimed {one}, the evaluator finds {other}")
    return wrong + [
        f"claimed {claim.goal} of {goal_amount(claim.goal, claim.value)},"
        f" the evaluator finds {goal_amount(claim.goal, value)}"
        for claim, value in zip(outcome.further, found.further, strict=False)
        if claim.value != value
    ]


def _further_problems(outcome: Outcome) -> list[str]:
    """Return what is wrong in itself with the claims about the goals after the first."""
    asked, problems = outcome.goals[1:], list[str]()
    found = tuple(claim.goal for claim in outcome.further)
    if found and (found != asked or outcome.plan is None):
        problems.append(f"claims about {', '.join(found)} where {', '.join(asked) or 'no further goal'} was asked")
    for claim in outcome.further:
        if claim.bound is not None and claim.bound > claim.value:
            bound, value = (goal_amount(claim.goal, amount) for amount in (claim.bound, claim.value))
            problems.append(f"{claim.goal}: bound {bound} above the value {value}")
    if outcome.proof is Proof.OPTIMAL:
        proved = {claim.goal for claim in outcome.further if claim.status is Status.PROVED}
        problems += [f"claimed optimal, but {goal} is not proved" for goal in asked if goal not in proved]
    return problems


def _contradictions(outcome: Outcome) -> list[str]:
    """Return what is wrong with a claim in itself, whatever the instance."""
    plan, objective, bound, proof = outcome.plan, outcome.objective, outcome.bound, outcome.proof
    priced, limit = (None if value is None else outcome.amount(value) for value in (objective, bound))
    checks = (
        (plan is None and objective is not None, f"claimed {priced} without a plan"),
        (plan is None and proof in (Proof.OPTIMAL, Proof.FEASIBLE), f"claimed {proof} without a plan"),
        (plan is not None and proof is Proof.INFEASIBLE, "claimed infeasible and returned a plan"),
        (
            proof is Proof.OPTIMAL and bound != objective,
            f"claimed optimal with bound {limit} and objective {priced}",
        ),
        (
            bound is not None and objective is not None and bound > objective,
            f"bound {limit} above the objective {priced}",
        ),
    )
    return [message for wrong, message in checks if wrong]
