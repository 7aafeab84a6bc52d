"""Small runs to draw: a chain of equal stages on servers of two devices, with names as a user may choose them."""

from __future__ import annotations

from typing import Any

from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.formulation.problem.units import Link
from pipecut.report.content import content_of
from pipecut.report.simulation import Simulation, simulate
from tests.examples import GIGA, PLAIN, chain, instance_of, matrix, mesh

EVIL = "</script><img src=x onerror=alert(1)>\"'&\u202e\ud800"
"""A name that would like to be a script, turn the text around, and break the encoding."""


def case(
    stages: int = 4,
    micro_batches: int = 6,
    schedule: Schedule = Schedule.ONE_F_ONE_B,
    *,
    name: str = "block",
    devices: int = 1,
    layers: int = 2,
) -> tuple[Instance, Plan]:
    """So many layers a stage; of two, stage s is (3 + s mod 3) thousand ns long, forward, on one device."""
    chained = [
        matrix(f"{name}.{at}", macs=1500 + 500 * (at // layers % 3), weights=4000, taken=400, made=400)
        for at in range(layers * stages)
    ]
    graph = chain(chained, [300 + at for at in range(layers * stages - 1)])
    slow = Link(4 * GIGA)
    cluster = mesh(*[2 * devices] * ((stages + 1) // 2), inside=slow, between=slow)
    training = Training(micro_batches, micro_batches, schedule=schedule)
    plan = Plan(
        tuple(
            Stage(Span(layers * at, layers * at + layers), Group(((at // 2, devices),)), (0,) * layers)
            for at in range(stages)
        )
    )
    return instance_of(graph, cluster, PLAIN, training), plan


def ran(*args: Any, **options: Any) -> Simulation:
    """Run a case."""
    return simulate(*case(*args, **options))


def content(*args: Any, scenario: str = "a case", shown: int | None = None, **options: Any) -> dict[str, Any]:
    """Run a case and return all its numbers."""
    return content_of(ran(*args, **options), scenario=scenario, shown=shown)


COMPARISON: dict[str, Any] = {
    "scenario": "a case",
    "optimum": 9000,
    "bound": 9000,
    "solvers": [
        {
            "solver": EVIL,
            "proof": "optimal",
            "objective": 9000,
            "bound": 9000,
            "gap": 0.0,
            "feasible": True,
            "violations": [],
            "stages": 4,
            "seconds": 0.25,
            "notes": [EVIL],
            "reason": "",
        },
        {
            "solver": "other",
            "proof": None,
            "objective": None,
            "bound": None,
            "gap": None,
            "feasible": None,
            "violations": [],
            "stages": None,
            "seconds": None,
            "notes": [],
            "reason": "skipped: too large",
        },
    ],
}
"""What ``pipecut compare --json`` might write."""
