"""Map, glossary, index and CONTRIBUTING.md against the tree: what they name exists, and no room is missing.

The pages name code in one way, a path in backticks, a colon, and names in backticks:
``formulation/costs/memory.py``: ``MemoryParts.of_stage``, ``MemoryParts.total``. NAME stands for a part that a
reader chooses, as in ``ingest/models/NAME/model.py``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_architecture import BESIDE, MAY_IMPORT, OURS, THIRD_PARTY, modules, place_of, relative

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
MAP, GLOSSARY, INDEX = DOCS / "architecture.md", DOCS / "glossary.md", DOCS / "README.md"
MADE = {"extend.md", "reference/python.md", "reference/scenario.md", "reference/json.md"}
"""Pages of the site that are made while it is built (``docs/making/reference.py``)."""
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
LITERATURE = ROOT / "literature" / "README.md"
TREE = frozenset(path.name for path in ROOT.iterdir())
IN_BACKTICKS = re.compile(r"`([^`\n]+)`")
NAMED = re.compile(r"`([\w./-]+\.py)`:((?:,?\s+`[\w.]+`)+)")
ROW = re.compile(r"^\| (.+) \|$(?!\n\|---)", re.MULTILINE)
LINK = re.compile(r"\]\((?!http)([^)#]+)")


@cache
def defined(path: Path) -> frozenset[str]:
    """Return the names that a module defines, and as ``Class.name`` what its classes hold."""
    return frozenset(_names(ast.parse(path.read_text(encoding="utf-8")).body, ""))


def _names(body: list[ast.stmt], before: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield before + node.name
        if isinstance(node, ast.ClassDef):
            yield from _names(node.body, f"{before}{node.name}.")
        for target in node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]:
            if isinstance(target, ast.Name):
                yield before + target.id


def wrong(text: str) -> list[str]:
    """Return what a page names that is not there."""
    paths = {one for one in IN_BACKTICKS.findall(text) if _is_path(one)}
    found = [f"no {path}" for path in sorted(paths) if not (ROOT / path).exists()]
    for path, names in NAMED.findall(text):
        if "NAME" in path or not (ROOT / path).exists():
            continue
        missing = sorted(set(IN_BACKTICKS.findall(names)) - defined(ROOT / path))
        found += [f"no {name} in {path}" for name in missing]
    return found


def _is_path(text: str) -> bool:
    """Tell whether a word names a file or folder of the tree: a room before a slash, or a file on top."""
    if not re.fullmatch(r"[\w./-]+", text) or "NAME" in text:
        return False
    first, slash, _ = text.partition("/")
    return first in {*TREE, *MAY_IMPORT} if slash else bool(re.fullmatch(r"[\w-]+\.(py|md|toml|txt)", text))


def section(page: Path, title: str) -> str:
    _, _, rest = page.read_text(encoding="utf-8").partition(f"\n## {title}\n")
    assert rest, f"{page.name} has no section '{title}'"
    return rest.split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Return the cells of the tables in a text, without their heads."""
    return [row.split(" | ") for row in ROW.findall(text)]


def rooms() -> dict[str, str]:
    """Return every folder of Python in the product, with the first line of what it says of itself."""
    tops = [place for place in map(place_of, MAY_IMPORT) if (place / "__init__.py").exists()]
    inits = [init for top in tops for init in top.rglob("__init__.py")]
    told = {init: ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or "" for init in inits}
    return {
        f"{init.parent.relative_to(ROOT).as_posix()}/": text.split("\n")[0].rstrip(".")
        for init, text in told.items()
    }


@pytest.mark.parametrize("page", [MAP, GLOSSARY, INDEX, CONTRIBUTING, LITERATURE], ids=lambda page: page.name)
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert wrong(text) == []
    assert [target for target in LINK.findall(text) if not (page.parent / target).exists()] == []


def test_every_room_is_on_the_map_in_its_own_words() -> None:
    lines = re.findall(r"^(\w[\w/]*/) +(.+)$", section(MAP, "The rooms"), re.MULTILINE)
    assert dict(lines) == rooms()


def test_the_table_of_imports_is_the_one_that_is_enforced() -> None:
    def listed(names: set[str], every: frozenset[str]) -> str:
        return "everything" if names >= every else ", ".join(f"`{name}`" for name in sorted(names & every))

    names = OURS | {*BESIDE}
    expected = [
        [f"`{room}/`", "everything" if may >= OURS else listed(may, names), listed(may, THIRD_PARTY)]
        for room, may in MAY_IMPORT.items()
    ]
    assert rows(section(MAP, "Who may import whom")) == expected


