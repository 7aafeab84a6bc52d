"""docs/choices.md: what is closed can be set, and no proved row is better than everything open."""

from __future__ import annotations

from pathlib import Path

from benchmarks.size.choices import CLOSED, NAMES
from benchmarks.size.questions import QUESTIONS

PAGE = Path(__file__).parents[2] / "docs" / "choices.md"
PROVED = "**proved**"


def tables() -> dict[str, list[list[str]]]:
    """The cells of every table of the page, by question."""
    parts = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    return {
        part.splitlines()[0]: [
            [cell.strip() for cell in row.strip("|").split("|")]
            for row in part.splitlines()
            if row.startswith("| ") and not row.startswith("| closed")
        ]
        for part in parts
    }


def test_every_choice_is_closed_for_every_question() -> None:
    found = tables()
    assert set(found) == set(NAMES) <= set(QUESTIONS)
    assert all([row[0] for row in rows] == list(CLOSED) for rows in found.values())


def test_no_plan_is_better_than_the_proved_one_with_everything_open() -> None:
    for rows in tables().values():
        steps = [float(row[1].removesuffix(" s")) for row in rows if row[1].endswith(" s")]
        assert rows[0][4] != PROVED or steps[0] == min(steps)
