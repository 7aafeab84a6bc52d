"""A claim held against other methods: a second exact solve, other solvers, certificates.

A claim that is to be asked about again, and what a route may answer.

A certificate: labels that prove the bound, checked by a short program that knows no solver.

The labels are made from the tables of a dynamic programme, but what they prove rests on ``formulation`` alone:
plan, price and every label are recomputed. The strongest of all routes where it applies.

Hold claims to account: every outcome that anyone sees has passed through here.

The evaluator recomputes each claim (``formulation.outcome.checked``). A proof is then compared with that of a
second exact method, which rests on nothing that the first rests on (``solvers.ingredients``): a proof of CP-SAT
with a dynamic programme, a proof of a programme with CP-SAT, asked for a better plan, or with a certificate. That
an instance has nothing better than a plan of another one (``Limits.below``) is a proof too.

Other exact methods of this house, each of which searches anew: the claim's plan is not given to it.

``line_dp`` and ``state_dp`` are dynamic programmes, ``brute_force`` prices every plan there is. They know nothing
of the families of ``cpsat``, so a mistake in a family, redundant or not, shows as a difference; and ``cpsat``
knows nothing of their tables. Given the plan, a model that says no to everything would agree. Where a method is
blind to a rule its bound is that of a relaxation: it can still refute a claim, and it proves one it reaches.

Every route by name, and the run of all of them over a claim: the explicit table.
"""

from __future__ import annotations

import contextlib
import enum
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pipecut.formulation.certificates.check import certifiable, verify
from pipecut.formulation.certificates.labels import CertificateError
from pipecut.formulation.costs.amounts import goal_amount
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import StoppedError
from pipecut.formulation.outcome import FalseClaimError, Limits, Outcome, Proof, Status, checked
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers import catalogue, ingredients
from pipecut.solvers.catalogue import MAIN, find_any
from pipecut.solvers.certifying import certify, confirmed_bounds
from pipecut.solvers.goals import limited, solve_in_order
from pipecut.solvers.ingredients import ground_of, independent_of, is_described, methods_of, shared_with
from pipecut.solvers.search.stoppable import in_background

if TYPE_CHECKING:
    from pipecut.solvers.catalogue import SolverEntry


class Verdict(enum.StrEnum):
    """What a route makes of a claim."""

    AGREED = "agreed"
    """It proves the same, in its own way."""
    DISAGREED = "disagreed"
    """It and the claim cannot both be true."""
    INCONCLUSIVE = "inconclusive"
    """It ran and found nothing against the claim, and does not prove it either; the reason says why."""
    NOT_APPLICABLE = "not applicable"
    """It cannot take this instance; the reason says why."""
    OUT_OF_TIME = "out of time"


