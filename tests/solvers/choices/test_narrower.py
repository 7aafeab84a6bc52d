"""What is begun with where a choice is opened that the reduction does not see: no worse than without it."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Outcome, Proof
from pipecut.formulation.problem.constraints import Goal, Placement, Recompute
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import layer_graph
from pipecut.formulation.problem.options import Samples
from pipecut.formulation.problem.training import Training
from pipecut.solvers import exhaustive
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.choices.any_order import has_other_orders
from pipecut.solvers.choices.other_questions import narrower, narrower_plan
from pipecut.solvers.choices.trainings import decided
from pipecut.solvers.reduce.reduced_dp import accepts
from tests.examples import PLAIN, instance_of, matrix, mesh
from tests.laws import so_many
from tests.solvers.cpsat.test_freedoms import has_groups
from tests.solvers.priced import few_plans
from tests.solvers.reduce.test_reduced import QUIET, as_seen, repeated

SEEN = mock.patch("pipecut.solvers.choices.other_questions.is_reduced", lambda one: accepts(one).takes)
"""However small an instance is, the reduction is asked about it."""


def _opened(instance: Instance, chunks: tuple[int, ...], placement: Placement) -> Instance:
    training = replace(instance.training, chunk_choices=chunks)
    constraints = replace(instance.constraints, placement=placement)
    return replace(instance, training=training, constraints=constraints)


@pytest.mark.slow
@settings(max_examples=so_many(60), deadline=None, suppress_health_check=QUIET)
@given(repeated(), st.sampled_from([(), (1, 2)]), st.sampled_from(Placement))
def test_opening_placement_or_chunks_begins_with_the_best_plan_without(
    instance: Instance, chunks: tuple[int, ...], placement: Placement
) -> None:
    closed = replace(as_seen(instance), goals=(Goal.STEP_TIME,))
    assume(has_groups(closed) and accepts(closed).takes and few_plans(closed))
    opened = _opened(closed, chunks, placement)
    with SEEN:
        asked, found = narrower(opened), narrower_plan(opened, Limits(), None)
    assert (not asked) == (opened == closed and not (closed.model.free_order and has_other_orders(closed)))
    truth = exhaustive.solve(closed)
    if not asked or truth.proof is Proof.INFEASIBLE:
        assert found is None
        return
    assert found is not None and truth.objective is not None
    assert evaluate(found.instance, found.plan).objective == found.objective == truth.objective
    assert found.instance.constraints == opened.constraints
    with SEEN:
        assert narrower_plan(opened, Limits(), found) is found


@settings(max_examples=so_many(20), deadline=None, suppress_health_check=QUIET)
@given(repeated())
def test_nothing_is_begun_with_where_every_stage_shares_its_devices(instance: Instance) -> None:
    instance = replace(as_seen(instance), goals=(Goal.STEP_TIME,))
    with SEEN:
        assert not narrower(replace(instance, training=replace(instance.training, chunks=2)))


BRANCHED = layer_graph(
    "branched",
    [matrix(name, 50, weights, made=40) for name, weights in zip("abcde", (10, 90, 20, 60, 30), strict=True)],
    [("b", "c", 40), ("c", "d", 40), ("d", "e", 40), ("a", "e", 40)],
    cuts=("b", "c", "d", "e"),
)
"""One layer that the last one reads beside a chain: it may run at any time before, and is read from far."""


@pytest.mark.slow
@pytest.mark.parametrize("any_order", [False, True])
def test_what_is_said_of_other_orders_and_blocks_begins_with_the_best_plan_without(any_order: bool) -> None:
    graph = BRANCHED.copy()
    graph.graph["free_order"] = any_order
    training = Training(global_batch=4, micro_batches=4)
    instance = instance_of(graph, mesh(2, 1), replace(PLAIN, samples=Samples.WHOLE), training)
    allowed = replace(instance.constraints, memory=True, recompute=Recompute.ALLOWED)
    closed = replace(instance, constraints=allowed, goals=(Goal.STEP_TIME,))
    opened = replace(closed, constraints=replace(allowed, recompute=Recompute.BLOCKS))
    truth = exhaustive.solve(closed)
    assert has_other_orders(closed) and not accepts(opened).takes and truth.objective is not None
    with SEEN:
        assert bool(narrower(closed)) is any_order  # of the traced order alone the reduction sees everything
        assert narrower(opened)[0].constraints.recompute is Recompute.ALLOWED
        for asked in (opened, closed)[: 1 + any_order]:
            found = narrower_plan(asked, Limits(), None)
            assert found is not None and found.objective == truth.objective
            assert evaluate(asked, found.plan).objective == truth.objective
        assert (decided(opened, plan, Limits(time_limit_s=2)).outcome.objective or 0) <= truth.objective


def test_in_the_traced_order_all_numbers_of_micro_batches_are_searched_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody is asked about one of them alone; what holds in any order is said beside the claim."""
    monkeypatch.setattr("pipecut.solvers.choices.trainings.is_reduced", lambda one: accepts(one).takes)
    training = Training(global_batch=4, micro_batches=4, micro_batch_choices=(1, 2, 4))
    instance = instance_of(BRANCHED, mesh(2, 1), replace(PLAIN, samples=Samples.WHOLE), training)
    instance = replace(instance, goals=(Goal.STEP_TIME,))
    each = [exhaustive.solve(instance.trained(one)).objective for one in training.choices]

    def asked(one: Instance, limits: Limits) -> Outcome:
        raise ValueError(f"{one.training.micro_batches} alone")

    found = decided(instance, asked, Limits()).outcome
    assert found.proof is Proof.OPTIMAL and found.objective == min(one for one in each if one is not None)
    assert found.any_order_bound is not None and 0 < found.any_order_bound <= (found.objective or 0)
