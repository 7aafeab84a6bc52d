"""The twelve paper cases (six networks, two batches): ``python -m benchmarks.proof.paper_cases``.

Prints one row per case: layers, optimum, seconds of loading (a trace is made once and kept), of the declarative
solver, of the accelerated one and of the exact dynamic programme. ``--json`` prints the rows as one JSON list.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from pipecut.formulation.outcome import Proof, checked
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers.cpsat import cpsat as layered
from pipecut.solvers.reference import line_dp

SCENARIOS = Path(__file__).parents[2] / "scenarios" / "pipepar"
MODELS = ("vgg13", "vgg16", "vgg19", "resnet34", "resnet50", "resnet152")
BATCHES = (64, 128)


def row(model: str, batch: int) -> dict[str, Any]:
    """Solve one case in two ways; all must agree and be proved."""
    began = time.perf_counter()
    instance = load_scenario(SCENARIOS / f"{model}.yaml", [f"training.global_batch={batch}"]).load()
    loading = time.perf_counter() - began
    outcomes = [checked(instance, one.solve(instance)) for one in (layered, line_dp)]
    values = {outcome.objective for outcome in outcomes}
    if len(values) != 1 or any(outcome.proof is not Proof.OPTIMAL for outcome in outcomes):
        raise SystemExit(f"{model}, batch {batch}: not agreed and proved: {outcomes}")
    return {
        "model": model,
        "batch": batch,
        "layers": len(instance.layers),
        "optimum": outcomes[0].objective,
        "load_s": round(loading, 3),
        **{f"{outcome.solver}_s": round(outcome.seconds, 3) for outcome in outcomes},
    }


def main() -> int:
    """Print the table, and the sum of each column of seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    rows = [row(model, batch) for model in MODELS for batch in BATCHES]
    if parser.parse_args().json:
        json.dump(rows, sys.stdout, indent=1)
        return 0
    keys = list(rows[0])
    rows.append({key: round(sum(one[key] for one in rows), 3) if key.endswith("_s") else "" for key in keys})
    print(" | ".join(keys))
    for one in rows:
        print(" | ".join(str(one[key]) for key in keys))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