@dataclass(frozen=True, slots=True)
class Claim:
    """A proof about one goal: a plan is optimal (``objective`` is then also its bound), or there is no plan.

    ``instance`` is judged by that goal first. The claim implies that no plan takes at most ``threshold``.
    ``bound_by`` are the methods that it rests on beside its solver.
    """

    instance: Instance
    solver: str
    plan: Plan | None
    objective: int | None
    bound_by: tuple[str, ...] = ()

    @property
    def by(self) -> tuple[str, ...]:
        """The methods that the claim rests on, its solver first."""
        return (self.solver, *self.bound_by)

    @property
    def goal(self) -> Goal:
        """The goal that the claim is about."""
        return self.instance.goals[0]

    @property
    def threshold(self) -> int | None:
        """The largest value that no plan has if the claim is true; None: there is no plan at all."""
        return None if self.objective is None else self.objective - 1

    def words(self, value: int) -> str:
        """Return a value of the goal with its unit."""
        return goal_amount(self.goal, value)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a route says, why (empty where it simply agrees), and the plan that refutes the claim, if any."""

    verdict: Verdict
    reason: str = ""
    counter_plan: Plan | None = None


Ask: TypeAlias = Callable[[Claim, Limits], Answer]
"""A route: ask about a claim within limits. It raises nothing that a claim or an instance can cause."""


def claims_of(instance: Instance, outcome: Outcome) -> Iterator[Claim]:
    """Yield what an outcome claims to be proved, goal by goal up to the first open one; else nothing."""
    if outcome.of_first_goal().proof not in (Proof.OPTIMAL, Proof.INFEASIBLE):
        return
    first, *_ = instance.goals
    alone, methods = replace(instance, goals=(first,)), (outcome.solver, *outcome.bound_by)
    yield Claim(alone, outcome.solver, outcome.plan, outcome.objective, outcome.bound_by)
    before, value = first, outcome.objective
    for claim in outcome.further:
        if value is None or claim.status is not Status.PROVED or before.executed:
            return  # no instance can be limited by an executed time
        instance = limited(instance, before, value, claim.goal)
        solver, *others = claim.by or methods
        yield Claim(instance, solver, outcome.plan, claim.value, tuple(others))
        before, value = claim.goal, claim.value


def refutes(claim: Claim, plan: Plan) -> bool:
    """Tell whether a plan keeps every rule and is one that the claim says does not exist."""
    found = evaluate(claim.instance, plan)
    if not found.feasible or found.objective is None:
        return False
    return claim.threshold is None or found.objective <= claim.threshold


def refuted_by(claim: Claim, plan: Plan, who: str) -> Answer:
    """Return the answer of a route that has a plan which :func:`refutes` the claim."""
    value = evaluate(claim.instance, plan).objective or 0
    claimed = (
        "there is no plan" if claim.threshold is None else f"none is below {claim.words(claim.threshold + 1)}"
    )
    reason = f"{who} has a plan of {claim.words(value)} that keeps every rule; the claim is that {claimed}"
    return Answer(Verdict.DISAGREED, reason, plan)


def ask_certificate(claim: Claim, limits: Limits) -> Answer:
    """Make and verify a certificate. What cannot be stopped is left to itself where time runs out."""
    plan, objective = claim.plan, claim.objective
    if plan is None or objective is None:
        return Answer(Verdict.NOT_APPLICABLE, "a certificate is about a plan, the claim is that there is none")
    reason = certifiable(claim.instance)
    if reason is not None:
        return Answer(Verdict.NOT_APPLICABLE, reason)

    def work() -> Answer:
        try:
            certificate = certify(claim.instance, plan, objective, limits.deadline)
        except ValueError as error:
            return Answer(Verdict.NOT_APPLICABLE, str(error))
        try:
            verify(claim.instance, certificate)
        except CertificateError as error:
            return Answer(Verdict.DISAGREED, f"the certificate does not hold: {error}")
        if certificate.optimal:
            return Answer(Verdict.AGREED)
        return Answer(Verdict.INCONCLUSIVE, f"labels prove no more than {claim.words(certificate.bound)}")

    return in_background(work, limits.deadline.over) or Answer(Verdict.OUT_OF_TIME, "stopped before its end")


CERTIFIES = 1.25
"""A certificate may take one part in so many of the time that is left."""
PATIENCE_S = 5.0
"""How long a method may check a claim that is not among the fastest for the instance."""
QUICK_BYTES = 1_000_000
"""Above this size of its model others are asked before CP-SAT on layers."""
LARGEST_BYTES = 10_000_000
"""Models above this size are not asked: CP-SAT proved none of them again within the time, given the best plan."""
LARGEST_EXECUTED_BYTES = 4_000_000
"""The same for executed times: above this size a question takes minutes."""
SAME_OPTIMUM = "{} finds the same optimum"
SAME_INFEASIBLE = "{} finds no plan either"
SAME_RULED_OUT = "{} finds none either"
TIGHT = "memory decides single stages, which no other method finds out again in seconds (--double-check asks them)"
NO_SECOND = "no other exact method sees this instance"


class RefutedError(FalseClaimError):
    """A claim that the evaluator refutes, with the outcome that claims it."""

    def __init__(self, message: str, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome


def solve_checked(instance: Instance, solver: SolverEntry, limits: Limits) -> Outcome:
    """Solve with one solver, for all goals, and check its claim.

    Raises RefutedError if the claim does not hold, and ValueError if the solver cannot take the instance.
    """
    return upheld(instance, solve_in_order(instance, solver.load(), limits), limits)


def upheld(instance: Instance, outcome: Outcome, limits: Limits) -> Outcome:
    """Return an outcome that passes its check (``formulation.outcome.checked``), else raise RefutedError."""
    try:
        return checked(instance, outcome, limits.deadline)
    except FalseClaimError as error:
        raise RefutedError(str(error), outcome) from error


NOT_CHECKED = "not cross-checked"
STOPPED, LATE = "the check was stopped", "the time was used up"
"""Why a proof stands as it was found."""


def checked_by_others(instance: Instance, outcome: Outcome, limits: Limits) -> Iterator[str]:
    """Yield what second, independent methods make of everything that an outcome claims to be proved.

    Goal by goal, in a sentence each. Raises FalseClaimError if two methods contradict each other.
    """
    for claim in claims_of(instance, outcome):
        judged = replace(claim.instance, goals=claim.instance.goals[:1])
        if claim.goal is instance.goals[0]:
            yield cross_check(judged, outcome.of_first_goal(), limits)
            continue
        value, others = claim.objective, claim.bound_by
        one = Outcome(claim.solver, Proof.OPTIMAL, claim.plan, value, value, goals=judged.goals, bound_by=others)
        yield f"{claim.goal}: {cross_check(judged, one, limits)}"


def cross_check(instance: Instance, outcome: Outcome, limits: Limits) -> str:
    """Say what a second, independent method makes of a proof about one goal; nothing where nothing is proved.

    That no plan is of use (``limits.below``) is a proof. Raises FalseClaimError if two methods contradict each
    other.
    """
    same, against = _said_the_same(outcome, limits), list[str]()
    if not same or not is_described(outcome):
        return ""
    if limits.deadline.over():
        return f"{NOT_CHECKED}: {STOPPED if limits.stopped() else LATE}"
    if same is not SAME_RULED_OUT:
        limits = replace(limits, below=None)
    limits = replace(limits, known=None)
    for entry, within in _seconds(instance, outcome, limits, against):
        try:
            second = solve_checked(instance, entry, within)
        except ValueError as error:
            against.append(f"{entry.name} cannot take this instance ({error})")
            continue
        problem = contradiction(outcome, second)
        if problem:
            raise FalseClaimError(problem)
        if within.ruled_out(second) or _said_the_same(second, limits) in (same, SAME_INFEASIBLE):
            return same.format(entry.summary)
        against.append(f"{entry.name} proves nothing in {second.seconds:.1f} s")
    if TIGHT not in against and (said := _certified(instance, outcome, limits, against)):
        return said
    if limits.stopped():
        return f"{NOT_CHECKED}: {STOPPED}"
    why = "; ".join(against) or NO_SECOND
    return f"{NOT_CHECKED}: {why}"


def _said_the_same(outcome: Outcome, limits: Limits) -> str:
    """Return how to say that a second method proves what an outcome does; nothing where it proves nothing."""
    if limits.ruled_out(outcome):
        return SAME_RULED_OUT
    return {Proof.OPTIMAL: SAME_OPTIMUM, Proof.INFEASIBLE: SAME_INFEASIBLE}.get(outcome.proof, "")


def _seconds(
    instance: Instance, outcome: Outcome, limits: Limits, against: list[str]
) -> Iterator[tuple[SolverEntry, Limits]]:
    """Yield who sees the whole instance and is independent of the first, in order, and for how long."""
    quiet = replace(limits, progress=lambda _: None)
    able: list[tuple[SolverEntry, bool]] = []
    for entry in catalogue.SOLVERS:
        if not entry.exact or not independent_of(outcome, entry.name):
            continue
        support = entry.accepts(instance)
        if not (support.takes and support.proves):
            continue
        needed = support.bytes_needed or 0
        if entry.name == MAIN and needed > largest_bytes(instance):
            against.append(f"the model of {entry.name} is too large to prove it again")
            continue
        able.append((entry, entry.name == MAIN and needed > QUICK_BYTES))
    # A proof over device states rests on stages that fit in time, and in no form into memory.
    rests = "state_dp" in methods_of(outcome) and instance.constraints.memory and not outcome.unused
    if rests and (against or any(large for _, large in able)):
        # Asked all the same, none of them confirmed such a proof of Llama-7B on 24, 28 or 40 GB cards in its time.
        against.append(TIGHT)
        able = [(entry, large) for entry, large in able if not large]
    for entry, _ in sorted(able, key=lambda pair: pair[1]):
        programme = entry.name not in (MAIN, "cpsat_types", "brute_force")
        # Whoever is asked for a better plan alone has nothing to tidy.
        below = quiet.below if outcome.plan is None else outcome.objective
        yield entry, quiet if programme else replace(quiet.within(PATIENCE_S), start=outcome.plan, below=below)


def largest_bytes(instance: Instance) -> int:
    """Return up to which size the declarative model is worth asking about what others proved, or cannot see."""
    return LARGEST_EXECUTED_BYTES if instance.goals[0].executed else LARGEST_BYTES


def _certified(instance: Instance, outcome: Outcome, limits: Limits, against: list[str]) -> str:
    """Say how much of an optimum a certificate confirms; nothing, and why not, where it was not ready in time.

    Raises FalseClaimError where it does not hold.
    """
    plan, objective = outcome.plan, outcome.objective
    alone = independent_of(outcome, "certificate") and not limits.deadline.over()
    if not alone or plan is None or objective is None or certifiable(instance) is not None:
        return ""
    deadline, began_s = limits.share(CERTIFIES).within(4 * PATIENCE_S).deadline, time.monotonic()
    bounds = [0]
    try:
        with contextlib.suppress(StoppedError):
            in_background(
                lambda: bounds.extend(confirmed_bounds(instance, plan, objective, deadline)), deadline.over
            )
    except CertificateError as error:
        raise FalseClaimError(f"{outcome.solver}: the certificate does not hold: {error}") from error
    except ValueError:
        return ""
    bound = max(bounds)
    if bound == objective:
        return SAME_OPTIMUM.format("a certificate, checked without a solver,")
    if bound:
        share, least = f"{1000 * bound // objective / 10:.1f} %", outcome.amount(bound)
        return f"certificate: {share} of the optimum confirmed without a solver: no plan is below {least}"
    against.append(f"a certificate was not ready in {time.monotonic() - began_s:.1f} s")
    return ""


def better(one: Outcome, other: Outcome) -> Outcome:
    """Return what two checked outcomes about the same goal say together: the better plan, the larger bound.

    Where these are not one's own, the claim rests on both. Of two that know as much it is the other's.
    Raises FalseClaimError if they contradict each other.
    """
    problem = contradiction(one, other)
    if problem:
        raise FalseClaimError(problem)
    if other.proof in (Proof.OPTIMAL, Proof.INFEASIBLE) or one.plan is None or one.proof is Proof.UNKNOWN:
        first, second = other, one
    elif one.objective is not None and other.objective is not None and other.proof is not Proof.UNKNOWN:
        ranks = [(found.objective, -(found.bound or 0)) for found in (one, other)]
        first, second = (one, other) if ranks[0] < ranks[1] else (other, one)
    else:
        first, second = one, other
    if second.bound is None or first.proof is Proof.INFEASIBLE or second.bound <= (first.bound or 0):
        return first
    by = methods_of(second)
    notes = (*first.notes, f"bound: {', '.join(by)}")
    return replace(first, notes=notes, bound=second.bound, bound_by=by)


def contradiction(one: Outcome, other: Outcome) -> str | None:
    """Say how two outcomes for one instance cannot both be true; None if they can. Both passed their check.

    What counts is the first goal, which both are about.
    Only a plan that is claimed to keep every rule (proof OPTIMAL or FEASIBLE) can refute anything.
    """
    for bounded, priced in ((one, other), (other, one)):
        if priced.proof not in (Proof.OPTIMAL, Proof.FEASIBLE) or priced.objective is None:
            continue
        found = f"{priced.solver} has a plan of {priced.amount(priced.objective)}"
        if bounded.proof is Proof.INFEASIBLE:
            return f"{bounded.solver} claims that no plan exists, but {found}"
        if bounded.bound is not None and bounded.bound > priced.objective:
            return f"{bounded.solver} claims that no plan is below {bounded.amount(bounded.bound)}, but {found}"
    return None


def by_solver(name: str) -> Ask:
    """Return the route that solves the claim's instance with another method."""

    def ask(claim: Claim, limits: Limits) -> Answer:
        if name in claim.by:
            return Answer(Verdict.NOT_APPLICABLE, "the claim is its own")
        quiet = replace(limits, progress=lambda _: None)
        try:
            second = checked(claim.instance, find_any(name).load()(claim.instance, quiet))
        except ValueError as error:
            return Answer(Verdict.NOT_APPLICABLE, str(error))
        except FalseClaimError as error:
            return Answer(Verdict.DISAGREED, f"its own claim fails its check: {error}")
        return compare(claim, second, late=limits.deadline.over())

    return ask


