"""CP-SAT without presolve said that a plan which exists does not, until one of its detections was switched off."""

from __future__ import annotations

from pipecut.formulation.outcome import Limits, Proof, checked
from pipecut.formulation.predictor.curves import Measured
from pipecut.formulation.problem.cluster import Cluster, DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Goal, Recompute
from pipecut.formulation.problem.instance import build_instance
from pipecut.formulation.problem.layers import Layer, Split, layer_graph
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.cpsat import cpsat as solver

MATRIX, FOLLOW = Split.MATRIX, Split.FOLLOW
LAYERS = [
    Layer("a", "any", MATRIX, 7952257058, 0, 0, 0, 0, 0, measured=(Measured("slow", 1, 83061324970810, 0),)),
    Layer(
        "b",
        "any",
        FOLLOW,
        23856771174,
        0,
        23856771174,
        0,
        0,
        0,
        measured=(Measured("slow", 1, 119283855870, 127236112928),),
    ),
    Layer(
        "c",
        "any",
        MATRIX,
        0,
        135267892556580,
        67427187594782,
        0,
        0,
        0,
        measured=(Measured("slow", 1, 4548770559746580, 0),),
    ),
    Layer(
        "d",
        "any",
        FOLLOW,
        0,
        0,
        9248474958454,
        0,
        0,
        0,
        measured=(Measured("slow", 1, 566614219896616, 867233393460190),),
    ),
]


def test_a_plan_of_a_step_of_months_is_not_denied() -> None:
    edges = [("a", "b", 23856771174), ("a", "c", 0), ("b", "c", 0), ("b", "d", 9248474958454)]
    device = DeviceClass("slow", 6_000_000, 500_000_000)
    servers = [Server("server0", device, 3, Link(1_000_000_000))]
    instance = build_instance(
        layer_graph("large", LAYERS, edges),
        Cluster.of(cluster_graph("one", servers, ())).graph(),
        Training(7, 7, bytes_per_element=4, schedule=Schedule.DOUBLE_BUFFERED),
        CostModel(),
        constraints=Constraints(tensor_parallel_degrees=(1, 2), recompute=Recompute.ALWAYS),
        goals=(Goal.ITERATION_TIME,),
    )
    found = checked(instance, solver.solve(instance, Limits(workers=1)))
    assert found.proof is Proof.OPTIMAL
    assert found.objective == brute_force.solve(instance).objective
