"""docs/formulation.md against the product: an evaluator written from the page prices every plan the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, islice, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecut.formulation.constraints.layers.pin import Pin
from pipecut.formulation.costs.passes import pipeline_passes
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.predictor.curves import Measured
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import NAMED, Constraints, Goal, OnHost, Recompute
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.options import (
    BoundaryCharge,
    CostModel,
    Samples,
    Sharing,
    StageTime,
    Synchronisation,
)
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from tests.examples import BYTE_LINK, GIGA, PLAIN, chain, instance_of, matrix, mesh
from tests.formulation.page.evaluator import StagePrice, evaluate_page
from tests.formulation.page.layouts import PAIRS
from tests.formulation.page.plans import Case, cases, offered
from tests.generators import on_grids
from tests.laws import so_many

HERE = Path(__file__).parent
WRITTEN_FROM_THE_PAGE = (
    "blocks",
    "chunks",
    "devices",
    "evaluator",
    "goals",
    "layouts",
    "memory",
    "numbers",
    "rules",
    "stages",
)
USER_FACING = {
    "constraints.layers.pin",
    *(
        f"problem.{name}"
        for name in ("cluster", "constraints", "instance", "layers", "options", "plan", "training")
    ),
}
"""Modules with the classes of what a user writes."""
MOST_LINES = 250


def agree(case: Case) -> None:
    """Compare both evaluators, number by number."""
    found, page = evaluate(*case), evaluate_page(*case)
    assert {one.rule for one in found.violations} == page.broken
    assert len(found.stages) == len(page.stages)
    for ours, written in zip(found.stages, page.stages, strict=True):
        assert StagePrice(*(getattr(ours, name) for name in StagePrice.__slots__)) == written
    assert (() if found.objective is None else (found.objective, *found.further)) == page.goals


@settings(max_examples=so_many(100))
@given(cases())
def test_the_page_says_what_is_computed(case: Case) -> None:
    agree(case)


@given(on_grids(), st.data())
def test_the_page_says_what_is_computed_in_grids(
    found: tuple[Instance, tuple[Group, ...]], data: st.DataObject
) -> None:
    """One stage on all devices, with layers in any form that there can be, or with a layer in any form at all."""
    instance, groups = found
    group = data.draw(st.sampled_from(groups))
    forms = [data.draw(st.sampled_from(offered(layer, group))) for layer in instance.layers]
    if data.draw(st.integers(0, 9)) == 0:
        # Of a product in form 5 or 7, by itself or in a pair, the page says no layout.
        product = instance.layers[-1].split is Split.MATRIX
        pairs = [one for one, pair in sorted(PAIRS.items()) if not (product and {5, 7} & {*pair})]
        forms[-1] = data.draw(st.sampled_from(pairs))
    agree(Case(instance, Plan((Stage(Span(0, len(forms)), group, tuple(forms)),))))


def others(case: Case, choice: Random) -> Iterator[Case]:
    """Yield the instance with as many stages cut elsewhere, on each other's groups, in other forms.

    It takes far longer to draw an instance than to price a plan.
    """
    total, many = len(case.instance.layers), len(case.plan)
    while True:
        cuts = sorted(choice.sample(range(1, total), many - 1)) if many <= total else []
        ends = zip([0, *cuts], [*cuts, total], strict=True)
        groups = choice.sample([stage.group for stage in case.plan.stages], min(many, len(cuts) + 1))
        stages = (
            Stage(Span(first, stop), group, tuple(choice.choices((0, 1, 2), k=stop - first)))
            for (first, stop), group in zip(ends, groups, strict=True)
        )
        yield Case(case.instance, Plan(tuple(stages)))


@pytest.mark.slow
@settings(max_examples=so_many(250))
@given(cases(), st.randoms(use_true_random=False))
def test_the_page_says_what_is_computed_of_thousands_of_plans(case: Case, choice: Random) -> None:
    agree(case)
    for other in islice(others(case, choice) if len(case.plan) else iter(()), 9):
        agree(other)


def test_the_busiest_device_in_turning_rows_into_columns_is_not_always_the_fastest() -> None:
    """Replicas of speeds 6 and 1, and 2 and 2: 6/11 * 1/7 of a tensor is less than 2/11 * 2/4."""
    cards = [DeviceClass(f"speed {speed}", 1 << 30, speed * GIGA) for speed in (6, 1, 2)]
    servers = [
        Server(f"s{at}", card, count, BYTE_LINK)
        for at, (card, count) in enumerate(zip(cards, (1, 1, 2), strict=True))
    ]
    pairs = [(one.name, other.name, BYTE_LINK) for one, other in combinations(servers, 2)]
    layers = chain([matrix("a", 9, made=7700), matrix("b", 9)], [7700])
    cost = CostModel(sharing=Sharing.PROPORTIONAL, samples=Samples.FRACTIONS)
    instance = instance_of(layers, cluster_graph("mixed", servers, pairs), cost)
    plan = Plan((Stage(Span(0, 2), Group(((0, 1), (1, 1), (2, 2)), Mode(2)), (0, 1)),))
    agree(Case(instance, plan))
    assert evaluate_page(instance, plan).stages[0].between_ns == 2 * 7700 * 2 * 2 // (4 * 11)


@pytest.mark.parametrize(
    ("stage", "kept"), [(-3, False), (-2, False), (-1, True), (0, False), (1, True), (2, False)]
)
def test_a_pin_to_a_stage(stage: int, kept: bool) -> None:
    limits = Constraints(pins=(Pin("b", stage=stage),))
    graphs = chain([matrix("a"), matrix("b")], [1]), mesh(1, 1)
    instance = build_instance(*graphs, Training(global_batch=1), CostModel(), limits)
    plan = Plan(tuple(Stage(Span(at, at + 1), Group(((at, 1),)), (0,)) for at in (0, 1)))
    agree(Case(instance, plan))
    assert ("pin" not in evaluate_page(instance, plan).broken) is kept


@pytest.mark.parametrize("name", WRITTEN_FROM_THE_PAGE)
def test_the_second_evaluator_takes_only_data_from_the_first(name: str) -> None:
    source = (HERE / f"{name}.py").read_text(encoding="utf-8")
    assert sum(1 for line in source.splitlines() if line.strip()) <= MOST_LINES
    for node in ast.walk(ast.parse(source)):
        assert not (isinstance(node, ast.Import) and any(one.name.startswith("pipecut") for one in node.names))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pipecut."):
            assert (node.module or "").removeprefix("pipecut.formulation.") in USER_FACING
            assert all(alias.name[0].isupper() for alias in node.names), "classes, no functions"


# Places that could be read in two ways: instances on which the readings differ.

STEP = (Goal.STEP_TIME,)


def agreed(instance: Instance, plan: Plan) -> tuple[int, StagePrice]:
    """The first goal and the first stage of a plan, as both evaluators have them."""
    found, page = evaluate(instance, plan), evaluate_page(instance, plan)
    assert found.objective == page.goals[0]
    assert {one.rule for one in found.violations} == page.broken
    for ours, written in zip(found.stages, page.stages, strict=True):
        assert StagePrice(*(getattr(ours, name) for name in StagePrice.__slots__)) == written
    return page.goals[0], page.stages[0]


def in_turn(*layers: int, on: tuple[Group, ...] = ()) -> Plan:
    """Stages of so many layers, one behind another, on one device each unless groups are given."""
    starts = [sum(layers[:at]) for at in range(len(layers) + 1)]
    groups = on or tuple(Group(((at, 1),)) for at in range(len(layers)))
    spans = (Span(first, stop) for first, stop in pairwise(starts))
    return Plan(tuple(Stage(one, group, (0,) * len(one.layers)) for one, group in zip(spans, groups, strict=True)))


def test_what_a_receiver_fetches_hides_in_the_price_of_a_stage_and_behind_no_pass() -> None:
    """Two layers of 30 and 60 ns on a device each; 20 bytes one way take 20 ns."""
    cost = replace(PLAIN, stage_time=StageTime.OVERLAP, boundary_charge=BoundaryCharge.RECEIVER)
    layers = chain([matrix("a", 30), matrix("b", 30)], [20])
    instance = build_instance(layers, mesh(1, 1), Training(global_batch=1), cost, goals=STEP)
    step, first = agreed(instance, in_turn(1, 1))
    assert first.total_ns == max(90, 20)
    assert step == 2 * 90 + 20 + 20
    hidden = max(30, 0) + max(30, 20) + max(60, 0) + max(60, 20)
    assert step != hidden


@pytest.mark.parametrize("again", [False, True, NAMED])
def test_where_layers_are_named_a_stage_may_compute_nothing_all_or_these_again(again: Any) -> None:
    limits = Constraints(recompute=Recompute.ALLOWED, recompute_layers=("a",))
    layers = chain([matrix("a", 30), matrix("b", 30)], [20])
    instance = build_instance(layers, mesh(1), Training(global_batch=1), PLAIN, limits)
    plan = in_turn(2, on=(Group(((0, 1),), Mode(1, again)),))
    _, stage = agreed(instance, plan)
    assert not evaluate_page(instance, plan).broken
    assert stage.compute_ns == 180 + {False: 0, True: 60, NAMED: 30}[again]


@pytest.mark.parametrize("overlapped", [True, False])
def test_stages_of_a_group_synchronise_in_the_order_in_which_they_end(overlapped: bool) -> None:
    """Passes of 8 and 16 ns. The stages of group 0 end at 120 and 88 ns, and take 8 and 50 ns to synchronise."""
    kind = Synchronisation.OVERLAPPED if overlapped else Synchronisation.CHARGED
    layers = chain([matrix(name, 8, 50 if name == "c" else 8) for name in "abcd"], [0, 0, 0])
    cost = replace(PLAIN, synchronisation=kind)
    training = Training(global_batch=4, micro_batches=2, chunks=2)
    limits = Constraints(tensor_parallel_degrees=(1,))
    instance = build_instance(layers, mesh(2, 2), training, cost, limits, STEP)
    pair = [Group(((at, 2),), Mode(2)) for at in (0, 1)]
    step, _ = agreed(instance, in_turn(1, 1, 1, 1, on=(*pair, *pair)))
    assert step == (88 + 50 + 8 if overlapped else 120 + 50 + 8)
    at_once, by_stage = max(88 + 50, 120 + 8), 120 + 8 + 50
    assert not overlapped or step not in (at_once, by_stage)


def test_a_change_of_layout_that_is_computed_again_is_made_of_its_passes() -> None:
    """Half a byte is turned there, half a byte back, at 3 bytes a ns: 1 ns, all of it forward, and that twice."""
    link = Link(24 * GIGA)
    layers = chain([matrix("a", 2, made=1, allowed=(0,)), matrix("b", 2, allowed=(1,))], [1])
    limits = Constraints(recompute=Recompute.ALWAYS)
    instance = build_instance(layers, mesh(2, inside=link), Training(global_batch=2), PLAIN, limits, STEP)
    plan = Plan((Stage(Span(0, 2), Group(((0, 2),), Mode(1, True)), (0, 1)),))
    step, stage = agreed(instance, plan)
    passes = pipeline_passes(instance, plan)
    rounded_once = 1
    assert stage.between_ns == 2 * 1 + 0 != rounded_once
    assert passes.forward_ns[0] + passes.backward_ns[0] == step == stage.total_ns


def test_the_host_takes_the_place_of_the_optimiser_in_what_ends_a_step() -> None:
    """10 bytes of gradients there and of weights back over a link of 1 ns a byte."""
    kind = DeviceClass("with a host", 1 << 40, GIGA, 0, BYTE_LINK, 1000)
    layers, training = chain([matrix("a", 30, 10)], []), Training(global_batch=1)
    steps = {}
    for on_host in (OnHost.NEVER, OnHost.ALWAYS):
        limits = Constraints(optimizer_on_host=on_host)
        instance = build_instance(layers, mesh(1, kind=kind), training, PLAIN, limits, STEP)
        mode = Mode(1, optimizer_on_host=on_host is OnHost.ALWAYS)
        steps[on_host], _ = agreed(instance, in_turn(1, on=(Group(((0, 1),), mode),)))
    assert steps[OnHost.ALWAYS] - steps[OnHost.NEVER] == 20


def test_what_is_lent_to_a_layer_behind_the_stage_counts() -> None:
    """Layer b, computed again behind the cut, reads 20 bytes of a, which the stage of a keeps for it."""
    limits = Constraints(recompute=Recompute.ALLOWED, recompute_layers=("b",))
    layers = chain([matrix("a", 30, made=20), matrix("b", 30)], [20])
    instance = build_instance(layers, mesh(1, 1), Training(global_batch=1), PLAIN, limits)
    peaks = {}
    for again in (False, NAMED):
        group = Group(((0, 1),), Mode(1, again))
        _, first = agreed(instance, in_turn(1, 1, on=(group, Group(((1, 1),)))))
        peaks[again] = first.memory_bytes
    assert peaks[NAMED] - peaks[False] == 20


def test_of_classes_that_tie_the_first_of_the_cluster_sets_the_pace() -> None:
    """The second stage has a server of the second class, then one of the first: 20 and 40 ns, or 40 and 20."""
    kinds = [DeviceClass(name, 1 << 40, GIGA) for name in ("one", "other")]
    servers = [Server(f"s{at}", kinds[which], 1) for at, which in enumerate((0, 1, 0))]
    pairs = [("s0", "s1", BYTE_LINK), ("s0", "s2", BYTE_LINK), ("s1", "s2", BYTE_LINK)]
    first = replace(matrix("a"), measured=(Measured("one", 1, 5, 40), Measured("other", 1, 5, 40)))
    second = replace(matrix("b"), measured=(Measured("one", 1, 20, 40), Measured("other", 1, 40, 20)))
    training = Training(4, 2, schedule=Schedule.GPIPE)
    cluster = cluster_graph("tied", servers, pairs)
    instance = build_instance(chain([first, second], [0]), cluster, training, PLAIN, goals=STEP)
    plan = in_turn(1, 1, on=(Group(((0, 1),)), Group(((1, 1), (2, 1)))))
    step, _ = agreed(instance, plan)
    passes = pipeline_passes(instance, plan)
    assert (passes.forward_ns[1], passes.backward_ns[1]) == (20, 40)
    assert step == (10 + 20 + 20) + (80 + 40 + 80)
    assert step != (10 + 40 + 40) + (80 + 20 + 80)
