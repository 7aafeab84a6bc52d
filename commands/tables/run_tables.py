"""What a run was like, as tables for people: numbers of the timeline beside those of formulas."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from commands.terminal import human
from commands.terminal.human import WIDTH
from report.measures import Relation
from report.page.beside import two_plans

if TYPE_CHECKING:
    from rich.table import Table

NOTHING = "-"
INDENT = "  "
NAMES, NUMBERS = 38, 12
"""Columns of the name of a measure, and of a number."""
WORTH = 26
"""Columns of the name of a throughput."""


def run_name(content: dict[str, Any]) -> str:
    """Return what was run: ``one_f_one_b, 8 micro-batches, 2 stages``."""
    many, stages = len(content["ranks"]), sum(len(rank["stages"]) for rank in content["ranks"])
    parts = [content["schedule"], human.count(content["micro_batches_run"], "micro-batch")]
    parts.append(human.count(stages, "stage"))
    return ", ".join(parts) + (f" on {human.count(many, 'rank')}" if many < stages else "")


def measure_lines(content: dict[str, Any]) -> Iterator[str]:
    """Yield makespan, period and bubble, each with every formula that speaks of it below; 80 columns hold them."""
    before = None
    yield f"{'':<{NAMES}}{'timeline':>{NUMBERS}}"
    for row in content["measures"]:
        timeline, formula = (_number(row[key], row["unit"]) for key in ("timeline", "formula"))
        if row["name"] != before:
            yield f"{row['name']:<{NAMES}}{timeline:>{NUMBERS}}"
        before = row["name"]
        sign = "" if row["relation"] == Relation.RELATED else row["relation"]
        if row["source"]:
            start = f"{INDENT}{sign:<{len(INDENT)}}{formula:>{NUMBERS}}{INDENT}"
            (first, *more) = textwrap.wrap(row["source"], WIDTH - len(start))
            yield start + first
            yield from (" " * len(start) + rest for rest in more)
    yield from _throughput_lines(content["throughput"])


def _throughput_lines(row: dict[str, Any]) -> Iterator[str]:
    """Yield what the run is worth in numbers that people know."""
    known = {key: value for key, value in row.items() if value is not None}
    rates = [
        f"{known[f'{one}_per_second']:,.4g} {one}/s"
        for one in ("samples", "tokens")
        if f"{one}_per_second" in known
    ]
    if rates:
        yield f"{'throughput':<{WORTH}}{', '.join(rates)}"
        yield (
            f"{'model FLOPs':<{WORTH}}{known['tflops_per_device']:,.4g} TFLOP/s a device,"
            f" {100 * known['model_flops_utilisation']:.1f} % of the peak"
        )
    if "price_of_step" in known:
        yield f"{'price of a step':<{WORTH}}{known['price_of_step']:,.4g}"


def rank_table(content: dict[str, Any]) -> Table:
    """Return how busy every rank is, and its peak memory; without sharing, a rank is a stage."""
    ranks = content["ranks"]
    shared = any(len(rank["stages"]) > 1 for rank in ranks)
    titles = ("busy, timeline", "busy, formula", "peak, timeline", "peak, formula", "limit")
    names = (("rank", "right"), ("stages", "left")) if shared else (("stage", "right"),)
    table = plain_table(*names, *((title, "right") for title in titles))
    sizes = ("peak_bytes", "peak_bytes_formula", "capacity_bytes")
    for index, rank in enumerate(ranks):
        held = ", ".join(map(str, rank["stages"]))
        busy = (_number(rank[key], "share") for key in ("utilisation", "utilisation_formula"))
        cells = (NOTHING if rank[key] is None else human.amount(rank[key]) for key in sizes)
        table.add_row(*([str(index), held] if shared else [held]), *busy, *cells)
    return table


def beside_table(content: dict[str, Any]) -> Table:
    """Return the numbers of a plan and of the one beside it, and what the other one takes more."""
    other = human.printable(content["against"]["plan"])
    table = plain_table(("", "left"), ("this plan", "right"), (other, "right"), ("the other takes", "right"))
    for row in two_plans(content):
        numbers = (text.replace("µs", "us") for text in (row.this, row.other, row.more))
        table.add_row(row.name, *numbers)
    return table


def plain_table(*columns: tuple[str, str]) -> Table:
    """Return an empty table with these columns: title, and the side that its cells stand on."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title, side in columns:
        table.add_column(title, justify="right" if side == "right" else "left", overflow="fold")
    return table


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return NOTHING
    return f"{100 * value:.1f} %" if unit == "share" else human.duration(round(value))
