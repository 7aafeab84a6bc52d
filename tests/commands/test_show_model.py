"""``pipecut plan --show-model``: the model in words, in 80 columns, and who answers in its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.command_line import Command

LINE = ("--set", "constraints.placement=line", "--set", "objective=iteration_time")
FREE = ("--set", "constraints.placement=free")
TYPES = (*LINE, "--set", "training.schedule=one_f_one_b", "--set", "training.micro_batches=4")
STEP = (*TYPES, "--set", "objective=step_time")


def _sections(text: str) -> dict[str, list[str]]:
    parts = (part.splitlines() for part in text.split("\n\n"))
    return {re.sub(r"^[\d,]+ ", "", lines[0]): lines[1:] for lines in parts}


@pytest.mark.parametrize("options", [(), TYPES, STEP, FREE, ("--solver", "cpsat", *TYPES)])
def test_a_model_is_shown_in_eighty_columns(
    pipecut: Command, scenario: Path, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    ran = pipecut("plan", scenario, "--show-model", *options)
    assert ran.code == 0 and ran.err == ""
    assert all(len(line) <= 80 for line in ran.out.splitlines()) and "`" not in ran.out
    found = _sections(ran.out)
    name = "cpsat_types" if options in ((), TYPES, STEP) else "cpsat"
    assert ran.out.startswith(f"model        {name}, the declarative model")
    assert {"question", "variables", "constraints", "terms"} <= found.keys()
    assert ("types of stages" in found) is (name == "cpsat_types")
    assert ("not shown" in ran.out) is (options == FREE)
    assert any(line.split()[0] == ("one" if name == "cpsat_types" else "cover") for line in found["constraints"])


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "options",
    [
        LINE,
        TYPES,
        STEP,
        (*TYPES, "--set", "constraints.stages.at_least=2"),
        ("--solver", "line_dp", *LINE, "--set", "objective=bottleneck", "--set", "constraints.memory=false"),
        ("--solver", "brute_force"),
        ("--solver", "cpsat"),
    ],
)
def test_who_answers_is_who_has_answered(pipecut: Command, scenario: Path, options: tuple[str, ...]) -> None:
    answered = pipecut("plan", scenario, "--no-cross-check", "--json", *options).json
    said = pipecut("plan", scenario, "--show-model", *options).out
    shown = said.split(",")[0].split()[-1]
    named = re.search(r"^answered +by (\w+),", said, re.MULTILINE)
    assert answered["proof"] in ("optimal", "infeasible")
    assert answered["solver"] == (shown if named is None else named.group(1))


def test_choices_of_the_training_are_told(pipecut: Command, scenario: Path) -> None:
    text = pipecut("plan", scenario, "--show-model", *TYPES, "--set", "training.micro_batches=[1, 2, 4]").out
    said = " ".join(text.split())
    assert "3 choices of the training, each with models of its own; here 2 micro-batches" in said
    assert "4 devices, 2 micro-batches stages" in said


@pytest.mark.parametrize("option", [("--json",), ("--out", "plan.json"), ("--certificate", "proof.json")])
def test_it_writes_no_plan(pipecut: Command, scenario: Path, option: tuple[str, ...]) -> None:
    ran = pipecut("plan", scenario, "--show-model", *option)
    assert ran.code == 2 and "--show-model finds no plan" in ran.out + ran.err
    assert not Path("plan.json").exists()


def test_where_no_model_takes_the_question_the_reasons_are_told(pipecut: Command, scenario: Path) -> None:
    ran = pipecut(
        "plan",
        scenario,
        "--show-model",
        *TYPES,
        "--set",
        "training.schedule=zero_bubble_h1",
        "--set",
        "objective=step_time",
    )
    assert ran.code == 2 and "there is no model to show: cpsat_types" in ran.err
    ran = pipecut("plan", scenario, "--show-model", "--solver", "cpsat_types", *FREE)
    assert ran.code == 2 and "there is no model to show: cpsat_types puts stages on the line" in ran.err


def test_a_model_that_is_not_there_in_time_is_none(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("plan", scenario, "--show-model", "--time-limit", "1 ns", "--quiet")
    assert ran.code == 3 and ran.out == ""
