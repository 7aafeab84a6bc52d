"""The page: one HTML file that needs nothing else, made from a simulation's content alone.

Its words are in ``report/templates``, which escape all names; the embedded JSON has no ``<``, and a content
security policy lets the browser run the one script of the page, known by its hash, and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from report.claims import formats_of
from report.measures import Relation
from report.numbers import Numbers
from report.page.beside import two_plans
from report.page.templating import asset, rendered
from report.pictures.memory import memory_picture
from report.pictures.plan import plan_picture
from report.pictures.shapes import STAGE_COLOURS, Picture
from report.pictures.time import time_picture
from report.pictures.timeline import timeline_picture
from report.wording import NOTHING, rank_name

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
