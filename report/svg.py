"""Pieces of SVG, written as text. Colours and letters are those of ``assets/picture.css``, chosen by class."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from report import wording

WIDTH = 1120
"""Width of every picture, in units that are pixels where there is room."""
MARGIN = 10.0
"""Around a picture that is a file of its own."""
STAGE_COLOURS = 8
MICRO_BATCH_COLOURS = 6
LETTER_WIDTH = 0.63
"""Width of an average letter over the size of the font; generous, as fonts differ from machine to machine."""

_VARIABLE = re.compile(r"(--[a-z0-9-]+):\s*([^;]+);")
_USE = re.compile(r"var\((--[a-z0-9-]+)\)")


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture: its file name, what it shows in a sentence, its height, and its pieces."""

    name: str
    title: str
    height: float
    body: str
    attributes: str = ""

    def inline(self) -> str:
        """Return the picture as part of a page, which brings the style."""
        return self._svg(f'id="{self.name}" role="img" aria-label="{wording.text(self.title)}"', self.body)

    def standalone(self) -> str:
        """Return the picture as a file of its own, in light colours, for any program that reads SVG."""
        style = f"<style>{plain_style()}</style>"
        wide, high = short(WIDTH + 2 * MARGIN), short(self.height + 2 * MARGIN)
        corner = short(-MARGIN)
        ground = f'<rect x="{corner}" y="{corner}" width="{wide}" height="{high}" class="ground"/>'
        body = f"<title>{wording.text(self.title)}</title>{style}{ground}{self.body}"
        size = f'width="{wide}" height="{high}"'
        return self._svg(f'xmlns="http://www.w3.org/2000/svg" {size}', body, MARGIN) + "\n"

    def _svg(self, attributes: str, body: str, margin: float = 0.0) -> str:
        ends = (-margin, -margin, WIDTH + 2 * margin, self.height + 2 * margin)
        box = f'viewBox="{" ".join(short(end) for end in ends)}"'
        return f'<svg class="picture" {box} {attributes} {self.attributes}>{body}</svg>'


@cache
def asset(name: str) -> str:
    """Return the text of a file of ``report/assets``."""
    return files("report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def plain_style() -> str:
    """Return the style of pictures with its light colours put in, as few programs know variables."""
    light, _, rest = asset("picture.css").partition("/* dark */")
    _, _, rules = rest.partition("/* rules */")
    colours = dict(_VARIABLE.findall(light))
    return _USE.sub(lambda found: colours[found[1]], rules)


def short(value: float) -> str:
    """Return a coordinate with two digits behind the point at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


def rect(box: Sequence[float], kind: str, title: str = "", more: str = "") -> str:
    """Return a rectangle (left, top, width, height) of a class, with a tooltip."""
    left, top, width, height = (short(value) for value in box)
    head = f'<rect x="{left}" y="{top}" width="{width}" height="{height}" class="{kind}"'
    tail = f"><title>{wording.text(title)}</title></rect>" if title else "/>"
    return f"{head}{' ' if more else ''}{more}{tail}"


def label(x: float, y: float, text: str, kind: str = "", title: str = "") -> str:
    """Return a line of text with its foot at (x, y); classes ``middle`` and ``end`` move it there."""
    tip = f"<title>{wording.text(title)}</title>" if title else ""
    return f'<text x="{short(x)}" y="{short(y)}" class="{kind}">{wording.text(text)}{tip}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Return a straight line."""
    ends = f'x1="{short(x1)}" y1="{short(y1)}" x2="{short(x2)}" y2="{short(y2)}"'
    return f'<line {ends} class="{kind}"/>'


def path(steps: str, kind: str, title: str = "") -> str:
    """Return a path."""
    tip = f"<title>{wording.text(title)}</title>" if title else ""
    return f'<path d="{steps}" class="{kind}">{tip}</path>'


def width_of(text: str, size: float = 11) -> float:
    """Return about how wide a text is drawn."""
    return LETTER_WIDTH * size * len(text)


def first_that_fits(texts: Sequence[str], width: float, size: float = 11) -> str:
    """Return the first text that is not wider than this; none if all are."""
    return next((text for text in texts if width_of(text, size) <= width), "")


def stage_colour(stage: int) -> str:
    """Return the class of a stage's colour."""
    return f"s{stage % STAGE_COLOURS}"


def legend(x: float, y: float, entries: Sequence[tuple[str, str]]) -> str:
    """Return swatches with words, (class, text), in a line from x on."""
    pieces: list[str] = []
    for kind, text in entries:
        pieces += [rect((x, y - 9, 14, 10), kind), label(x + 20, y, text, "note")]
        x += 20 + width_of(text) + 22
    return "".join(pieces)


def nice_step(span: float, parts: int) -> int:
    """Return the round number (1, 2 or 5 times a power of ten) that divides a span into at most so many parts."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if span <= factor * power * parts:
                return factor * power
        power *= 10
