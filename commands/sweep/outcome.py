"""What a sweep found: rows of settings and results, who is on the front, and all of it as data.

What a sweep found, for people: how far it came, and the plans that none beats in price and throughput.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pipecut.commands.parts.tables import GOOD, OPEN, WRONG, KeyLines, Row
from pipecut.commands.terminal import terminal as human
from pipecut.report.pictures.pareto import ParetoPoint

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

MILLION = 10**6
PROVED = ("optimal", "infeasible")


@dataclass(frozen=True, slots=True)
class SweepRow:
    """A point: what was set, and what was found (None: not planned yet)."""

    settings: tuple[tuple[str, object], ...]
    found: dict[str, Any] | None

    @property
    def proved(self) -> bool:
        """Tell whether nothing more can be known."""
        return self.found is not None and self.found["proof"] in PROVED

    def name(self) -> str:
        """Return the settings in a line."""
        return ", ".join(f"{path}={shown_value(value)}" for path, value in self.settings)


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """All rows in the order of the sweep file; ``kept`` were known before, ``searched`` were planned now."""

    rows: tuple[SweepRow, ...]
    kept: int
    searched: int

    def priced(self) -> bool:
        """Tell whether prices are known; where they are not, devices are counted."""
        return any(row.found is not None and row.found["price_per_hour"] for row in self.rows)

    def shown(self) -> list[SweepRow]:
        """Return the rows that have a plan."""
        return [row for row in self.rows if row.found is not None and row.found["throughput"] is not None]

    def points(self) -> list[ParetoPoint]:
        """Return the rows that have a plan as points of a picture."""
        return [
            ParetoPoint(self.price(row.found), row.found["throughput"], row.name(), row.proved)
            for row in self.shown()
            if row.found is not None
        ]

    def price(self, found: dict[str, Any]) -> float:
        """Return the price of the cluster for an hour; without prices, how many devices it has."""
        return found["price_per_hour"] / MILLION if self.priced() else float(found["devices"])

    def front(self) -> list[SweepRow]:
        """Return the rows that none is cheaper and as fast as, or faster and as cheap; by price."""
        shown = self.shown()
        return [shown[at] for at in ParetoPoint.front_of(self.points())]


def plain(value: object) -> object:
    """Return a value of a sweep file as plain data."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def shown_value(value: object) -> str:
    """Write a value of a sweep file in few words."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {shown_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shown_value, value)) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def rows_to_list(outcome: SweepOutcome) -> list[dict[str, Any]]:
    """Return all rows as plain data, each with whether it is on the front."""
    front = {id(row) for row in outcome.front()}
    return [
        {
            "settings": {path: plain(value) for path, value in row.settings},
            "on_front": id(row) in front,
            "found": None if row.found is None else row.found,
        }
        for row in outcome.rows
    ]


def csv_text(outcome: SweepOutcome) -> str:
    """Return all rows as CSV: a column for every path that is varied, then what was found."""
    paths = list(dict.fromkeys(path for row in outcome.rows for path, _ in row.settings))
    keys = ("proof", "objective", "bound", "throughput", "price_per_hour", "plan_price_per_hour")
    more = ("devices", "used_devices", "micro_batches", "seconds", "key")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*paths, *keys, *more, "stages", "on_front", "reason"))
    front = {id(row) for row in outcome.front()}
    for row in outcome.rows:
        given, found = dict(row.settings), row.found or {}
        values = [_money(key, found.get(key)) for key in (*keys, *more)]
        counted = [len(found.get("stages", ())), int(id(row) in front), found.get("reason", "")]
        writer.writerow(
            [*(shown_value(given[path]) if path in given else "" for path in paths), *values, *counted]
        )
    return text.getvalue()


def _money(key: str, value: object) -> object:
    """Return a price in whole units of the currency, as people write it, and anything else as it is."""
    return value / MILLION if key.endswith("price_per_hour") and isinstance(value, int) else value


MOST_ROWS = 20
"""How many plans are shown; the data has all."""
MOST_REASONS = 5


def sweep_parts(outcome: SweepOutcome) -> tuple[RenderableType, ...]:
    """Return how far the sweep came, the table of the front, and what went wrong."""
    wrong = _reasons(outcome)
    return (KeyLines(_head(outcome)), "", _table(outcome), *(("", KeyLines(wrong)) if wrong else ()))


def _head(outcome: SweepOutcome) -> list[Row]:
    from rich.text import Text

    rows, total = outcome.rows, len(outcome.rows)
    counts = {
        "proved best": sum(row.proved and row.found["proof"] == "optimal" for row in rows if row.found),
        "proved to have no plan": sum(row.found["proof"] == "infeasible" for row in rows if row.found),
        "not proved": sum(row.found["proof"] in ("feasible", "unknown") for row in rows if row.found),
        "failed": sum(row.found["proof"] is None for row in rows if row.found),
        "not planned yet": sum(row.found is None for row in rows),
    }
    said = ", ".join(f"{number} {words}" for words, number in counts.items() if number)
    style = WRONG if counts["failed"] else GOOD if all(row.proved for row in rows) else OPEN
    shown: list[Row] = [("points", f"{total}, {outcome.kept} known before, {outcome.searched} planned now")]
    shown.append(("claims", Text(said, style=style)))
    what = "price of the cluster for an hour" if outcome.priced() else "devices (no prices are known)"
    many = min(len(outcome.front()), MOST_ROWS)
    shown.append(("shown", f"{human.count(many, 'plan')} that none beats, {what} against samples per second"))
    return shown


def _table(outcome: SweepOutcome) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    front = _thinned(outcome.front())
    varied = _varied(outcome)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in varied.values():
        table.add_column(human.printable(title), overflow="fold")
    for title in ("price/h" if outcome.priced() else "devices", "samples/s", "stages"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("claim", no_wrap=True)
    for row in front:
        found, given = row.found or {}, dict(row.settings)
        cells = [human.printable(shown_value(given[path])) if path in given else "" for path in varied]
        claim = (
            "proved"
            if row.proved
            else f"gap {human.gap(found['gap'])}"
            if found["gap"] is not None
            else "no proof"
        )
        price = f"{outcome.price(found):,.2f}" if outcome.priced() else f"{found['devices']}"
        amounts = (price, f"{found['throughput']:,.4g}", str(len(found["stages"])))
        table.add_row(*cells, *amounts, Text(claim, style=GOOD if row.proved else OPEN))
    return table


def _thinned(front: list[SweepRow]) -> list[SweepRow]:
    """Return as many rows of a front as are shown, evenly from the cheapest to the fastest."""
    if len(front) <= MOST_ROWS:
        return front
    return [front[round(at * (len(front) - 1) / (MOST_ROWS - 1))] for at in range(MOST_ROWS)]


def _varied(outcome: SweepOutcome) -> dict[str, str]:
    """Return the paths that have several values, each with a short name: its end, where no other has the same."""
    values: dict[str, set[str]] = {}
    for row in outcome.rows:
        for path, value in row.settings:
            values.setdefault(path, set()).add(shown_value(value))
    found = [path for path, some in values.items() if len(some) > 1] or list(values)
    ends = {path: path.rpartition(".")[2] for path in found}
    return {path: end if list(ends.values()).count(end) == 1 else path for path, end in ends.items()}


def _reasons(outcome: SweepOutcome) -> list[Row]:
    failed = [row for row in outcome.rows if row.found is not None and row.found["proof"] is None]
    lines = [f"{row.name()}: {row.found['reason']}" for row in failed[:MOST_REASONS] if row.found is not None]
    if len(failed) > MOST_REASONS:
        lines.append(f"and {len(failed) - MOST_REASONS} more, in the results")
    return [("failed" if not at else "", human.printable(line)) for at, line in enumerate(lines)]