def compare(claim: Claim, second: Outcome, *, late: bool) -> Answer:
    """Hold a claim against another outcome for its instance that has passed the evaluator."""
    proved = second.proof in (Proof.OPTIMAL, Proof.FEASIBLE)
    if proved and second.plan is not None and refutes(claim, second.plan):
        return refuted_by(claim, second.plan, second.solver)
    if second.proof is Proof.INFEASIBLE:
        same = claim.objective is None
        return (
            Answer(Verdict.AGREED) if same else Answer(Verdict.DISAGREED, f"{second.solver} finds no plan at all")
        )
    if claim.objective is not None and second.bound is not None:
        if second.bound > claim.objective:
            reason = f"{second.solver} proves that no plan is below {claim.words(second.bound)}"
            return Answer(Verdict.DISAGREED, f"{reason}; the claim has one of {claim.words(claim.objective)}")
        if second.bound == claim.objective:
            return Answer(Verdict.AGREED)
    if late:
        return Answer(Verdict.OUT_OF_TIME, "stopped before its end")
    if second.blind_to:
        bound = "" if second.bound is None else f"; without it no plan is below {claim.words(second.bound)}"
        return Answer(Verdict.INCONCLUSIVE, f"does not see {', '.join(second.blind_to)}{bound}")
    return Answer(Verdict.NOT_APPLICABLE, "; ".join(second.notes) or "it proves nothing here")


