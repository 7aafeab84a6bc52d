"""The house, held to its plan: who may import whom, no circles, where torch may be named, how long things may be.

Formulation stands alone; solvers, ingest, exchange and report stand on it; the command line and the face of the
package put everything together. A room lies on top of the repository and is the package ``pipecut.ROOM``. The
literature is a distribution of its own beside them: it stands on all of them, and no room knows it. The code lines
of a room only fall (BUDGETS).
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = frozenset(
    {
        "commands",
        "exchange",
        "execution",
        "face",
        "formulation",
        "ingest",
        "report",
        "solvers",
    }
)
THIRD_PARTY = frozenset(
    {
        "networkx",
        "numpy",
        "ortools",
        "pydantic",
        "pydantic_core",
        "rich",
        "yaml",
        "jinja2",
        "torch",
        "transformers",
        "pandas",
    }
)
READERS = {"formulation", "networkx", "numpy", "pydantic", "pydantic_core", "yaml"}
MAY_IMPORT: dict[str, set[str]] = {
    "formulation": {"formulation", "networkx", "numpy"},
    "ingest": {"ingest", "torch", "transformers", *READERS},
    "exchange": {"exchange", "ingest", *READERS},
    "solvers": {"solvers", "formulation", "networkx", "numpy", "ortools"},
    "report": {"report", "formulation", "jinja2"},
    "execution": {"execution", "formulation", "ingest", "torch"},
    "commands": {*OURS, *THIRD_PARTY},
    "face": {*OURS, *THIRD_PARTY},
    "literature": {"literature", "commands", "ingest", "report", "solvers", "ortools", "rich", *READERS},
}
"""For each room: our packages and third-party ones that it may import, beside the standard library."""
BESIDE = {"literature": "literature/pipecut_literature"}
"""Rooms that are packages of their own, and where these lie."""
TORCH_ON_TOP = ("ingest/models/", "execution/")
"""Models written in torch, a user's modules in all but name, and what runs them: imported only to be run."""
HEAVY = ("torch", "transformers", "execution")
"""What is imported inside functions only, elsewhere: planning from a file never needs it."""
MAY_PRINT = ("commands", "face")
SILENT = ("print", "input", "breakpoint")
MOST_LINES = 600
MOST_LINES_OF_A_FUNCTION = 40
MOST_FILES = 21
BUDGETS = {
    "commands": 6891,
    "exchange": 611,
    "execution": 4482,
    "face": 227,
    "formulation": 10100,
    "ingest": 7692,
    "literature": 7998,
    "report": 1905,
    "solvers": 18333,
}
"""Code lines of a room: a commit may lower a number, and none may raise it.

``solvers`` has ``reduce/`` and ``cpsat/on_types`` beside what they are to replace
(docs/decisions/0019-reduce-first.md) until that falls.
Proofs are shown, then checked in time of their own (``commands``), and attacked where nobody proves them again
(``solvers/attack.py``), and what is opened makes no answer worse, and has a bound
(``solvers/choices/other_questions.py``).
``formulation`` prices what is done once a step apart from each pass for it, and knows what an instance has a use
for, by which ``ingest`` opens what a scenario does not say and results say what was searched and what was not.
"""
LONGEST_CHAIN = 37
"""Modules of which each imports the next: it falls as rooms are rebuilt."""


class Finding(NamedTuple):
    """A line that breaks a rule of the house."""

    rule: str
    line: int
    detail: str


def modules() -> list[Path]:
    rooms = [place_of(room) for room in MAY_IMPORT]
    return [path for room in rooms if room.is_dir() for path in sorted(room.rglob("*.py"))]


def place_of(room: str) -> Path:
    """Return the folder of a room's package."""
    return ROOT / BESIDE.get(room, room)


def texts() -> dict[str, str]:
    return {relative(path): path.read_text(encoding="utf-8") for path in modules()}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def nodes_of(source: str) -> list[ast.AST]:
    """Return all nodes of a module; kept, as several rules ask for them."""
    return list(ast.walk(ast.parse(source)))


