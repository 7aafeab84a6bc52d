"""Numbers of a content by their paths, so that what a page shows can be traced to the JSON that it embeds.

Two plans side by side: the same numbers of both, and what the other one takes more.

The templates of ``report/templates``, and how they write what they are given.

Everything that a template shows is escaped, and what is no printable character shown as a question mark: both
happen where it is written, so no template can forget it. Only files of this package are marked as safe.

The page: one HTML file that needs nothing else, made from a simulation's content alone.

Its words are in ``report/templates``, which escape all names; the embedded JSON has no ``<``, and a content
security policy lets the browser run the one script of the page, known by its hash, and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from pipecut.report import wording
from pipecut.report.claims import formats_of
from pipecut.report.measures import Relation
from pipecut.report.pictures.memory import memory_picture
from pipecut.report.pictures.plan import plan_picture
from pipecut.report.pictures.shapes import STAGE_COLOURS, WIDTH, Picture, short, stage_colour
from pipecut.report.pictures.time import time_picture
from pipecut.report.pictures.timeline import timeline_picture
from pipecut.report.wording import FORMATS, NOTHING, rank_name


@dataclass(frozen=True, slots=True)
class Numbers:
    """Finds what stands in a content at a path such as ``stages.0.peak_bytes``."""

    content: dict[str, Any]

    def at(self, path: str) -> Any:  # noqa: ANN401 (whatever JSON holds)
        """Return what stands at a path."""
        found: Any = self.content
        for key in path.split("."):
            found = found[int(key)] if isinstance(found, list) else found[key]
        return found


MANY = 3
"""From how many times as much on a difference is said as such."""


@dataclass(frozen=True, slots=True)
class BesideRow:
    """A number of two plans: its name, where it stands in the content of a plan, its format, and in words.

    ``more`` says how much more or less the other one is.
    """

    name: str
    path: str
    unit: str
    this: str
    other: str
    more: str


def two_plans(content: dict[str, Any]) -> list[BesideRow]:
    """Return what is compared of a content and of the other plan in it."""
    numbers, rows = Numbers(content), []
    for name, path, unit in _compared(content):
        this, other = numbers.at(path), numbers.at(f"against.{path}")
        here, there = (NOTHING if one is None else FORMATS[unit](one) for one in (this, other))
        rows.append(BesideRow(name, path, unit, here, there, difference(this, other, unit)))
    return rows


def difference(this: float | None, other: float | None, unit: str) -> str:
    """Say how much more or less the other number is; nothing where one of them is missing."""
    if this is None or other is None:
        return ""
    if this == other:
        return "the same"
    if this and other > MANY * this:
        return f"{other / this:.1f} times as much"
    more = FORMATS[unit](abs(other - this))
    share = f", {FORMATS['share'](abs(other - this) / this)}" if this and unit != "share" else ""
    return f"{more}{share} {'more' if other > this else 'less'}"


def _compared(content: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield name, path and format of every number that both plans have."""
    unit, _ = formats_of(content["claim"]["unit"])
    yield f"objective: {content['claim']['meaning']}", "claim.objective", unit
    seen: set[str] = set()
    keys = [one["key"] for one in content["against"]["measures"]]
    for at, one in enumerate(content["measures"]):
        if one["key"] not in seen and keys[at : at + 1] == [one["key"]]:
            seen.add(one["key"])
            yield one["name"], f"measures.{at}.timeline", one["unit"]
    yield "all times of stages and boundaries together", "claim.sums.sum_ns", "ns"
    yield "the largest of them", "claim.sums.largest_ns", "ns"
    yield "largest peak memory", "peak_bytes", "bytes"
    yield "devices", "devices_used", "whole"


MARGIN = 10.0
"""Around a picture that is a file of its own."""

_VARIABLE = re.compile(r"(--[a-z0-9-]+):\s*([^;]+);")
_USE = re.compile(r"var\((--[a-z0-9-]+)\)")


def rendered(template: str, **given: object) -> str:
    """Return a template of this package, filled in. Raises jinja2.UndefinedError for what is not given."""
    return _environment().get_template(template).render(**given)


def standalone(picture: Picture) -> str:
    """Return a picture as a file of its own, in light colours, for any program that reads SVG."""
    return rendered("standalone.svg.j2", picture=picture, margin=MARGIN, style=plain_style())


