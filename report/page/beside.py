"""Two plans side by side: the same numbers of both, and what the other one takes more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from report.claims import formats_of
from report.numbers import Numbers
from report.wording import FORMATS, NOTHING

MANY = 3
"""From how many times as much on a difference is said as such."""


@dataclass(frozen=True, slots=True)
class BesideRow:
    """A number of two plans: its name, where it stands in the content of a plan, its format, and in words.

    ``more`` says how much more or less the other one is.
    """

    name: str
    path: str
    unit: str
    this: str
    other: str
    more: str


def two_plans(content: dict[str, Any]) -> list[BesideRow]:
    """Return what is compared of a content and of the other plan in it."""
    numbers, rows = Numbers(content), []
    for name, path, unit in _compared(content):
        this, other = numbers.at(path), numbers.at(f"against.{path}")
        here, there = (NOTHING if one is None else FORMATS[unit](one) for one in (this, other))
        rows.append(BesideRow(name, path, unit, here, there, difference(this, other, unit)))
    return rows


def difference(this: float | None, other: float | None, unit: str) -> str:
    """Say how much more or less the other number is; nothing where one of them is missing."""
    if this is None or other is None:
        return ""
    if this == other:
        return "the same"
    if this and other > MANY * this:
        return f"{other / this:.1f} times as much"
    more = FORMATS[unit](abs(other - this))
    share = f", {FORMATS['share'](abs(other - this) / this)}" if this and unit != "share" else ""
    return f"{more}{share} {'more' if other > this else 'less'}"


def _compared(content: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield name, path and format of every number that both plans have."""
    unit, _ = formats_of(content["claim"]["unit"])
    yield f"objective: {content['claim']['meaning']}", "claim.objective", unit
    seen: set[str] = set()
    keys = [one["key"] for one in content["against"]["measures"]]
    for at, one in enumerate(content["measures"]):
        if one["key"] not in seen and keys[at : at + 1] == [one["key"]]:
            seen.add(one["key"])
            yield one["name"], f"measures.{at}.timeline", one["unit"]
    yield "all times of stages and boundaries together", "claim.sums.sum_ns", "ns"
    yield "the largest of them", "claim.sums.largest_ns", "ns"
    yield "largest peak memory", "peak_bytes", "bytes"
    yield "devices", "devices_used", "whole"
