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

from pipecut.formulation.constraints.devices.recompute import Recomputation
from pipecut.formulation.constraints.rules import check_mode
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Outcome
from pipecut.formulation.problem import modes as modes_of
from pipecut.formulation.problem.constraints import Constraints, Goal, OnHost, Recompute, Sharded
from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Axis
from pipecut.formulation.problem.modes import ONE_COPY, Mode, modes
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.ingest.plans.plan_file import plan_of, plan_to_dict
from pipecut.solvers.cpsat import cpsat as layered
from pipecut.solvers.dynamic.states import state_dp as states
from pipecut.solvers.reference import line_dp
from pipecut.solvers.step_time import step_dp as suffixes
from tests.examples import BYTE_LINK, UNIT, chain, instance_of, matrix, mesh
from tests.generators import sharded_kinds
from tests.laws import so_many

ROOT = Path(__file__).parents[3]
TWO_LAYERS = instance_of(
    chain([matrix("a", 10), matrix("b", 10)], [4]), mesh(2, 2, kind=replace(UNIT, host_link=BYTE_LINK))
)
ASKED = (*Recompute, ["b"])
"""What may be written about recomputation."""
degrees = st.sets(st.integers(1, 6), max_size=3).map(lambda few: tuple(sorted(few)))


@settings(max_examples=so_many(60), deadline=None)
@given(st.integers(1, 4), degrees, st.sampled_from(ASKED), sharded_kinds, st.sampled_from(OnHost), st.booleans())
def test_the_modes_of_an_instance_are_those_that_its_rule_accepts(
    devices: int,
    allowed: tuple[int, ...],
    recompute: object,
    sharded: tuple[Sharded, ...],
    on_host: OnHost,
    pairs: bool,
) -> None:
    asked = Recomputation.read(recompute, None)
    constraints = Constraints(
        tensor_parallel_degrees=allowed,
        sharded=sharded,
        optimizer_on_host=on_host,
        splits=(Axis.PAIRS,) * pairs,
        **asked,
    )
    instance = replace(TWO_LAYERS, constraints=constraints)
    counts = tuple((server, count) for server, count in enumerate((min(devices, 2), max(0, devices - 2))) if count)
    accepted = [mode for mode in Mode.every(devices) if not list(check_mode(instance, 0, Group(counts, mode)))]
    assert list(modes(instance, devices)) == accepted


GRID = "expected a number of neighbours that divides the {} devices of a replica, or 1"
RUNS = "expected true, false, layers, or pairs of a first and a last layer"


@pytest.mark.parametrize("mode", list(Mode.every(4)))
def test_a_mode_is_read_as_it_was_written(mode: Mode) -> None:
    plan = Plan((Stage(Span(0, 2), Group(((0, 2), (1, 2)), mode), (0, 0)),))
    written = plan_to_dict(TWO_LAYERS, plan, evaluate(TWO_LAYERS, plan))
    assert {key: written["stages"][0][key] for key in mode.fields()} == mode.fields()
    assert plan_of(written, TWO_LAYERS) == (plan, [])


@pytest.mark.parametrize(
    ("raw", "devices", "mistakes"),
    [
        ({"replicas": 0}, 4, [("replicas", "expected 1 to 4 replicas")]),
        ({"replicas": 5}, 4, [("replicas", "expected 1 to 4 replicas")]),
        ({"replicas": True}, 4, [("replicas", "expected 1 to 4 replicas")]),
        (
            {"recompute": 1, "replicas": 2},
            4,
            [("recompute", "expected true, false, layers, or pairs of a first and a last layer")],
        ),
        ({"optimizer_on_host": 1}, 4, [("optimizer_on_host", "expected true or false")]),
        ({"sharded": 3}, 4, [("sharded", "expected none, optimizer, gradients, weights")]),
        ({"sharded": "all"}, 4, [("sharded", "expected none, optimizer, gradients, weights")]),
        ({"replicas": 2}, None, []),
        *(({"grid": grid, "replicas": 2}, 8, [("grid", GRID.format(4))]) for grid in (0, -2, 3, 4, 8, True, "2")),
        ({"grid": 2}, 3, [("grid", GRID.format(3))]),
    ],
)
def test_no_mode_is_read_out_of_what_is_none(
    raw: dict[str, object], devices: int | None, mistakes: object
) -> None:
    told: list[tuple[str, str]] = []
    assert Mode.read(raw, devices, lambda key, expected: told.append((key, expected))) is None
    assert told == mistakes


