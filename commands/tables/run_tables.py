"""What a run was like, as tables for people: numbers of the timeline beside those of formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commands.terminal import human
from report.measures import RELATED

if TYPE_CHECKING:
    from rich.table import Table

__all__: list[str] = []

NOTHING = "-"


def run_name(content: dict[str, Any]) -> str:
    """Return what was run: ``one_f_one_b, 8 micro-batches, 2 stages``."""
    many, stages = len(content["ranks"]), sum(len(rank["stages"]) for rank in content["ranks"])
    parts = [content["schedule"], human.count(content["micro_batches_run"], "micro-batch")]
    parts.append(human.count(stages, "stage"))
    return ", ".join(parts) + (f" on {human.count(many, 'rank')}" if many < stages else "")


def measure_table(content: dict[str, Any]) -> Table:
    """Return makespan, period and bubble, each beside every formula that speaks of it."""
    table = _table(("", "left"), ("timeline", "right"), ("", "left"), ("formula", "right"), ("which is", "left"))
    for row in content["measures"]:
        timeline, formula = (_number(row[key], row["unit"]) for key in ("timeline", "formula"))
        relation, source = row["relation"], row["source"]
        if relation == RELATED:
            relation, source = "", f"to compare: {source}"
        table.add_row(row["name"], timeline, relation, formula, source)
    return table


def rank_table(content: dict[str, Any]) -> Table:
    """Return how busy every rank is, and its peak memory; without sharing, a rank is a stage."""
    ranks = content["ranks"]
    shared = any(len(rank["stages"]) > 1 for rank in ranks)
    titles = ("busy, timeline", "busy, formula", "peak, timeline", "peak, formula", "limit")
    names = (("rank", "right"), ("stages", "left")) if shared else (("stage", "right"),)
    table = _table(*names, *((title, "right") for title in titles))
    sizes = ("peak_bytes", "peak_bytes_formula", "capacity_bytes")
    for index, rank in enumerate(ranks):
        held = ", ".join(map(str, rank["stages"]))
        busy = (_number(rank[key], "share") for key in ("utilisation", "utilisation_formula"))
        cells = (NOTHING if rank[key] is None else human.amount(rank[key]) for key in sizes)
        table.add_row(*([str(index), held] if shared else [held]), *busy, *cells)
    return table


def _table(*columns: tuple[str, str]) -> Table:
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
