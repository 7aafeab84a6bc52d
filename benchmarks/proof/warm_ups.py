"""What a step takes at best with warm-ups as 1F1B has them, twice as long ones, and ones that are chosen.

``python -m benchmarks.proof.warm_ups [--json] [--only TEXT] [--limit S]``

The shipped scenarios under 1F1B with a flush. Proved times are of links that carry all transfers at once, which
helps long warm-ups more than short ones: so plans are also run with links that carry one transfer after another
(*in turn*), for which nobody planned them.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any, Literal

from benchmarks.proof.executed import ExecutedRow, rows
from benchmarks.proof.proofs import SCENARIOS
from benchmarks.table import print_rows
from pipecut.formulation.outcome import Limits, Outcome
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.timeline.durations import Contention
from pipecut.formulation.timeline.from_plan import PlanRun
from pipecut.formulation.timeline.timeline import run
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers.auto.solve import plan

WARM_UPS: tuple[Literal["classic", "eager", "choose"], ...] = ("classic", "eager", "choose")


def in_turn_ns(instance: Instance, found: Plan) -> int:
    """Return what a step of a plan takes where every link carries one transfer after another."""
    made = PlanRun.of(instance, found, contention=Contention.FIFO)
    return run(made.schedule, made.durations, made.execution).makespan_ns


def measure(row: ExecutedRow, limit_s: float) -> dict[str, Any]:
    """Plan with each kind of warm-ups, within the limit."""
    instance = replace(load_scenario(SCENARIOS / row.scenario, row.overrides).load(), goals=(Goal.STEP_TIME,))
    cells: dict[str, Any] = {"instance": row.name.removesuffix(", step")}
    proofs: list[str] = []
    best: dict[str, Outcome] = {}
    for kind in WARM_UPS:
        judged = replace(instance, training=replace(instance.training, warm_up=kind))
        best[kind] = found = plan(judged, Limits(time_limit_s=limit_s), cross_check=False)
        cells[f"{kind} (ns)"] = found.objective
        cells[f"{kind} in turn (ns)"] = None if found.plan is None else in_turn_ns(judged, found.plan)
        proofs.append("proved" if found.gap == 0 else f"gap {100 * (found.gap or 0):.1f} %")
    classic, chosen = (best[kind].objective or 0 for kind in ("classic", "choose"))
    cells["less"] = f"{100 * (1 - chosen / classic):.1f} %" if classic else "-"
    plan_found = best["choose"].plan
    cells["warm-ups"] = "-" if plan_found is None else " ".join(map(str, plan_found.warm_ups(instance.training)))
    cells["proofs"] = ", ".join(proofs)
    cells["search (s)"] = ", ".join(f"{one.seconds:.1f}" for one in best.values())
    return cells


def main() -> int:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of a table")
    parser.add_argument("--only", default="", help="only instances whose name contains this text")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each search")
    arguments = parser.parse_args()
    chosen = (row for row in rows() if row.executed is Goal.STEP_TIME and arguments.only in row.name)
    print_rows((measure(row, arguments.limit) for row in chosen), as_json=arguments.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
