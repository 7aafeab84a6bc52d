"""What is begun with where a choice is opened that the reduction does not see: no worse than without it."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.constraints import Goal, Placement
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers import exhaustive
from pipecut.solvers.choices.neighbours import narrower, narrower_plan
from pipecut.solvers.reduce.solver import accepts
from tests.laws import so_many
from tests.solvers.cpsat.test_freedoms import has_groups
from tests.solvers.priced import few_plans
from tests.solvers.reduce.test_reduced import QUIET, as_seen, repeated

SEEN = mock.patch("pipecut.solvers.choices.neighbours.is_reduced", lambda one: accepts(one).takes)
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
    assert (not asked) == (opened == closed)
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
