"""How large the page of every scenario that ships is: ``python -m benchmarks.size.pages``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pipecut
from pipecut.ingest.scenario.shipped import scenario_files

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 5.0
"""How long a plan is searched for; the best one by then is drawn."""


def main() -> None:
    """Plan and draw every scenario and print the sizes of the pages."""
    print("scenario | layers | stages | page")
    for path in scenario_files(ROOT / "scenarios"):
        name = path.relative_to(ROOT / "scenarios").with_suffix("")
        problem = pipecut.load(path)
        found = pipecut.plan(problem, limits=pipecut.Limits(time_limit_s=SECONDS))
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder, "page.html")
            pipecut.simulate(problem, found.needed_plan(), claim=found).write(page)
            size = page.stat().st_size
        print(f"{name} | {len(problem.layers)} | {len(found.needed_plan())} | {size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
