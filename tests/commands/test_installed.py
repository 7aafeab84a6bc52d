"""What is installed beside pipecut is found by entry points; what is not there is told with what to install."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace

import networkx as nx
import pytest

import pipecut as public
from pipecut.commands.main import main
from pipecut.commands.parser.options import Grammar
from pipecut.formulation.outcome import Limits, Outcome
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import layer_graph
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.schedules.table import ScheduleError
from pipecut.solvers.catalogue import SolverEntry, all_names, find_any
from tests.command_line import Command
from tests.examples import matrix
from tests.one_stage import one_stage

INSTALL = "come with pip install pipecut-literature"


def registering(monkeypatch: pytest.MonkeyPatch, *entries: EntryPoint) -> None:
    """Let these be all entry points that there are."""

    def found(*, group: str, name: str | None = None) -> tuple[EntryPoint, ...]:
        return tuple(one for one in entries if one.group == group and name in (None, one.name))

    monkeypatch.setattr(importlib.metadata, "entry_points", found)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipecut with nothing beside it."""
    registering(monkeypatch)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "tiny.yaml", "--solver", "anybody"), f"no solver 'anybody'; expected one of auto, .*{INSTALL}"),
        (("compare", "tiny.yaml", "--solvers", "cpsat,anybody"), f"no solver 'anybody'.*{INSTALL}"),
        (("plan", "tiny.yaml", "--set", "solver.name=anybody"), f"solver.name: no solver 'anybody'.*{INSTALL}"),
        (("anything", "x"), f"there is no 'anything', only plan, .*; commands of papers {INSTALL}"),
        (("compare", "--all"), f"unrecognized arguments: --all; more arguments of papers {INSTALL}"),
        (("compare",), "the following arguments are required: SCENARIO$"),
        (("trace", "graph.txt", "--out", "g.json"), rf"nothing is installed that reads \*.txt; .*{INSTALL}"),
        (("simulate", "tiny.yaml", "--schedule", "best"), "--schedule best: nothing is installed .*literature"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_told_with_what_to_install(
    pipecut: Command, scenario: Path, words: tuple[str, ...], said: str
) -> None:
    Path("graph.txt").write_text("x", encoding="utf-8")
    ran = pipecut(*words)
    assert ran.code == 2 and "Traceback" not in ran.err
    assert re.search(said, ran.err.rstrip()), ran.err


@pytest.mark.usefixtures("alone")
def test_the_core_is_complete_without_anything_beside_it(pipecut: Command, scenario: Path) -> None:
    assert all_names()[-2:] == ("pipepar", "pipepar_listed")
    ran = pipecut("compare", scenario, "--json", "--solvers", "line_dp,pipepar,pipepar_listed")
    assert ran.code == 0 and [row["solver"] for row in ran.json["solvers"]] == [
        "line_dp",
        "pipepar",
        "pipepar_listed",
    ]
    problem = public.load(scenario)
    with pytest.raises(ValueError, match="pip install pipecut-literature"):
        public.plan(problem, solver="anybody")
    with pytest.raises(ValueError, match="pip install pipecut-literature"):
        public.simulate(problem, public.plan(problem).needed_plan(), schedule="best")


def brought() -> SimpleNamespace:
    """What a distribution might bring: a planner, a command, a reader, and a search for orders."""

    def newest(instance: Instance, limits: Limits) -> Outcome:
        return replace(one_stage(instance), solver="newest")

    def add(grammar: Grammar) -> None:
        command = grammar.command("greet", "greet somebody", run="brought", reads=(), writes=())
        command.add_argument("name")
        command.add_argument("--json", action="store_true")

    def run(arguments: argparse.Namespace) -> int:
        sys.stdout.write(f"hello {arguments.name}\n")
        return 0

    def louder(grammar: Grammar) -> None:
        grammar.of("devices").add_argument("--louder", action="store_true", help="in capital letters")

    def read(arguments: argparse.Namespace) -> nx.DiGraph:
        return layer_graph(arguments.model, [matrix("a"), matrix("b")], [("a", "b", 4)])

    def search(instance: Instance, plan: Plan, limits: object) -> object:
        raise ScheduleError("there is none")

    planner = SolverEntry("newest", "a planner of next year", lambda: newest)
    return SimpleNamespace(add=add, run=run, louder=louder, read=read, search=search, PLANNERS=(planner,))


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipecut with a distribution beside it."""
    module = ModuleType("brought")
    vars(module).update(vars(brought()))
    monkeypatch.setitem(sys.modules, "brought", module)
    registering(
        monkeypatch,
        EntryPoint("next", "brought:PLANNERS", "pipecut.planners"),
        EntryPoint("greet", "brought:add", "pipecut.commands"),
        EntryPoint("devices", "brought:louder", "pipecut.commands"),
        EntryPoint("txt", "brought:read", "pipecut.readers"),
        EntryPoint("best", "brought:search", "pipecut.orders"),
    )


@pytest.mark.usefixtures("beside")
def test_what_is_there_is_used(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert all_names()[-1] == "newest" and find_any("newest").summary == "a planner of next year"
    assert main(["plan", str(scenario), "--solver", "newest", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["solver"] == "newest"
    assert main(["greet", "you"]) == 0 and capsys.readouterr().out == "hello you\n"
    assert main(["--help"]) == 0 and "greet somebody" in capsys.readouterr().out
    assert main(["devices", "--help"]) == 0 and "in capital letters" in capsys.readouterr().out
    assert main(["plan", "--help"]) == 0 and "a planner of next year" in capsys.readouterr().out
    assert main(["trace", "x.txt", "--out", "g.json"]) == 0
    assert capsys.readouterr().out.startswith("g.json: 2 layers, 1 edge")
    assert main(["simulate", str(scenario), "--schedule", "best"]) == 2
    assert "schedule best: there is none" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["no_such_module:add", "json:no_such_name"])
def test_what_is_broken_is_named(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    for group, words in (
        ("pipecut.commands", ["--help"]),
        ("pipecut.planners", ["compare", str(scenario)]),
        ("pipecut.planners", ["plan", str(scenario), "--set", "solver.name=other"]),
        ("pipecut.readers", ["trace", "x.name", "--out", "g.json"]),
        ("pipecut.orders", ["simulate", str(scenario), "--schedule", "best"]),
    ):
        name = "best" if group == "pipecut.orders" else "name"
        registering(monkeypatch, EntryPoint(name, value, group))
        assert main(words) == 2, words
        err = capsys.readouterr().err
        assert f"{group}: {name} cannot be loaded, install it again: " in err and "Traceback" not in err


def test_an_outcome_of_such_a_planner_is_checked_like_any_other(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def liar(instance: Instance, limits: object) -> Outcome:
        return replace(one_stage(instance), solver="liar", objective=1)

    module = ModuleType("lying")
    module.PLANNERS = (SolverEntry("liar", "", lambda: liar),)  # pyright: ignore
    monkeypatch.setitem(sys.modules, "lying", module)
    registering(monkeypatch, EntryPoint("x", "lying:PLANNERS", "pipecut.planners"))
    monkeypatch.chdir(scenario.parent)
    assert main(["plan", str(scenario), "--solver", "liar"]) == 4
    assert "liar" in capsys.readouterr().err
