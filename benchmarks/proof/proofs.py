"""Time to proof: ``python -m benchmarks.proof.proofs [--json] [--only TEXT] [--limit SECONDS] [--certify]``.

ResNet-152 at operator grain on a fast network (300 GB/s inside pairs, 12.5 GB/s between), with and without memory
that binds (1F1B, no recomputation), by CP-SAT over whole stages and by the dynamic programme over device states;
HetPipe's cluster of four card types, by both; GPT-3 175B on 128 cards; the twelve paper cases. Each row: layers,
devices, solver, proof, objective, bound, gap, seconds of loading and of the whole search. Rows that are not proved
within the limit say so.
With ``--certify`` proved rows also have the number of labels of their certificate, the bytes of its file, and the
seconds to make and to verify it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.table import print_rows
from pipecut.formulation.certificates.check import certifiable, verify
from pipecut.formulation.outcome import Limits, Outcome, checked
from pipecut.formulation.problem.instance import Instance
from pipecut.ingest.plans.certificate_file import write_certificate
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.certifying import certify

SCENARIOS = Path(__file__).parents[2] / "scenarios"
FAST = ("cluster.servers[0].link.bandwidth=300 GB/s", "cluster.between_servers.bandwidth=12.5 GB/s")
BINDING = (
    "constraints.memory=true",
    "training.schedule=one_f_one_b",
    "training.global_batch=512",
    "training.micro_batches=8",
)


@dataclass(frozen=True, slots=True)
class ProofRow:
    """An instance and the solver that is to prove it."""

    name: str
    scenario: str
    overrides: tuple[str, ...]
    solver: str


def rows() -> Iterator[ProofRow]:
    """Yield the fixed instances."""
    for devices in (8, 16, 32):
        count = f"cluster.servers[0].count={devices // 2}"
        plain, limited = (*FAST, count), (*FAST, count, *BINDING)
        if devices == 8:
            yield ProofRow("resnet152, 8 devices, independent", "pipepar/resnet152.yaml", plain, "cpsat")
        yield ProofRow(f"resnet152, {devices} devices", "pipepar/resnet152.yaml", plain, "state_dp")
        yield ProofRow(f"resnet152, {devices} devices, memory", "pipepar/resnet152.yaml", limited, "state_dp")
    for model in ("vgg19", "resnet152"):
        free = ("constraints.placement=free", "constraints.max_servers=2", "cost.boundary_charge=link")
        yield ProofRow(f"hetpipe {model}, free, memory", f"hetpipe/{model}.yaml", free, "state_dp")
    yield ProofRow("gpt3, 128 devices, replicas, memory", "../benchmarks/instances/gpt3.yaml", (), "state_dp")
    for model in ("vgg13", "vgg16", "vgg19", "resnet34", "resnet50", "resnet152"):
        for batch in (64, 128):
            override = (f"training.global_batch={batch}",)
            yield ProofRow(f"paper {model}, batch {batch}", f"pipepar/{model}.yaml", override, "cpsat")


def prove(row: ProofRow, limit_s: float, *, certified: bool) -> dict[str, Any]:
    """Load an instance and search it within the limit; make and verify a certificate if asked to."""
    began = time.perf_counter()
    instance = load_scenario(SCENARIOS / row.scenario, row.overrides).load()
    loading = time.perf_counter() - began
    outcome: Outcome = checked(instance, find_any(row.solver).load()(instance, Limits(time_limit_s=limit_s)))
    found = {
        "instance": row.name,
        "layers": len(instance.layers),
        "devices": instance.devices,
        "solver": outcome.solver,
        "proof": str(outcome.proof),
        "objective": outcome.objective,
        "bound": outcome.bound,
        "gap": None if outcome.gap is None else round(outcome.gap, 5),
        "load_s": round(loading, 2),
        "search_s": round(outcome.seconds, 2),
    }
    return found | _certificate(instance, outcome) if certified else found


def _certificate(instance: Instance, outcome: Outcome) -> dict[str, Any]:
    """Return what a certificate of the plan costs; nothing where there is none."""
    if outcome.plan is None or outcome.objective is None or certifiable(instance) is not None:
        return dict.fromkeys(("certified", "labels", "bytes", "certify_s", "verify_s"))
    began = time.perf_counter()
    certificate = certify(instance, outcome.plan, outcome.objective)
    made = time.perf_counter()
    verify(instance, certificate)
    verified = time.perf_counter()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.json"
        write_certificate(path, instance, certificate)
        size = path.stat().st_size
    return {
        "certified": certificate.optimal,
        "labels": len(certificate.labels),
        "bytes": size,
        "certify_s": round(made - began, 2),
        "verify_s": round(verified - made, 2),
    }


def main() -> int:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of a table")
    parser.add_argument("--only", default="", help="only instances whose name contains this text")
    parser.add_argument("--certify", action="store_true", help="make and verify certificates as well")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each search")
    arguments = parser.parse_args()
    chosen = (row for row in rows() if arguments.only in row.name)
    print_rows(
        (prove(row, arguments.limit, certified=arguments.certify) for row in chosen), as_json=arguments.json
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
