"""How far past its time limit a search goes: ``python -m benchmarks.size.deadlines``.

Options: ``--json``, ``--limits "2;10"`` (seconds), ``--only TEXT`` (rows whose name or solver contains it), and
``--commands FOLDER;FOLDER`` for ``pipecut plan`` from start to prompt on every scenario of these folders instead.

Every row is a search on one of the largest instances that ship, with limits that end it in its tables, its search
or its explanation. A limit is kept if the overrun is at most 1 s and 5 % of it. Times are those of one run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.proof.iteration import STEP
from benchmarks.proof.proofs import FAST
from benchmarks.table import print_rows
from pipecut.formulation.outcome import Limits, Outcome
from pipecut.formulation.problem.instance import Instance
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.explain import explain

ROOT = Path(__file__).parents[2]
GPT3 = "benchmarks/instances/gpt3.yaml"
RESNET = "scenarios/pipepar/resnet152.yaml"
HETPIPE = "scenarios/hetpipe/resnet152.yaml"
FREE = ("constraints.placement=free", "constraints.max_servers=2", "cost.boundary_charge=link")
LARGE = ("cluster.servers[0].count=16",)
OVER_S, OVER_SHARE = 1.0, 0.05


@dataclass(frozen=True, slots=True)
class DeadlineRow:
    """An instance, by its file and what is overridden there, and who is to search it."""

    name: str
    scenario: str
    overrides: tuple[str, ...]
    solvers: tuple[str, ...]


ROWS = (
    DeadlineRow(
        "gpt3, 128 devices",
        GPT3,
        (),
        ("cpsat", "state_dp", "line_dp", "megatron", "alpa", "pipepar"),
    ),
    DeadlineRow(
        "gpt3, 1024 devices", GPT3, ("cluster.servers[0].count=128",), ("cpsat", "state_dp", "line_dp", "megatron")
    ),
    DeadlineRow("gpt3, 128 devices, step", GPT3, ("objective=iteration_time",), ("cpsat",)),
    DeadlineRow(
        "resnet152, 32 devices, memory, step",
        RESNET,
        (*STEP, *FAST, *LARGE, "constraints.memory=true"),
        ("step_dp",),
    ),
    DeadlineRow(
        "resnet152, 32 devices",
        RESNET,
        (*FAST, *LARGE),
        ("cpsat", "pipedream"),
    ),
    DeadlineRow("resnet152, 8 devices", RESNET, FAST, ("brute_force", "pipepar", "pipedream_code")),
    DeadlineRow("hetpipe resnet152, free, memory", HETPIPE, FREE, ("cpsat", "state_dp", "hetpipe")),
)
EXPLAINED = (
    DeadlineRow("gpt3, 128 devices of 1 GiB", GPT3, ("cluster.devices.A100.memory=1 GiB",), ("explain",)),
    DeadlineRow("resnet152, 8 devices of 100 MiB", RESNET, ("constraints.memory=true",), ("explain",)),
)


@cache
def instance_of(scenario: str, overrides: tuple[str, ...]) -> Instance:
    """Return the instance of a scenario file."""
    return load_scenario(ROOT / scenario, overrides).load()


def measured(row: DeadlineRow, solver: str, limit_s: float) -> dict[str, Any]:
    """Search within the limit; return what it took, and what came of it."""
    instance = instance_of(row.scenario, row.overrides)
    began = time.monotonic()
    limits = Limits(time_limit_s=limit_s).begun(began)
    try:
        if solver == "explain":
            said = "complete" if explain(instance, limits).complete else "stopped early"
        else:
            said = _words(plan(instance, limits, find_any(solver)))
    except ValueError as error:
        said = f"refused: {str(error)[:60]}"
    wall = time.monotonic() - began
    over = max(0.0, wall - limit_s)
    return {
        "instance": row.name,
        "layers": len(instance.layers),
        "devices": instance.devices,
        "solver": solver,
        "limit (s)": limit_s,
        "wall (s)": round(wall, 2),
        "overrun (s)": round(over, 2),
        "kept": "yes" if over <= OVER_S + OVER_SHARE * limit_s else "NO",
        "answer": said,
    }


def _words(outcome: Outcome) -> str:
    gap = "" if outcome.gap is None else f", gap {outcome.gap:.1%}"
    return f"{outcome.proof}{gap}"


def scenarios_in(folders: Sequence[Path]) -> list[Path]:
    """Return the scenarios in folders and their folders, in order; a sweep is none."""
    found = [path for folder in folders for path in sorted(folder.rglob("*.yaml"))]
    return [path for path in found if "library" not in path.parts and not path.stem.endswith(".sweep")]


HANGS_S = 120.0
"""So long behind its limit a command is given up, and the measurement with it."""


def commanded(scenario: Path, limit_s: float) -> dict[str, Any]:
    """Run ``pipecut plan`` on a scenario, in its folder; return what it took to the prompt, and what it said."""
    words = [sys.executable, "-m", "pipecut.commands.entry", "plan", scenario.name, "--time-limit", str(limit_s)]
    began = time.monotonic()
    paths = os.pathsep.join((str(ROOT), str(scenario.parent)))
    ran = subprocess.run(
        words,
        cwd=scenario.parent,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=limit_s + HANGS_S,
    )
    wall = time.monotonic() - began
    over = max(0.0, wall - limit_s)
    first = next(iter((ran.stdout or ran.stderr).splitlines()), "nothing")
    return {
        "scenario": scenario.stem,
        "limit (s)": limit_s,
        "wall (s)": round(wall, 2),
        "overrun (s)": round(over, 2),
        "kept": "yes" if over <= OVER_S + OVER_SHARE * limit_s else "NO",
        "exit": ran.returncode,
        "said": first[:80],
    }


def main() -> int:
    """Print the table, row by row; exit code 1 where a limit was not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of a table")
    parser.add_argument("--limits", default="2;10", help="seconds, with semicolons between")
    parser.add_argument("--only", default="", help="only rows whose name and solver contain this text")
    parser.add_argument("--commands", help="folders of scenarios, with semicolons between")
    arguments = parser.parse_args()
    limits = [float(limit) for limit in arguments.limits.split(";")]
    lost: list[str] = []

    def rows() -> Iterator[dict[str, Any]]:
        if arguments.commands:
            for scenario in scenarios_in([Path(folder) for folder in arguments.commands.split(";")]):
                for limit in limits if arguments.only in scenario.stem else ():
                    found = commanded(scenario, limit)
                    lost.extend([scenario.stem] * (found["kept"] != "yes"))
                    yield found
            return
        for row, solver in [(one, solver) for one in (*ROWS, *EXPLAINED) for solver in one.solvers]:
            for limit in limits if arguments.only in f"{row.name} {solver}" else ():
                found = measured(row, solver, limit)
                lost.extend([row.name] * (found["kept"] != "yes"))
                yield found

    print_rows(rows(), as_json=arguments.json)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
