"""Numbers whose sums could leave 64 bits are refused where an instance is made, with both numbers."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings

import pipecut
from pipecut.formulation.constraints.devices.memory import enough_bytes
from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.costs.bounds import ceiling
from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import build_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.cluster import Cluster
from pipecut.formulation.problem.constraints import Constraints, Goal
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import (
    MOST,
    MOST_NS,
    Instance,
    MagnitudeError,
    build_instance,
    longest_ns,
    most_bytes,
)
from pipecut.formulation.problem.layers import LayerGraph
from pipecut.formulation.problem.options import BoundaryCharge, CostModel
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.solvers.exhaustive import plans
from tests.examples import PLAIN, UNIT, chain, instance_of, matrix, mesh, on_servers
from tests.generators import instances
from tests.laws import so_many

ONE = instance_of(chain([matrix("a", 1), matrix("b", 10)], [4]), mesh(1, 2))
"""Forward and backward of the second layer take 30 ns; whatever is small is called so."""


def dear(price: int) -> Instance:
    kind = replace(UNIT, price_per_hour=price)
    return on_servers(ONE, [replace(server, device_class=kind) for server in ONE.servers])


def sized(**sizes: int) -> Instance:
    layers = [matrix("a", 1), replace(matrix("b", 10), **sizes)]
    return instance_of(chain(layers, [4]), mesh(1, 2))


LARGE = 2**63 - 1
"""The largest number of a layer graph file."""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sized(macs=LARGE), f"layer b alone takes {3 * LARGE} ns"),
        (lambda: sized(parameter_bytes=LARGE), "one micro-batch can take"),
        (lambda: sized(input_bytes=LARGE), "one micro-batch can take"),
        (lambda: sized(output_bytes=LARGE), "one micro-batch can take"),
        (lambda: sized(stash_bytes=LARGE), f"layer b alone has {LARGE} of them"),
        (
            lambda: replace(ONE, cost=replace(PLAIN, backward_factor=Fraction(10**24 - 1))),
            f"less than {MOST_NS} ns",
        ),
        (lambda: replace(ONE, training=Training(10**17)), f"less than {MOST_NS} ns"),
        (lambda: replace(ONE, training=Training(10**17, 10**17)), f"a step of {10**17} micro-batches can take"),
        (lambda: dear(10**18), f"all devices cost {3 * 10**18} millionths an hour, and less than {MOST}"),
        (
            lambda: replace(ONE, constraints=Constraints(at_most=(GoalLimit(Goal.COST, 10**30),))),
            f"constraints.at_most.cost is {10**30}",
        ),
        (
            lambda: replace(ONE, constraints=Constraints(stages_at_most=10**30)),
            "constraints.stages_at_most is 1000",
        ),
        (lambda: replace(ONE, constraints=Constraints(max_servers=10**30)), "constraints.max_servers is 1000"),
        (
            lambda: replace(ONE, constraints=Constraints(devices_per_stage=(1, 10**30))),
            "constraints.devices_per_stage is 1000",
        ),
    ],
)
def test_what_is_too_large_is_said_with_both_numbers(make, words: str) -> None:
    with pytest.raises(ValueError, match="can be counted") as caught:
        make()
    assert words in str(caught.value)


def test_every_problem_is_said_at_once() -> None:
    layers = chain([replace(matrix("b", LARGE), stash_bytes=LARGE)], [])
    with pytest.raises(ValueError, match=r"ns can be counted; .* bytes can be counted; "):
        build_instance(layers, mesh(1), Training(1), CostModel())


def test_a_large_memory_is_no_problem() -> None:
    """More than any stage can need is as good as enough: no sum is formed of it."""
    servers = [replace(one, device_class=replace(one.device_class, memory_bytes=10**30)) for one in ONE.servers]
    instance = on_servers(replace(ONE, constraints=Constraints(memory=True)), servers)
    held = MemoryTables.of(build_tables(instance, Group.possible(instance)))
    assert set(held.capacity) == {most_bytes(instance)}


def test_runs_without_a_flush_count_all_their_steps() -> None:
    """The timeline runs at least sixteen micro-batches of them."""
    training = Training(2**49, schedule=Schedule.ASYNC_ONE_F_ONE_B)
    with pytest.raises(ValueError, match="16 steps of 1 micro-batches can take"):
        replace(ONE, training=training)
    assert replace(ONE, training=replace(training, schedule=Schedule.GPIPE)).training.micro_batches == 1


@settings(max_examples=so_many(100), deadline=None)
@given(instances())
def test_no_plan_and_no_table_exceeds_what_is_counted_with(instance: Instance) -> None:
    tables = build_tables(instance, Group.possible(instance))
    assert ceiling(tables, Goal.BOTTLENECK) <= longest_ns(instance) < MOST_NS
    assert most_bytes(instance) < MOST and enough_bytes(instance) < 4 * MOST
    for plan, _ in zip(plans(instance), range(200), strict=False):
        priced = evaluate(instance, plan)
        by_links = instance.cost.boundary_charge is BoundaryCharge.LINK  # else stages have paid already
        spent = sum(stage.total_ns + stage.boundary_ns * by_links for stage in priced.stages)
        assert spent <= longest_ns(instance)
        assert max(stage.memory_bytes for stage in priced.stages) <= most_bytes(instance)


def test_the_first_layer_starts_a_stage_whatever_forbids_cuts_there() -> None:
    """A pattern of ``no_cut`` may match the first layer; two stages hold two versions all the same."""
    training = Training(2, 2, schedule=Schedule.ASYNC_ONE_F_ONE_B)
    layers = [replace(matrix(name, 1), parameter_bytes=100) for name in "ab"]
    free = replace(instance_of(chain(layers, [4]), mesh(1, 2)), training=training)
    assert most_bytes(replace(free, constraints=Constraints(no_cut=("a",)))) == most_bytes(free)
    assert most_bytes(replace(free, constraints=Constraints(no_cut=("b",)))) < most_bytes(free)


@pytest.mark.parametrize(
    ("numbers", "kept"), [((1, 10, 100), (10, 100)), ((10, 1), (10,)), ((10, 100), (10, 100))]
)
def test_choices_that_cannot_be_counted_are_left_out(numbers: tuple[int, ...], kept: tuple[int, ...]) -> None:
    training = Training(4 * 10**15, numbers[0], micro_batch_choices=numbers)
    layers, cluster = chain([matrix("a", 1), matrix("b", 10)], [0]), mesh(1, 1)
    found = pipecut.build(LayerGraph.of(layers), Cluster.of(cluster), training, cost=PLAIN)
    assert tuple(one.micro_batches for one in found.training.choices) == kept
    assert found.training.micro_batches == kept[0]
    notes = [note for note in found.model.notes if "left out" in note]
    assert bool(notes) == (kept != numbers)
    if notes:
        assert notes[0].startswith("training.micro_batches: 1 left out") and f"less than {MOST_NS} ns" in notes[0]


def test_where_no_choice_can_be_counted_the_least_says_why() -> None:
    training = Training(10**17, 1, micro_batch_choices=(1, 10**17))
    layers, cluster = chain([matrix("a", 1)], []), mesh(1)
    with pytest.raises(MagnitudeError, match=f"less than {MOST_NS} ns"):
        pipecut.build(LayerGraph.of(layers), Cluster.of(cluster), training, cost=PLAIN)
