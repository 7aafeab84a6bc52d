"""Price against throughput of many plans: a point each, and a line through those that none beats in both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipecut.report.pictures.shapes import WIDTH, Circle, Label, Line, Path, Picture, Shape, nice_step, short

LEFT, RIGHT, TOP, PLOT, FOOT = 96.0, 24.0, 34.0, 420.0, 44.0
STEPS = 8


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """A plan: what it costs, samples per second, what it is called, and whether it is proved best."""

    price: float
    throughput: float
    name: str
    proved: bool

    @staticmethod
    def front_of(points: Sequence[ParetoPoint]) -> list[int]:
        """Return the places of the points that no other beats in price or in speed and equals in the other.

        Of equal ones the first.
        """
        front: list[int] = []
        order = sorted(range(len(points)), key=lambda at: (points[at].price, -points[at].throughput, at))
        for at in order:
            if not front or points[at].throughput > points[front[-1]].throughput:
                front.append(at)
        return front


def pareto_picture(points: Sequence[ParetoPoint], price: str) -> Picture:
    """Draw points; ``price`` says what the price is, with its unit. Those that are not proved are hollow."""
    dearest = max((point.price for point in points), default=0) or 1
    fastest = max((point.throughput for point in points), default=0) or 1
    return Picture(
        "pareto",
        f"{price} against samples per second",
        TOP + PLOT + FOOT,
        tuple(_drawn(points, price, dearest * 1.05, fastest * 1.08)),
    )


def _drawn(points: Sequence[ParetoPoint], price: str, dearest: float, fastest: float) -> Iterator[Shape]:
    wide = WIDTH - LEFT - RIGHT

    def x(value: float) -> float:
        return LEFT + wide * value / dearest

    def y(value: float) -> float:
        return TOP + PLOT * (1 - value / fastest)

    foot = TOP + PLOT
    yield Label(LEFT, 16, "samples per second", "note")
    yield Label(WIDTH - RIGHT, foot + 36, price, "end note")
    for value in _ticks(dearest):
        yield Line(x(value), TOP, x(value), foot, "grid")
        yield Label(x(value), foot + 18, f"{value:,g}", "middle note")
    for value in _ticks(fastest):
        yield Line(LEFT, y(value), WIDTH - RIGHT, y(value), "grid")
        yield Label(LEFT - 8, y(value) + 4, f"{value:,g}", "end note")
    yield Line(LEFT, foot, WIDTH - RIGHT, foot, "axis")
    front = ParetoPoint.front_of(points)
    if front:
        first, *others = ((short(x(points[at].price)), short(y(points[at].throughput))) for at in front)
        steps = "".join(f"H{right}V{height}" for right, height in others)
        yield Path(f"M{first[0]} {first[1]}{steps}H{short(WIDTH - RIGHT)}", "front")
    for at, point in enumerate(points):
        kind = ("on-front" if at in front else "beaten") + ("" if point.proved else " open")
        words = f"{point.name}: {point.throughput:,.4g} samples per second, {price} {point.price:,.4g}"
        yield Circle(x(point.price), y(point.throughput), 4, kind, words)


def _ticks(largest: float) -> Iterator[float]:
    """Yield round numbers from 0 on, in whole steps or, of what is smaller than some, in thousandths."""
    scale = 1 if largest >= STEPS else 1000
    step = nice_step(largest * scale, STEPS) / scale
    number = 0
    while number * step <= largest:
        yield number * step
        number += 1
