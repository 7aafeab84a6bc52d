"""Time to proof of the time of a step.

``python -m benchmarks.proof.iteration [--json] [--only TEXT] [--limit S]``

Goal ``latency + (M - 1) * bottleneck`` with M = 8 micro-batches under 1F1B with a flush. HetPipe's cluster of four
card types with its minibatch of 32 images as micro-batch, memory limited: stages on any devices of up to two
servers, and on the line; ResNet-50 on the fast network of ``benchmarks.proof.proofs``, 8 to 32 devices, with and
without memory. Rows and columns as there; rows that are not proved within the limit say so.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.proof.proofs import FAST, SCENARIOS, ProofRow
from benchmarks.table import print_rows
from pipecut.formulation.outcome import Limits, Outcome, checked
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers.step_time.step_dp import solve

STEP = (
    "objective=iteration_time",
    "cost.boundary_charge=link",
    "training.schedule=one_f_one_b",
    "training.micro_batches=8",
    "training.global_batch=256",
)
FREE = ("constraints.placement=free", "constraints.max_servers=2")


def rows() -> Iterator[ProofRow]:
    """Yield the fixed instances."""
    limited = (*STEP, "constraints.memory=true")
    for model in ("vgg19", "resnet152"):
        scenario = f"hetpipe/{model}.yaml"
        yield ProofRow(f"hetpipe {model}, free, memory", scenario, (*limited, *FREE), "step_dp")
        yield ProofRow(f"hetpipe {model}, free", scenario, (*STEP, *FREE, "constraints.memory=false"), "step_dp")
        yield ProofRow(f"hetpipe {model}, line, memory", scenario, limited, "step_dp")
    for devices in (8, 16, 32):
        fast = (*FAST, f"cluster.servers[0].count={devices // 2}")
        yield ProofRow(f"resnet50, {devices} devices", "pipepar/resnet50.yaml", (*STEP, *fast), "step_dp")
        yield ProofRow(
            f"resnet50, {devices} devices, memory", "pipepar/resnet50.yaml", (*limited, *fast), "step_dp"
        )
    yield ProofRow("resnet152, 32 devices, memory", "pipepar/resnet152.yaml", (*limited, *fast), "step_dp")


def prove(row: ProofRow, limit_s: float) -> dict[str, Any]:
    """Load an instance and search it within the limit."""
    began = time.perf_counter()
    instance = load_scenario(SCENARIOS / row.scenario, row.overrides).load()
    loading = time.perf_counter() - began
    outcome: Outcome = checked(instance, solve(instance, Limits(time_limit_s=limit_s)))
    return {
        "instance": row.name,
        "layers": len(instance.layers),
        "devices": instance.devices,
        "stages": None if outcome.plan is None else len(outcome.plan),
        "solver": outcome.solver,
        "proof": str(outcome.proof),
        "objective": outcome.objective,
        "bound": outcome.bound,
        "gap": None if outcome.gap is None else round(outcome.gap, 5),
        "load_s": round(loading, 2),
        "search_s": round(outcome.seconds, 2),
        "work": "; ".join(outcome.notes),
    }


def main() -> int:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of a table")
    parser.add_argument("--only", default="", help="only instances whose name contains this text")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each search")
    arguments = parser.parse_args()
    chosen = (row for row in rows() if arguments.only in row.name)
    print_rows((prove(row, arguments.limit) for row in chosen), as_json=arguments.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
