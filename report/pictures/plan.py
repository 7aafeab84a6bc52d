"""The plan: the model as a chain of layers, cut into stages, and the devices of the servers that they run on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pipecut.report.pictures.shapes import (
    WIDTH,
    Label,
    Line,
    Path,
    Picture,
    Rect,
    Shape,
    first_that_fits,
    of_stages,
    short,
    stage_colour,
    width_of,
)
from pipecut.report.wording import NOTHING, amount, count, duration, rank_name

CHAIN_TOP, STRIP, LAYERS = 44.0, 24.0, 30.0
RIBBON_TOP = CHAIN_TOP + STRIP + LAYERS
CELL_TOP, CELL = 184.0, 34.0
HEIGHT = 266.0
LEAST_STAGE = 10.0
"""Width of a stage that computes next to nothing."""
LEAST_LAYER = 2.0
"""Layers are drawn together until they are as wide as this."""
CUT_GAP = 3.0


@dataclass(frozen=True, slots=True)
class Strip:
    """Where a stage, or the devices of a stage on a server, lie from left to right."""

    left: float
    right: float

    @property
    def width(self) -> float:
        """Return its width."""
        return self.right - self.left

    @property
    def middle(self) -> float:
        """Return its middle."""
        return (self.left + self.right) / 2


def plan_picture(content: dict[str, Any], name: str = "plan") -> Picture:
    """Draw the plan of a simulation's content; ``name`` tells two on one page apart."""
    stages = content["stages"]
    strips = _strips([stage["price"]["compute_ns"] for stage in stages])
    called = content["claim"]["sums"]["called"]
    what = f"layers, as wide as their compute time; above a cut, what crosses it; outlined: the {called}"
    shapes: list[Shape] = [Label(0, 14, what, "note")]
    shapes += _cut_labels(content, strips)
    runs, cells = _cluster(content)
    for index, strip in enumerate(strips):
        shapes.append(of_stages(_ribbons(stages[index], strip, runs[index], index), index))
    first = 0
    for index, strip in enumerate(strips):
        chain = [*_layers(content, strip, index, first), *_stage(stages[index], strip, index, len(stages) - 1)]
        shapes.append(of_stages(chain, index))
        first += stages[index]["layers"]
    title = f"{count(len(content['layers']), 'layer')} of {content['model']} in {count(len(stages), 'stage')}"
    return Picture(name, title, HEIGHT, [*shapes, *cells])


def _strips(weights: list[int]) -> list[Strip]:
    """Divide the width among stages by their compute time, none too narrow to be seen."""
    room = WIDTH - CUT_GAP * (len(weights) - 1)
    total = sum(weights) or 1
    wide = [max(LEAST_STAGE, room * weight / total) for weight in weights]
    factor = room / sum(wide)
    strips: list[Strip] = []
    left = 0.0
    for width in wide:
        strips.append(Strip(left, left + width * factor))
        left += width * factor + CUT_GAP
    return strips


def _stage(stage: dict[str, Any], strip: Strip, index: int, most: int) -> Iterator[Shape]:
    compute = duration(stage["price"]["compute_ns"])
    many = count(stage["layers"], "layer")
    tip = f"stage {index}: {stage['first_layer']} … {stage['last_layer']}, {many}, {compute}"
    yield Rect((strip.left, CHAIN_TOP, strip.width, STRIP), stage_colour(index) + _mark(stage), tip)
    names = (f"stage {index} · {many} · {compute}", f"stage {index}", str(index))
    yield from _on_colour(strip, CHAIN_TOP + 16, names, most)


def _mark(part: dict[str, Any]) -> str:
    """Return the class that outlines what takes longest; nothing for any other stage or boundary."""
    return " slowest" if part["slowest"] else ""


def _layers(content: dict[str, Any], strip: Strip, index: int, first: int) -> Iterator[Shape]:
    """Draw the layers of a stage, from ``first`` on; those too narrow to be seen alone are drawn as one."""
    rows = content["layers"][first : first + content["stages"][index]["layers"]]
    total = sum(row[2] for row in rows) or 1
    left, top = strip.left, CHAIN_TOP + STRIP
    merged: list[list[Any]] = []
    sofar = 0
    for at, row in enumerate(rows):
        merged.append(row)
        sofar += row[2]
        width = strip.left + strip.width * sofar / total - left
        if width >= LEAST_LAYER or at == len(rows) - 1:
            time_ns = sum(one[2] for one in merged)
            name = row[0] if len(merged) == 1 else f"{merged[0][0]} … {row[0]} ({len(merged)})"
            shade = "layer" if width < 2 * LEAST_LAYER else "layer apart"
            tip = f"{name}: {duration(time_ns)}"
            yield Rect((left, top, width, LAYERS), f"{shade} {stage_colour(index)}", tip, first + at)
            biggest = max(merged, key=lambda one: one[2])[0]
            if width_of(biggest, 10) <= width - 6:
                yield Label(left + width / 2, top + 19, biggest, "small middle", tip)
            left += width
            merged = []


