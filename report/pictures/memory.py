"""Memory over time, a small chart for each rank, all on one scale, with the limit of the smallest device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from pipecut.report.pictures.shapes import (
    WIDTH,
    Circle,
    Label,
    Line,
    Path,
    Picture,
    Rect,
    Shape,
    ShapeGroup,
    of_stages,
    short,
    stage_colour,
    width_of,
)
from pipecut.report.wording import amount, count, duration, percent, rank_name

FEW, MOST = 5, 8
"""Charts beside one another, of up to MANY ranks and of more, then with fewer words."""
MANY = 20
BETWEEN = 28.0
PLOT, HEAD, ROW = 84.0, 40.0, 150.0


def memory_picture(content: dict[str, Any]) -> Picture:
    """Draw the memory of a simulation's content."""
    ranks = content["ranks"]
    columns = math.ceil(len(ranks) / math.ceil(len(ranks) / (FEW if len(ranks) <= MANY else MOST)))
    width = (WIDTH - BETWEEN * (columns - 1)) / columns
    largest = max(max(rank["capacity_bytes"], rank["peak_bytes"]) for rank in ranks) or 1
    shapes: list[Shape] = []
    for index in range(len(ranks)):
        row, column = divmod(index, columns)
        left, top = column * (width + BETWEEN), row * ROW
        shift = f"translate({short(left)} {short(top)})"
        drawn = tuple(_panel(content, index, width, largest * 1.04))
        chosen = of_stages(drawn, *ranks[index]["stages"])
        shapes.append(ShapeGroup((chosen,), {"transform": shift}))
    height = math.ceil(len(ranks) / columns) * ROW - 4
    return Picture("memory", "Memory over time against the limit", height, shapes)


def _panel(content: dict[str, Any], index: int, width: float, largest: float) -> Iterator[Shape]:
    makespan, rank = content["makespan_ns"], content["ranks"][index]
    peak, limit = rank["peak_bytes"], rank["capacity_bytes"]
    name, held = rank_name(content, index)
    over = peak > limit

    def y(held: float) -> float:
        return HEAD + PLOT * (1 - held / largest)

    def x(time: float) -> float:
        return width * time / max(1, makespan)

    foot = HEAD + PLOT
    yield Rect((0, 4, 10, 10), stage_colour(rank["stages"][0]))
    yield Label(16, 13, name, "strong", held)
    share, most = percent(peak / limit), f"peak {amount(peak)} of {amount(limit)}"
    if width_of(most) < width:
        share = f"{share} of the limit"
    else:
        share, most = "", f"{amount(peak)}, {share}"
    yield Label(width, 13, share, "end over" if over else "end note")
    yield Label(0, 31, most, "small over" if over else "small note")
    yield Rect((0, HEAD, width, PLOT), "lane")
    points = rank["memory"]
    steps = [f"M0 {short(foot)}V{short(y(points[0][1]))}"]
    steps += [f"H{short(x(time))}V{short(y(held))}" for time, held in points]
    yield Path(f"{''.join(steps)}H{short(width)}V{short(foot)}Z", "held")
    yield Line(0, y(limit), width, y(limit), "limit")
    tip = f"{count(peak, 'byte')} at {rank['peak_ns']:,} ns"
    yield Circle(x(rank["peak_ns"]), y(peak), 3.5, "peak", tip)
    yield Line(0, foot, width, foot, "axis")
    yield Label(0, foot + 15, "0", "note small")
    yield Label(width, foot + 15, duration(makespan), "note small end")