@cache
def asset(name: str) -> str:
    """Return the text of a file of ``report/assets``."""
    return files("pipecut.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def plain_style() -> str:
    """Return the style of pictures with its light colours put in, as few programs know variables."""
    light, _, rest = asset("picture.css").partition("/* dark */")
    _, _, rules = rest.partition("/* rules */")
    colours = dict(_VARIABLE.findall(light))
    return _USE.sub(lambda found: colours[found[1]], rules)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("pipecut.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "short": short,
        "count": wording.count,
        "colour": stage_colour,
        "exact": json.dumps,
        "shown": lambda value, unit: wording.FORMATS[unit](value),
    }
    environment.globals["width"] = WIDTH
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def _printable(value: object) -> object:
    """Return what a template shows, with question marks; markup, which is our own, and numbers as they are."""
    return wording.printable(value) if type(value) is str else value


PROOFS = {
    "optimal": ("proved", "optimal, proved"),
    "feasible": ("open", "not proved optimal"),
    "unknown": ("open", "no proof"),
    None: ("open", "a given plan"),
}
"""The badge of each proof: its class, and its words."""
MOST_ROWS = 20
"""A longer table scrolls in a box of its own; on paper it is whole."""


def pictures(content: dict[str, Any]) -> tuple[Picture, ...]:
    """Return all pictures of a content, in the order of the page."""
    return plan_picture(content), timeline_picture(content), memory_picture(content), time_picture(content)


def page_of(content: dict[str, Any]) -> str:
    """Return the whole page."""
    script = asset("page.js") + asset("choice.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return rendered(
        "page.html.j2",
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        style=asset("picture.css") + asset("page.css"),
        script=script,
        content=content,
        numbers=Numbers(content),
        pictures={picture.name: picture for picture in (*pictures(content), *_of_other(content["against"]))},
        most_rows=MOST_ROWS,
        nothing=NOTHING,
        near=Relation.RELATED,
        colours=STAGE_COLOURS,
        every_stage=[str(at) for at in range(len(content["stages"]))],
        every_rank=[" ".join(map(str, rank["stages"])) for rank in content["ranks"]],
        chain_stages=[str(part["stage"]) for part in content["chain"]],
        two_plans=two_plans(content) if content["against"] else (),
        charged=all(one["paid"] for one in content["boundaries"]),
        adds_up=_adds_up(content),
        **_of_run(content),
        **_of_claim(content["claim"]),
    )


def _of_other(against: dict[str, Any] | None) -> tuple[Picture, ...]:
    """Return the pictures of the plan that is shown beside this one, if there is one."""
    if against is None:
        return ()
    return plan_picture(against, "other-plan"), timeline_picture(against, "other-timeline")


def _adds_up(content: dict[str, Any]) -> str:
    """Say how the columns of the stages make the time of a stage."""
    prices = [stage["price"] for stage in content["stages"]]
    parts = ("compute_ns", "inside_ns", "between_ns", "received_ns")
    if all(price["total_ns"] == sum(price[part] for part in parts) for price in prices):
        return "The columns before it add up to the time."
    return "The time is the longer of compute and communication, which overlap."


def _of_run(content: dict[str, Any]) -> dict[str, Any]:
    """Return what the header says of a run, and how its ranks are called."""
    stages, ranks = content["stages"], content["ranks"]
    fullest = max(range(len(ranks)), key=lambda at: ranks[at]["peak_bytes"] / ranks[at]["capacity_bytes"])
    of_stages = len(ranks) == len(stages)
    return {
        "devices_there": sum(server["devices"] for server in content["servers"]),
        "row_of": {one["key"]: at for at, one in reversed(list(enumerate(content["measures"])))},
        "fullest": fullest,
        "fullest_name": rank_name(content, fullest)[0],
        "of_stages": of_stages,
        "rank_or_stage": "stage" if of_stages else "rank",
    }


def _of_claim(claim: dict[str, Any]) -> dict[str, Any]:
    """Return the badge of a claim, and how numbers of its unit are written."""
    rounded, exact = formats_of(claim["unit"])
    return {
        "badge": ("broken", "breaks rules") if claim["broken_rules"] else PROOFS[claim["proof"]],
        "rounded": rounded,
        "exact": exact,
        "exact_of": lambda unit: formats_of(unit)[1],
    }
