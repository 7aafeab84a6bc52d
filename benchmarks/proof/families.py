"""What each constraint costs: ``python -m benchmarks.proof.families [--json] [--solver NAME] [--limit SECONDS]``.

ResNet-50 on four servers of two devices, on a fast network (the hard, compute-bound regime). For every kind of
constraint three searches to a proof: without it, with one that no optimal plan minds, and with one that binds.
A constraint that does not bind must not lose a proof.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pipecut.formulation.constraints.layers.forms import FormLimit
from pipecut.formulation.constraints.layers.pin import Pin
from pipecut.formulation.constraints.plans.at_most import GoalLimit
from pipecut.formulation.outcome import Limits
from pipecut.formulation.problem.constraints import Constraints, Goal, Placement, Recompute
from pipecut.formulation.problem.instance import Instance, with_servers
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.crosscheck import solve_checked

SCENARIO = Path(__file__).parents[2] / "scenarios" / "pipepar" / "resnet50.yaml"
FAST = (
    "cluster.servers[0].link.bandwidth=300 GB/s",
    "cluster.between_servers.bandwidth=12.5 GB/s",
    "training.global_batch=256",
    "training.micro_batches=4",
    "training.schedule=one_f_one_b",
)
GIB = 1 << 30
HOUR_NS = 3600 * 10**9


class LeftOutFamily(NamedTuple):
    """A kind of constraint: one that changes nothing, one that does; memory of a device where it is limited."""

    name: str
    idle: Constraints
    binding: Constraints
    idle_memory_bytes: int = 11 * GIB
    binding_memory_bytes: int = 11 * GIB


def _limit(goal: Goal, at_most: int) -> Constraints:
    return Constraints(at_most=(GoalLimit(goal, at_most),))


FAMILIES = (
    LeftOutFamily("memory", Constraints(memory=True), Constraints(memory=True), 80 * GIB, 9 * GIB // 4),
    LeftOutFamily("stages", Constraints(stages_at_most=8), Constraints(stages_at_most=2)),
    LeftOutFamily(
        "pin",
        Constraints(pins=(Pin("conv1", device="RTX 2080 Ti"),)),
        Constraints(pins=(Pin("layer3.*", servers=("server0",)),)),
    ),
    LeftOutFamily("together", Constraints(together=(("fc",),)), Constraints(together=(("layer3.*",),))),
    LeftOutFamily(
        "apart", Constraints(apart=(("conv1", "fc"),)), Constraints(apart=(("layer1.0.*", "layer1.1.*"),))
    ),
    LeftOutFamily("no_cut", Constraints(no_cut=("conv1",)), Constraints(no_cut=("layer[34].*",))),
    LeftOutFamily(
        "forms", Constraints(forms=(FormLimit("fc", (0, 1, 2)),)), Constraints(forms=(FormLimit("*", (1, 2)),))
    ),
    LeftOutFamily(
        "devices_per_stage",
        Constraints(devices_per_stage=tuple(range(1, 9))),
        Constraints(devices_per_stage=(2, 4)),
    ),
    LeftOutFamily(
        "tensor_parallel_degrees",
        Constraints(tensor_parallel_degrees=tuple(range(1, 9))),
        Constraints(tensor_parallel_degrees=(2,)),
    ),
    LeftOutFamily("recompute", Constraints(recompute=Recompute.ALLOWED), Constraints(recompute=Recompute.ALWAYS)),
    LeftOutFamily("at_most.devices", _limit(Goal.DEVICES, 8), _limit(Goal.DEVICES, 5)),
    LeftOutFamily(
        "at_most.iteration_time", _limit(Goal.ITERATION_TIME, HOUR_NS), _limit(Goal.ITERATION_TIME, 10**9)
    ),
    LeftOutFamily(
        "placement", Constraints(placement=Placement.LINE), Constraints(placement=Placement.FREE, max_servers=2)
    ),
)


def main() -> int:
    """Print one row for each family."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of a table")
    parser.add_argument("--solver", default="cpsat", help="which solver proves")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each search")
    parser.add_argument("--only", default="", help="only families whose name contains this text")
    arguments = parser.parse_args()
    plain = load_scenario(SCENARIO, FAST).load()
    off = _proved(plain, Constraints(), arguments)
    table: list[dict[str, Any]] = []
    for family in FAMILIES:
        if arguments.only not in family.name:
            continue
        idle = _with_memory(plain, family.idle_memory_bytes)
        binding = _with_memory(plain, family.binding_memory_bytes)
        row = {"family": family.name, **_named("off", off)}
        row |= _named("idle", _proved(idle, family.idle, arguments))
        row |= _named("binding", _proved(binding, family.binding, arguments))
        table.append(row)
        if not arguments.json:
            if len(table) == 1:
                print(" | ".join(row))
            print(" | ".join(str(cell) for cell in row.values()), flush=True)
    if arguments.json:
        json.dump(table, sys.stdout, indent=1)
    return 0


def _with_memory(instance: Instance, size_bytes: int) -> Instance:
    servers = [
        replace(one, device_class=replace(one.device_class, memory_bytes=size_bytes)) for one in instance.servers
    ]
    return with_servers(instance, servers)


def _proved(instance: Instance, constraints: Constraints, arguments: argparse.Namespace) -> dict[str, Any]:
    limited = replace(instance, constraints=constraints)
    found = solve_checked(limited, find_any(arguments.solver), Limits(time_limit_s=arguments.limit))
    return {"proof": str(found.proof), "objective": found.objective, "s": round(found.seconds, 2)}


def _named(when: str, found: dict[str, Any]) -> dict[str, Any]:
    return {f"{when}_{key}": value for key, value in found.items()}


if __name__ == "__main__":
    raise SystemExit(main())