def check(source: str, path: str) -> list[Finding]:
    """Return everything in a module that breaks a rule; ``path`` is relative to the repository."""
    nodes = nodes_of(source)
    room = path.split("/", 1)[0]
    findings = [*_imports(nodes, room, path), *_lengths(source, nodes)]
    for node in nodes:
        if isinstance(node, ast.Assert):
            findings.append(Finding("assert", node.lineno, "no assert outside tests"))
        if isinstance(node, ast.Call) and room not in MAY_PRINT and _prints(node.func):
            findings.append(Finding("print", node.lineno, f"{ast.unparse(node.func)} below the command line"))
    return findings


def _imports(nodes: list[ast.AST], room: str, path: str) -> Iterator[Finding]:
    heavy: list[tuple[ast.AST, str]] = []
    for node in nodes:
        for name in _imported(node):
            package = room_of(name)
            known = package in MAY_IMPORT[room] or package in sys.stdlib_module_names
            if not known:
                yield Finding("import", getattr(node, "lineno", 0), f"{room} may not import {name}")
            elif package in HEAVY and not path.startswith(TORCH_ON_TOP):
                heavy.append((node, package))
    inside = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    apart = (*inside, *(node for node in nodes if _only_for_types(node))) if heavy else ()
    lazy = {id(inner) for node in apart for inner in ast.walk(node)}
    for node, package in heavy:
        if id(node) not in lazy:
            yield Finding("lazy", getattr(node, "lineno", 0), f"{package} is imported inside functions only")


def room_of(name: str) -> str:
    """Return the room that an imported module lies in, or the package of others that it belongs to."""
    first, _, rest = name.partition(".")
    beside = {Path(place).name: room for room, place in BESIDE.items()}
    if first in beside:
        return beside[first]
    return first if first != "pipecut" else rest.partition(".")[0] if rest.partition(".")[0] in OURS else "face"