def test_the_map_answers_the_questions_of_a_newcomer() -> None:
    questions = rows(section(MAP, "Where is ..."))
    assert len(questions) >= 25
    assert [what for what, where in questions if not NAMED.search(where)] == []


def test_every_word_of_the_glossary_that_has_a_place_names_it() -> None:
    words = rows(GLOSSARY.read_text(encoding="utf-8").split("## One name")[0])
    assert len(words) >= 40
    assert [word for word, _, where, _ in words if where != "–" and not NAMED.search(where)] == []


def test_the_index_lists_every_document() -> None:
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"README.md"}
    assert there - set(LINK.findall(INDEX.read_text(encoding="utf-8"))) == set()
    beside = {path.relative_to(LITERATURE.parent).as_posix() for path in LITERATURE.parent.rglob("*.md")}
    assert beside - {LITERATURE.name} - set(LINK.findall(LITERATURE.read_text(encoding="utf-8"))) == set()


def test_every_document_is_in_the_menu_of_the_site_once() -> None:
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    beside = LITERATURE.parent / "docs"
    read = {f"literature/{path.relative_to(beside).as_posix()}" for path in beside.rglob("*.md")}
    assert sorted(menu()) == sorted(there | read | {f"literature/{LITERATURE.name}"} | MADE)


def menu() -> list[str]:
    """The pages that mkdocs.yml lists."""
    _, _, listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    return re.findall(r"([\w/-]+\.md)$", listed, re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`formulation/costs/memory.py`: `MemoryParts.of_stage`, `MemoryParts.total`", []),
        ("`formulation/costs/memory.py`: `MemoryParts.of_stage`,\n  `no_such_name`", ["no no_such_name in {}"]),
        ("`formulation/costs/memory.py`: `MemoryParts.no_such_name`", ["no MemoryParts.no_such_name in {}"]),
        ("`formulation/memory.py`: `MemoryParts.of_stage`", ["no formulation/memory.py"]),
        ("`execution/run.py`", ["no execution/run.py"]),
        ("`no_such_file.md`, `scenarios/no_such_folder`", ["no no_such_file.md", "no scenarios/no_such_folder"]),
        ("`--set`, `10 Gbit/s`, `module:function`, `I/O`, `ingest/models/NAME/model.py`: `build`", []),
    ],
)
def test_what_has_moved_is_noticed(text: str, found: list[str]) -> None:
    assert wrong(text) == [one.format("formulation/costs/memory.py") for one in found]


def test_modules_that_docstrings_name_are_there() -> None:
    """In backticks, from a room on: ``formulation.costs.memory``, or a name in a module."""
    tops = "|".join(Path(BESIDE.get(room, room)).name for room in MAY_IMPORT)
    dotted = re.compile(rf"`~?((?:{tops})(?:\.\w+)+)`")
    files = [path for top in MAY_IMPORT for path in place_of(top).rglob("*.py")]
    told = [(path, name) for path in files for name in dotted.findall(path.read_text(encoding="utf-8"))]
    assert len(told) > 100
    assert [(path.name, name) for path, name in told if not _is_there(name)] == []


def _is_there(name: str) -> bool:
    first = name.partition(".")[0]
    top = next((ROOT / place for place in BESIDE.values() if Path(place).name == first), ROOT / first)
    place, inside = top.parent / name.replace(".", "/"), ""
    while not (place.is_dir() or place.with_suffix(".py").exists()):
        inside, place = f"{place.name}.{inside}".rstrip("."), place.parent
    return not inside or (place.with_suffix(".py").exists() and inside in defined(place.with_suffix(".py")))


def first_opened(words: str) -> str:
    """Return the module that somebody opens first who has these words and sees the names of files."""
    wanted = set(words.split())

    def rank(path: str) -> tuple[int, int, int, str]:
        name = set(Path(path).stem.split("_"))
        return -len(name & wanted), len(name - wanted), path.count("/"), path

    paths = (path for path in map(relative, modules()) if not path.endswith("__init__.py"))
    return min((path for path in paths if wanted <= set(re.split(r"[/_.]", path))), key=rank, default="")


def test_what_people_look_for_is_found_by_its_name() -> None:
    section = MAP.read_text(encoding="utf-8").partition("## Found by name")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in row.split(" | ")] for row in ROW.findall(section)]
    asked = {what: (words, file.strip("`")) for what, words, file in rows if what != "what"}
    missed = [what for what, (words, file) in asked.items() if first_opened(words) != file]
    assert len(asked) == 25 and len(asked) - len(missed) >= 20, missed
