"""What CP-SAT's presolve buys with the threshold fixed: the table of docs/decisions/0003.

Run: ``python -m benchmarks.proof.presolve``. One question at a time on ResNet-152 (515 layers, 8 devices), on the
paper's network and on a fast one, at thresholds below and above the optimum; seconds of the search alone.
"""

from __future__ import annotations

import time
from pathlib import Path

from formulation.costs.tables import Tables, build_tables, line_groups
from formulation.outcome import Limits
from ingest.scenario.load import load_scenario
from solvers.cpsat.base.engine import make_solver
from solvers.cpsat.model import FAMILIES, build_model
from solvers.cpsat.valid import redundant_families
from solvers.dynamic.line import solver as line_dp

SCENARIO = Path(__file__).parents[2] / "scenarios" / "pipepar" / "resnet152.yaml"
FAST = ("cluster.servers[0].link.bandwidth=300 GB/s", "cluster.between_servers.bandwidth=12.5 GB/s")
SETTINGS: dict[str, dict[str, object]] = {
    "presolve on": {"cp_model_presolve": True, "cp_model_probing_level": 2},
    "one iteration": {"cp_model_presolve": True, "cp_model_probing_level": 2, "max_presolve_iterations": 1},
    "one iteration, no probing": {"cp_model_presolve": True, "max_presolve_iterations": 1},
    "presolve off": {},
}


def ask(tables: Tables, threshold_ns: int, settings: dict[str, object]) -> tuple[str, float]:
    """Ask one question; return the answer and the seconds it took."""
    model = build_model(tables, threshold_ns, (*FAMILIES, *redundant_families(tables))).model
    solver = make_solver(Limits(time_limit_s=120).begun())
    for name, value in settings.items():
        setattr(solver.parameters, name, value)
    began = time.perf_counter()
    status = solver.solve(model)
    return solver.status_name(status), time.perf_counter() - began


def main() -> int:
    """Print the table."""
    print("network", "threshold_ns", *SETTINGS, sep=" | ")
    for network, overrides in (("paper", ()), ("fast", FAST)):
        instance = load_scenario(SCENARIO, overrides).load()
        tables = build_tables(instance, tuple(line_groups(instance).values()))
        optimum = line_dp.solve(instance).objective or 0
        for threshold in (optimum * 8 // 10, optimum - 1, optimum, optimum * 11 // 10):
            answers = [ask(tables, threshold, settings) for settings in SETTINGS.values()]
            cells = [f"{seconds:.2f} ({status.lower()})" for status, seconds in answers]
            print(network, threshold, *cells, sep=" | ")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
