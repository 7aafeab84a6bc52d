"""At most so many stages touch a server: two files, and everything that follows from them, from end to end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.cpsat import cpsat as layered
from pipecut.solvers.cpsat.constraints.symmetry import alike_servers
from pipecut.solvers.dynamic.states import state_dp
from pipecut.solvers.explain import explain
from pipecut.solvers.goals import solve_in_order
from pipecut.solvers.reference import line_dp
from tests.command_line import Command
from tests.examples import chain, instance_of, matrix, mesh
from tests.generators import instances, layer_graphs
from tests.laws import so_many
from tests.solvers.cpsat.demanded import SLOW
from tests.solvers.priced import few_plans

ONE = Limits(workers=1)
CLUSTERS = [mesh(2, 2), mesh(3, 1), mesh(2, 1, 1), mesh(1, 2, 1)]
"""Servers that can be told apart by their number of devices at most."""
DEAR = matrix("a", 10, weights=1000, taken=1000)


def asked(*devices: int, most: int, **more: object) -> Instance:
    """Four equal layers that are dear to share, on servers with so many devices: best one layer a stage."""
    rows = [replace(DEAR, name=name) for name in "abcd"]
    built = instance_of(chain(rows, [1, 1, 1]), mesh(*devices))
    return replace(built, constraints=Constraints(stages_per_server=most, **more))  # type: ignore[arg-type]


def touching(instance: Instance, plan: Plan) -> list[int]:
    """Return how many stages touch each server."""
    counts = Counter(server for stage in plan.stages for server, _ in stage.group.counts)
    return [counts[server] for server in range(len(instance.servers))]


@st.composite
def limited(draw: st.DrawFn) -> Instance:
    """Small instances on servers that are alike or nearly so, placed in line or freely."""
    cluster = st.sampled_from(CLUSTERS)
    instance = draw(instances(layers=layer_graphs(max_layers=4), clusters=cluster))
    return replace(
        instance,
        constraints=Constraints(
            placement=draw(st.sampled_from(Placement)),
            stages_per_server=draw(st.integers(1, 3)),
            memory=draw(st.booleans()),
            no_cut=draw(st.sampled_from([(), ("layer1",)])) if len(instance.layers) > 1 else (),
        ),
    )


@settings(max_examples=so_many(150), deadline=None, suppress_health_check=SLOW)
@given(limited())
def test_the_model_finds_what_trying_every_plan_finds(instance: Instance) -> None:
    assume(few_plans(instance))
    found = checked(instance, layered.solve(instance, ONE))
    expected = checked(instance, brute_force.solve(instance))
    assert (found.proof, found.objective) == (expected.proof, expected.objective)
    if found.plan is not None:
        assert max(touching(instance, found.plan)) <= instance.constraints.stages_per_server


@pytest.mark.slow
@settings(max_examples=so_many(30), deadline=None, suppress_health_check=SLOW)
@given(limited())
def test_goals_in_order_keep_it(instance: Instance) -> None:
    """The goals that count stages and devices are where a search could take the limit for kept."""
    assume(few_plans(instance))
    judged = replace(instance, goals=(Goal.STAGES, Goal.BOTTLENECK, Goal.DEVICES))
    found, expected = (solve_in_order(judged, one.solve, ONE) for one in (layered, brute_force))
    assert [goal.value for goal in found.goals] == [goal.value for goal in expected.goals]


@pytest.mark.parametrize(("most", "objective"), [(1, 33), (2, 30), (3, 30)])
@pytest.mark.parametrize("placement", Placement)
def test_fewer_stages_where_a_server_may_not_be_shared(most: int, objective: int, placement: Placement) -> None:
    instance = asked(2, 2, most=most, placement=placement)
    found = checked(instance, layered.solve(instance, ONE))
    assert (found.proof, found.objective) == (Proof.OPTIMAL, objective)


def test_alike_servers_stay_alike() -> None:
    """The limit is the same for every server, so exchanging two of them keeps it."""
    instance = asked(2, 2, 1, most=1, placement=Placement.FREE)
    assert alike_servers(instance) == [[0, 1], [2]]


def test_who_does_not_see_it_says_so() -> None:
    instance = asked(2, 2, most=1)
    assert line_dp.accepts(instance).unseen == ("stages_per_server",)
    found = checked(instance, line_dp.solve(instance))
    assert found.blind_to == ("stages_per_server",) and found.bound == 30
    assert found.plan is not None
    assert [one.rule for one in evaluate(instance, found.plan).violations] == ["stages_per_server"] * 2
    with pytest.raises(ValueError, match="states do not see the constraints stages_per_server"):
        state_dp.solve(instance)


@pytest.mark.slow
def test_it_is_loosened_by_the_least_number() -> None:
    instance = asked(2, 2, most=1, stages_at_least=4)
    (clash,) = explain(instance, ONE).clashes
    assert {limit.path: limit.words for limit in clash.limits} == {
        "constraints.stages_per_server": "at most 1 stage with devices of the same server",
        "constraints.stages.at_least": "at least 4 stages (the model has 4 layers, the cluster 4 devices)",
    }
    ways = {way.paths: (way.words, way.amount) for way in clash.ways_out}
    assert ways["constraints.stages_per_server",] == ("let 1 stage more touch a server", 1)
    assert ways["constraints.stages.at_least",] == ("ask for 2 stages fewer", 2)


def test_a_scenario_asks_for_it(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("plan", scenario, "--json", "--set", "constraints.stages_per_server=1")
    assert ran.code == 0
    taken = [name for stage in ran.json["stages"] for name in stage["devices"]]
    assert len(taken) == len(set(taken))
    assert ran.json["scope"]["demands"] == ["stages_per_server"]


def test_a_wrong_number_is_told_with_its_line(pipecut: Command, scenario: Path) -> None:
    text = scenario.read_text(encoding="utf-8") + "constraints:\n  stages_per_server: 0\n"
    path = scenario.with_name("wrong.yaml")
    path.write_text(text, encoding="utf-8")
    ran = pipecut("plan", path)
    line = len(text.splitlines())
    assert ran.code == 2
    assert f"wrong.yaml:{line}: constraints.stages_per_server: expected 1 or more, got 0" in ran.err
