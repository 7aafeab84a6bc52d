"""Every route by name, and the run of all of them over a claim: the explicit table."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from formulation.limits.deadline import StoppedError
from formulation.outcome import Limits, Outcome
from formulation.problem.constraints import Goal
from formulation.problem.instance import Instance
from solvers.crosscheck import certificate, exact
from solvers.crosscheck.claim import Answer, Ask, Claim, Verdict, claims_of
from solvers.ingredients import Ingredient, ground_of
from solvers.resting import shared_with


class Route(NamedTuple):
    """A way to ask again: its name, the same in words, and the function that asks."""

    name: str
    summary: str
    ask: Ask


ROUTES: tuple[Route, ...] = (
    Route("line_dp", "the dynamic programme over the line", exact.route("line_dp", exact.line_dp)),
    Route("state_dp", "the dynamic programme over device states", exact.route("state_dp", exact.state_dp)),
    Route("brute_force", "brute force", exact.route("brute_force", exact.brute_force)),
    Route("cpsat", "the declarative model", exact.route("cpsat", exact.cpsat)),
    Route("certificate", "a certificate", certificate.ask),
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
    def shared(self) -> tuple[Ingredient, ...] | None:
        """What route and claimant both rest on beyond common ground; None: nobody said what the claimant reads."""
        return shared_with(self.claim.by, self.route.name)

    @property
    def ground(self) -> tuple[Ingredient, ...]:
        """What of their common ground route and claimant read beside the problem statement."""
        found = {one for method in self.claim.by for one in ground_of(method, self.route.name)}
        return tuple(one for one in Ingredient if one in found)

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
