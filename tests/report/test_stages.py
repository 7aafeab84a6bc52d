"""What a page says of stages: how they share work, times that add up, the bottleneck, memory by kind, colours."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pipecut.commands.parts.tables import StageLines
from pipecut.commands.terminal.terminal import drawn
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.constraints import Goal, Recompute
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.options import Combine
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.formulation.schedules.zero_bubble_h1 import zero_bubble_h1
from pipecut.report.content import content_of
from pipecut.report.page import asset, page_of
from pipecut.report.pictures.shapes import STAGE_COLOURS, stage_colour
from pipecut.report.simulation import simulate
from tests.examples import PLAIN, chain, instance_of, matrix, mesh
from tests.report.runs import case, content

LEAST_CONTRAST = 4.5
COLOUR = re.compile(r"(--[a-z0-9-]+):\s*(#[0-9a-f]{6})")
PAIRS = (
    *((f"s{at}", "on") for at in range(STAGE_COLOURS)),
    *((f"{kind}{at}", "number") for kind in "fb" for at in range(6)),
    *((part, "on") for part in ("compute", "inside", "boundary")),
    *((part, "ink") for part in ("between", "idle")),
    *((words, ground) for words in ("ink", "muted", "alarm") for ground in ("ground", "faint")),
    ("s2", "ground"),
)
"""Colours that letters have, with those that they stand on."""


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def palettes() -> list[dict[str, str]]:
    light, _, rest = asset("picture.css").partition("/* dark */")
    return [dict(COLOUR.findall(part)) for part in (light, rest.partition("/* rules */")[0])]


@pytest.mark.parametrize("palette", palettes(), ids=["light", "dark"])
def test_letters_can_be_read_on_every_colour(palette: dict[str, str]) -> None:
    low = {pair: contrast(*(palette[f"--{name}"] for name in pair)) for pair in PAIRS}
    assert {pair: ratio for pair, ratio in low.items() if ratio < LEAST_CONTRAST} == {}


@pytest.mark.parametrize("palette", palettes(), ids=["light", "dark"])
def test_no_two_of_the_first_stages_look_alike(palette: dict[str, str]) -> None:
    assert len({palette[f"--{stage_colour(at)}"] for at in range(STAGE_COLOURS)}) == STAGE_COLOURS == 24
    assert all(f".{stage_colour(at)} {{" in asset("picture.css") for at in range(STAGE_COLOURS))


def test_times_of_a_stage_and_memory_by_kind_add_up() -> None:
    for stage in content(3, 6)["stages"]:
        price = stage["price"]
        parts = (price[f"{part}_ns"] for part in ("compute", "inside", "between", "received"))
        assert sum(parts) == price["total_ns"] > 0
        assert sum(stage["memory"].values()) == price["memory_bytes"] > 0
    assert "The columns before it add up to the time." in page_of(content(3, 6))


def test_the_bottleneck_and_nothing_else_is_marked() -> None:
    found = content(3, 6)
    times = [(stage["price"]["total_ns"], stage["slowest"]) for stage in found["stages"]]
    times += [(one["price_ns"], one["slowest"]) for one in found["boundaries"]]
    assert [slowest for _, slowest in times] == [time == found["claim"]["objective"] for time, _ in times]
    assert page_of(found).count("<td>bottleneck</td>") == sum(slowest for _, slowest in times) >= 1


def test_nothing_is_marked_where_the_objective_is_a_sum() -> None:
    instance, plan = case(3)
    summed = replace(instance, cost=replace(instance.cost, combine=Combine.SUM))
    assert "<td>bottleneck</td>" not in page_of(content_of(simulate(summed, plan), scenario="a sum"))


def test_replicas_degree_splits_and_recomputation_are_on_the_page() -> None:
    instance, plan = case(2, 4, devices=4)
    wide = replace(
        instance.constraints, tensor_parallel_degrees=(1, 2, 4), recompute=Recompute.ALLOWED, memory=False
    )
    mode = Mode(2, recompute=True)
    first = replace(plan.stages[0], group=Group(plan.stages[0].group.counts, mode), forms=(0, 2))
    found = content_of(
        simulate(replace(instance, constraints=wide), Plan((first, plan.stages[1]))), scenario="modes"
    )
    stage = found["stages"][0]
    assert (stage["replicas"], stage["degree"], stage["recompute"]) == (2, 2, True)
    page = page_of(found)
    assert "2 replicas of 2 devices, recomputes activations" in page
    assert "split by samples (1 layer) and output features (1 layer)" in page


@pytest.mark.parametrize(
    ("goal", "schedule", "called"),
    [
        (Goal.BOTTLENECK, Schedule.ONE_F_ONE_B, "bottleneck"),
        (Goal.ITERATION_TIME, Schedule.ONE_F_ONE_B, "bottleneck"),
        (Goal.ITERATION_TIME, Schedule.NAIVE, "slowest"),
        (Goal.STEP_TIME, Schedule.ONE_F_ONE_B, "slowest"),
        (Goal.PERIOD, Schedule.ASYNC_ONE_F_ONE_B, "slowest"),
    ],
)
def test_the_largest_time_is_called_what_it_is_for_the_goal(goal: Goal, schedule: Schedule, called: str) -> None:
    instance, plan = case(2, 4)
    instance = replace(instance, training=replace(instance.training, schedule=schedule), goals=(goal,))
    shown = content_of(simulate(instance, plan), scenario="goal")
    page = page_of(shown)
    assert shown["claim"]["sums"]["called"] == called
    assert f"<td>{called}</td>" in page and f"outlined: the {called}" in page
    assert ("cannot leave the pipeline" in page) is (called == "bottleneck")
    assert ("a step also fills, drains and waits" in page) is (goal is Goal.STEP_TIME)
    assert ("transfers may hide, or be waited for" in page) is (goal is Goal.PERIOD)
    lines = outcome_of_stages(instance, plan)
    assert ("* the bottleneck" in lines) is (called == "bottleneck") and "\n* the" in lines


def test_stages_of_one_group_say_so_and_are_marked_together() -> None:
    layers = chain([matrix(f"block{at}", 8, 100) for at in range(5)], [5] * 4)
    instance = instance_of(layers, mesh(1, 1, between=Link(10**12)), PLAIN, Training(2, 2, chunks=2))
    groups = [Group(((at, 1),)) for at in range(2)]
    cuts = (0, 1, 2, 4, 5)
    plan = Plan(
        tuple(
            Stage(Span(cuts[at], cuts[at + 1]), groups[at % 2], (0,) * (cuts[at + 1] - cuts[at]))
            for at in range(4)
        )
    )
    table = StageLines(instance, plan, evaluate(instance, plan))
    stages = {line.cells[0]: line for line in table.lines if ">" not in line.cells[0]}
    assert [stages[str(at)].slowest for at in range(4)] == [True, False, True, False]
    assert [stages[str(at)].words.split(", ")[:2] for at in range(4)] == [
        ["group 0", "chunk 1 of 2"],
        ["group 1", "chunk 1 of 2"],
        ["group 0", "chunk 2 of 2"],
        ["group 1", "chunk 2 of 2"],
    ]
    shown = content_of(simulate(instance, plan), scenario="chunks")
    assert [stage["slowest"] for stage in shown["stages"]] == [True, False, True, False]
    assert "group 1, chunk 2 of 2" in page_of(shown)


def test_in_a_v_both_ways_between_two_groups_are_one_link_and_the_turn_is_none() -> None:
    layers = chain([matrix(f"block{at}", 8, 100) for at in range(4)], [500, 9_000, 400])
    training = Training(2, 2, schedule=Schedule.ZERO_BUBBLE_V)
    instance = instance_of(layers, mesh(1, 1, between=Link(10**6)), PLAIN, training)
    held = [Group(((at, 1),)) for at in (0, 1, 1, 0)]
    plan = Plan(tuple(Stage(Span(at, at + 1), one, (0,)) for at, one in enumerate(held)))
    table = StageLines(instance, plan, evaluate(instance, plan))
    assert [line.slowest for line in table.lines] == [False, True, False, False, False, True, False]
    shown = content_of(simulate(instance, plan), scenario="v")
    assert [one["price_ns"] == 0 for one in shown["boundaries"]] == [False, True, False]
    assert "group 0, chunk 2 of 2" in page_of(shown)


def test_another_order_of_a_plan_in_a_v_counts_the_devices_of_its_ranks() -> None:
    layers = chain([matrix(f"block{at}", 8, 100) for at in range(4)], [5] * 3)
    training = Training(2, 2, schedule=Schedule.ZERO_BUBBLE_V)
    instance = instance_of(layers, mesh(1, 1, between=Link(10**12)), PLAIN, training)
    held = [Group(((at, 1),)) for at in (0, 1, 1, 0)]
    plan = Plan(tuple(Stage(Span(at, at + 1), one, (0,)) for at, one in enumerate(held)))
    assert simulate(instance, plan).evaluation.feasible
    found = simulate(instance, plan, zero_bubble_h1(4, 2)).evaluation.violations
    assert {one.rule for one in found} == {"devices", "line"}


def outcome_of_stages(instance: Instance, plan: Plan) -> str:
    return drawn(StageLines(instance, plan, evaluate(instance, plan)), width=80)
