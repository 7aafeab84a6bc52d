"""Instances on which few devices, or none, can be reached: every programme says so, and none invents a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecut.formulation.outcome import Limits, Outcome, Proof, checked
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.catalogue import all_solvers
from pipecut.solvers.goals import solve_in_order
from pipecut.solvers.reference import line_dp
from tests.examples import chain, instance_of, matrix, mesh
from tests.generators import cluster_graphs, instances, layer_graphs
from tests.laws import so_many
from tests.solvers.cpsat.demanded import SLOW

EXACT = ("cpsat", "line_dp", "state_dp")
NARROW = {
    "degree": Constraints(max_servers=1, tensor_parallel_degrees=(2,)),
    "size": Constraints(max_servers=1, devices_per_stage=(2,)),
    "degree, memory": Constraints(memory=True, max_servers=1, tensor_parallel_degrees=(2,)),
    "size, memory": Constraints(memory=True, max_servers=1, devices_per_stage=(2,)),
}
"""One server of one device before one of two, and only groups of two devices of one server: the line has none."""


def narrow(constraints: Constraints, *devices: int) -> Instance:
    cluster = mesh(*(devices or (1, 2)))
    return replace(instance_of(chain([matrix("a", 3), matrix("b", 4)], [5]), cluster), constraints=constraints)


@pytest.mark.parametrize("solver", EXACT)
@pytest.mark.parametrize("case", NARROW)
def test_a_line_without_a_first_stage_has_no_plan(case: str, solver: str) -> None:
    instance = narrow(NARROW[case])
    assert brute_force.solve(instance).proof is Proof.INFEASIBLE
    assert asked(instance, solver).proof is Proof.INFEASIBLE


@pytest.mark.parametrize("solver", ["cpsat_types", "reduced_dp"])
@pytest.mark.parametrize("case", NARROW)
def test_so_it_has_none_for_a_step(case: str, solver: str) -> None:
    """Nor where no group of devices is possible at all."""
    for devices in ((1, 2), (1, 1)):
        judged = replace(narrow(NARROW[case], *devices), goals=(Goal.ITERATION_TIME,))
        assert asked(judged, solver).proof is Proof.INFEASIBLE


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("solver", ["line_dp", "state_dp"])
def test_tied_weights_without_a_group_to_hold_them(solver: str, memory: bool) -> None:
    """Groups of two devices of one server, and one device a server: no table has a row."""
    tied = chain([matrix("a", 3, weights=5), matrix("b", 4, weights=5)], [5])
    tied.graph["ties"] = ((("a", "b"), 5, 5),)
    instance = replace(instance_of(tied, mesh(1, 1)), constraints=NARROW["degree, memory" if memory else "degree"])
    assert asked(instance, solver).proof is Proof.INFEASIBLE


@pytest.mark.parametrize("case", NARROW)
def test_off_the_line_there_are_plans_and_the_line_excludes_none(case: str) -> None:
    fields = {name: getattr(NARROW[case], name) for name in ("memory", "max_servers")}
    fields |= {name: getattr(NARROW[case], name) for name in ("tensor_parallel_degrees", "devices_per_stage")}
    instance = narrow(Constraints(placement=Placement.FREE, **fields))
    assert brute_force.solve(instance).proof is Proof.OPTIMAL
    found = checked(instance, line_dp.solve(instance))
    assert (found.proof, found.plan) == (Proof.UNKNOWN, None)


@st.composite
def narrowed(draw: st.DrawFn) -> Instance:
    instance = draw(instances(layer_graphs(4), cluster_graphs(4)))
    constraints = Constraints(
        memory=draw(st.booleans()),
        placement=draw(st.sampled_from(Placement)),
        max_servers=draw(st.sampled_from([None, 1, 1, 2])),
        tensor_parallel_degrees=draw(st.sampled_from([(), (1,), (2,), (2, 3), (3,)])),
        devices_per_stage=draw(st.sampled_from([(), (), (1,), (2,), (3,)])),
    )
    return replace(instance, constraints=constraints)


@settings(max_examples=so_many(60), deadline=None, suppress_health_check=SLOW)
@given(narrowed())
def test_no_programme_makes_a_plan_of_what_it_cannot_reach(instance: Instance) -> None:
    truth = brute_force.solve(instance)
    for entry in all_solvers():
        try:
            found = asked(instance, entry.name)
        except ValueError:
            continue  # it says that it cannot take the instance
        if found.proof is Proof.INFEASIBLE:
            assert truth.proof is Proof.INFEASIBLE, entry.name
        if found.bound is not None and truth.objective is not None:
            assert found.bound <= truth.objective, entry.name
        if entry.name in EXACT and not found.blind_to and found.proof is Proof.OPTIMAL:
            assert found.objective == truth.objective, entry.name


def asked(instance: Instance, solver: str) -> Outcome:
    entry = next(entry for entry in all_solvers() if entry.name == solver)
    return checked(instance, solve_in_order(instance, entry.load(), Limits(workers=1)))
