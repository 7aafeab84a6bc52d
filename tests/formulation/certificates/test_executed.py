"""Proofs about executed times against pricing every plan: nothing is below the best one, and it is not missed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.certificates.executed.period import keeps_to_period
from pipecut.formulation.certificates.executed.step import keeps_to_step
from pipecut.formulation.outcome import Proof
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import BoundaryCharge, StageTime, Synchronisation
from pipecut.solvers import exhaustive
from tests.laws import so_many
from tests.solvers.priced import few_plans
from tests.solvers.step_time.test_period import in_rounds, judged_by_period
from tests.solvers.step_time.test_step_dp import judged_by_step, with_much_to_synchronise

LARGE = 1 << 40


def by_links(instance: Instance) -> Instance:
    cost = replace(instance.cost, boundary_charge=BoundaryCharge.LINK, stage_time=StageTime.ADD)
    return replace(instance, cost=cost)


def held(instance: Instance, keeps: Callable[[Instance, int], bool], *, whole: bool = True) -> None:
    """Hold a proof against pricing every plan: the best is not ruled out, and with ``whole`` all below it is."""
    assume(few_plans(instance))
    truth = exhaustive.solve(instance)
    if truth.proof is Proof.INFEASIBLE:
        assert not keeps(instance, LARGE)
        return
    assert truth.objective is not None
    assert keeps(instance, truth.objective)
    assert not (whole and keeps(instance, truth.objective - 1))


@settings(max_examples=so_many(200), deadline=None)
@given(st.one_of(judged_by_step().map(by_links), with_much_to_synchronise()))
def test_no_step_is_shorter_than_the_best_and_the_best_is_not_ruled_out(instance: Instance):
    held(instance, keeps_to_step)


@settings(max_examples=so_many(200), deadline=None)
@given(st.one_of(judged_by_period(), in_rounds().map(by_links)))
def test_no_period_is_shorter_than_the_best_and_the_best_is_not_ruled_out(instance: Instance):
    charged = instance.cost.synchronisation is Synchronisation.CHARGED
    held(instance, keeps_to_period, whole=not charged or instance.training.micro_batches == 1)
