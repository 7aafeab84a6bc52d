"""Instances that people bring, and the time in which they are to be proved.

``python -m benchmarks.size.scale [--limit SECONDS] [--only TEXT] [--json]``

Every instance is solved by each method of its row within the limit, in a process of its own, so that the memory is
its own too. ``target_s`` is the time to the proof that is aimed at on two idle cores; a gap stands where there is
none. ``cpu_s`` are the processor seconds of the search, which say more where others use the machine. ``auto``
includes the second proof by another method; ``choose`` is ``auto`` without it, over all numbers of micro-batches.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.proof.proofs import BINDING, FAST
from benchmarks.size.large import every_form, llama_70b, three_types
from benchmarks.size.llama import llama, two_servers
from benchmarks.table import print_rows
from pipecut.formulation.outcome import Limits, checked
from pipecut.formulation.problem.constraints import Goal, Placement
from pipecut.formulation.problem.instance import Instance
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.choices.trainings import best_training

ROOT = Path(__file__).parents[2]
FREE = (
    *("constraints.placement=free", "constraints.max_servers=2"),
    *("constraints.memory=true", "cost.boundary_charge=link"),
)
GPT3 = "benchmarks/instances/gpt3.yaml"


@dataclass(frozen=True, slots=True)
class ScaleRow:
    """An instance: its name, how it is made, who is asked, and the seconds in which it is to be proved."""

    name: str
    make: Callable[[], Instance]
    solvers: tuple[str, ...]
    target_s: float


def rows() -> Iterator[ScaleRow]:
    """Yield the instances, the smallest first."""
    for gigabytes in (80, 40, 28, 24):
        name = f"Llama-7B, blocks, 2 x 4 A100 of {gigabytes} GB"
        solvers = ("state_dp", "step_dp", *(("auto",) if gigabytes == 80 else ()))
        target_s = 3 if gigabytes == 80 else 10
        yield ScaleRow(name, lambda size=gigabytes: two_servers(llama(), size * 10**9), solvers, target_s)
    both = ("state_dp", "step_dp")
    yield _shipped("GPT-2, 2 x 4 small cards", "scenarios/gpt/gpt2.yaml", (), both, 15)
    for model, devices, target_s in (("resnet50", 8, 10), ("resnet152", 8, 10), ("resnet152", 32, 2)):
        count = f"cluster.servers[0].count={devices // 2}"
        name, path = f"{model}, {devices} devices, memory", f"scenarios/pipepar/{model}.yaml"
        solvers = both if devices == 8 else ("state_dp",)
        yield _shipped(name, path, (*FAST, count, *BINDING), solvers, target_s)
    for model in ("vgg19", "resnet152"):
        path = f"scenarios/hetpipe/{model}.yaml"
        # Receivers pay for boundaries: the programme over the line sees that, but not memory, which binds one.
        shipped = ("line_dp", "step_dp") if model == "vgg19" else ("step_dp",)
        yield _shipped(f"HetPipe {model}, as shipped", path, (), shipped, 60)
        yield _shipped(f"HetPipe {model}, free placement", path, FREE, both, 60)
    yield _shipped("GPT-3, 128 A100", GPT3, (), ("state_dp",), 20)
    step = ("objective=iteration_time",)
    yield _shipped("GPT-3, 128 A100, iteration_time", GPT3, step, ("step_dp",), 60)
    yield _shipped("GPT-3, 1,024 A100", GPT3, ("cluster.servers[0].count=128",), ("state_dp",), 20)
    yield from _large()


def _large() -> Iterator[ScaleRow]:
    wide = (1, 2, 4, 8, 16, 24, 32, 48, 64)
    for goal, solver in ((Goal.BOTTLENECK, "state_dp"), (Goal.ITERATION_TIME, "step_dp")):
        name = f"Llama-70B, 8 x 8 H100, 64 micro-batches, {goal}"
        yield ScaleRow(name, lambda goal=goal: llama_70b(goal, (64,)), (solver,), 20)
    bottleneck = Goal.BOTTLENECK
    name = "Llama-70B, 8 x 8 H100, 64 micro-batches, every form"
    yield ScaleRow(name, lambda: every_form(llama_70b(bottleneck, (64,))), ("state_dp",), 20)
    yield ScaleRow("Llama-70B, 8 x 8 H100, chosen", lambda: llama_70b(bottleneck), ("choose",), 20)
    yield ScaleRow("3 types x 64 x 8, line", lambda: three_types(64, Placement.LINE, wide), ("state_dp",), 30)


def _shipped(
    name: str, path: str, overrides: tuple[str, ...], solvers: tuple[str, ...], target_s: float
) -> ScaleRow:
    return ScaleRow(name, lambda: load_scenario(ROOT / path, overrides).load(), solvers, target_s)


def solved(name: str, solver: str, limit_s: float) -> dict[str, Any]:
    """Solve the instance of a row, by its name, for its first goal."""
    row = next(one for one in rows() if one.name == name)
    instance = row.make()
    instance = replace(instance, goals=instance.goals[:1])
    began_wall_s = time.monotonic()
    began_s, limits = time.process_time(), Limits(time_limit_s=limit_s)
    if solver == "choose":
        alone = partial(plan, cross_check=False)
        chosen = best_training(instance, lambda one, within: (one, alone(one, within)), limits)
        instance, found = chosen.instance, chosen.outcome
    else:
        found = find_any(solver).load()(instance, limits)
    found = checked(instance, found)
    return {
        "instance": name,
        "solver": solver,
        "proof": str(found.proof),
        "objective": found.objective,
        "gap": None if found.gap is None else round(found.gap, 4),
        "seconds": round(time.monotonic() - began_wall_s, 2),
        "cpu_s": round(time.process_time() - began_s, 2),
        "target_s": row.target_s,
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def measured(wanted: str, limit_s: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each instance whose name has this text, and each of its methods."""
    fresh = multiprocessing.get_context("spawn")
    for row in rows():
        for solver in row.solvers if wanted in row.name else ():
            with ProcessPoolExecutor(1, mp_context=fresh) as one:
                yield one.submit(solved, row.name, solver, limit_s).result()


def main() -> None:
    """Measure, and print the rows as they come."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.size.scale", description=main.__doc__)
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    print_rows(measured(options.only, options.limit), as_json=options.json)


if __name__ == "__main__":
    main()
