"""Pictures as PNG, drawn from their SVG by resvg, an optional dependency."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from commands.terminal.failures import InputError

SCALE = 2
"""Pixels for each unit of a picture: 2280 across, enough for the width of a page at 300 dots per inch."""
MISSING = "writing PNG needs resvg: pip install 'pipecut[png]'"
FAMILIES = (
    "DejaVu Sans",
    "Liberation Sans",
    "Noto Sans",
    "Arial",
    "Helvetica",
    "Segoe UI",
    "Roboto",
    "Ubuntu",
    "Open Sans",
    "Cantarell",
    "FreeSans",
)
"""Fonts for labels, tried in turn."""
TRIAL = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">{}</svg>'
LETTER = '<text x="2" y="16" font-family="sans-serif" font-size="14">M</text>'

Draw = Callable[[str], bytes]


def png_writer() -> Draw:
    """Return what makes a PNG of an SVG, with letters of a font that is there.

    Raises InputError where resvg is not installed, or none of FAMILIES is: a picture without words says nothing.
    """
    try:
        resvg: Any = importlib.import_module("resvg_py")
    except ImportError as error:
        raise InputError(MISSING) from error

    def draw(svg: str, family: str) -> bytes:
        return bytes(resvg.svg_to_bytes(svg_string=svg, zoom=SCALE, font_family=family, sans_serif_family=family))

    blank = draw(TRIAL.format(""), FAMILIES[0])
    family = next((one for one in FAMILIES if draw(TRIAL.format(LETTER), one) != blank), None)
    if family is None:
        raise InputError(f"writing PNG needs a font for the labels, none of {', '.join(FAMILIES)} is installed")
    return lambda svg: draw(svg, family)
