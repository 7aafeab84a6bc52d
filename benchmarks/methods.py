"""Which exact method is asked first: ``python -m benchmarks.methods [--limit SECONDS] [--only TEXT] [--json]``.

Every exact method that takes an instance searches it alone, within the limit, for its first goal: the shipped
scenarios as they are, and some of them on a fast network, under free placement, within memory, for the time of a
step, or with rules that no dynamic programme sees. A cell has the seconds to the proof, or the gap that was left
(in brackets), or "-" where the method does not take the instance.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.proofs import BINDING, FAST
from benchmarks.table import print_rows
from formulation.outcome import Limits, Proof, checked
from formulation.problem.instance import Instance
from ingest.scenario.load import load_scenario
from solvers.catalogue import find_solver

ROOT = Path(__file__).parents[1]
FREE = ("constraints.placement=free", "constraints.max_servers=2", "cost.boundary_charge=link")
STEP = ("objective=iteration_time", "training.micro_batches=8", "training.schedule=one_f_one_b")
RECEIVER = ("cost.boundary_charge=receiver",)
LARGE = ("cluster.servers[0].count=16",)
METHODS = ("cpsat", "cpsat_stages", "line_dp", "state_dp", "paced_dp")


@dataclass(frozen=True, slots=True)
class Row:
    """An instance: its name, its file, and what is overridden there."""

    name: str
    scenario: str
    overrides: tuple[str, ...] = ()


def rows() -> Iterator[Row]:
    """Yield the shipped scenarios, and variations of them."""
    for path in sorted((ROOT / "scenarios").glob("*/*.yaml")):
        yield Row(f"{path.parent.name}/{path.stem}", path.relative_to(ROOT).as_posix())
    paper = "scenarios/pipepar/{}.yaml".format
    for model in ("vgg16", "resnet50", "resnet152"):
        yield Row(f"{model}, fast", paper(model), FAST)
        yield Row(f"{model}, fast, memory", paper(model), (*FAST, *BINDING))
        yield Row(f"{model}, fast, step", paper(model), (*FAST, *STEP))
        yield Row(f"{model}, fast, receiver, memory", paper(model), (*FAST, *BINDING, *RECEIVER))
        yield Row(f"{model}, fast, free", paper(model), (*FAST, *FREE))
    yield Row("resnet152, fast, 32 devices", paper("resnet152"), (*FAST, *LARGE))
    yield Row("resnet152, fast, 32 devices, memory", paper("resnet152"), (*FAST, *LARGE, *BINDING))
    for model in ("vgg19", "resnet152"):
        yield Row(f"hetpipe {model}, free", f"scenarios/hetpipe/{model}.yaml", FREE)
        yield Row(f"hetpipe {model}, receiver", f"scenarios/hetpipe/{model}.yaml", RECEIVER)
    yield Row("gpt2, step", "scenarios/gpt/gpt2.yaml", ("objective=iteration_time",))
    yield Row("gpt3, 128 devices", "benchmarks/instances/gpt3.yaml")


def measured(row: Row, limit_s: float) -> dict[str, Any]:
    """Let every method search an instance for its first goal."""
    instance = load_scenario(ROOT / row.scenario, row.overrides).load()
    instance = replace(instance, goals=instance.goals[:1])
    found: dict[str, Any] = {"instance": row.name, "layers": len(instance.layers), "devices": instance.devices}
    return found | {name: cell(instance, name, limit_s) for name in METHODS}


def cell(instance: Instance, name: str, limit_s: float) -> str:
    """Return what one method makes of an instance."""
    solve, began = find_solver(name).load(), time.perf_counter()
    try:
        outcome = checked(instance, solve(instance, Limits(time_limit_s=limit_s)))
    except ValueError:
        return "-"
    seconds = time.perf_counter() - began
    if outcome.blind_to or (outcome.proof is Proof.FEASIBLE and outcome.bound is None):
        return "-"
    if outcome.proof in (Proof.OPTIMAL, Proof.INFEASIBLE):
        return f"{seconds:.2f}"
    return "(no plan)" if outcome.gap is None else f"({outcome.gap:.1%})"


def main() -> int:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of a table")
    parser.add_argument("--only", default="", help="only instances whose name contains this text")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds for each search")
    arguments = parser.parse_args()
    chosen = (row for row in rows() if arguments.only in row.name)
    print_rows((measured(row, arguments.limit) for row in chosen), as_json=arguments.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
