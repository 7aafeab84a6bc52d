"""What the README and docs/formulation.md say one can ask is understood, and every function they name is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tests.command_line import Command
from tests.commands.fakes import ROOT, saying_nothing_of

FORMULATION = (ROOT / "docs" / "formulation.md").read_text(encoding="utf-8")
MODULES = [
    path.relative_to(ROOT).with_suffix("").parts
    for room in ("formulation", "solvers", "report")
    for path in (ROOT / room).rglob("*.py")
]


@pytest.mark.slow
def test_the_fragment_of_the_readme_is_planned(pipecut: Command, scenario: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (fragment,) = re.findall(r"<!-- fragment of a scenario -->\n```yaml\n(.*?)```", readme, re.DOTALL)
    text = saying_nothing_of("objective", scenario.read_text(encoding="utf-8"))
    scenario.write_text(text + fragment, encoding="utf-8")
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
        if name[0].islower()
        and not name.endswith((".md", ".py"))
        and name
        not in ("constraints.memory", "constraints.splits", "cost.compute", "cost.expert_load", "training.warm_up")
    }
)
"""Not names of functions: files, fields of classes, and keys of a scenario."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_that_the_formulation_names_exists(name: str) -> None:
    assert found(name), name


def found(name: str) -> bool:
    """Tell whether a name ends as a module of the two rooms does, or is an attribute of such a module."""
    parts = tuple(name.split("."))
    for stop in range(len(parts), 0, -1):
        for module in MODULES:
            if module[-stop:] == parts[:stop] or module[-stop - 1 :] == (*parts[:stop], "__init__"):
                thing = importlib.import_module(".".join(("pipecut", *module)))
                if _has(thing, parts[stop:]):
                    return True
    return False


def _has(thing: object, attributes: tuple[str, ...]) -> bool:
    for one in attributes:
        if not hasattr(thing, one):
            return False
        thing = getattr(thing, one)
    return True
