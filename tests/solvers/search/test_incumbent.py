"""What a search knows, and how it closes in on the least value: held against every way to answer."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.limits import StoppedError
from pipecut.formulation.outcome import FalseClaimError, Limits, Progress, Proof
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers import exhaustive
from pipecut.solvers.search.incumbent import Incumbent, close
from tests.examples import chain, instance_of, matrix, mesh
from tests.one_stage import one_stage

INSTANCE = instance_of(chain([matrix("a", 40, weights=900), matrix("b", 50, weights=900)], [2]), mesh(2))
BEST, SOME = exhaustive.solve(INSTANCE), one_stage(INSTANCE)


@dataclass(slots=True)
class Closing:
    """A bracket whose time ends after so many questions."""

    upper: int
    lower: int
    asked: int = 0
    most: int = 1000

    def over(self) -> bool:
        return self.asked >= self.most

    def tell(self) -> None:
        assert self.lower <= self.upper


@given(st.data())
def test_the_least_value_is_found_whatever_is_asked(data: st.DataObject) -> None:
    """Any order of questions, any better value at a yes, and answers that are left open now and then."""
    least = data.draw(st.integers(0, 60))
    known = Closing(upper=data.draw(st.integers(least, 61)), lower=data.draw(st.integers(0, least)))

    def ask(threshold: int) -> bool | None:
        assert known.lower <= threshold < known.upper
        if data.draw(st.integers(0, 9)) == 0:
            return None
        if threshold < least:
            return False
        known.upper = data.draw(st.integers(least, threshold))
        return True

    known.most = data.draw(st.integers(0, 200))
    close(known, lambda: data.draw(st.integers(known.lower, known.upper - 1)), ask)
    assert known.lower <= least <= known.upper
    assert known.asked == known.most or known.lower == known.upper == least


def test_what_was_known_before_a_question_that_is_stopped_stays() -> None:
    known = Closing(upper=9, lower=2)

    def stopped(_: int) -> bool:
        raise StoppedError

    with pytest.raises(StoppedError):
        close(known, lambda: 5, stopped)
    assert (known.lower, known.upper) == (2, 9)


def known_of(limits: Limits | None = None) -> Incumbent:
    return Incumbent("someone", INSTANCE, limits or Limits(), upper=10**9)


def test_the_better_plan_is_kept_at_the_price_of_the_evaluator() -> None:
    told: list[Progress] = []
    known = known_of(Limits(progress=told.append))
    assert known.outcome().proof is Proof.UNKNOWN
    assert BEST.plan is not None and SOME.plan is not None and BEST.objective is not None
    known.offer(None, SOME.plan)
    known.take(BEST.plan)
    known.take(SOME.plan)
    assert (known.plan, known.upper) == (BEST.plan, BEST.objective)
    assert [one.objective for one in told] == [SOME.objective, BEST.objective]
    known.lower = known.upper
    found = known.outcome("a note")
    assert (found.proof, found.bound, found.notes) == (Proof.OPTIMAL, BEST.objective, ("a note",))


def test_a_search_begins_with_the_plan_of_its_limits() -> None:
    known = known_of(Limits(start=BEST.plan))
    known.offer(SOME.plan)
    assert known.plan == BEST.plan
    wrong = known_of(Limits(start=Plan(())))
    wrong.offer()
    assert wrong.plan is None


def test_a_plan_that_breaks_a_rule_or_a_promise_is_a_false_claim() -> None:
    assert BEST.plan is not None and BEST.objective is not None
    with pytest.raises(FalseClaimError, match="someone: proposed a plan that breaks rules"):
        known_of().take(Plan(()))
    with pytest.raises(FalseClaimError, match=r"someone: a plan of at most .* has "):
        known_of().take(BEST.plan, BEST.objective - 1)


def test_nothing_below_the_ceiling_is_no_plan() -> None:
    known = known_of()
    known.lower = known.upper
    assert known.outcome().proof is Proof.INFEASIBLE and known.outcome().bound is None
