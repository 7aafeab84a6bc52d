"""A mode is one value: listed once, judged by its rule, written and read whole, and carried along by everybody."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formulation.constraints.rules import check_mode
from formulation.evaluate import evaluate
from formulation.outcome import Limits, Outcome
from formulation.problem import modes as modes_of
from formulation.problem.demands import with_constraints
from formulation.problem.groups import Group, group_kind, possible_groups
from formulation.problem.instance import Instance
from formulation.problem.modes import (
    MODE_KEYS,
    ONE_COPY,
    Mode,
    every_mode,
    in_words,
    mode_fields,
    modes,
    read_mode,
)
from formulation.problem.options import Constraints, Goal, Recompute
from formulation.problem.plan import Plan, Span, Stage
from ingest.plans.plan_file import plan_to_dict
from ingest.plans.plan_reader import plan_of
from solvers.cpsat import solver as layered
from solvers.dynamic.line import solver as line_dp
from solvers.dynamic.states import solver as states
from solvers.dynamic.step_time import solver as paced
from tests.examples import chain, instance_of, matrix, mesh

ROOT = Path(__file__).parents[3]
TWO_LAYERS = instance_of(chain([matrix("a", 10), matrix("b", 10)], [4]), mesh(2, 2))
degrees = st.sets(st.integers(1, 6), max_size=3).map(lambda few: tuple(sorted(few)))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), degrees, st.sampled_from(Recompute))
def test_the_modes_of_an_instance_are_those_that_its_rule_accepts(
    devices: int, allowed: tuple[int, ...], recompute: Recompute
) -> None:
    constraints = Constraints(tensor_parallel_degrees=allowed, recompute=recompute)
    instance = with_constraints(TWO_LAYERS, constraints)
    counts = tuple((server, count) for server, count in enumerate((min(devices, 2), max(0, devices - 2))) if count)
    accepted = [mode for mode in every_mode(devices) if not list(check_mode(instance, 0, Group(counts, mode)))]
    assert list(modes(instance, devices)) == accepted


@pytest.mark.parametrize("mode", list(every_mode(4)))
def test_a_mode_is_read_as_it_was_written(mode: Mode) -> None:
    plan = Plan((Stage(Span(0, 2), Group(((0, 2), (1, 2)), mode), (0, 0)),))
    written = plan_to_dict(TWO_LAYERS, plan, evaluate(TWO_LAYERS, plan))
    assert {key: written["stages"][0][key] for key in MODE_KEYS} == mode_fields(mode)
    assert plan_of(written, TWO_LAYERS) == (plan, [])


@pytest.mark.parametrize(
    ("raw", "devices", "mistakes"),
    [
        ({"replicas": 0}, 4, [("replicas", "expected 1 to 4 replicas")]),
        ({"replicas": 5}, 4, [("replicas", "expected 1 to 4 replicas")]),
        ({"replicas": True}, 4, [("replicas", "expected 1 to 4 replicas")]),
        ({"recompute": 1, "replicas": 2}, 4, [("recompute", "expected true or false")]),
        ({"replicas": 2}, None, []),
    ],
)
def test_no_mode_is_read_out_of_what_is_none(
    raw: dict[str, object], devices: int | None, mistakes: object
) -> None:
    told: list[tuple[str, str]] = []
    assert read_mode(raw, devices, lambda key, expected: told.append((key, expected))) is None
    assert told == mistakes


def test_what_is_left_out_is_usual() -> None:
    assert read_mode({}, 4, lambda key, expected: pytest.fail(f"{key}: {expected}")) == ONE_COPY == Mode(1, False)


def test_words() -> None:
    said = [in_words(mode, 4) for mode in (ONE_COPY, Mode(2), Mode(1, True), Mode(4, True))]
    again = "recomputes activations"
    assert said == ["", "2 replicas of 2 devices", again, f"4 replicas of 1 device, {again}"]


@dataclass(frozen=True, slots=True)
class Sharded(Mode):
    """A mode with one more field, which no module knows of."""

    sharded: int = 0


SOLVERS = {
    "line_dp": line_dp.solve,
    "state_dp": states.solve,
    "cpsat": layered.solve,
    "paced_dp": paced.solve,
}


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_hands_modes_on_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    solve: Callable[[Instance, Limits], Outcome] = SOLVERS[name]

    def sharded(instance: Instance, devices: int) -> tuple[Mode, ...]:
        return tuple(Sharded(mode.replicas, mode.recompute, 3) for mode in modes_of.modes(instance, devices))

    for module in ("formulation.problem.groups", "solvers.search.first_plan"):
        monkeypatch.setattr(f"{module}.modes", sharded)
    constraints = Constraints(tensor_parallel_degrees=(1, 2), recompute=Recompute.ALLOWED)
    instance = with_constraints(TWO_LAYERS, constraints)
    if name == "paced_dp":
        instance = replace(instance, goals=(Goal.ITERATION_TIME,))
    assert all(isinstance(group_kind(instance, one).mode, Sharded) for one in possible_groups(instance))
    plan = solve(instance, Limits(workers=1)).plan
    assert plan is not None
    assert [stage.group.mode.sharded for stage in plan.stages] == [3] * len(plan)  # type: ignore[attr-defined]
    assert plan_to_dict(instance, plan, evaluate(instance, plan))["stages"][0]["sharded"] == 3


def test_nobody_copies_a_mode_field_by_field() -> None:
    """No call that makes a group, a kind or a mode takes a field of another one."""
    folders = ("formulation", "ingest", "solvers", "report", "scenarios")
    sources = itertools.chain(ROOT.glob("*.py"), *((ROOT / folder).rglob("*.py") for folder in folders))
    copies = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in sources
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("Group", "GroupKind", "Mode", "line_group")
        for given in (*call.args, *(keyword.value for keyword in call.keywords))
        if isinstance(given, ast.Attribute) and given.attr in MODE_KEYS
    ]
    assert copies == []
