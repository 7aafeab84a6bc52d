"""What a sweep found: rows of settings and results, who is on the front, and all of it as data."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from report.pictures.pareto import ParetoPoint

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
