"""``constraints.memory`` with a margin: what devices then offer, what breaks the rule, what loosens it, words."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.constraints.devices.memory import Memory, more_memory
from pipecut.formulation.constraints.devices.reserve import Reserve
from pipecut.formulation.costs.memory import MemoryParts
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance, build_instance, with_servers
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Training
from pipecut.formulation.scope import scope_of, scope_parts
from pipecut.ingest.mistakes import ScenarioError
from pipecut.ingest.scenario.load import load_scenario
from pipecut.ingest.scenario.shipped import SHIPPED
from tests.examples import chain, matrix

FILE = SHIPPED / "witness" / "line.yaml"
LAYERS = [matrix("a", 10, weights=40), matrix("b", 10, weights=40)]
margins = st.fractions(0, 1, max_denominator=97)


def problem(memory: int, margin: Fraction, reserve: int = 0) -> Instance:
    servers = [Server("node", DeviceClass("card", memory, 10**9), 1, None)]
    kept = (Reserve("node", reserve),) if reserve else ()
    limits = Constraints(memory=True, memory_margin=margin, reserve=kept)
    return build_instance(chain(LAYERS, [4]), cluster_graph("one", servers, []), Training(2), CostModel(), limits)


PLAN = Plan((Stage(Span(0, 2), Group(((0, 1),)), (0, 0)),))


@given(st.integers(500, 2000), margins, st.integers(0, 400))
def test_a_plan_fits_if_it_fits_with_the_margin(memory: int, margin: Fraction, reserve: int) -> None:
    """The rule by its words: what is predicted, and the margin of it, is within what is not reserved."""
    instance = problem(memory, margin, reserve)
    needed = MemoryParts.of_stage(instance, PLAN, 0).total
    fits = needed * (1 + margin) <= memory - reserve
    assert evaluate(instance, PLAN).feasible is fits


@given(st.integers(500, 2000), margins, st.integers(0, 400), st.integers(0, 300))
def test_what_devices_offer_can_be_given_back(memory: int, margin: Fraction, reserve: int, more: int) -> None:
    instance = problem(memory, margin, reserve)
    assert with_servers(instance, instance.servers).servers == instance.servers
    offered = instance.servers[0].device_class.memory_bytes
    assert more_memory(instance, ["card"], more).servers[0].device_class.memory_bytes == offered + more


def test_a_stage_that_is_too_large_beside_the_margin_is_told_so_and_what_loosens_it() -> None:
    needed = MemoryParts.of_stage(problem(2000, Fraction(0)), PLAN, 0).total
    assert evaluate(problem(needed, Fraction(0)), PLAN).feasible
    instance = problem(needed, Fraction(1, 20))
    (found,) = evaluate(instance, PLAN).violations
    assert "beside a margin of 5 %" in found.message
    margin, memory = instance.constraints.of(Memory).loosenings(instance)
    assert (margin.path, margin.words) == (
        "constraints.memory.margin",
        "a stage may take 5 % more memory than is predicted",
    )
    left_out = instance.constraints.of(Memory).without({("memory_margin", 0)}, instance)
    assert evaluate(replace(instance, constraints=replace(instance.constraints, **left_out)), PLAN).feasible
    assert f"{needed:,} bytes" in memory.words
    assert memory.slack is not None
    assert memory.slack.say(100).startswith("105 bytes more memory")
    assert "memory limited with a margin of 5 %" in scope_parts(scope_of(instance))


def test_a_margin_is_at_most_the_whole_again() -> None:
    with pytest.raises(ValueError, match="memory_margin is 3/2, expected 0 to 1"):
        Memory(memory=True, memory_margin=Fraction(3, 2))


@pytest.mark.parametrize(
    ("written", "limited", "margin"),
    [("true", True, 0), ("false", False, 0), ("{margin: 0.05}", True, Fraction(1, 20))],
)
def test_it_is_read(written: str, *, limited: bool, margin: Fraction, tmp_path: Path) -> None:
    found = load_scenario(scenario(tmp_path, written)).constraints
    assert (found.memory, found.memory_margin) == (limited, margin)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{margin: 2}", "constraints.memory.margin: expected at most 1, twice the predicted memory, got 2"),
        ("{margen: 0.1}", "constraints.memory.margen: unknown key; did you mean 'margin'?"),
        ("{margin: -1}", "constraints.memory.margin: expected a number of 0 or more"),
        ("{}", "constraints.memory.margin: missing"),
    ],
)
def test_what_is_no_margin_is_told(written: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(scenario(tmp_path, written))
    assert said in str(caught.value)


def scenario(folder: Path, memory: str) -> Path:
    path = folder / "it.yaml"
    text = FILE.read_text(encoding="utf-8")
    path.write_text(text.replace("constraints:\n", f"constraints:\n  memory: {memory}\n"), encoding="utf-8")
    return path