def _cut_labels(content: dict[str, Any], strips: list[Strip]) -> Iterator[Shape]:
    """Name the bytes that cross each cut, in one line; those without room are in the table of stages."""
    taken = 0.0
    for boundary, strip in zip(content["boundaries"], strips[1:], strict=True):
        x = strip.left - CUT_GAP / 2
        named = amount(boundary["bytes"])
        wide = width_of(named)
        left = min(max(0.0, x - wide / 2), WIDTH - wide)
        yield Line(x, CHAIN_TOP - 6, x, RIBBON_TOP, "cut" + _mark(boundary))
        if left >= taken:
            tip = f"activation {duration(boundary['activation_ns'])}, gradient {duration(boundary['gradient_ns'])}"
            yield Label(left + wide / 2, CHAIN_TOP - 10, named, "middle", tip)
            taken = left + wide + 8


def _cluster(content: dict[str, Any]) -> tuple[list[list[Strip]], list[Shape]]:
    """Return where the devices of each stage lie, server by server, and the drawing of the cluster."""
    servers, stages = content["servers"], content["stages"]
    owners: list[list[int | None]] = [[] for _ in servers]
    for rank, held in enumerate(content["ranks"]):
        for server, devices in stages[held["stages"][0]]["devices"]:
            owners[server] += [rank] * devices
    for server, row in zip(servers, owners, strict=True):
        row += [None] * (server["devices"] - len(row))
    gap = min(28.0, 300 / len(servers))
    cell = (WIDTH - gap * len(servers)) / sum(len(row) for row in owners)
    cell = min(cell, 110.0)
    left = (WIDTH - cell * sum(len(row) for row in owners) - gap * len(servers)) / 2
    runs: list[list[Strip]] = [[] for _ in stages]
    shapes: list[Shape] = []
    for server, row in zip(servers, owners, strict=True):
        inner = left + gap / 2
        box = (inner - 4, CELL_TOP - 5, cell * len(row) + 8, CELL + 10)
        shapes.append(Rect(box, "server", f"{server['name']}: {len(row)} x {server['device_class']}"))
        shapes += _server_name(server, Strip(left, left + gap + cell * len(row)))
        for at, owner in enumerate(row):
            drawn = _device(content, owner, Strip(inner + cell * at, inner + cell * (at + 1)))
            shapes += drawn if owner is None else [of_stages(drawn, *content["ranks"][owner]["stages"])]
        for index in dict.fromkeys(owner for owner in row if owner is not None):
            first = row.index(index)
            taken = Strip(inner + cell * first, inner + cell * (first + row.count(index)))
            for stage in content["ranks"][index]["stages"]:
                runs[stage].append(taken)
        left += gap + cell * len(row)
    return runs, shapes


def _server_name(server: dict[str, Any], place: Strip) -> Iterator[Shape]:
    """Name a server and the class of its devices, as far as there is room."""
    name, kind = server["name"], server["device_class"]
    foot = CELL_TOP + CELL + 22
    yield Label(place.middle, foot, first_that_fits((name,), place.width) or "…", "middle strong", name)
    classed = first_that_fits((f"{server['devices']} × {kind}",), place.width, 10)
    if classed:
        yield Label(place.middle, foot + 16, classed, "note small middle")


def _device(content: dict[str, Any], owner: int | None, place: Strip) -> list[Shape]:
    inset = min(2.0, place.width / 10)
    box = (place.left + inset, CELL_TOP, place.width - 2 * inset, CELL)
    if owner is None:
        return [Rect(box, "unused", "not used"), Label(place.middle, CELL_TOP + 21, NOTHING, "note middle")]
    name, held = rank_name(content, owner)
    most = len(content["ranks"]) - 1
    colour = stage_colour(content["ranks"][owner]["stages"][0])
    return [Rect(box, colour, held or name), *_on_colour(place, CELL_TOP + 21, (name, str(owner)), most)]


def _on_colour(place: Strip, foot: float, names: Sequence[str], most: int) -> list[Shape]:
    """Write the first name that has room on a stage's colour; where not even the number ``most`` has, in small."""
    if width_of(str(most), 12) <= place.width - 4:
        return [Label(place.middle, foot, first_that_fits(names, place.width - 4, 12), "on middle strong")]
    fits = width_of(str(most), 9) <= place.width + 1
    return [Label(place.middle, foot, names[-1], "on middle tiny")] if fits else []


def _ribbons(stage: dict[str, Any], strip: Strip, runs: list[Strip], index: int) -> Iterator[Shape]:
    """Lead a stage to its devices, to each server in proportion to the devices there."""
    total = sum(run.width for run in runs) or 1
    left, bend = strip.left, (RIBBON_TOP + CELL_TOP) / 2
    top, foot = short(RIBBON_TOP), short(CELL_TOP - 5)
    for run in runs:
        right = left + strip.width * run.width / total
        a, b, c, d, y = short(left), short(right), short(run.right), short(run.left), short(bend)
        steps = f"M{a} {top}C{a} {y} {d} {y} {d} {foot}H{c}C{c} {y} {b} {y} {b} {top}Z"
        yield Path(
            steps, f"ribbon {stage_colour(index)}", f"stage {index} on {count(stage_devices(stage), 'device')}"
        )
        left = right


def stage_devices(stage: dict[str, Any]) -> int:
    """Return the number of devices of a stage."""
    return sum(devices for _, devices in stage["devices"])
