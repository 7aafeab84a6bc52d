"""What the README and docs/formulation.md say one can ask is understood, and every function they name is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tests.scenarios.conftest import Command
from tests.scenarios.fakes import ROOT

FORMULATION = (ROOT / "docs" / "formulation.md").read_text(encoding="utf-8")
ROOMS = ("formulation", "solvers")


def test_the_fragment_of_the_readme_is_planned(pipecut: Command, scenario: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (fragment,) = re.findall(r"<!-- fragment of a scenario -->\n```yaml\n(.*?)```", readme, re.DOTALL)
    scenario.write_text(scenario.read_text(encoding="utf-8") + fragment, encoding="utf-8")
    found = pipecut("plan", scenario, "--set", "cluster.devices.card.price_per_hour=1.20", "--json").json
    assert found["proof"] == "optimal" and len(found["stages"]) <= 4
    dear = pipecut("plan", scenario, "--set", "cluster.devices.card.price_per_hour=20")
    assert (
        dear.code == 1 and "constraints.at_most.cost: all devices that stages take cost at most 12.5" in dear.out
    )


NAMED = re.findall(r"`([A-Za-z_]+\.[A-Za-z_.]+)`", FORMULATION)
FUNCTIONS = sorted(
    {
        name
        for name in NAMED
        if name[0].islower() and not name.endswith((".md", ".py")) and name != "constraints.memory"
    }
)
"""Not names of functions: files, fields of classes, and a key of a scenario."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_that_the_formulation_names_exists(name: str) -> None:
    assert any(found(room, name) for room in ROOMS), name


def found(room: str, name: str) -> bool:
    """Tell whether a name is a module of a room, or an attribute of one, also in the rooms below it."""
    parts = name.removeprefix(f"{room}.").split(".")
    for stop in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join((room, *parts[:stop])))
        except ImportError:
            continue
        for part in parts[stop:]:
            if not hasattr(thing, part):
                return False
            thing = getattr(thing, part)
        return True
    return False
