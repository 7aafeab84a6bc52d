"""Questions to CP-SAT share the time that is left, and one without an answer leaves an honest bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers.chunks import cpsat_chunks as solver
from tests.enumerator import truth
from tests.examples import PLAIN, chain, instance_of, matrix, mesh
from tests.laws import so_many
from tests.problems import dealt_out

MACS = (90, 10, 40, 7, 31, 55, 62, 24)


def several_layouts() -> Instance:
    """Two, three or four groups on servers of slow links; CP-SAT is asked about two of these numbers."""
    layers = chain([matrix(f"l{at}", 50, macs, taken=90, made=90) for at, macs in enumerate(MACS)], [40] * 7)
    instance = instance_of(layers, mesh(1, 1, 1, 1, between=Link(10**9)), PLAIN, Training(2, 2, chunks=2))
    asked = Constraints(tensor_parallel_degrees=(1,), placement=Placement.FREE)
    return replace(instance, goals=(Goal.BOTTLENECK,), constraints=asked)


def answering(monkeypatch: pytest.MonkeyPatch, answers: list[bool]) -> list[float]:
    """Let questions have no answer where it is said so, in turn; return the seconds that each was given."""
    given_s: list[float] = []
    real = solver.run

    def run(asked: cp_model.CpSolver, *rest: Any) -> cp_model.CpSolverStatus:
        given_s.append(asked.parameters.max_time_in_seconds)
        at = len(given_s) - 1
        return real(asked, *rest) if answers[at % len(answers)] else cp_model.UNKNOWN

    monkeypatch.setattr(solver, "run", run)
    return given_s


@pytest.mark.slow
def test_a_question_without_an_answer_leaves_time_to_other_layouts(monkeypatch: pytest.MonkeyPatch):
    instance, best = several_layouts(), truth(several_layouts())
    given_s = answering(monkeypatch, [False])
    found = checked(instance, solver.solve(instance, Limits(time_limit_s=6_000, workers=1)))
    assert len(given_s) > 1 and found.notes[-1] == solver.UNANSWERED
    for at, seconds in enumerate(given_s):
        assert seconds == pytest.approx(6_000 / (len(given_s) - at), rel=0.05)
    assert best.values is not None and found.bound is not None and found.bound <= best.values[0]


@pytest.mark.slow
def test_all_that_is_left_is_asked_again_once_others_are_answered(monkeypatch: pytest.MonkeyPatch):
    instance, best = several_layouts(), truth(several_layouts())
    given_s = answering(monkeypatch, [False, *[True] * 1_000])
    found = checked(instance, solver.solve(instance, Limits(time_limit_s=6_000, workers=1)))
    assert best.values is not None and (found.proof, found.objective) == (Proof.OPTIMAL, best.values[0])
    assert solver.UNANSWERED not in found.notes
    assert given_s[0] == pytest.approx(3_000, rel=0.05) and given_s[-1] == pytest.approx(6_000, rel=0.05)


@pytest.mark.slow
@settings(max_examples=so_many(60), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(dealt_out(most_plans=200), st.lists(st.booleans(), min_size=1, max_size=5))
def test_whatever_has_no_answer_the_claim_is_true(instance: Instance, answers: list[bool]):
    expected = truth(instance)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, "WIDTHS", ())
        answering(patch, answers)
        found = checked(instance, solver.solve(instance, Limits(workers=1)))
    if expected.values is None:
        assert found.plan is None
        return
    assert found.proof is not Proof.INFEASIBLE
    assert (found.bound or 0) <= expected.values[0] <= (found.objective or expected.values[0])
    assert not all(answers) or found.proof is Proof.OPTIMAL
