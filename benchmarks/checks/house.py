"""How the house is built: files, lines, public names, the fullest folder and circles, at any commit.

    python -m benchmarks.checks.house [--json] [COMMIT ...]

Without commits, the tree before every module moved to its room, the tree after that, and HEAD. The literature is
what lies in ``planners/``; of a commit before that folder was there, the files that git says became its files, at
the last of the commits named. Tests, benchmarks and ``bootstrap.py`` are not counted. Needs the whole history, not
a shallow clone.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.table import print_rows
from tests.test_architecture import circles, imports_among

ROOT = Path(__file__).resolve().parents[2]
MOVE = "HEAD^{/^Move every module to its room}"
COMMITS = (f"{MOVE}~1", MOVE, "HEAD")
LITERATURE = "planners/"
NOT_COUNTED = ("tests/", "benchmarks/", "bootstrap.py")


def main() -> int:
    """Print one row for each commit."""
    parser = argparse.ArgumentParser(description="how the house is built, at any commit")
    parser.add_argument("commits", nargs="*", default=COMMITS, metavar="COMMIT")
    parser.add_argument("--json", action="store_true", help="write one JSON list")
    arguments = parser.parse_args()
    try:
        print_rows(rows(arguments.commits), as_json=arguments.json)
    except subprocess.CalledProcessError as error:
        print(error.stderr.decode(errors="replace"), end="", file=sys.stderr)
        return 2
    return 0


def rows(commits: list[str]) -> Iterator[dict[str, Any]]:
    """Yield what is measured of each commit, in the order in which they are named."""
    for commit in commits:
        sources = sources_of(commit)
        moved = renamed(commit, commits[-1])
        literature = {path for path in sources if moved.get(path, path).startswith(LITERATURE)}
        yield {"commit": git("rev-parse", "--short", commit).strip(), **measured(sources, literature)}


def measured(sources: Mapping[str, str], literature: set[str]) -> dict[str, Any]:
    """Return files, lines that are not blank, and how well they are laid out; ``sources`` by path."""
    lines = {path: sum(1 for line in text.splitlines() if line.strip()) for path, text in sources.items()}
    folders = Counter(
        str(Path(path).parent) for path in sources if not path.endswith("__init__.py") and "/" in path
    )
    fullest, files = (folders.most_common(1) or [("none", 0)])[0]
    knots = circles(imports_among(dict(sources)))
    return {
        "core files": len(sources) - len(literature),
        "core lines": sum(number for path, number in lines.items() if path not in literature),
        "literature files": len(literature),
        "literature lines": sum(number for path, number in lines.items() if path in literature),
        "fullest folder": f"{fullest} ({files})",
        "folders of more than 15": sum(count > 15 for count in folders.values()),
        "circles of modules": sum(knot[0].endswith(".py") for knot in knots),
        "circles of folders": sum(not knot[0].endswith(".py") for knot in knots),
        "public names": len(set[str]().union(*map(public_names, sources.values()))),
    }


def public_names(source: str) -> set[str]:
    """Return what a module offers: its ``__all__``, or what it defines without an underscore before it."""
    found: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        for target in node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]:
            if not isinstance(target, ast.Name):
                continue
            if target.id == "__all__" and isinstance(value := getattr(node, "value", None), ast.List | ast.Tuple):
                return {ast.literal_eval(one) for one in value.elts}
            found.add(target.id)
    return {name for name in found if not name.startswith("_")}


def sources_of(commit: str) -> dict[str, str]:
    """Return the text of every Python file of the product at a commit, by path."""
    names = git("ls-tree", "-r", "--name-only", commit).splitlines()
    paths = [name for name in names if name.endswith(".py") and not name.startswith(NOT_COUNTED)]
    return {path: git("show", f"{commit}:{path}") for path in paths}


def renamed(before: str, after: str) -> dict[str, str]:
    """Return where files lie at a later commit, by where they were: what git takes for the same file."""
    found = (line.split("\t") for line in git("diff", "-M40%", "-l0", "--name-status", before, after).splitlines())
    return {row[1]: row[2] for row in found if row[0].startswith("R")}


def git(*words: str) -> str:
    """Return what git prints. Raises CalledProcessError with its message."""
    ran = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=True)  # noqa: S607 (any git)
    return ran.stdout.decode()


if __name__ == "__main__":
    sys.exit(main())
