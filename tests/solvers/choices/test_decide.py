"""What is chosen above an instance: micro-batches and the order of the layers, in one claim."""

from __future__ import annotations

from dataclasses import replace

import pytest

from formulation.outcome import FalseClaimError, Limits, Outcome, Proof, checked
from formulation.problem.cluster import Cluster, DeviceClass, Server, cluster_graph
from formulation.problem.cuts import AtomGraph
from formulation.problem.instance import Instance
from formulation.problem.options import Training
from formulation.problem.units import Link
from solvers import exhaustive
from solvers.choices.any_order import in_order
from solvers.choices.decide import decide
from tests.solvers.choices.test_any_order import one_device_a_stage, orders, towers


def ask(instance: Instance, limits: Limits) -> Outcome:
    return checked(instance, exhaustive.solve(instance, limits))


def free(instance: Instance) -> Instance:
    return replace(instance, model=replace(instance.model, free_order=True))


UNEQUAL = one_device_a_stage(towers([9, 9], [4, 4]), 2)
"""One tower after the other, the best cut leaves 9 and 17; side by side, 13 and 13."""


def test_a_free_order_is_searched_and_proved() -> None:
    about, found = decide(free(UNEQUAL), ask, Limits())
    given = ask(UNEQUAL, Limits())
    assert found.objective is not None and given.objective is not None and found.objective < given.objective
    assert found.proof is Proof.OPTIMAL and found.any_order_bound == found.objective
    assert checked(about, found) == found
    assert {layer.name for layer in about.layers} == {layer.name for layer in UNEQUAL.layers}
    assert any("the traced one has" in note for note in found.notes)


def test_a_given_order_stands_beside_a_bound_of_all() -> None:
    about, found = decide(UNEQUAL, ask, Limits())
    _, best = decide(free(UNEQUAL), ask, Limits())
    assert about is UNEQUAL and found.objective == ask(UNEQUAL, Limits()).objective
    assert found.any_order_bound == best.objective


def test_a_chain_says_nothing_of_orders() -> None:
    chain = free(one_device_a_stage(towers([7, 5, 3]), 2))
    about, found = decide(chain, ask, Limits())
    assert about is chain and found == replace(ask(chain, Limits()), seconds=found.seconds)
    assert found.any_order_bound is None


def test_both_are_chosen_together() -> None:
    open_batches = replace(free(UNEQUAL), training=Training(8, 1, micro_batch_choices=(1, 2, 8)))
    about, found = decide(open_batches, ask, Limits())
    every = [decide(replace(open_batches, training=Training(8, number)), ask, Limits()) for number in (1, 2, 8)]
    steps = [one.training.micro_batches * (outcome.objective or 0) for one, outcome in every]
    assert about.training.micro_batches * (found.objective or 0) == min(steps)
    assert found.proof is Proof.OPTIMAL and about.training.micro_batch_choices == (1, 2, 8)


def test_a_plan_below_the_bound_of_all_orders_is_a_false_claim() -> None:
    """A search that prices plans too low is caught by the bound, as it would be by the evaluator."""

    def too_low(instance: Instance, limits: Limits) -> Outcome:
        found = ask(instance, limits)
        return replace(found, objective=1, bound=1)

    with pytest.raises(FalseClaimError, match="no order of layers is said to be below"):
        decide(UNEQUAL, too_low, Limits())


@pytest.mark.parametrize("order", ["traced", "free"])
def test_the_bound_for_all_orders_is_about_every_number_of_micro_batches(order: str) -> None:
    """Also about those that were left out because this one order has nothing better with them.

    With 8 micro-batches a boundary takes 96 us, hardly less than the slower stage of the traced order, 102 us;
    with one it takes as long, and the slower stage of the best order 8 x 78 us.
    """
    instance = free(UNEQUAL) if order == "free" else UNEQUAL
    late = cluster_graph("late", [Server("s", DeviceClass("card", 1 << 30, 10**12), 2, Link(10**12, 48_000))], [])
    numbers = Training(8, 1, micro_batch_choices=(1, 2, 4, 8))
    instance = replace(instance, training=numbers, cluster=Cluster.of(late))
    about, found = decide(instance, ask, Limits())
    least = min(
        number * (ask(in_order(one, atoms), Limits()).objective or 0)
        for number in numbers.micro_batch_choices
        for one in (replace(instance, training=Training(8, number)),)
        for atoms in orders(AtomGraph.of(instance))
    )
    assert found.any_order_bound is not None and found.objective is not None
    assert found.any_order_bound * about.training.micro_batches == least
    assert (found.any_order_bound == found.objective) == (order == "free")
