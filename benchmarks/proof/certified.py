"""Which executed times a certificate proves, how nearly, and how long making and checking it take.

``python -m benchmarks.proof.certified [--json] [--only TEXT] [--limit S]``

The instances of ``benchmarks.proof.executed``. Times are of the processor. ``--limit`` is for the search, and
again for making the certificate.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks.proof.executed import ExecutedRow, rows
from benchmarks.proof.proofs import SCENARIOS
from benchmarks.table import print_rows
from pipecut.formulation.certificates.check import verify
from pipecut.formulation.limits import NEVER, StoppedError
from pipecut.formulation.outcome import Limits
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.certifying import certify


def measure(row: ExecutedRow, limit_s: float) -> dict[str, Any]:
    """Plan by what is executed, and certify the plan that was found."""
    loaded = load_scenario(SCENARIOS / row.scenario, row.overrides).load()
    instance = replace(loaded, goals=(row.executed,))
    found = plan(instance, Limits(time_limit_s=limit_s), cross_check=False)
    said: dict[str, Any] = {"instance": row.name, "best (ns)": found.objective}
    if found.plan is None or found.objective is None:
        return said
    began = time.process_time()
    try:
        certificate = certify(instance, found.plan, found.objective, NEVER.within(limit_s))
    except StoppedError:
        return said | {"proved (ns)": f"nothing in {limit_s:.0f} s"}
    except ValueError as error:
        return said | {"proved (ns)": str(error)}
    made = time.process_time()
    verify(instance, certificate)
    return said | {
        "proved (ns)": certificate.bound,
        "below": f"{1 - certificate.bound / certificate.objective:.1%}",
        "paths": certificate.paths_in_all,
        "made (s)": round(made - began, 1),
        "checked (s)": round(time.process_time() - made, 1),
    }


def measured(only: str, limit_s: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each instance whose name has this text."""
    yield from (measure(row, limit_s) for row in rows() if only in row.name)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--limit", type=float, default=60.0, metavar="S")
    arguments = parser.parse_args()
    print_rows(measured(arguments.only, arguments.limit), as_json=arguments.json)


if __name__ == "__main__":
    main()
