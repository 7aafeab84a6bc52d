"""Nothing heavy is imported before it is needed: counted in modules, as times depend on the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.fakes import ROOT

HEAVY = (
    "torch",
    "ortools",
    "pandas",
    "jinja2",
    "networkx",
    "numpy",
    "pydantic",
    "rich",
    "yaml",
    "pipecut.commands.parts.task",
)


def heavy_after(code: str, *arguments: str) -> set[str]:
    """Run code in a fresh interpreter and return which heavy modules it imported."""
    script = f"""\
import json, sys
try:
    {code}
except SystemExit:
    pass
sys.stderr.write(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


RUN = "from pipecut.commands.main import main; main()"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["plan", "--help"], ["--version"], [], ["plan", "x", "--seed", "y"]]
)
def test_help_and_mistakes_on_the_command_line(arguments: list[str]) -> None:
    assert heavy_after(RUN, *arguments) == set()


def test_a_mistake_in_a_scenario(scenario: Path) -> None:
    scenario.write_text("name: 5\n", encoding="utf-8")
    assert heavy_after(RUN, "plan", str(scenario)) == {"pydantic", "yaml"}


@pytest.mark.slow
def test_planning_from_a_traced_graph_needs_no_torch(scenario: Path) -> None:
    found = heavy_after(RUN, "plan", str(scenario), "--json")
    assert "ortools" in found and "torch" not in found


def test_importing_pipecut() -> None:
    assert heavy_after("import pipecut, solvers.catalogue") == set()
