"""Stages, claims and mistakes as a person reads them: whole names, numbers that add up, words at any width."""

from __future__ import annotations

import importlib.metadata
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from pipecut.commands.outputs.schema import OUTPUTS
from pipecut.commands.parser.grammar import EXAMPLES, did_you_mean
from pipecut.commands.parser.options import grammar_for
from pipecut.commands.parts.tables import KEYS, KeyLines, StageLines, measure_lines, stage_in_words
from pipecut.commands.terminal.progress import progress_text
from pipecut.commands.terminal.terminal import broken, drawn
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.constraints import Constraints, Recompute
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.options import Combine, CostModel
from pipecut.formulation.problem.plan import Plan, Span, Stage
from tests.command_line import Command
from tests.examples import PLAIN, chain, instance_of, matrix, mesh
from tests.report.runs import content

LONG = "a.layer.of.many.modules"


def example(cost: CostModel = PLAIN) -> tuple[Instance, Plan]:
    layers = chain([matrix(f"{LONG}.{index}", 8, 4, taken=4, made=4) for index in range(4)], [4, 4, 4])
    constraints = Constraints(tensor_parallel_degrees=(1, 2), recompute=Recompute.ALLOWED, memory=False)
    instance = replace(instance_of(layers, mesh(4, 2), cost), constraints=constraints)
    plan = Plan(
        (
            Stage(Span(0, 3), Group(((0, 4),), Mode(2, recompute=True)), (0, 0, 2)),
            Stage(Span(3, 4), Group(((1, 2),), Mode(2)), (0,)),
        )
    )
    return instance, plan


@pytest.mark.parametrize("width", [60, 80, 100, 160, 240])
def test_names_and_words_are_whole_at_any_width(width: int) -> None:
    instance, plan = example()
    text = drawn(StageLines(instance, plan, evaluate(instance, plan)), width=width)
    assert f"{LONG}.0" in text and f"{LONG}.2" in text and f"{LONG}.3" in text
    assert max(map(len, text.splitlines())) <= width
    assert set(re.findall(r"\w+", stage_in_words(instance, plan, 0))) <= set(re.findall(r"\w+", text))


def test_a_stage_says_replicas_degree_splits_and_recomputation() -> None:
    instance, plan = example()
    one, two = (stage_in_words(instance, plan, at) for at in range(2))
    assert "2 replicas of 2 devices, recomputes activations" in one
    assert "split by samples (2 layers) and output features (1 layer)" in one and one.endswith("(3 layers)")
    assert "2 replicas of 1 device: " in two and "split" not in two and two.endswith(f"{LONG}.3 (1 layer)")


def test_exactly_the_largest_times_are_marked() -> None:
    instance, plan = example()
    found = evaluate(instance, plan)
    lines = StageLines(instance, plan, found).lines
    times = [found.stages[0].total_ns, found.stages[1].boundary_ns, found.stages[1].total_ns]
    assert [line.slowest for line in lines] == [time == max(times) == found.objective for time in times]
    assert [line.cells[0] for line in lines] == ["0", "0 > 1", "1"]


def test_where_the_objective_is_a_sum_the_last_line_is_it() -> None:
    instance, plan = example(replace(PLAIN, combine=Combine.SUM))
    found = evaluate(instance, plan)
    table = StageLines(instance, plan, found)
    assert table.lines[-1].cells[0] == "sum" and not any(line.slowest for line in table.lines)
    assert found.objective == sum(cost.total_ns + cost.boundary_ns for cost in found.stages)


def test_values_break_between_words_under_one_another_and_are_whole_for_a_program() -> None:
    lines = KeyLines([("note", "one two three four five six seven")])
    narrow = drawn(lines, width=KEYS + 10).splitlines()
    assert narrow == ["note       one two", *(" " * KEYS + words for words in ("three four", "five six", "seven"))]
    assert drawn(lines, width=KEYS + 10, whole=True) == f"{lines}\n"


