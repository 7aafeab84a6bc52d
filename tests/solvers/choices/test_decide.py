"""What is chosen above an instance: micro-batches and the order of the layers, in one claim."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from pipecut.formulation.outcome import FalseClaimError, Limits, Outcome, Proof, checked
from pipecut.formulation.problem.cluster import Cluster, DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement
from pipecut.formulation.problem.cuts import AtomGraph
from pipecut.formulation.problem.instance import Instance, with_servers
from pipecut.formulation.problem.layers import Split, layer_graph
from pipecut.formulation.problem.options import BoundaryCharge, Combine, CostModel, StageTime
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers import exhaustive
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.choices import any_order
from pipecut.solvers.choices.any_order import MOST_ORDERS, covering, in_order
from pipecut.solvers.choices.trainings import DecideAsk as Ask
from pipecut.solvers.choices.trainings import decide, instances_of, times_in_a_step
from pipecut.solvers.goals import solve_in_order
from tests.enumerator import more_plans_than, truth
from tests.generators import any_costs, any_recomputation, cluster_graphs, goals_of, instances, layer_graphs
from tests.laws import so_many
from tests.problems import MEMORY_BYTES
from tests.solvers.choices.test_any_order import block, one_device_a_stage, orders, towers
from tests.solvers.cpsat.demanded import SLOW


def ask(instance: Instance, limits: Limits) -> Outcome:
    return checked(instance, exhaustive.solve(instance, limits))


def free(instance: Instance) -> Instance:
    return replace(instance, model=replace(instance.model, free_order=True))


def ask_in_order(instance: Instance, limits: Limits) -> Outcome:
    return checked(instance, solve_in_order(instance, exhaustive.solve, limits))


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


@st.composite
def branching(draw: st.DrawFn) -> Instance:
    """Small models with several orders, whose training may be left open too; memory may leave no plan."""
    graph = layer_graphs(max_layers=4, splits=(Split.MATRIX, Split.JOIN), branching=True)
    made = draw(instances(graph, cluster_graphs(max_devices=3, max_servers=2), any_costs))
    assume(made.devices > 1 and not AtomGraph.of(made).in_one_order_only)
    schedules = [Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.NAIVE]
    training = replace(made.training, global_batch=4, micro_batches=2, schedule=draw(st.sampled_from(schedules)))
    step = draw(st.booleans())  # a goal by which orders of the passes can be told apart
    cost = replace(made.cost, combine=Combine.MAX, boundary_charge=BoundaryCharge.LINK)
    if step:
        cost = replace(cost, stage_time=StageTime.ADD)
        chosen = draw(st.lists(st.sampled_from(schedules), max_size=2, unique=True))
        training = replace(training, schedule_choices=tuple(chosen))
    training = replace(training, micro_batch_choices=draw(st.sampled_from([(), (), (1, 2), (2, 4)])))
    goals = [Goal.STEP_TIME] if step else draw(st.permutations(goals_of(cost, training.schedule)))[:2]
    memory = draw(st.sampled_from([None, *MEMORY_BYTES[:2]]))
    servers = [
        replace(one, device_class=replace(one.device_class, memory_bytes=memory or 1 << 40))
        for one in made.servers
    ]
    asked = Constraints(
        memory=memory is not None,
        placement=draw(st.sampled_from(Placement)),
        devices_per_stage=draw(st.sampled_from([(), (1,)])),
        stages_at_least=draw(st.sampled_from([None, None, 2])),
        **draw(any_recomputation),  # type: ignore[arg-type]
    )
    try:
        whole = replace(made, training=training, cost=cost, goals=tuple(goals))
        return replace(free(with_servers(whole, servers)), constraints=asked)
    except ValueError:  # goals that cannot be chosen by together
        reject()


@st.composite
def four_blocks(draw: st.DrawFn) -> Instance:
    """Four unequal blocks with few edges between them, one device a stage: orders differ by all goals."""
    size = st.sampled_from([10, 1_000, 100_000])
    rows = [block(f"l{at}", draw(st.sampled_from([1, 5, 9, 30])) * 10**6, draw(size)) for at in range(4)]
    pairs = [pair for pair in itertools.combinations(range(4), 2) if draw(st.integers(0, 3)) == 0]
    graph = layer_graph("four", rows, [(f"l{one}", f"l{other}", draw(size)) for one, other in pairs])
    made = one_device_a_stage(graph, draw(st.integers(2, 3)), 10 ** draw(st.integers(10, 12)))
    goals = ((Goal.STEP_TIME,), (Goal.ITERATION_TIME,), (Goal.MEMORY,), (Goal.BOTTLENECK, Goal.MEMORY))
    whole = replace(
        free(made),
        training=Training(4, draw(st.sampled_from([1, 2, 4])), schedule=Schedule.ONE_F_ONE_B),
        cost=CostModel(combine=Combine.MAX, boundary_charge=BoundaryCharge.LINK, stage_time=StageTime.ADD),
        goals=draw(st.sampled_from(goals)),
    )
    assume(not AtomGraph.of(whole).in_one_order_only)
    return whole


def best_of_all(instance: Instance) -> tuple[int, ...] | None:
    """Price every plan of every order of the layers with every choice; the first goal counts for a whole step."""
    found: list[tuple[int, ...]] = []
    for one in instances_of(instance):
        for order in orders(AtomGraph.of(one)):
            least = truth(in_order(one, order)).values
            if least is not None:
                found.append((least[0] * times_in_a_step(one), *least[1:]))
    return min(found, default=None)


def holds(instance: Instance, ask: Ask) -> None:
    """Hold what is claimed over all that is left open against all plans."""
    assume(not more_plans_than(instance, 60))
    best = best_of_all(instance)
    try:
        about, found = decide(instance, ask, Limits(workers=1))
    except ValueError:  # what no method takes
        return
    times = times_in_a_step(about)
    if found.proof is Proof.INFEASIBLE:
        assert best is None
    if found.proof in (Proof.OPTIMAL, Proof.FEASIBLE):
        (first, *rest) = (claim.value for claim in found.claims)
        assert best is not None and (first * times, *rest) >= best
        assert found.proof is Proof.FEASIBLE or (first * times, *rest) == best
    for limit in (found.bound, found.any_order_bound):
        assert limit is None or best is None or limit * times <= best[0]


@pytest.mark.slow
@settings(max_examples=so_many(15), deadline=None, suppress_health_check=SLOW)
@given(four_blocks())
def test_the_best_of_four_blocks_is_the_best_in_all_orders(instance: Instance) -> None:
    holds(instance, ask_in_order)
    assert decide(instance, ask_in_order, Limits())[1].proof is Proof.OPTIMAL


@pytest.mark.slow
@settings(max_examples=so_many(40), deadline=None, suppress_health_check=SLOW)
@given(branching())
def test_what_is_claimed_holds_for_all_orders_and_all_choices(instance: Instance) -> None:
    holds(instance, ask_in_order)


@pytest.mark.slow
@settings(max_examples=so_many(25), deadline=None, suppress_health_check=SLOW)
@given(branching())
def test_what_the_planner_claims_holds_for_all_orders_and_all_choices(instance: Instance) -> None:
    holds(instance, lambda one, within: plan(one, within))


@settings(max_examples=so_many(20), deadline=None, suppress_health_check=SLOW)
@given(branching(), st.integers(1, 3))
def test_few_orders_hold_every_way_to_cut(instance: Instance, cuts: int) -> None:
    atoms = AtomGraph.of(instance)

    def ways(order: tuple[int, ...]) -> set[tuple[frozenset[int], ...]]:
        whole = [frozenset(order[:at]) for at in range(1, len(order))]
        return set(itertools.combinations(whole, min(cuts, len(whole))))

    found = covering(atoms, cuts, MOST_ORDERS)
    assert all(atoms.keeps(order) for order in found) and len(found) == len(set(found))
    assert set().union(*map(ways, found)) == set().union(*map(ways, orders(atoms)))


def test_an_order_that_was_merely_proposed_is_not_called_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all orders are too many to ask, a claim is as strong as a bound for all of them, or sums, make it."""
    monkeypatch.setattr(any_order, "MOST_ORDERS", 0)
    step = replace(free(UNEQUAL), goals=(Goal.STEP_TIME,))
    _, found = decide(step, ask, Limits())
    assert found.proof is Proof.FEASIBLE and found.bound == found.any_order_bound and found.gap
    assert any(note.startswith("proved of this order of the layers alone") for note in found.notes)
    small = [replace(one, device_class=replace(one.device_class, memory_bytes=12_000)) for one in step.servers]
    tight = replace(with_servers(step, small), constraints=replace(step.constraints, memory=True))
    assert ask(tight, Limits()).proof is Proof.INFEASIBLE
    assert decide(tight, ask, Limits())[1].proof is Proof.UNKNOWN
