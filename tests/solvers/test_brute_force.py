"""The enumeration: complete, without repetition, and honest about what it has not seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.cluster import DeviceClass
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement, Recompute
from pipecut.formulation.problem.training import Training
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.exhaustive import count_plans, plans
from tests.examples import GIGA, chain, follow, instance_of, join, matrix, mesh, vgg16
from tests.generators import cluster_graphs, instances, layer_graphs
from tests.problems import dealt_out, problems

TWO = instance_of(chain([matrix("a", 10), matrix("b", 20)], [5]), mesh(2))


constraints = st.builds(
    Constraints, placement=st.sampled_from(Placement), max_servers=st.sampled_from([None, None, 1, 2])
)


@given(instances(), constraints)
def test_counts_what_it_enumerates(instance, limits):
    instance = replace(instance, constraints=limits)
    number = count_plans(instance)
    assume(number <= 2000)
    every = list(plans(instance))
    assert len(every) == len(set(every)) == number
    assert all(evaluate(instance, plan).feasible for plan in every[:50])


@st.composite
def blocks_again(draw):
    """Small instances whose stages may compute any set of blocks again, by themselves."""
    made = draw(instances(layer_graphs(4), cluster_graphs(3)))
    return replace(made, constraints=replace(draw(constraints), recompute=Recompute.BLOCKS))


@given(st.one_of(dealt_out(), problems(), blocks_again()))
def test_counts_every_kind_of_plan(instance):
    """With chunks, blocks computed again and warm-ups that are chosen; a limit changes no number below it."""
    number = count_plans(instance)
    assume(number <= 5000)
    assert sum(1 for _ in plans(instance)) == number == count_plans(instance, max(number, 5000))
    if number > 1:
        assert count_plans(instance, number - 1) >= number


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("layers", "servers", "asked"),
    [
        (1200, (1, 1), Constraints()),
        (600, (1, 1, 1), Constraints(placement=Placement.FREE)),
        (80, (1, 1), Constraints(recompute=Recompute.BLOCKS)),
        (2, (8,) * 512, Constraints(placement=Placement.FREE)),
        (3, (4096,), Constraints(stages_at_least=3)),
        (4000, (8,) * 128, Constraints(recompute=Recompute.ALLOWED)),
    ],
)
def test_an_instance_of_any_size_is_answered_for_in_few_steps(layers, servers, asked):
    """It was cubic in layers, and made every set of blocks: minutes, or for ever, and nobody could stop it."""
    chained = chain([matrix(f"l{at}") for at in range(layers)], [1] * (layers - 1))
    instance = replace(instance_of(chained, mesh(*servers)), constraints=asked)
    support = brute_force.accepts(instance)
    assert support.proves or "expected at most" in support.reason or "groups of devices" in support.reason


def test_few_plans_of_a_long_chain_are_counted():
    """Two devices that no stage shares: one stage on the first, or two with a cut anywhere."""
    chained = chain([matrix(f"l{at}") for at in range(1200)], [1] * 1199)
    instance = replace(instance_of(chained, mesh(1, 1)), constraints=Constraints(max_servers=1))
    assert count_plans(instance) == 1 + 1199 and brute_force.accepts(instance).proves


def test_warm_ups_are_counted_no_further_than_needed():
    training = Training(512, 512, warm_up="choose")
    instance = instance_of(
        chain([matrix(f"l{at}") for at in range(8)], [1] * 7), mesh(*[1] * 8), training=training
    )
    instance = replace(instance, goals=(Goal.STEP_TIME,), constraints=Constraints(max_servers=1))
    assert "expected at most" in brute_force.accepts(instance).reason


def test_free_placement_by_hand():
    """Two layers, two servers of one device. One stage: on either (1 each), on both (9). Two: in 2 orders."""
    instance = instance_of(chain([matrix("a"), matrix("b")], [0]), mesh(1, 1))
    assert count_plans(instance) == 1 + 9 + 1
    free = replace(instance, constraints=Constraints(placement=Placement.FREE))
    assert count_plans(free) == 2 + 9 + 2
    assert count_plans(replace(free, constraints=replace(free.constraints, max_servers=1))) == 2 + 2


@given(instances(layer_graphs(4), cluster_graphs(3)))
def test_free_placement_never_hurts(instance):
    free = replace(instance, constraints=Constraints(placement=Placement.FREE))
    assume(count_plans(free) <= 1000)
    found, bound = (checked(one, brute_force.solve(one)).objective for one in (instance, free))
    assert found is not None and bound is not None
    assert bound <= found


def test_memory_is_left_to_the_rules():
    """The layer needs 240 bytes on one device; split by form 1 or 2 among two, 120."""
    layers = chain([matrix("a", 1, weights=80)], [])
    proofs = []
    for memory in (119, 120, 240):
        instance = instance_of(layers, mesh(2, kind=DeviceClass("small", memory, GIGA)))
        limited = replace(instance, constraints=Constraints(memory=True))
        outcome = checked(limited, brute_force.solve(limited))
        proofs.append((outcome.proof, outcome.plan and outcome.plan.stages[0].group.devices))
    assert proofs == [(Proof.INFEASIBLE, None), (Proof.OPTIMAL, 2), (Proof.OPTIMAL, 2)]


@pytest.mark.parametrize(
    ("layers", "devices", "number"),
    [
        ([matrix("a"), matrix("b")], 1, 1),
        ([matrix("a"), matrix("b")], 2, 1 + 9 + 1),
        ([matrix("a"), follow("b")], 2, 1 + 3 + 1),
        ([matrix("a", allowed=(0, 2)), join("b", allowed=(1,))], 2, 1 + 2 + 1),
        ([matrix("a"), matrix("b")], 3, (1 + 9 + 9) + (1 + 3 + 3)),
    ],
)
def test_counts_by_hand(layers, devices, number):
    """One stage on 1 .. D devices, then two stages; three forms for each matrix on several devices."""
    instance = instance_of(chain(layers, [0]), mesh(devices))
    assert count_plans(instance) == number == len(list(plans(instance)))


def test_the_best_of_eleven():
    """Together on one device 90 ns; on two, 45 ns and 2 * 5 / 4 for a change of layout or none at all."""
    outcome = checked(TWO, brute_force.solve(TWO))
    assert (outcome.proof, outcome.objective, outcome.bound) == (Proof.OPTIMAL, 45, 45)


def test_of_equal_plans_the_first_is_kept():
    best = brute_force.solve(TWO)
    equal = [plan for plan in plans(TWO) if evaluate(TWO, plan).objective == best.objective]
    assert len(equal) > 1
    assert best.plan == equal[0]


def test_accept_is_a_constraint():
    outcome = checked(TWO, brute_force.solve(TWO, accept=lambda plan: len(plan) == 2))
    assert (outcome.proof, outcome.objective) == (Proof.OPTIMAL, 60)
    none = checked(TWO, brute_force.solve(TWO, accept=lambda plan: len(plan) == 3))
    assert (none.proof, none.plan) == (Proof.INFEASIBLE, None)


def test_too_many_plans_are_refused_at_once():
    instance = instance_of(vgg16(), mesh(8))
    assert count_plans(instance) > 10**12
    with pytest.raises(ValueError, match=r"plans to price one by one, expected at most 200000"):
        brute_force.solve(instance)
    with pytest.raises(ValueError, match="11 plans to price one by one, expected at most 10"):
        brute_force.solve(TWO, max_plans=10)


def test_stopped_early_it_says_so():
    asked: list[int] = []

    def stopped():
        asked.append(1)
        return len(asked) > 2

    outcome = checked(TWO, brute_force.solve(TWO, Limits(stopped=stopped)))
    assert (outcome.proof, outcome.bound) == (Proof.FEASIBLE, 45)
    assert "stopped early" in outcome.notes
    none = checked(TWO, brute_force.solve(TWO, Limits(time_limit_s=0.0)))
    assert (none.proof, none.plan) == (Proof.UNKNOWN, None)


def test_progress_only_goes_down():
    told: list[int | None] = []
    outcome = brute_force.solve(TWO, Limits(progress=lambda step: told.append(step.objective)))
    assert told == sorted(told, key=lambda value: -(value or 0))
    assert told[-1] == outcome.objective
