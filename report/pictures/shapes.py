"""What pictures are made of: shapes with a class each, whose colours and letters are in ``assets/picture.css``.

They hold positions, and words as users wrote them; ``templates/shapes.svg.j2`` writes them as SVG and escapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

WIDTH = 1120
"""Width of every picture, in units that are pixels where there is room."""
STAGE_COLOURS = 24
MICRO_BATCH_COLOURS = 6
LETTER_WIDTH = 0.63
"""Width of an average letter over the size of the font; generous, as fonts differ from machine to machine."""


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle (left, top, width, height) with a tooltip; ``layer`` is the last layer that it stands for."""

    tag: ClassVar = "rect"
    box: tuple[float, float, float, float]
    kind: str
    title: str = ""
    layer: int | None = None


@dataclass(frozen=True, slots=True)
class Label:
    """A line of text with its foot at (x, y); classes ``middle`` and ``end`` move it there."""

    tag: ClassVar = "label"
    x: float
    y: float
    text: str
    kind: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line."""

    tag: ClassVar = "line"
    x1: float
    y1: float
    x2: float
    y2: float
    kind: str


@dataclass(frozen=True, slots=True)
class Path:
    """A path, in SVG's letters."""

    tag: ClassVar = "path"
    steps: str
    kind: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Circle:
    """A circle."""

    tag: ClassVar = "circle"
    x: float
    y: float
    radius: float
    kind: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class ShapeGroup:
    """Shapes that belong together; ``element`` is ``g``, or ``clipPath`` for where others may be seen."""

    tag: ClassVar = "group"
    shapes: Sequence[Shape]
    attributes: Mapping[str, str | int] = field(default_factory=dict)
    element: str = "g"


Shape = Rect | Label | Line | Path | Circle | ShapeGroup


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture: its file name, what it shows in a sentence, its height, its shapes, and data for a script."""

    name: str
    title: str
    height: float
    shapes: Sequence[Shape]
    data: Mapping[str, float] = field(default_factory=dict)


def of_stages(shapes: Iterable[Shape], *stages: int) -> ShapeGroup:
    """Return shapes that are about these stages, so that a page can show which ones were chosen."""
    return ShapeGroup(tuple(shapes), {"data-stage": " ".join(map(str, stages))})


def short(value: float) -> str:
    """Return a coordinate with two digits behind the point at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


def width_of(text: str, size: float = 11) -> float:
    """Return about how wide a text is drawn."""
    return LETTER_WIDTH * size * len(text)


def first_that_fits(texts: Sequence[str], width: float, size: float = 11) -> str:
    """Return the first text that is not wider than this; none if all are."""
    return next((text for text in texts if width_of(text, size) <= width), "")


def stage_colour(stage: int) -> str:
    """Return the class of a stage's colour."""
    return f"s{stage % STAGE_COLOURS}"


def legend(x: float, y: float, entries: Sequence[tuple[str, str]]) -> list[Shape]:
    """Return swatches with words, (class, text), in a line from x on."""
    shapes: list[Shape] = []
    for kind, text in entries:
        shapes += [Rect((x, y - 9, 14, 10), kind), Label(x + 20, y, text, "note")]
        x += 20 + width_of(text) + 22
    return shapes


def nice_step(span: float, parts: int) -> int:
    """Return the round number (1, 2 or 5 times a power of ten) that divides a span into at most so many parts."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if span <= factor * power * parts:
                return factor * power
        power *= 10
