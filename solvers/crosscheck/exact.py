"""Other exact methods of this house, each of which searches anew: the claim's plan is not given to it.

``line_dp`` and ``state_dp`` are dynamic programmes, ``brute_force`` prices every plan there is. They know nothing
of the families of ``cpsat``, so a mistake in a family, redundant or not, shows as a difference; and ``cpsat``
knows nothing of their tables. Given the plan, a model that says no to everything would agree. Where a method is
blind to a rule its bound is that of a relaxation: it can still refute a claim, and it proves one it reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from formulation.outcome import FalseClaimError, Limits, Outcome, Proof, checked
from formulation.problem.instance import Instance
from solvers.crosscheck.claim import Answer, Ask, Claim, Verdict, refuted_by, refutes

Solve = Callable[[Instance, Limits], Outcome]


def route(name: str, load: Callable[[], Solve]) -> Ask:
    """Return the route that solves the claim's instance with another method; ``load`` imports it."""

    def ask(claim: Claim, limits: Limits) -> Answer:
        if name in claim.by:
            return Answer(Verdict.NOT_APPLICABLE, "the claim is its own")
        try:
            second = checked(claim.instance, load()(claim.instance, replace(limits, progress=lambda _: None)))
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


def line_dp() -> Solve:
    """Import the dynamic programme over the line."""
    from solvers.dynamic.line.solver import solve

    return solve


def state_dp() -> Solve:
    """Import the dynamic programme over device states."""
    from solvers.dynamic.states.solver import solve

    return solve


def brute_force() -> Solve:
    """Import the enumeration of all plans."""
    from solvers.exhaustive import solve

    return solve


def cpsat() -> Solve:
    """Import the search in the declarative model."""
    from solvers.cpsat.solver import solve

    return solve
