"""Where the time goes: for each rank a bar as long as the run, divided into what its devices do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipecut.report.pictures.shapes import (
    WIDTH,
    Label,
    Picture,
    Rect,
    Shape,
    legend,
    of_stages,
    stage_colour,
    width_of,
)
from pipecut.report.wording import exact, percent, rank_name

LEFT, TOP = 84.0, 40.0
BAR, BETWEEN = 24.0, 8.0
PARTS = (
    ("compute_ns", "part-compute", "compute"),
    ("inside_ns", "part-inside", "inside layers"),
    ("between_ns", "part-between", "between layers"),
    ("boundary_ns", "part-boundary", "boundary"),
    ("idle_ns", "part-idle", "idle"),
)


def time_picture(content: dict[str, Any]) -> Picture:
    """Draw where the time of a simulation's content goes."""
    ranks, makespan = content["ranks"], max(1, content["makespan_ns"])
    shapes: list[Shape] = legend(LEFT, 18, [(kind, name) for _, kind, name in PARTS])
    for index, rank in enumerate(ranks):
        top = TOP + index * (BAR + BETWEEN)
        name, held = rank_name(content, index)
        chip = Rect((0, top + BAR / 2 - 5, 10, 10), stage_colour(rank["stages"][0]))
        label = Label(16, top + 16, name, "", held)
        shapes.append(of_stages((chip, label, *_bar(rank["spent"], top, makespan)), *rank["stages"]))
    height = TOP + len(ranks) * (BAR + BETWEEN)
    return Picture("time", "Where the time of all devices goes", height, shapes)


def _bar(spent: dict[str, int], top: float, makespan: int) -> Iterator[Shape]:
    left = LEFT
    for key, kind, name in PARTS:
        width = (WIDTH - LEFT) * spent[key] / makespan
        share = percent(spent[key] / makespan)
        if width > 0:
            yield Rect((left, top, width, BAR), kind, f"{name}: {exact(spent[key])}, {share}")
        if width_of(share) < width - 8:
            yield Label(left + width / 2, top + 16, share, f"middle on-{kind}")
        left += width
