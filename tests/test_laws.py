"""How much is left of laws and of tests of many cases where somebody waits, and that all of it is somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_collection_modifyitems
from tests.laws import LEAST, mark_slow, so_many

NAMES = ("cnn", "gpt-4", "gpt-2", "tied_gpt")


class Case(SimpleNamespace):
    """As much of a collected case as is asked of it."""

    def get_closest_marker(self, name: str) -> Any:
        return self.few if name == "few" else next((mark for mark in self.marks if mark == name), None)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark.name)


def run_where_somebody_waits(*few: str | int) -> list[str]:
    mark = SimpleNamespace(args=few) if few else None
    cases: list[Any] = [
        Case(nodeid=f"x.py::test_{at}[{name}]", few=mark, marks=[]) for at in "ab" for name in NAMES
    ]
    mark_slow(cases)
    assert all(case.marks in ([], ["slow"]) for case in cases)
    kept = [case.nodeid.partition("[")[2].rstrip("]") for case in cases if not case.marks]
    assert kept[: len(kept) // 2] == kept[len(kept) // 2 :]  # each test has its own first cases
    return kept[: len(kept) // 2]


def test_the_first_cases_or_those_that_are_named_are_left() -> None:
    assert run_where_somebody_waits() == list(NAMES)
    assert run_where_somebody_waits(1) == ["cnn"]
    assert run_where_somebody_waits("gpt") == ["gpt-4", "gpt-2"]
    assert run_where_somebody_waits("tied", "gpt-2") == ["gpt-2", "tied_gpt"]
    cases: list[Any] = [
        Case(nodeid=f"x.py::test[{at}]", few=SimpleNamespace(args=(1,)), marks=["slow"] * (at < 2))
        for at in range(4)
    ]
    mark_slow(cases)
    assert [case.marks for case in cases] == [["slow"], ["slow"], [], ["slow"]]


def test_slow_cases_are_said_before_those_are_left_out() -> None:
    """pytest leaves out what ``-m`` does not want in a hook of the same name."""
    assert pytest_collection_modifyitems.pytest_impl["tryfirst"]  # pyright: ignore[reportFunctionMemberAccess]


@pytest.mark.parametrize(("said", "of_200"), [("all", 200), ("30", 60), ("0", LEAST)])
def test_the_environment_says_how_many_examples(said: str, of_200: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPECUT_EXAMPLES", said)
    assert so_many(200) == of_200 and so_many(1) == (1 if said == "all" else LEAST)


@pytest.mark.parametrize(
    ("marker", "folder"), [("clock", "tests/commands/terminal"), ("alone", "tests/execution")]
)
def test_what_looks_at_the_clock_is_where_it_is_run(marker: str, folder: str) -> None:
    """What ``.ci/run`` leaves out of the tests on all cores it runs of one folder."""
    root = Path(__file__).parents[1]
    files = (one for tests in ("tests", "literature/tests") for one in (root / tests).rglob("*.py"))
    marked = {one for one in files if f"@pytest.mark.{marker}\n" in one.read_text("utf-8")}
    assert marked and all(one.is_relative_to(root / folder) for one in marked), marked
    assert re.search(rf'test -m "{marker}" .*{folder}\n', (root / ".ci" / "run").read_text("utf-8"))
