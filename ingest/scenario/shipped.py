"""Where the scenarios and the library of devices that come with pipecut lie."""

from __future__ import annotations

from pathlib import Path

SHIPPED = Path(__file__).resolve().parents[2] / "scenarios"
"""The folder of the shipped scenarios, one sub-folder for each source."""
LIBRARY = SHIPPED / "library"
"""The folder of the library: files of devices and machines, no scenarios."""

SWEEPS = ".sweep.yaml"
"""What names of sweep files end with, which lie beside scenarios."""


def scenario_files(folder: Path) -> list[Path]:
    """Return the scenario files in a folder and its sub-folders, in order; files of the library are none."""
    library = folder / LIBRARY.name
    return sorted(
        path for path in folder.rglob("*.yaml") if library not in path.parents and not path.name.endswith(SWEEPS)
    )
