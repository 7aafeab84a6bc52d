"""What the best plan by the formula takes when it is executed, and the best plan by what is executed.

``python -m benchmarks.proof.executed [--json] [--only TEXT] [--limit S]``

The shipped scenarios: the period where the pipeline runs on without a flush, against ``bottleneck``; the time
of a step where it does not, against ``iteration_time``. Links carry all transfers at once. A row that is not
proved says its gap.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from benchmarks.proof.proofs import SCENARIOS
from benchmarks.table import print_rows
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Outcome
from pipecut.formulation.problem.constraints import Goal
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers.auto.solve import plan

STEP = ("training.schedule=one_f_one_b", "training.micro_batches=8")
MODELS = ("vgg13", "vgg16", "vgg19", "resnet34", "resnet50", "resnet152")


class ExecutedRow(NamedTuple):
    """A scenario with overrides, its formula, and the time that is executed."""

    name: str
    scenario: str
    overrides: tuple[str, ...]
    formula: Goal
    executed: Goal


def rows() -> Iterator[ExecutedRow]:
    """Yield the scenarios that ship."""
    for model in MODELS:
        yield ExecutedRow(f"{model}, period", f"pipepar/{model}.yaml", (), Goal.BOTTLENECK, Goal.PERIOD)
    for model in MODELS:
        yield ExecutedRow(f"{model}, step", f"pipepar/{model}.yaml", STEP, Goal.ITERATION_TIME, Goal.STEP_TIME)
    for name, scenario in (("gpt2", "gpt/gpt2.yaml"), ("llama7b", "llama/llama7b.yaml")):
        yield ExecutedRow(f"{name}, step", scenario, (), Goal.ITERATION_TIME, Goal.STEP_TIME)
    for model in ("vgg19", "resnet152"):
        name = f"hetpipe {model}, step"
        yield ExecutedRow(name, f"hetpipe/{model}.yaml", STEP, Goal.ITERATION_TIME, Goal.STEP_TIME)


def measure(row: ExecutedRow, limit_s: float) -> dict[str, Any]:
    """Plan by the formula and by what is executed, each within the limit."""
    instance = load_scenario(SCENARIOS / row.scenario, row.overrides).load()
    judged = replace(instance, goals=(row.executed,))
    formula = plan(replace(instance, goals=(row.formula,)), Limits(time_limit_s=limit_s), cross_check=False)
    found: Outcome = plan(judged, Limits(time_limit_s=limit_s), cross_check=False)
    executed = None if formula.plan is None else evaluate(judged, formula.plan).objective
    best = found.objective
    return {
        "instance": row.name,
        "formula (ns)": formula.objective,
        "its plan executed (ns)": executed,
        "best executed (ns)": best,
        "less": "-" if executed is None or best is None else f"{100 * (1 - best / executed):.1f} %",
        "solver": found.solver,
        "proof": f"{found.proof}, gap {100 * (found.gap or 0):.1f} %",
        "search (s)": round(found.seconds, 2),
    }


def main() -> int:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of a table")
    parser.add_argument("--only", default="", help="only instances whose name contains this text")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each search")
    arguments = parser.parse_args()
    chosen = (row for row in rows() if arguments.only in row.name)
    print_rows((measure(row, arguments.limit) for row in chosen), as_json=arguments.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
