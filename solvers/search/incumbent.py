"""What a search knows: the best plan at the evaluator's price, and what no plan can undercut.

One for every exact search. Whatever stops a search, its answer is what is known then.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from formulation.constraints.violation import told
from formulation.costs.amounts import goal_amount
from formulation.evaluate import evaluate
from formulation.limits.proved import ProvedBound
from formulation.outcome import FalseClaimError, Limits, Outcome, Progress, Proof
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan


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
