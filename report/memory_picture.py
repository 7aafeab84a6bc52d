"""Memory over time, a small chart for each stage, all on one scale, with the limit of the smallest device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from report.svg import WIDTH, Picture, label, line, path, rect, short, stage_colour
from report.wording import amount, duration, percent

MOST_COLUMNS = 5
BETWEEN = 28.0
PLOT, HEAD, ROW = 84.0, 40.0, 150.0


def memory_picture(content: dict[str, Any]) -> Picture:
    """Draw the memory of a simulation's content."""
    stages = content["stages"]
    columns = math.ceil(len(stages) / math.ceil(len(stages) / MOST_COLUMNS))
    width = (WIDTH - BETWEEN * (columns - 1)) / columns
    largest = max(max(stage["capacity_bytes"], stage["peak_bytes"]) for stage in stages) or 1
    pieces: list[str] = []
    for index, stage in enumerate(stages):
        row, column = divmod(index, columns)
        left, top = column * (width + BETWEEN), row * ROW
        shift = f"translate({short(left)} {short(top)})"
        drawn = "".join(_panel(stage, index, width, (largest * 1.04, content["makespan_ns"])))
        pieces.append(f'<g transform="{shift}">{drawn}</g>')
    height = math.ceil(len(stages) / columns) * ROW - 4
    return Picture("memory", "Memory over time against the limit, stage by stage", height, "".join(pieces))


def _panel(stage: dict[str, Any], index: int, width: float, scales: tuple[float, int]) -> Iterator[str]:
    largest, makespan = scales
    peak, limit = stage["peak_bytes"], stage["capacity_bytes"]
    over = peak > limit

    def y(held: float) -> float:
        return HEAD + PLOT * (1 - held / largest)

    def x(time: float) -> float:
        return width * time / max(1, makespan)

    foot = HEAD + PLOT
    yield rect((0, 4, 10, 10), stage_colour(index))
    yield label(16, 13, f"stage {index}", "strong")
    yield label(width, 13, f"{percent(peak / limit)} of the limit", "end over" if over else "end note")
    yield label(0, 31, f"peak {amount(peak)} of {amount(limit)}", "small over" if over else "small note")
    yield rect((0, HEAD, width, PLOT), "lane")
    points = stage["memory"]
    steps = [f"M0 {short(foot)}V{short(y(points[0][1]))}"]
    steps += [f"H{short(x(time))}V{short(y(held))}" for time, held in points]
    yield path(f"{''.join(steps)}H{short(width)}V{short(foot)}Z", "held")
    yield line(0, y(limit), width, y(limit), "limit")
    tip = f"{peak:,} bytes at {stage['peak_ns']:,} ns"
    centre = f'cx="{short(x(stage["peak_ns"]))}" cy="{short(y(peak))}"'
    yield f'<circle {centre} r="3.5" class="peak"><title>{tip}</title></circle>'
    yield line(0, foot, width, foot, "axis")
    yield label(0, foot + 15, "0", "note small")
    yield label(width, foot + 15, duration(makespan), "note small end")
