"""What a step takes at best in each order of the passes, among them stages that are laid as a V (ZB-V).

``python -m benchmarks.proof.laid_as_v [--json] [--only TEXT] [--limit S]``

Llama 7B (``scenarios/llama/llama7b.yaml``) on groups of one card each, as many as the case says, every layer whole
and every activation kept, within the memory of the cards. One order of the passes a row: where groups hold two
stages there are twice as many stages as groups. Times are of links that carry all transfers at once.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.proof.proofs import SCENARIOS
from benchmarks.table import print_rows
from pipecut.formulation.costs.prices import stage_costs
from pipecut.formulation.outcome import Limits
from pipecut.formulation.problem.constraints import Goal, Recompute
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers.auto.solve import plan

ORDERS = (
    (Schedule.ONE_F_ONE_B, 1),
    (Schedule.ONE_F_ONE_B, 2),
    (Schedule.ZERO_BUBBLE_H1, 1),
    (Schedule.ZERO_BUBBLE_V, 2),
)


@dataclass(frozen=True, slots=True)
class Case:
    """Groups and micro-batches of one sequence each, the links between servers, and where all cards are."""

    name: str
    groups: int
    micro_batches: int
    overrides: tuple[str, ...]


INSIDE = ("cluster.servers.0.count=1", "cluster.servers.0.devices=4")
APART = ("cluster.servers.0.count=4", "cluster.servers.0.devices=1")
CASES = (
    Case("4 cards of one server", 4, 16, INSIDE),
    Case("4 servers, 2 Gbit/s", 4, 16, (*APART, "cluster.between_servers.bandwidth=2 Gbit/s")),
)


def instance_of(case: Case, schedule: Schedule, chunks: int) -> Instance:
    """Return a case as an instance with an order of the passes."""
    instance = load_scenario(SCENARIOS / "llama" / "llama7b.yaml", case.overrides).load()
    many, stages = case.micro_batches, case.groups * chunks
    said = schedule.in_halves or chunks > 1
    training = replace(instance.training, global_batch=many, micro_batches=many, schedule=schedule, chunks=chunks)
    asked = replace(
        instance.constraints,
        memory=True,
        tensor_parallel_degrees=(1,),
        devices_per_stage=(1,),
        # Exact methods want the number of stages to be said, or left open.
        stages_at_least=stages if said else None,
        stages_at_most=stages if said else None,
        recompute=Recompute.NEVER,
    )
    return replace(instance, training=training, constraints=asked, goals=(Goal.STEP_TIME,))


def measure(case: Case, limit_s: float) -> list[dict[str, Any]]:
    """Plan with each order, within the limit; one row for each."""
    rows: list[dict[str, Any]] = []
    for schedule, chunks in ORDERS:
        instance = instance_of(case, schedule, chunks)
        found = plan(instance, Limits(time_limit_s=limit_s), cross_check=False)
        costs = () if found.plan is None else stage_costs(instance, found.plan)
        rows.append(
            {
                "case": case.name,
                "order": _named(instance.training),
                "step (ns)": found.objective,
                "proof": "proved" if found.gap == 0 else f"gap {100 * (found.gap or 0):.2f} %",
                "memory (bytes)": max((one.memory_bytes for one in costs), default=None),
                "search (s)": f"{found.seconds:.1f}",
            }
        )
    return rows


def _named(training: Training) -> str:
    return training.schedule + (" in 2 chunks" if training.chunks > 1 and not training.schedule.in_a_v else "")


def main() -> int:
    """Print the table, case by case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this text in their name")
    parser.add_argument("--limit", type=float, default=60, metavar="S", help="seconds a search (default 60)")
    asked = parser.parse_args()
    rows = (row for case in CASES if asked.only in case.name for row in measure(case, asked.limit))
    print_rows(rows, as_json=asked.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
