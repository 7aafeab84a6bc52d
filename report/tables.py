"""The tables of a page. Every number is a ``data`` element that names its place in the embedded JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from report.claims import formats_of
from report.svg import stage_colour
from report.wording import FORMATS, NOTHING, text

Cell = str
"""HTML, already escaped."""
MOST_ROWS = 20
"""A longer table scrolls in a box of its own; on paper it is whole."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Writes numbers of a content by their paths, such as ``stages.0.peak_bytes``."""

    content: dict[str, Any]

    def at(self, path: str) -> Any:  # noqa: ANN401 (whatever JSON holds)
        """Return what stands at a path."""
        found: Any = self.content
        for key in path.split("."):
            found = found[int(key)] if isinstance(found, list) else found[key]
        return found

    def show(self, path: str, unit: str) -> Cell:
        """Return a number, rounded for the eye, with its exact value and its path; a dash for None."""
        value = self.at(path)
        if value is None:
            return NOTHING
        exact = json.dumps(value)
        return f'<data value="{exact}" data-path="{text(path)}" data-unit="{unit}">{FORMATS[unit](value)}</data>'


def table(kind: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]], foot: str = "") -> str:
    """Return a table; heads that begin with ``#`` are those of numbers, which stand at the right."""
    columns = ["num" if head.startswith("#") else "" for head in heads]
    head = "".join(
        f'<th scope="col" class="{column}">{text(name.lstrip("#"))}</th>'
        for name, column in zip(heads, columns, strict=True)
    )
    body = "".join(f"<tr>{_cells(row, columns)}</tr>" for row in rows)
    caption = f'<p class="foot">{foot}</p>' if foot else ""
    inner = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    boxed = 'scroll long" tabindex="0' if len(rows) > MOST_ROWS else "scroll"
    return f'<div class="{boxed}"><table class="{kind}">{inner}</table></div>{caption}'


def _cells(row: Sequence[Cell], columns: Sequence[str]) -> str:
    return "".join(f'<td class="{column}">{cell}</td>' for cell, column in zip(row, columns, strict=True))


def chip(stage: int, name: int | None = None) -> Cell:
    """Return the name of a stage (or another one) behind a square of its colour."""
    square = f'<rect width="10" height="10" class="{stage_colour(stage)}"/>'
    box = f'<svg class="chip" viewBox="0 0 10 10" aria-hidden="true">{square}</svg>'
    return f'<span class="stage">{box}{stage if name is None else name}</span>'


def rank_chip(content: dict[str, Any], rank: int) -> Cell:
    """Return the name of a rank behind a square of the colour of its first stage."""
    stages = content["ranks"][rank]["stages"]
    if len(content["ranks"]) == len(content["stages"]):
        return chip(stages[0])
    listed = ", ".join(map(str, stages))
    return f'{chip(stages[0], rank)} <span class="muted">stages {listed}</span>'


def stage_table(numbers: Numbers) -> str:
    """Return what every stage is: its layers, devices and times."""
    servers = numbers.at("servers")
    rows: list[list[Cell]] = []
    for index, stage in enumerate(numbers.at("stages")):
        here = f"stages.{index}"
        first, last = text(stage["first_layer"]), text(stage["last_layer"])
        layers = first if stage["layers"] == 1 else f"{first} … {last}"
        devices = ", ".join(f"{count} × {text(servers[server]['name'])}" for server, count in stage["devices"])
        boundary = numbers.show(f"boundaries.{index - 1}.price_ns", "ns") if index else NOTHING
        crossing = numbers.show(f"boundaries.{index - 1}.bytes", "bytes") if index else NOTHING
        rows.append(
            [
                chip(index),
                f'<span class="name">{layers}</span> <span class="muted">({stage["layers"]})</span>',
                devices,
                numbers.show(f"{here}.forward_ns", "ns"),
                numbers.show(f"{here}.backward_ns", "ns"),
                numbers.show(f"{here}.sync_ns", "ns"),
                crossing,
                boundary,
            ]
        )
    heads = ("stage", "layers", "devices", "#forward", "#backward", "#sync a step", "#received", "#boundary")
    foot = (
        "Times of one micro-batch, with communication; <em>received</em>: what crosses the cut before the stage; "
        "<em>boundary</em>: the time of its activation and gradient together."
    )
    return table("stages", heads, rows, foot)


