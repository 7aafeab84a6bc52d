"""The house, held to its plan: who may import whom, where torch may be named, and how long code may be.

The table is that of the design: formulation stands alone, ingest and solvers stand on it and not on each other,
and scenarios and pipecut.py put everything together.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = frozenset({"formulation", "ingest", "solvers", "scenarios", "report", "runtime", "pipecut"})
EVERYTHING = OURS | {
    "jinja2",
    "networkx",
    "numpy",
    "ortools",
    "pydantic",
    "pydantic_core",
    "rich",
    "yaml",
    "torch",
}
MAY_IMPORT = {
    "formulation": {"formulation", "networkx", "numpy"},
    "ingest": {"ingest", "formulation", "networkx", "pydantic", "pydantic_core", "yaml", "torch"},
    "solvers": {"solvers", "formulation", "networkx", "numpy", "ortools"},
    "scenarios": EVERYTHING,
    "pipecut.py": EVERYTHING,
    "report": {"report", "formulation", "jinja2"},
    "runtime": {"runtime", "formulation", "torch"},
}
"""For each room: our packages and third-party ones that it may import, beside the standard library."""
MODEL_ZOO = "ingest/models/"
"""Models written in torch: a user's module in all but name, imported only to be traced. Torch may be on top."""
MAY_PRINT = ("scenarios", "pipecut.py")
SILENT = ("print", "input", "breakpoint")
MOST_LINES = 250
MOST_LINES_OF_A_FUNCTION = 40


class Finding(NamedTuple):
    """A line that breaks a rule of the house."""

    rule: str
    line: int
    detail: str


def modules() -> list[Path]:
    rooms = [ROOT / room for room in MAY_IMPORT]
    found = [path for room in rooms if room.is_dir() for path in sorted(room.rglob("*.py"))]
    return [*found, ROOT / "pipecut.py"]


def check(source: str, path: str) -> list[Finding]:
    """Return everything in a module that breaks a rule; ``path`` is relative to the repository."""
    tree = ast.parse(source)
    room = path.split("/", 1)[0]
    findings = [*_imports(tree, room, path), *_lengths(source, tree)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            findings.append(Finding("assert", node.lineno, "no assert outside tests"))
        if isinstance(node, ast.Call) and room not in MAY_PRINT and _prints(node.func):
            findings.append(Finding("print", node.lineno, f"{ast.unparse(node.func)} below scenarios"))
    return findings


def _imports(tree: ast.Module, room: str, path: str) -> Iterator[Finding]:
    lazy = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _only_for_types(node)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        for name in _imported(node):
            package = name.split(".", 1)[0]
            known = package in MAY_IMPORT[room] or package in sys.stdlib_module_names
            if not known:
                yield Finding("import", getattr(node, "lineno", 0), f"{room} may not import {name}")
            elif package == "torch" and id(node) not in lazy and not path.startswith(MODEL_ZOO):
                yield Finding("lazy", getattr(node, "lineno", 0), "torch is imported inside functions only")


def _only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _imported(node: ast.AST) -> list[str]:
    """Return the modules that a node imports; relative imports stay in their room and have no place here."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{'.' * node.level}{node.module or ''}"]
    return []


def _prints(function: ast.expr) -> bool:
    text = ast.unparse(function)
    return text in SILENT or text.startswith(("sys.stdout.", "sys.stderr.", "warnings.warn"))


def _lengths(source: str, tree: ast.Module) -> Iterator[Finding]:
    lines = source.splitlines()
    filled = sum(1 for line in lines if line.strip())
    if filled > MOST_LINES:
        yield Finding("module length", 1, f"{filled} lines that are not blank, at most {MOST_LINES}")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            long = _function_lines(node, lines)
            if long > MOST_LINES_OF_A_FUNCTION:
                message = f"{node.name} has {long} lines, at most {MOST_LINES_OF_A_FUNCTION}"
                yield Finding("function length", node.lineno, message)


def _function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> int:
    """Count the lines of a function that are not blank, without its docstring."""
    first, last = node.lineno, node.end_lineno or node.lineno
    inside = set(range(first, last + 1))
    if ast.get_docstring(node) is not None:
        text = node.body[0]
        inside -= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return sum(1 for number in inside if lines[number - 1].strip())


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_house_is_in_order(path: Path) -> None:
    relative = path.relative_to(ROOT).as_posix()
    findings = check(path.read_text(encoding="utf-8"), relative)
    assert not findings, "\n".join(f"{relative}:{found.line}: {found.detail}" for found in findings)


def test_every_room_is_in_the_table() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages <= set(MAY_IMPORT)


def test_there_is_no_package_of_tests() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


@pytest.mark.parametrize(
    ("path", "source", "rule"),
    [
        ("formulation/x.py", "from solvers import line_dp", "import"),
        ("formulation/x.py", "def f():\n    import ortools.sat.python.cp_model", "import"),
        ("formulation/x.py", "import pydantic", "import"),
        ("ingest/x.py", "from solvers.line_dp import solve", "import"),
        ("ingest/x.py", "import requests", "import"),
        ("solvers/x.py", "from ingest.scenario import Scenario", "import"),
        ("solvers/x.py", "import torch", "import"),
        ("solvers/x.py", "from . import flat", "import"),
        ("report/x.py", "import scenarios", "import"),
        ("ingest/x.py", "import torch", "lazy"),
        ("ingest/x.py", "class A:\n    from torch import nn", "lazy"),
        ("ingest/x.py", "try:\n    import torch\nexcept ImportError:\n    pass", "lazy"),
        ("scenarios/x.py", "if True:\n    import torch", "lazy"),
        ("pipecut.py", "assert True", "assert"),
        ("solvers/x.py", "print('x')", "print"),
        ("ingest/x.py", "import sys\nsys.stderr.write('x')", "print"),
        ("solvers/x.py", "x = 1\n" * 251, "module length"),
        ("solvers/x.py", "def f():\n" + "    x = 1\n" * 40, "function length"),
    ],
)
def test_a_violation_is_caught(path: str, source: str, rule: str) -> None:
    assert [found.rule for found in check(source, path)] == [rule]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("ingest/x.py", "def f():\n    import torch"),
        ("ingest/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("ingest/models/x.py", "from torch import nn"),
        ("solvers/x.py", "import os\nfrom ortools.sat.python import cp_model\nimport formulation.plan"),
        ("scenarios/x.py", "print('x')"),
        ("solvers/x.py", "x = 1\n\n" * 250),
        ("solvers/x.py", 'def f():\n    """' + "text\n    " * 60 + '"""\n' + "    x = 1\n\n" * 39),
    ],
)
def test_what_is_allowed_passes(path: str, source: str) -> None:
    assert check(source, path) == []
