"""The timeline: a lane for each rank, and below it the tensors on their way from its stages and back to them.

Drawn whole here, so that it can be printed and saved; on a page ``assets/page.js`` moves the same pieces to zoom.
Hidden time between beginning and end of a long run is pressed into a narrow gap: position is linear in time on
either side of it and inside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipecut.report.content import ACTIVATION, GRADIENT
from pipecut.report.pictures.shapes import (
    MICRO_BATCH_COLOURS,
    WIDTH,
    Label,
    Line,
    Picture,
    Rect,
    Shape,
    ShapeGroup,
    legend,
    nice_step,
    of_stages,
    stage_colour,
)
from pipecut.report.wording import count, rank_name, round_duration

LEFT, RIGHT, TOP = 84.0, 10.0, 40.0
LANES = 660.0
"""Height that the lanes of many stages share."""
MOST_LANE, LEAST_LANE = 34.0, 16.0
LINK_LANE = 15.0
GAP_SHARE = 0.05
"""Width of the gap over that of the rest."""
TICKS = 9
LEAST_WIDE, THIN = 1.0, 3.0
"""Width of what takes next to no time; and up to which events touch, as a line between them would hide them."""
DIGIT = 7.5
"""Width of a digit; a pass shows the number of its micro-batch where it has room."""

LEGEND = (
    (("f0", "forward"), "F"),
    (("b0", "backward"), "B"),
    (("b0", "input gradient"), "I"),
    (("b0 later", "weight gradient"), "W"),
    (("sync", "sync"), "SU"),
    (("link-a", "activation"), ACTIVATION),
    (("link-g", "gradient"), GRADIENT),
)
"""Entries, each with the kinds of events that it stands for."""


@dataclass(frozen=True, slots=True)
class Scale:
    """From time to position: ``stretch`` times ``pressed`` time from LEFT on."""

    head: int
    tail: int
    makespan: int

    @property
    def gap(self) -> float:
        """Return the width of the hidden time, in ns of shown time; 0 where nothing is hidden."""
        return GAP_SHARE * (self.head + self.makespan - self.tail) if self.tail > self.head else 0.0

    @property
    def length(self) -> float:
        """Return all shown time, with the gap."""
        return self.head + self.gap + self.makespan - self.tail

    def pressed(self, time: float) -> float:
        """Return the shown time before a moment."""
        if time <= self.head:
            return time
        if time >= self.tail:
            return self.head + self.gap + time - self.tail
        return self.head + self.gap * (time - self.head) / (self.tail - self.head)

    def x(self, time: float) -> float:
        """Return the position of a moment."""
        return LEFT + (WIDTH - LEFT - RIGHT) * self.pressed(time) / max(1, self.length)


@dataclass(frozen=True, slots=True)
class Lanes:
    """Where lanes lie from top to bottom: of rank after rank; ``rank_of`` says where the stages are."""

    ranks: int
    rank_of: tuple[int, ...]
    height: float

    @classmethod
    def of(cls, content: dict[str, Any]) -> Lanes:
        """Return lanes as high as so many ranks allow."""
        ranks = len(content["ranks"])
        height = min(MOST_LANE, max(LEAST_LANE, LANES / ranks - LINK_LANE))
        return cls(ranks, tuple(stage["rank"] for stage in content["stages"]), height)

    def top(self, kind: str, stage: int) -> float:
        """Return the upper end of the lane of a stage's rank, or of what is sent over the boundary behind it."""
        lane = TOP + self.rank_of[stage] * (self.height + LINK_LANE)
        if kind == ACTIVATION:
            return lane + self.height + 2
        return lane + self.height + 8 if kind == GRADIENT else lane

    def tall(self, kind: str) -> float:
        """Return the height of what is drawn in a lane."""
        return 5.0 if kind in (ACTIVATION, GRADIENT) else self.height

    @property
    def foot(self) -> float:
        """Return the lower end of the last lane, with what its rank sends to the first one's, if it does."""
        ends = LINK_LANE if len(self.rank_of) == self.ranks else 0
        return TOP + self.ranks * (self.height + LINK_LANE) - ends


