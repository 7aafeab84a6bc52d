"""Stages of equal size: the model, the model on atoms and brute force agree on generated instances."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, checked
from pipecut.formulation.problem.constraints import Constraints, Placement
from pipecut.formulation.problem.instance import Instance
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.cpsat import cpsat as layered
from pipecut.solvers.step_time import step_dp as suffixes
from tests.examples import chain, instance_of, matrix, mesh
from tests.generators import instances, layer_graphs
from tests.laws import so_many
from tests.solvers.cpsat.demanded import SLOW

ONE = Limits(workers=1)
CLUSTERS = [mesh(2, 2), mesh(3, 1), mesh(2, 1, 1), mesh(4)]


@st.composite
def equal(draw: st.DrawFn) -> Instance:
    """Small instances with branches, replicas and places to cut."""
    layers = layer_graphs(max_layers=4, places=draw(st.booleans()))
    instance = draw(instances(layers=layers, clusters=st.sampled_from(CLUSTERS)))
    return replace(
        instance,
        constraints=Constraints(
            equal_stages=True,
            placement=draw(st.sampled_from(Placement)),
            memory=draw(st.booleans()),
            tensor_parallel_degrees=draw(st.sampled_from([(), (1,), (1, 2)])),
        ),
    )


@settings(max_examples=so_many(120), deadline=None, suppress_health_check=SLOW)
@given(equal())
def test_the_model_finds_what_trying_every_plan_finds(instance: Instance) -> None:
    found, expected = (checked(instance, one.solve(instance, ONE)) for one in (layered, brute_force))
    assert (found.proof, found.objective) == (expected.proof, expected.objective)
    if suffixes.accepts(instance).takes:
        other = checked(instance, suffixes.solve(instance, ONE))
        assert (other.proof, other.objective) == (expected.proof, expected.objective)
    if found.plan is not None:
        assert len({(stage.group.devices, stage.group.replicas) for stage in found.plan.stages}) == 1


def test_it_costs_and_is_told() -> None:
    """A layer that is worth two devices, and one that is not."""
    dear = matrix("b", 10, weights=1000, taken=1000, made=1000)
    front = instance_of(
        chain([matrix("a", 20, weights=4, taken=4, made=4), replace(dear, name="b")], [0]), mesh(2, 1)
    )
    free, held = (replace(front, constraints=Constraints(equal_stages=one)) for one in (False, True))
    best, equal_one = (plan(one, ONE) for one in (free, held))
    assert best.objective is not None and equal_one.objective is not None and best.objective < equal_one.objective
    assert best.plan is not None and [one.rule for one in evaluate(held, best.plan).violations] == ["equal_stages"]