def test_the_progress_line_says_how_long_it_may_still_take() -> None:
    assert progress_text("x", None, 4, left_s=56) == "x: 4 s, at most 56 s more"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("pln", "x.yaml"), "plan"),
        (("plan", "x.yaml", "--sovler", "cpsat"), "--solver"),
        (("plan", "x.yaml", "--time-limits=3"), "--time-limit"),
        (("plan", "x.yaml", "--solver", "cpst"), "cpsat"),
        (("compare", "x.yaml", "--solvers", "cpsat,line_pd"), "line_dp"),
    ],
)
def test_what_was_meant_is_asked(pipecut: Command, words: tuple[str, ...], meant: str) -> None:
    ran = pipecut(*words)
    assert ran.code == 2 and ran.err.rstrip().endswith(f"did you mean '{meant}'?")


def test_nothing_is_suggested_for_what_is_near_nothing() -> None:
    assert did_you_mean("zzz", ("plan", "compare")) == ""


def test_every_command_has_examples_that_the_command_line_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    assert {name for name in OUTPUTS if name in grammar_for([])} == set(EXAMPLES)


@pytest.mark.parametrize(
    "line", [line for rows in EXAMPLES.values() for line, _ in rows], ids=lambda line: line[:40]
)
def test_an_example_parses(line: str) -> None:
    import shlex

    from pipecut.commands.parser.options import parse

    assert parse(shlex.split(line)).run.startswith("pipecut.commands.")


def test_files_that_were_written_are_named(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("simulate", scenario, "--out", "page.html", "--trace", "trace.json")
    assert "page.html: the page\n" in ran.err and "trace.json: the trace\n" in ran.err


def test_a_plan_in_the_place_of_a_scenario_is_told_as_such(pipecut: Command, scenario: Path) -> None:
    pipecut("plan", scenario, "--out", "plan.json")
    ran = pipecut("evaluate", scenario, "plan.json")
    assert ran.code == 2
    assert ran.err == "plan.json: this is a plan, expected a scenario (YAML); a plan comes before it\n"


def test_a_broken_memory_limit_is_told_with_both_numbers(pipecut: Command, scenario: Path) -> None:
    pipecut("plan", scenario, "--out", "plan.json")
    ran = pipecut("evaluate", "plan.json", scenario, "--no-optimum", "--set", "cluster.devices.card.memory=3 MB")
    assert ran.code == 1 and re.search(
        r"stage 0 needs [\d.]+ MiB \(\d,\d{3},\d{3} bytes\) on .* which have 2\.862 MiB \(3,000,000 bytes\)",
        ran.out,
    )


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("short", "short"),
        ("one of auto, cpsat, line_dp, state_dp", "one of auto, cpsat,\n    line_dp,\n    state_dp"),
        ("  further in, and longer than it", "  further in, and\n      longer than it"),
        ("a https://example.org/a/long/address-of/a-page", "a\n    https://example.org/a/long/address-of/a-page"),
    ],
)
def test_remarks_are_broken_between_words(line: str, shown: str) -> None:
    assert broken(line, 20) == shown


def test_a_run_fits_into_eighty_columns() -> None:
    found = content(4, 12)
    lines = list(measure_lines(found))
    assert max(map(len, lines)) <= 80
    words = " ".join(" ".join(lines).split())
    for row in found["measures"]:
        assert row["name"] in words and row["source"] in words


def test_a_run_says_what_it_is_worth() -> None:
    found = content(4, 12)
    nothing = dict.fromkeys(found["throughput"])
    assert "throughput" not in " ".join(measure_lines(found | {"throughput": nothing}))
    rates = {"samples_per_second": 1234.5, "tflops_per_device": 100.0, "model_flops_utilisation": 0.25}
    *_, rate, flops = measure_lines(found | {"throughput": nothing | rates})
    assert "1,234 samples/s" in rate and "tokens" not in rate
    assert "100 TFLOP/s a device, 25.0 % of the peak" in flops
    tokens = {"tokens_per_second": 2e6, "price_of_step": 0.125}
    *_, rate, _, price = measure_lines(found | {"throughput": nothing | rates | tokens})
    assert rate.endswith("1,234 samples/s, 2e+06 tokens/s") and price.endswith(" 0.125")


def test_only_the_key_of_a_line_is_bold() -> None:
    screen = Console(width=40, file=io.StringIO())
    (line,) = KeyLines([("note", "some words")]).__rich_console__(screen, screen.options)
    assert line.plain == "note".ljust(KEYS) + "some words" and not line.style
    assert [(span.start, span.end, span.style) for span in line.spans] == [(0, KEYS, "bold")]