def timeline_picture(content: dict[str, Any], name: str = "timeline") -> Picture:
    """Draw the timeline of a simulation's content; ``name`` tells two on one page apart."""
    shown, stages = content["timeline"], len(content["stages"])
    head, tail, makespan = shown["head_stop_ns"], shown["tail_start_ns"], content["makespan_ns"]
    scale, lanes = Scale(head, tail, makespan), Lanes.of(content)
    kinds = {row[0] for row in shown["events"]}
    entries = [entry for entry, drawn in LEGEND if kinds & set(drawn)]
    if len(content["ranks"]) < stages:
        entries.append(("f0 chunk", "odd chunk"))
    odd = frozenset(stage for rank in content["ranks"] for stage in rank["stages"][1::2])
    events = [_event(index, row, scale, lanes, odd) for index, row in enumerate(shown["events"])]
    clip = Rect((LEFT, 0, WIDTH - LEFT, lanes.foot + 26), "")
    shapes = (
        *legend(LEFT, 18, [*entries, ("key k", "critical chain")]),
        *_names(content, lanes),
        ShapeGroup(tuple(_ticks(scale, lanes)), {"class": "ticks"}),
        ShapeGroup((clip,), {"id": f"plot-{name}"}, "clipPath"),
        ShapeGroup((*events, *_gap(scale, lanes)), {"class": "events", "clip-path": f"url(#plot-{name})"}),
    )
    numbers = {"left": LEFT, "right": RIGHT, "head": head, "tail": tail, "gap": scale.gap, "makespan": makespan}
    numbers |= {"foot": lanes.foot, "top": TOP}
    title = f"Timeline of {count(content['micro_batches_run'], 'micro-batch')} in {count(stages, 'stage')}"
    return Picture(name, title, lanes.foot + 26, shapes, numbers)


def _names(content: dict[str, Any], lanes: Lanes) -> Iterator[Shape]:
    for rank in range(lanes.ranks):
        stage = content["ranks"][rank]["stages"][0]
        top = lanes.top("", stage)
        name, held = rank_name(content, rank)
        chip = Rect((0, top + lanes.height / 2 - 5, 10, 10), stage_colour(stage))
        label = Label(16, top + lanes.height / 2 + 4, name, "", held)
        yield of_stages((chip, label), *content["ranks"][rank]["stages"])
        yield Rect((LEFT, top, WIDTH - LEFT - RIGHT, lanes.height), "lane")


def _event(index: int, row: list[Any], scale: Scale, lanes: Lanes, odd: frozenset[int]) -> ShapeGroup:
    kind, stage, micro_batch, start, stop, critical = row
    sent = kind in (ACTIVATION, GRADIENT)
    left, right = scale.x(start), scale.x(stop)
    box = (left, lanes.top(kind, stage), max(LEAST_WIDE, right - left), lanes.tall(kind))
    marks = (" thin" if right - left < THIN else "") + (" chunk" if stage in odd and not sent else "")
    drawn: list[Shape] = [Rect(box, colour_of(kind, micro_batch) + marks)]
    if not sent:
        foot = box[1] + lanes.height / 2 + 4
        if right - left > DIGIT * len(str(micro_batch)) + 3:
            drawn.append(Label((left + right) / 2, foot, str(micro_batch), "number middle"))
    return ShapeGroup(drawn, {"data-i": index, "class": "k"} if critical else {"data-i": index})


def colour_of(kind: str, micro_batch: int) -> str:
    """Return the class of an event's colour: cool for forward passes, warm for backward ones."""
    if kind in (ACTIVATION, GRADIENT):
        return f"link-{kind}"
    if kind in "SU":
        return "sync"
    tint = micro_batch % MICRO_BATCH_COLOURS
    return f"f{tint}" if kind == "F" else f"b{tint}" + (" later" if kind == "W" else "")


def _ticks(scale: Scale, lanes: Lanes) -> Iterator[Shape]:
    """Draw times at round numbers, none inside the gap."""
    step = nice_step(scale.length, TICKS)
    taken = 0.0
    for time in range(0, scale.makespan + 1, step):
        if scale.head < time < scale.tail:
            continue
        x, named = scale.x(time), round_duration(time)
        yield Line(x, TOP - 4, x, lanes.foot + 4, "tick")
        if x - 30 > taken and x < WIDTH - 28:
            yield Label(x, lanes.foot + 18, named, "note small middle")
            taken = x + 30


def _gap(scale: Scale, lanes: Lanes) -> Iterator[Shape]:
    """Cover the hidden time."""
    if scale.gap:
        left, right = scale.x(scale.head), scale.x(scale.tail)
        yield Rect((left, TOP - 4, right - left, lanes.foot - TOP + 8), "gap", "not shown")
