"""Every constraint family has a rule, a number, and a witness: an instance that comes out wrong without it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from ortools.sat.python import cp_model

from pipecut.formulation.constraints.constraint import Violation
from pipecut.formulation.constraints.layers.pin import Pin
from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.constraints.plans.own import Own
from pipecut.formulation.constraints.rules import RULES
from pipecut.formulation.costs.tables import build_tables, line_groups
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.units import Link
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.cpsat.model import FAMILIES, build_model, redundant_families
from pipecut.solvers.cpsat.variables import Family, Posted, Variables
from pipecut.solvers.reference import line_dp
from tests.examples import chain, instance_of, matrix, mesh, on_servers
from tests.generators import instances
from tests.laws import so_many

PRICED = {"stage_time", "boundary_time", "executed_time"}
"""Families that bound the objective: their rule is the evaluator's price, compared with ==."""


def cheapest_accepted(instance: Instance, families: Sequence[Family], redundant: bool = False) -> int:
    """Return the least threshold for which the model with these families has an assignment."""
    tables = build_tables(instance, tuple(line_groups(instance).values()))
    extra = redundant_families(tables) if redundant else ()
    low, high = 0, 1 << 20
    while low < high:
        middle = (low + high) // 2
        solver = cp_model.CpSolver()
        solver.parameters.cp_model_presolve = False
        solver.parameters.num_workers = 1
        status = solver.solve(build_model(tables, middle, (*families, *extra)).model)
        accepted = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        low, high = (low, middle) if accepted else (middle + 1, high)
    return low


# Three layers of 30 ns (10 forward, 20 backward) on three devices; cuts are dear.
BALANCED = chain([matrix("a", 10), matrix("b", 10), matrix("c", 10)], [1, 1])
# One layer of 60 ns whose weights are dear to synchronise and whose input and output are cheap to move.
WIDE = chain([matrix("a", 20, weights=400, taken=4, made=4)], [])
# A layer that costs more to share than to compute alone.
DEAR = matrix("a", 10, weights=1000, taken=1000, made=1000)

# The first layer is worth two devices that are close to each other; on the line (1 + 2 devices) it gets none such.
FRONT_HEAVY = chain([matrix("a", 20, weights=4, taken=4, made=4), replace(DEAR, name="b")], [0])


# Two layers that are better off in one stage than with the dear boundary between them.
APART = Constraints(apart=(("a", "b"),))


def with_memory(instance: Instance, capacity_bytes: int) -> Instance:
    """The same instance with so much memory on every device, and a limit on it."""
    server = instance.servers[0]
    small = replace(server.device_class, memory_bytes=capacity_bytes)
    servers = tuple(replace(one, device_class=small) for one in instance.servers)
    return on_servers(replace(instance, constraints=Constraints(memory=True)), servers)


def demanding(**demands: Any) -> Instance:
    """Three layers that are dear to share, on three devices: without demands one layer on each, 30 ns."""
    rows = [replace(DEAR, name=name, output_bytes=1) for name in "abc"]
    return replace(instance_of(chain(rows, [1, 1]), mesh(1, 1, 1)), constraints=Constraints(**demands))


def check_cut_once(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """A rule of one's own: at most one cut."""
    if len(plan) > 2:
        yield Violation("cut_once", "plan", len(plan) - 1, 1, "cuts", f"{len(plan) - 1} cuts, expected at most 1")


def post_cut_once(v: Variables) -> Posted:
    """Its family."""
    yield (0,), v.model.add(sum(v.cut) <= 1)


WITNESSES: dict[str, Instance] = {
    "cover": instance_of(BALANCED, mesh(1, 1, 1)),
    "devices": instance_of(BALANCED, mesh(1, 1)),
    "line": instance_of(FRONT_HEAVY, mesh(1, 2, between=Link(80_000_000))),
    "forms": instance_of(WIDE, mesh(2)),
    "stage_time": instance_of(BALANCED, mesh(1)),
    "memory": with_memory(instance_of(chain([DEAR], []), mesh(2)), 6500),
    "boundary_time": instance_of(chain([DEAR, replace(DEAR, name="b")], [50]), mesh(1, 1)),
    "stages": demanding(stages_at_most=2),
    "pin": demanding(pins=(Pin("[ab]", stage=0),)),
    "together": demanding(together=(("b", "c"),)),
    "apart": replace(instance_of(chain([DEAR, replace(DEAR, name="b")], [50]), mesh(1, 1)), constraints=APART),
    "no_cut": demanding(no_cut=("b",)),
    "devices_per_stage": replace(
        instance_of(WIDE, mesh(2)), constraints=Constraints(devices_per_stage=(1,), placement=Placement.FREE)
    ),
    "at_most": demanding(at_most=(GoalLimit(Goal.DEVICES, 2),)),
    "stages_per_server": replace(
        instance_of(chain([DEAR, replace(DEAR, name="b")], [1]), mesh(2)),
        constraints=Constraints(stages_per_server=1),
    ),
    "equal_stages": replace(instance_of(FRONT_HEAVY, mesh(2, 1)), constraints=Constraints(equal_stages=True)),
    "executed_time": replace(instance_of(BALANCED, mesh(1, 1)), goals=(Goal.STEP_TIME,)),
    "own": demanding(own=(Own("cut_once", check_cut_once, post_cut_once),)),
}


def test_families_and_rules_are_the_same_set_in_the_same_order() -> None:
    named = {family.name: family.number for family in FAMILIES}
    assert {rule.name: rule.number for rule in RULES} == {
        name: number for name, number in named.items() if name not in PRICED
    }
    assert [family.number for family in FAMILIES] == list(range(1, len(FAMILIES) + 1))


def test_every_family_is_in_the_docs_under_its_number() -> None:
    text = (Path(__file__).parents[3] / "docs" / "formulation.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\d+) \| `(\w+)` \|", text, flags=re.MULTILINE))
    assert {int(number): name for number, name in rows.items()} == {one.number: one.name for one in FAMILIES}


def test_every_family_has_a_witness() -> None:
    assert set(WITNESSES) == {family.name for family in FAMILIES}


@pytest.mark.few(6)
@pytest.mark.parametrize("name", list(WITNESSES))
def test_leaving_a_family_out_changes_the_optimum_of_its_witness(name: str) -> None:
    instance = WITNESSES[name]
    complete = cheapest_accepted(instance, FAMILIES)
    without = cheapest_accepted(instance, [family for family in FAMILIES if family.name != name])
    assert complete == brute_force.solve(instance).objective
    assert without < complete


@settings(max_examples=so_many(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances())
def test_redundant_families_cut_off_no_plan(instance: Instance) -> None:
    optimum = line_dp.solve(instance).objective
    assert optimum is not None
    tables = build_tables(instance, tuple(line_groups(instance).values()))
    solver = cp_model.CpSolver()
    solver.parameters.cp_model_presolve = False
    solver.parameters.num_workers = 1
    model = build_model(tables, optimum, (*FAMILIES, *redundant_families(tables))).model
    assert solver.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)


def test_constraints_can_be_named() -> None:
    instance = instance_of(BALANCED, mesh(1, 1), CostModel())
    tables = build_tables(instance, tuple(line_groups(instance).values()))
    model = build_model(tables, 1000, FAMILIES, names=True).model
    names = {constraint.name.split("[")[0] for constraint in model.proto.constraints if constraint.name}
    assert {"cover", "devices", "line", "forms", "stage_time"} <= names
