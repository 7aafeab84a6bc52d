"""The generated comparison: what it counts as wrong, what it asks for, and some hundred instances of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from benchmarks.checks import generated
from benchmarks.checks.generated import (
    CERTIFICATE,
    METHODS,
    Counts,
    asked,
    compare,
    compare_on,
    instance_of,
    judge,
)
from formulation.outcome import GoalClaim, Limits, Outcome, Proof
from formulation.problem.instance import Instance
from formulation.problem.options import Goal
from tests.enumerator import truth

SEED = 31_000
LEAST = {"period_dp": 3, "halves_dp": 3, "cpsat_chunks": 5, "line_dp": 10}
"""Of methods that take few instances (one goal and schedule, groups of several stages, the line alone)."""


@pytest.mark.slow
def test_no_exact_method_is_refuted() -> None:
    counts = compare(SEED, 300)
    assert not counts.wrong, "\n".join(counts.wrong)
    for method in (*METHODS, CERTIFICATE):
        assert counts.answers[method, "optima"] > LEAST.get(method, 20)
    assert counts.answers["cpsat", "infeasible"] > 20


@pytest.mark.slow
def test_everything_is_asked_for() -> None:
    found = Counter(name for number in range(400) for name in asked(instance_of(SEED + number)))
    for goal in Goal:
        assert found[f"goal {goal}"]
    for name in (
        "goals in order",
        "at_most",
        "forms",
        "reserve",
        "measured times",
        "max_servers",
        "memory",
        "places to cut",
        "tied weights",
        "warm-ups",
        "adapters",
        "several stages a group",
    ):
        assert found[name]
    for name in ("stages", "pin", "together", "apart", "no_cut", "devices_per_stage", "tensor_parallel_degrees"):
        assert found[name]


def test_an_instance_can_be_had_again() -> None:
    assert instance_of(SEED) == instance_of(SEED)
    assert len({repr(instance_of(SEED + number)) for number in range(5)}) == 5


@pytest.mark.parametrize(
    ("outcome", "values", "expected"),
    [
        (Outcome("s", Proof.OPTIMAL, None, 5, 5), (5,), "optima"),
        (Outcome("s", Proof.OPTIMAL, None, 5, 5), (5, 9), "optima"),
        (Outcome("s", Proof.OPTIMAL, None, 6, 6), (5,), "wrong"),
        (Outcome("s", Proof.OPTIMAL, None, 5, 5), None, "wrong"),
        (Outcome("s", Proof.OPTIMAL, None, 5, 5, further=(GoalClaim(Goal.STAGES, 2, 2),)), (5, 1), "wrong"),
        (Outcome("s", Proof.OPTIMAL, None, 5, 5, further=(GoalClaim(Goal.STAGES, 2, 1),)), (5, 1), "optima"),
        (Outcome("s", Proof.INFEASIBLE), None, "infeasible"),
        (Outcome("s", Proof.INFEASIBLE), (5,), "wrong"),
        (Outcome("s", Proof.FEASIBLE, None, 4, None), (5,), "wrong"),
        (Outcome("s", Proof.FEASIBLE, None, 6, 5), (5,), "bounds"),
        (Outcome("s", Proof.UNKNOWN, None, None, 6), (5,), "wrong"),
        (Outcome("s", Proof.UNKNOWN), (5,), "refused"),
    ],
)
def test_what_an_answer_counts_as(outcome: Outcome, values: tuple[int, ...] | None, expected: str) -> None:
    answer, problem = judge(outcome, values)
    assert answer == expected and bool(problem) is (expected == "wrong")


@pytest.mark.parametrize("how", ["lies", "crashes"])
def test_a_method_that_lies_or_crashes_is_wrong(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(instance: Instance, limits: Limits) -> Outcome:
        if how == "crashes":
            raise ZeroDivisionError("no reason")
        return Outcome("broken", Proof.INFEASIBLE)

    class Entry:
        load: Callable[[], object] = staticmethod(lambda: broken)

    monkeypatch.setattr(generated, "METHODS", ("cpsat",))
    monkeypatch.setattr(generated, "find_solver", lambda _: Entry)
    instance = next(one for one in map(instance_of, range(SEED, SEED + 50)) if truth(one).values is not None)
    counts = Counts()
    compare_on(instance, counts, "--seed 7")
    assert counts.answers["cpsat", "wrong"] == 1
    assert "--seed 7" in counts.wrong[0] and "servers=" in counts.wrong[0]
