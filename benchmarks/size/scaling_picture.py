"""The picture of ``benchmarks.size.scaling``: a panel for each axis, logarithmic scales, direct labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

PANEL_WIDTH, PANEL_HEIGHT = 330.0, 230.0
LEFT, TOP, RIGHT, BOTTOM = 48.0, 28.0, 142.0, 42.0
COLUMNS = 2
LETTERS = 12.0
"""Least distance between two labels."""
COLOURS = ("#0072b2", "#009e73", "#d55e00", "#000000", "#56b4e9", "#cc79a7")
"""Colours that people with the common kinds of colour blindness tell apart (Okabe and Ito)."""
DASHES = ("", "", "", "", "5 3", "5 3")
LEAST_S = 1e-4
STYLE = (
    "text{font:11px Helvetica,Arial,sans-serif;fill:#222}.title{font-weight:bold}.tick{font-size:10px;fill:#555}"
    ".end{text-anchor:end}.middle{text-anchor:middle}.grid{stroke:#ddd;stroke-width:.7}"
    ".curve{fill:none;stroke-width:1.6}"
)


@dataclass(frozen=True, slots=True)
class Curve:
    """A method's points (size, seconds), and where it ran out of time: the size, and what it had used."""

    name: str
    points: tuple[tuple[int, float], ...]
    ended: tuple[int, float] | None


@dataclass(frozen=True, slots=True)
class Panel:
    """An axis, ``what is varied, what is fixed``, its curves and the limit of each point in wall seconds."""

    axis: str
    curves: tuple[Curve, ...]
    limit_s: float


def draw(panels: Sequence[Panel]) -> str:
    """Return the whole picture as an SVG file."""
    wide, high = LEFT + PANEL_WIDTH + RIGHT, TOP + PANEL_HEIGHT + BOTTOM
    rows = math.ceil(len(panels) / COLUMNS)
    width, height = wide * min(COLUMNS, len(panels)), high * rows
    body = "".join(
        f'<g transform="translate({at % COLUMNS * wide:g} {at // COLUMNS * high:g})">{_panel(panel)}</g>'
        for at, panel in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
        f' height="{height:g}"><title>Time to proof by size, seconds</title><style>{STYLE}</style>'
        f'<rect width="{width:g}" height="{height:g}" fill="#fff"/>{body}</svg>\n'
    )


def _panel(panel: Panel) -> str:
    sizes = sorted(
        {size for one in panel.curves for size, _ in (*one.points, *([one.ended] if one.ended else ()))}
    )
    varied, _, fixed = panel.axis.partition(", ")
    x = _scale(sizes[0], sizes[-1], LEFT, LEFT + PANEL_WIDTH)
    used = [seconds for one in panel.curves for _, seconds in (*one.points, *([one.ended] if one.ended else ()))]
    most = 1.5 * max(used)
    y = _scale(LEAST_S, most, TOP + PANEL_HEIGHT, TOP)
    pieces = [_text(LEFT, TOP - 12, f"Processor seconds to proof by {varied}; {fixed}", "title")]
    for power in range(math.ceil(math.log10(LEAST_S)), math.floor(math.log10(most)) + 1):
        at = y(10.0**power)
        pieces.append(_line(LEFT, at, LEFT + PANEL_WIDTH, at, "grid"))
        pieces.append(_text(LEFT - 6, at + 3.5, f"{10.0**power:g}", "tick end"))
    for size in sizes:
        pieces.append(_line(x(size), TOP, x(size), TOP + PANEL_HEIGHT, "grid"))
        pieces.append(_text(x(size), TOP + PANEL_HEIGHT + 14, str(size), "tick middle"))
    pieces.append(_text(LEFT + PANEL_WIDTH / 2, TOP + PANEL_HEIGHT + 30, varied, "middle"))
    if any(one.ended and one.points for one in panel.curves):
        hint = f"open triangle: no proof in {panel.limit_s:g} s"
        pieces.append(_text(LEFT + PANEL_WIDTH, TOP + PANEL_HEIGHT - 5, hint, "tick end"))
    ends: list[tuple[float, float, int]] = []
    for at, curve in enumerate(panel.curves):
        if curve.points:
            drawn = [(x(size), y(max(seconds, LEAST_S))) for size, seconds in curve.points]
            pieces.append(_curve(drawn, at))
            if curve.ended is not None:
                drawn.append((x(curve.ended[0]), y(curve.ended[1])))
                pieces.append(_given_up(drawn[-2], drawn[-1], at))
            ends.append((drawn[-1][1], drawn[-1][0], at))
    pieces += _labels(panel, ends)
    return "".join(pieces)


def _curve(drawn: Sequence[tuple[float, float]], at: int) -> str:
    steps = " ".join(f"{'ML'[index > 0]}{left:.1f} {top:.1f}" for index, (left, top) in enumerate(drawn))
    dots = "".join(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="2.4" fill="{COLOURS[at]}"/>' for left, top in drawn)
    dash = f' stroke-dasharray="{DASHES[at]}"' if DASHES[at] else ""
    return f'<path class="curve" stroke="{COLOURS[at]}"{dash} d="{steps}"/>{dots}'


def _given_up(last: tuple[float, float], end: tuple[float, float], at: int) -> str:
    """Return a thin line to an open triangle: at this size the time ran out."""
    colour = COLOURS[at]
    left, top = end
    return (
        f'<line x1="{last[0]:.1f}" y1="{last[1]:.1f}" x2="{left:.1f}" y2="{top:.1f}" stroke="{colour}"'
        ' stroke-width=".8" stroke-dasharray="1 3"/>'
        f'<path d="M{left - 4:.1f} {top + 3:.1f}h8l-4 -7z" fill="#fff" stroke="{colour}"/>'
    )


def _labels(panel: Panel, ends: Sequence[tuple[float, float, int]]) -> list[str]:
    """Return the names of curves to the right of the panel, from top to bottom, none upon another."""
    pieces: list[str] = []
    place = LEFT + PANEL_WIDTH + 10
    tops = _apart([top for top, _, _ in sorted(ends)])
    for (top, left, at), spread in zip(sorted(ends), tops, strict=True):
        colour = COLOURS[at]
        pieces.append(
            f'<path class="curve" style="stroke-width:.5" stroke="{colour}"'
            f' d="M{left + 4:.1f} {top:.1f}L{place - 2:.1f} {spread:.1f}"/>'
        )
        pieces.append(f'<text x="{place:.1f}" y="{spread + 3.5:.1f}" style="fill:{colour}">')
        pieces.append(f"{escape(panel.curves[at].name)}</text>")
    return pieces


def _apart(tops: Sequence[float]) -> list[float]:
    """Return ascending places LETTERS apart: moved down as little as that takes, then up into the panel."""
    spread: list[float] = []
    for top in tops:
        spread.append(max(top, spread[-1] + LETTERS) if spread else top)
    most = TOP + PANEL_HEIGHT
    for at in range(len(spread) - 1, -1, -1):
        spread[at] = min(spread[at], most)
        most = spread[at] - LETTERS
    return spread


def _scale(low: float, high: float, start: float, stop: float) -> Callable[[float], float]:
    """Return the map from a logarithmic scale to coordinates."""
    span = math.log(high / low) or 1.0
    return lambda value: start + (stop - start) * math.log(value / low) / span


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'
