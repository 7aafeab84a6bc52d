"""What a search knows: the best plan at the evaluator's price, and what no plan can undercut.

One for every exact search. Whatever stops a search, its answer is what is known then.

A search in parts, each of some of the plans: the least bound of all parts is one of all plans.

Search on the value: fix a threshold T, ask "does anything take at most T?", and close in on the least value.

Minimising a maximum in one go leaves every search with weak limits; with T fixed they are yes/no questions. A yes
brings something that is better, a no lifts the lower limit, and "nothing takes UB - 1" is the proof (a destructive
lower bound). Values are whole numbers, so the search ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from pipecut.formulation.constraints.constraint import told
from pipecut.formulation.costs.amounts import goal_amount
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import ProvedBound
from pipecut.formulation.outcome import FalseClaimError, Limits, Outcome, Progress, Proof
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan


@dataclass(slots=True)
class Incumbent:
    """The best plan of the first goal and its price (``upper``), the proven lower limit, and who looks.

    Without a plan ``upper`` is above every value that a plan can have: if nothing lies below it, there is no plan.
    Where only plans below some value are of use, it is that value, and then there may be others.
    ``asked`` counts questions. ``given`` is what others proved, if the search began there.
    """

    solver: str
    instance: Instance
    limits: Limits
    upper: int
    lower: int = 0
    plan: Plan | None = None
    asked: int = 0
    began_s: float = field(default_factory=time.monotonic)
    given: ProvedBound | None = None

    def __post_init__(self) -> None:
        """Begin at the value below which a plan is of use."""
        if self.limits.below is not None:
            self.upper = min(self.upper, self.limits.below)

    def begin_where_known(self) -> None:
        """Begin at the lower limit that others proved, if that is higher.

        Only for searches that prove anew whatever they raise it to.
        """
        known = self.limits.known
        if known is not None and known.value > self.lower:
            self.given, self.lower = known, min(known.value, self.upper)

    def offer(self, *plans: Plan | None) -> None:
        """Begin with the best of some plans that may break rules, the one of the limits among them; report it."""
        for plan in (self.limits.start, *plans):
            if plan is None:
                continue
            found = evaluate(self.instance, plan)
            if found.feasible and found.objective is not None and found.objective < self.upper:
                self.plan, self.upper = plan, found.objective
        self.tell()

    def take(self, plan: Plan, at_most: int | None = None) -> None:
        """Keep a plan that must keep every rule, if it is better; with ``at_most``, a promise, in any case.

        Raises FalseClaimError if it breaks a rule or the promise: a defect, never a property of the input.
        """
        price = price_of(self.instance, plan, self.solver)
        if at_most is not None and price > at_most:
            promised, found = (goal_amount(self.instance.goals[0], value) for value in (at_most, price))
            raise FalseClaimError(f"{self.solver}: a plan of at most {promised} has {found}")
        if at_most is not None or price < self.upper:
            self.plan, self.upper = plan, price
            self.tell()

    def over(self) -> bool:
        """Tell whether the limits are used up."""
        return self.limits.deadline.over()

    @property
    def closed(self) -> bool:
        """Tell whether nothing is left to ask: the plan is best, or there is none."""
        return self.lower >= self.upper

    @property
    def rests_on(self) -> ProvedBound | None:
        """What others proved and nothing was added to, so that a claim rests on it."""
        return None if self.given is None or self.lower > self.given.value else self.given

    def tell(self) -> None:
        """Report the best plan and the bound."""
        self.limits.progress(Progress(None if self.plan is None else self.upper, self.lower, self.plan))

    def outcome(self, *notes: str) -> Outcome:
        """Say what is known."""
        proof, given = Proof.UNKNOWN if self.plan is None else Proof.FEASIBLE, self.rests_on
        if self.closed and (self.plan is not None or self.limits.below is None):
            proof = Proof.INFEASIBLE if self.plan is None else Proof.OPTIMAL
        return Outcome(
            solver=self.solver,
            proof=proof,
            plan=self.plan,
            objective=None if self.plan is None else self.upper,
            bound=None if proof is Proof.INFEASIBLE else self.lower,
            seconds=time.monotonic() - self.began_s,
            notes=notes if given is None else (*notes, given.words),
            bound_by=() if given is None else given.by,
        )


def price_of(instance: Instance, plan: Plan, solver: str) -> int:
    """Return the evaluator's price of a plan that must keep every rule. Raises FalseClaimError if it does not."""
    found = evaluate(instance, plan)
    if found.objective is None or found.violations:
        broken = "; ".join(message for _, message in told(found.violations))
        raise FalseClaimError(f"{solver}: proposed a plan that breaks rules: {broken}")
    return found.objective


def search_in_parts(known: Incumbent, searches: Iterable[Callable[[Incumbent], None]]) -> None:
    """Run searches, each of which knows the best plan so far and a bound of its own; raises what they raise.

    A single search works on what is known itself.
    """
    parts = list(searches)
    if len(parts) == 1:
        return parts[0](known)
    begun = known.lower
    bounds = [begun] * len(parts)
    for at, run in enumerate(parts):
        own = replace(known, lower=begun, limits=replace(known.limits, start=None, progress=lambda _: None))
        try:
            run(own)
        finally:
            bounds[at], known.asked = own.lower, own.asked
            if own.upper < known.upper:
                known.plan, known.upper = own.plan, own.upper
            known.lower = max(known.lower, min(*bounds, known.upper))
            known.tell()
    return None


class Bracket(Protocol):
    """What is known of the least value: the best so far, a proven lower limit, and how often was asked."""

    upper: int
    lower: int
    asked: int

    def over(self) -> bool:
        """Tell whether the limits are used up."""
        ...

    def tell(self) -> None:
        """Report both limits."""
        ...


def questions(asked: int) -> str:
    """Say in words how such a search went, for the notes of an outcome."""
    if asked == 0:
        return "settled without a search"
    return f"asked {'once' if asked == 1 else f'{asked} times'} whether anything is better than some value"


def close(known: Bracket, choose: Callable[[], int], ask: Callable[[int], bool | None]) -> None:
    """Ask until both limits meet or time is over.

    ``choose`` returns a threshold from ``lower`` to below ``upper``. ``ask`` lowers ``upper`` and returns True
    where something takes at most the threshold, False where nothing does, None where it does not know. Raises what
    ``ask`` raises, StoppedError too: what was known before the question stays.
    """
    known.tell()
    while known.lower < known.upper and not known.over():
        threshold = choose()
        known.asked += 1
        if ask(threshold) is False:
            known.lower = threshold + 1
        known.tell()