class Route(NamedTuple):
    """A way to ask again: its name, the same in words, and the function that asks."""

    name: str
    summary: str
    ask: Ask


ROUTES: tuple[Route, ...] = (
    Route("line_dp", "the dynamic programme over the line", by_solver("line_dp")),
    Route("state_dp", "the dynamic programme over device states", by_solver("state_dp")),
    Route("brute_force", "brute force", by_solver("brute_force")),
    Route("cpsat", "the declarative model", by_solver("cpsat")),
    Route("cpsat_types", "the model on types of stages", by_solver("cpsat_types")),
    Route("certificate", "a certificate", ask_certificate),
)
"""In the order in which they are asked: the one that cannot be stopped comes last."""


@dataclass(frozen=True, slots=True)
class Check:
    """What one route said about one goal of an outcome, and how long it took."""

    route: Route
    goal: Goal
    claim: Claim
    answer: Answer
    seconds: float

    @property
    def shared(self) -> tuple[ingredients.Ingredient, ...] | None:
        """What route and claimant both rest on beyond common ground; None: nobody said what the claimant reads."""
        return shared_with(self.claim.by, self.route.name)

    @property
    def ground(self) -> tuple[ingredients.Ingredient, ...]:
        """What of their common ground route and claimant read beside the problem statement."""
        found = {one for method in self.claim.by for one in ground_of(method, self.route.name)}
        return tuple(one for one in ingredients.Ingredient if one in found)

    @property
    def confirms(self) -> bool:
        """Tell whether this is a second proof: the route agrees and is independent of the claimant."""
        return self.answer.verdict is Verdict.AGREED and self.shared == ()


def double_check(
    instance: Instance, outcome: Outcome, limits: Limits, routes: Sequence[Route] = ROUTES
) -> Iterator[Check]:
    """Yield the answer of every route to everything that an outcome claims to be proved.

    The time limit is that of all of them together: each may take an equal part of what is left, so that what one
    does not need goes to the others. Once stopped, the rest is out of time.
    """
    limits = limits.begun()
    pairs = [(claim, route) for claim in claims_of(instance, outcome) for route in routes]
    for at, (claim, route) in enumerate(pairs):
        started = time.monotonic()
        answer = _ask(claim, route, limits.share(len(pairs) - at))
        yield Check(route, claim.goal, claim, answer, time.monotonic() - started)


def _ask(claim: Claim, route: Route, limits: Limits) -> Answer:
    if claim.threshold is not None and claim.threshold < 0:
        return Answer(Verdict.NOT_APPLICABLE, f"nothing is below {claim.words(0)}")
    if limits.deadline.over():
        return Answer(Verdict.OUT_OF_TIME, "no time was left")
    try:
        return route.ask(claim, limits)
    except StoppedError:
        return Answer(Verdict.OUT_OF_TIME, "stopped before its end")