def _only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _imported(node: ast.AST) -> list[str]:
    """Return the modules that a node imports; relative imports stay in their room and have no place here."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        if node.module == "pipecut":
            return [f"pipecut.{alias.name}" for alias in node.names]
        return [f"{'.' * node.level}{node.module or ''}"]
    return []


def _prints(function: ast.expr) -> bool:
    text = ast.unparse(function)
    return text in SILENT or text.startswith(("sys.stdout.", "sys.stderr.", "warnings.warn"))


def _lengths(source: str, nodes: list[ast.AST]) -> Iterator[Finding]:
    lines = source.splitlines()
    filled = sum(1 for line in lines if line.strip())
    if filled > MOST_LINES:
        yield Finding("module length", 1, f"{filled} lines that are not blank, at most {MOST_LINES}")
    for node in nodes:
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


def imports_among(sources: dict[str, str], *, for_types: bool = True) -> nx.DiGraph:
    """Return who imports whom, by path, anywhere in a module; ``for_types``: for type checkers alone, too."""
    by_name = {name_of(path): path for path in sources}
    graph = nx.DiGraph()
    for path, source in sources.items():
        graph.add_node(path)
        for name, typing in _targets(source):
            if name in by_name and by_name[name] != path and (for_types or not typing):
                graph.add_edge(path, by_name[name])
    return graph


def name_of(path: str) -> str:
    """Return the name by which a module is imported."""
    inside = path.removesuffix(".py").removesuffix("/__init__")
    for place in BESIDE.values():
        if inside.startswith(place):
            return inside.removeprefix(place.rpartition("/")[0] + "/").replace("/", ".")
    return f"pipecut.{inside.replace('/', '.')}"


@cache
def _targets(source: str) -> tuple[tuple[str, bool], ...]:
    """Return what a module imports, and whether for type checkers alone; kept, as several rules ask for it."""
    nodes = nodes_of(source)
    typing = {id(inner) for node in nodes if _only_for_types(node) for inner in ast.walk(node)}
    found: list[tuple[str, bool]] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += ((alias.name, id(node) in typing) for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
            found += ((name, id(node) in typing) for name in names)
    return tuple(found)


def circles(sources: dict[str, str]) -> list[list[str]]:
    """Return the sets of modules that import one another in a circle, and of folders that do so at run time.

    A module beside folders counts as a folder of its own.
    """
    modules_in, folders = imports_among(sources), nx.DiGraph()
    holding = {path.rpartition("/")[0].rpartition("/")[0] for path in sources}
    for one, other in imports_among(sources, for_types=False).edges:
        if (first := _folder(one, holding)) != (second := _folder(other, holding)):
            folders.add_edge(first, second)
    both = (*nx.strongly_connected_components(modules_in), *nx.strongly_connected_components(folders))
    return [sorted(component) for component in both if len(component) > 1]


def _folder(path: str, holding: set[str]) -> str:
    folder = path.rpartition("/")[0]
    return path if folder in holding and not path.endswith("__init__.py") else folder


def code_lines(source: str) -> int:
    """Count the lines of a module that hold code: no blanks, comments or docstrings."""
    told, texts = set[int](), set[int]()
    for node in nodes_of(source):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            text = first.value if isinstance(first, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                told.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
        elif isinstance(node, ast.Constant | ast.JoinedStr) and node.lineno != node.end_lineno:
            texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = ((number, line.strip()) for number, line in enumerate(source.splitlines(), start=1))
    filled = {number for number, line in lines if line and not line.startswith("#")}
    return len((filled | texts) - told)


def longest_chain(graph: nx.DiGraph) -> list[str]:
    """Return the longest chain of modules of which each imports the next."""
    return nx.dag_longest_path(graph)


def crowded(paths: Iterable[str]) -> dict[str, int]:
    """Return the folders that hold more Python files than a room should, ``__init__.py`` among them."""
    count: dict[str, int] = {}
    for path in paths:
        folder = path.rpartition("/")[0]
        count[folder] = count.get(folder, 0) + 1
    return {folder: files for folder, files in count.items() if files > MOST_FILES}


@pytest.mark.parametrize("path", modules(), ids=relative)
def test_the_house_is_in_order(path: Path) -> None:
    findings = check(path.read_text(encoding="utf-8"), relative(path))
    assert not findings, "\n".join(f"{relative(path)}:{found.line}: {found.detail}" for found in findings)


def test_no_circle_leads_through_modules_or_folders() -> None:
    assert circles(texts()) == []


@pytest.mark.parametrize("room", ["formulation", "solvers"])
def test_no_two_modules_of_a_room_have_one_name(room: str) -> None:
    """But constraints, which lie in two lists by the names of their keys."""
    paths = [path for path in texts() if path.startswith(f"{room}/") and "/constraints/" not in path]
    names = Counter(path.rpartition("/")[2] for path in paths if not path.endswith("__init__.py"))
    assert [name for name, often in names.items() if often > 1] == []


def test_no_room_grows() -> None:
    found: dict[str, int] = {}
    for path, source in texts().items():
        room = path.partition("/")[0]
        found[room] = found.get(room, 0) + code_lines(source)
    assert {room: (lines, BUDGETS[room]) for room, lines in found.items() if lines > BUDGETS[room]} == {}


def test_the_longest_chain_of_imports_grows_no_longer() -> None:
    chain = longest_chain(imports_among(texts(), for_types=False))
    assert len(chain) <= LONGEST_CHAIN, "\n".join(chain)


def test_no_folder_is_crowded() -> None:
    beside = (
        relative(path)
        for room in ("tests", "benchmarks", "literature/tests")
        for path in (ROOT / room).rglob("*.py")
    )
    assert crowded([*map(relative, modules()), *beside]) == {}


@pytest.mark.slow
def test_the_core_does_not_know_the_literature() -> None:
    """Neither its package by name, in the core or its tests, nor its room; it is found by its entry points."""
    assert [room for room in OURS if "literature" in MAY_IMPORT[room]] == []
    product = [path for path in modules() if relative(path).partition("/")[0] != "literature"]
    held = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    assert [relative(path) for path in [*product, *held] if _imports_literature(path)] == []


def _imports_literature(path: Path) -> bool:
    return any(room_of(name) == "literature" for name, _ in _targets(path.read_text(encoding="utf-8")))


def test_every_room_is_in_the_table() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages - {"scenarios"} <= set(MAY_IMPORT)


def test_scenarios_holds_files_only() -> None:
    code = [path for path in (ROOT / "scenarios").rglob("*.py") if path.name != "__init__.py"]
    assert code == []


def test_there_is_no_package_of_tests() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


@pytest.mark.parametrize(
    ("path", "source", "rule"),
    [
        ("formulation/x.py", "from pipecut.solvers.dynamic.line import solver", "import"),
        ("formulation/x.py", "def f():\n    import ortools.sat.python.cp_model", "import"),
        ("formulation/x.py", "import pydantic", "import"),
        ("ingest/x.py", "from pipecut.solvers.reference.line_dp import solve", "import"),
        ("ingest/x.py", "import requests", "import"),
        ("solvers/x.py", "from pipecut.ingest.scenario.load import Scenario", "import"),
        ("solvers/x.py", "from pipecut_literature.catalogue import PLANNERS", "import"),
        ("commands/x.py", "from pipecut_literature.catalogue import PLANNERS", "import"),
        ("solvers/x.py", "import torch", "import"),
        ("solvers/x.py", "from . import flat", "import"),
        ("report/x.py", "from pipecut import commands", "import"),
        ("literature/pipecut_literature/x.py", "from pipecut import execution", "import"),
        ("ingest/x.py", "import torch", "lazy"),
        ("ingest/x.py", "import transformers", "lazy"),
        ("ingest/x.py", "class A:\n    from torch import nn", "lazy"),
        ("ingest/x.py", "try:\n    import torch\nexcept ImportError:\n    pass", "lazy"),
        ("commands/x.py", "if True:\n    import torch", "lazy"),
        ("commands/x.py", "from pipecut.execution.splitting.stages import stages", "lazy"),
        ("execution/x.py", "from pipecut import solvers", "import"),
        ("face/x.py", "assert True", "assert"),
        ("solvers/x.py", "print('x')", "print"),
        ("ingest/x.py", "import sys\nsys.stderr.write('x')", "print"),
        ("solvers/x.py", "x = 1\n" * 601, "module length"),
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
        ("execution/x.py", "import torch\nfrom pipecut.execution import y"),
        ("face/x.py", "def f():\n    from pipecut.execution.splitting.stages import stages"),
        (
            "solvers/x.py",
            "import os\nfrom ortools.sat.python import cp_model\nimport pipecut.formulation.problem.plan",
        ),
        ("commands/x.py", "print('x')"),
        ("solvers/x.py", "x = 1\n\n" * 600),
        ("solvers/x.py", 'def f():\n    """' + "text\n    " * 60 + '"""\n' + "    x = 1\n\n" * 39),
    ],
)
def test_what_is_allowed_passes(path: str, source: str) -> None:
    assert check(source, path) == []


def test_circles_are_caught() -> None:
    modules_in_a_circle = {"a/x.py": "import pipecut.a.y", "a/y.py": "def f():\n    from pipecut.a import x"}
    assert circles(modules_in_a_circle) == [["a/x.py", "a/y.py"]]
    folders_in_a_circle = {
        "a/b/x.py": "import pipecut.a.c.y",
        "a/c/y.py": "",
        "a/c/z.py": "import pipecut.a.b.w",
        "a/b/w.py": "",
    }
    assert circles(folders_in_a_circle) == [["a/b", "a/c"]]
    beside_folders = {"a/x.py": "import pipecut.a.b.y", "a/b/y.py": "import pipecut.a.z", "a/z.py": ""}
    assert circles(beside_folders) == []
    for_types = {
        "a/x.py": "import pipecut.a.y",
        "a/y.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pipecut.a.x",
    }
    assert circles(for_types) == [["a/x.py", "a/y.py"]]


def test_code_lines_are_counted_without_words() -> None:
    assert (
        code_lines('"""Words."""\n\n# a comment\nx = [\n    1,\n]\n\ndef f():\n    """Words."""\n    return 1\n')
        == 5
    )


def test_a_crowd_is_caught() -> None:
    assert crowded([f"a/x{number}.py" for number in range(MOST_FILES + 1)]) == {"a": MOST_FILES + 1}
    assert crowded([f"a/x{number}.py" for number in range(MOST_FILES)]) == {}


def doubled(sources: dict[str, str]) -> dict[str, list[str]]:
    """Return the public classes of one name that several modules define, and these modules."""
    homes: dict[str, list[str]] = {}
    for path, source in sources.items():
        for name in re.findall(r"^class ([A-Za-z]\w*)", source, re.MULTILINE):
            homes.setdefault(name, []).append(path)
    return {name: paths for name, paths in homes.items() if len(paths) > 1}


def test_no_two_classes_have_one_name() -> None:
    assert doubled(texts()) == {}
    assert doubled({"a/x.py": "class A: ...", "b/y.py": "class A: ..."}) == {"A": ["a/x.py", "b/y.py"]}
