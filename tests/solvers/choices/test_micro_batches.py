"""The number of micro-batches as a decision, held against an exhaustive search of every number."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from formulation.outcome import Limits, Outcome, Proof, checked
from formulation.problem.cluster import DeviceClass, Server, cluster_graph
from formulation.problem.instance import Instance, build_instance
from formulation.problem.layers import Layer, Split, layer_graph
from formulation.problem.options import Combine, CostModel, Goal, Training
from formulation.problem.units import Link
from solvers import exhaustive
from solvers.choices.micro_batches import best_micro_batches
from solvers.search.goals import solve_in_order
from tests.generators import cluster_graphs, instances, layer_graphs

SLOW = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=40)
SMALL = instances(layer_graphs(max_layers=3), cluster_graphs(max_devices=3))


def ask(instance: Instance, limits: Limits) -> tuple[Instance, Outcome]:
    return instance, checked(instance, solve_in_order(instance, exhaustive.solve, limits))


def with_choices(instance: Instance, numbers: tuple[int, ...], **changes: object) -> Instance:
    training = Training(12, 1, schedule=instance.training.schedule, micro_batch_choices=numbers)
    return replace(instance, training=training, **changes)  # type: ignore[arg-type]


def per_step(instance: Instance, outcome: Outcome) -> int | None:
    if outcome.objective is None:
        return None
    often = instance.training.micro_batches if instance.goals[0] is Goal.BOTTLENECK else 1
    return outcome.objective * often


@SLOW
@given(SMALL, st.sampled_from([Goal.BOTTLENECK, Goal.ITERATION_TIME, Goal.MEMORY, Goal.COST]))
def test_no_number_is_better_than_the_chosen_one(instance: Instance, goal: Goal) -> None:
    instance = with_choices(instance, (1, 2, 3, 4, 6, 12), cost=CostModel(combine=Combine.MAX), goals=(goal,))
    found = best_micro_batches(instance, ask, Limits())
    every = [replace(instance, training=replace(instance.training, micro_batches=m)) for m in (1, 2, 3, 4, 6, 12)]
    values = [per_step(one, ask(one, Limits())[1]) for one in every]
    best = min((value for value in values if value is not None), default=None)
    assert per_step(found.instance, found.outcome) == best
    assert found.outcome.proof is (Proof.OPTIMAL if best is not None else Proof.INFEASIBLE)
    if best is not None:
        assert checked(found.instance, found.outcome) == found.outcome


@SLOW
@given(SMALL)
def test_ties_are_settled_by_the_next_goal(instance: Instance) -> None:
    goals = (Goal.DEVICES, Goal.MEMORY)
    instance = with_choices(instance, (1, 2, 4), goals=goals)
    found = best_micro_batches(instance, ask, Limits())
    outcomes = [
        ask(replace(instance, training=replace(instance.training, micro_batches=m)), Limits()) for m in (1, 2, 4)
    ]
    values = [tuple(claim.value for claim in outcome.claims) for _, outcome in outcomes if outcome.claims]
    if values and all(len(row) == len(goals) for row in values):
        assert tuple(claim.value for claim in found.outcome.claims) == min(values)


def test_what_was_left_open_is_no_proof() -> None:
    """Only one number was searched when the time was over, and sums alone do not rule the others out."""
    asked = list[int]()

    def once(one: Instance, limits: Limits) -> tuple[Instance, Outcome]:
        asked.append(one.training.micro_batches)
        return ask(one, Limits())

    layers = [Layer(name, "linear", Split.MATRIX, 4000, 400, 400, 400, 10**6) for name in ("a", "b", "c")]
    card, link = DeviceClass("card", 1 << 30, 10**12), Link(10**9)
    cluster = cluster_graph("c", [Server("s", card, 2, link)], [])
    edges = [("a", "b", 400), ("b", "c", 400)]
    instance = build_instance(
        layer_graph("m", layers, edges),
        cluster,
        Training(12, 1, micro_batch_choices=(1, 4, 12)),
        CostModel(),
        goals=(Goal.ITERATION_TIME,),
    )
    found = best_micro_batches(instance, once, Limits(stopped=lambda: bool(asked)))
    assert len(asked) == 1 == len(found.asked)
    assert found.outcome.proof is Proof.FEASIBLE
    assert found.outcome.bound is not None and found.outcome.objective is not None
    assert found.outcome.bound < found.outcome.objective
    whole = best_micro_batches(instance, ask, Limits())
    assert whole.outcome.proof is Proof.OPTIMAL and whole.outcome.objective is not None
    assert found.outcome.bound <= whole.outcome.objective <= found.outcome.objective


def test_numbers_that_do_not_divide_the_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="12 is not a multiple of micro_batches 5"):
        Training(12, 1, micro_batch_choices=(1, 5))
    with pytest.raises(ValueError, match="different numbers"):
        Training(12, 1, micro_batch_choices=(2, 2))
