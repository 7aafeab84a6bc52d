"""docs/formulation.md against the product: an evaluator written from the page prices every plan the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import combinations, islice
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formulation.constraints.layers.pin import Pin
from formulation.evaluate import evaluate
from formulation.problem.cluster import DeviceClass, Server, cluster_graph
from formulation.problem.groups import Group
from formulation.problem.instance import Instance, build_instance
from formulation.problem.layers import Split
from formulation.problem.modes import Mode
from formulation.problem.options import Constraints, CostModel, Sharing, Training
from formulation.problem.plan import Plan, Span, Stage
from tests.examples import BYTE_LINK, GIGA, chain, instance_of, matrix, mesh
from tests.formulation.page.evaluator import StagePrice, evaluate_page
from tests.formulation.page.layouts import PAIRS
from tests.formulation.page.plans import Case, cases, offered
from tests.generators import on_grids

HERE = Path(__file__).parent
WRITTEN_FROM_THE_PAGE = (
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
    *(f"problem.{name}" for name in ("cluster", "instance", "layers", "model.across", "options", "plan")),
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


@settings(max_examples=100)
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
@settings(max_examples=250)
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
    cost = CostModel(sharing=Sharing.PROPORTIONAL)
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
        assert not (isinstance(node, ast.Import) and any(one.name.startswith("formulation") for one in node.names))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("formulation"):
            assert (node.module or "").removeprefix("formulation.") in USER_FACING
            assert all(alias.name[0].isupper() for alias in node.names), "classes, no functions"