def measure_table(numbers: Numbers) -> str:
    """Return the run in a few numbers, timeline beside formula, then stage by stage."""
    rows = []
    for index, one in enumerate(numbers.at("measures")):
        here = f"measures.{index}"
        rows.append(
            [
                text(one["name"]),
                numbers.show(f"{here}.timeline", one["unit"]),
                f'<span class="relation">{text(one["relation"])}</span>',
                numbers.show(f"{here}.formula", one["unit"]),
                f'<span class="muted">{text(one["source"])}</span>',
            ]
        )
    whole = table("measures", ("", "#timeline", "", "#formula", "what the formula is"), rows)
    each = []
    for index, _ in enumerate(numbers.at("ranks")):
        here = f"ranks.{index}"
        each.append(
            [
                rank_chip(numbers.content, index),
                numbers.show(f"{here}.utilisation", "share"),
                numbers.show(f"{here}.utilisation_formula", "share"),
                numbers.show(f"{here}.peak_bytes", "bytes"),
                numbers.show(f"{here}.peak_bytes_formula", "bytes"),
                numbers.show(f"{here}.capacity_bytes", "bytes"),
            ]
        )
    heads = (
        _of_ranks(numbers),
        "#busy, timeline",
        "#busy, formula",
        "#peak, timeline",
        "#peak, formula",
        "#limit",
    )
    foot = (
        "Busy: on the timeline, share of the makespan in passes; by the formula, its time over the bottleneck, "
        "that is, far from both ends. Peak: bytes on the fullest device."
    )
    return whole + table("devices", heads, each, foot)


def _of_ranks(numbers: Numbers) -> str:
    """Return the head of a column of ranks."""
    return "stage" if len(numbers.at("ranks")) == len(numbers.at("stages")) else "rank"


def time_table(numbers: Numbers) -> str:
    """Return where the time of every stage goes, in numbers."""
    parts = ("compute", "inside", "between", "boundary", "idle")
    rows = [
        [
            rank_chip(numbers.content, index),
            *(numbers.show(f"ranks.{index}.spent.{part}_ns", "ns") for part in parts),
        ]
        for index, _ in enumerate(numbers.at("ranks"))
    ]
    heads = (_of_ranks(numbers), "#compute", "#inside layers", "#between layers", "#boundary", "#idle")
    foot = (
        "Boundary: standing still while a needed tensor travels. Inside layers: their communication, with the "
        "synchronisation of weight gradients. The five parts add up to the makespan."
    )
    return table("time", heads, rows, foot)


def solver_table(numbers: Numbers) -> str:
    """Return what became of each solver, as in ``pipecut compare``."""
    rows: list[list[Cell]] = []
    remarks: list[str] = []
    rounded, _ = formats_of(numbers.at("claim.unit"))
    for index, row in enumerate(numbers.at("comparison.solvers")):
        here = f"comparison.solvers.{index}"
        keeps = NOTHING if row["feasible"] is None else "yes"
        reason = row["reason"].partition(":")[0]
        rows.append(
            [
                text(row["solver"]),
                text(row["proof"] or reason),
                text("breaks " + ", ".join(row["violations"])) if row["violations"] else keeps,
                numbers.show(f"{here}.objective", rounded),
                numbers.show(f"{here}.gap", "share"),
                text(NOTHING if row["stages"] is None else row["stages"]),
                numbers.show(f"{here}.seconds", "seconds"),
            ]
        )
        said = [remark for remark in (*row["notes"], row["reason"]) if remark]
        remarks += [f"<li><b>{text(row['solver'])}</b> {text(remark)}</li>" for remark in said]
    heads = ("solver", "proof", "keeps the rules", "#objective", "#gap", "#stages", "#time")
    listed = f'<ul class="remarks">{"".join(remarks)}</ul>' if remarks else ""
    return table("solvers", heads, rows) + listed