def test_layers_are_named_only_where_stages_may_choose() -> None:
    with pytest.raises(
        ValueError, match="recompute_layers names layers and recompute is 'never', expected 'allow"
    ):
        Constraints(recompute_layers=("a",))
    with pytest.raises(ValueError, match="recompute: no layer matches 'c'"):
        replace(TWO_LAYERS, constraints=Constraints(recompute=Recompute.ALLOWED, recompute_layers=("c",)))


def test_a_plan_that_recomputes_named_layers_where_none_are_named_breaks_a_rule() -> None:
    instance = replace(TWO_LAYERS, constraints=Constraints(recompute=Recompute.ALLOWED))
    (found,) = check_mode(instance, 0, Group(((0, 1),), Mode(1, "layers")))
    assert found.rule == "devices" and "names none" in found.message


def test_what_is_left_out_is_usual() -> None:
    assert Mode.read({}, 4, lambda key, expected: pytest.fail(f"{key}: {expected}")) == ONE_COPY == Mode(1, False)


def test_words() -> None:
    said = [mode.in_words(4) for mode in (ONE_COPY, Mode(2), Mode(1, True), Mode(4, True))]
    assert Mode(1, "layers").in_words(2) == "recomputes named layers"
    again = "recomputes activations"
    assert said == ["", "2 replicas of 2 devices", again, f"4 replicas of 1 device, {again}"]
    assert Mode(optimizer_on_host=True).in_words(1) == "optimiser on the host"
    said = [Mode(2, sharded=one).in_words(2) for one in (Sharded.OPTIMIZER, Sharded.GRADIENTS, Sharded.WEIGHTS)]
    assert said == [
        "2 replicas of 1 device, optimiser state sharded",
        "2 replicas of 1 device, gradients and optimiser state sharded",
        "2 replicas of 1 device, weights, gradients and optimiser state sharded",
    ]


@dataclass(frozen=True, slots=True)
class Painted(Mode):
    """A mode with one more field, which no module knows of."""

    coats: int = 0


SOLVERS = {
    "line_dp": line_dp.solve,
    "state_dp": states.solve,
    "cpsat": layered.solve,
    "step_dp": suffixes.solve,
}


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_hands_modes_on_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    solve: Callable[[Instance, Limits], Outcome] = SOLVERS[name]

    def painted(instance: Instance, devices: int) -> tuple[Mode, ...]:
        return tuple(Painted(mode.replicas, mode.recompute, coats=3) for mode in modes_of.modes(instance, devices))

    for module in (
        "pipecut.formulation.problem.groups",
        "pipecut.solvers.search.first_plan",
        "pipecut.solvers.search.grids",
    ):
        monkeypatch.setattr(f"{module}.modes", painted)
    constraints = Constraints(tensor_parallel_degrees=(1, 2), recompute=Recompute.ALLOWED)
    instance = replace(TWO_LAYERS, constraints=constraints)
    if name == "step_dp":
        instance = replace(instance, goals=(Goal.ITERATION_TIME,))
    assert all(isinstance(GroupKind.of(instance, one).mode, Painted) for one in Group.possible(instance))
    plan = solve(instance, Limits(workers=1)).plan
    assert plan is not None
    assert [stage.group.mode.coats for stage in plan.stages] == [3] * len(plan)  # type: ignore[attr-defined]
    assert plan_to_dict(instance, plan, evaluate(instance, plan))["stages"][0]["coats"] == 3


@pytest.mark.slow
def test_nobody_copies_a_mode_field_by_field() -> None:
    """No call that makes a group, a kind or a mode takes a field of another one."""
    folders = ("face", "formulation", "ingest", "solvers", "report", "scenarios")
    sources = itertools.chain(*((ROOT / folder).rglob("*.py") for folder in folders))
    copies = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in sources
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("Group", "GroupKind", "Mode", "line_group")
        for given in (*call.args, *(keyword.value for keyword in call.keywords))
        if isinstance(given, ast.Attribute) and given.attr in ONE_COPY.fields()
    ]
    assert copies == []
