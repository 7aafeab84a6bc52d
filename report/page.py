"""The page: one HTML file that needs nothing else, made from a simulation's content alone.

Names from users' files are escaped wherever they are shown, the embedded JSON has no ``<``, and a content security
policy lets the browser run the one script of the page, known by its hash, and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from report import tables
from report.claims import formats_of
from report.gantt import gantt
from report.memory_picture import memory_picture
from report.plan_picture import plan_picture
from report.svg import Picture, asset
from report.tables import Numbers
from report.time_picture import time_picture
from report.wording import count, rank_name, text

PROOFS = {
    "optimal": ("proved", "optimal, proved"),
    "feasible": ("open", "not proved optimal"),
    "unknown": ("open", "no proof"),
    None: ("open", "a given plan"),
}
"""The badge of each proof: its class, and its words."""


def pictures(content: dict[str, Any]) -> tuple[Picture, ...]:
    """Return all pictures of a content, in the order of the page."""
    return plan_picture(content), gantt(content), memory_picture(content), time_picture(content)


def page_of(content: dict[str, Any]) -> str:
    """Return the whole page."""
    numbers = Numbers(content)
    script = asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{text(content['scenario'])} – pipecut simulate</title>",
            f"<style>\n{asset('picture.css')}{asset('page.css')}</style>\n</head>\n<body>",
            _header(numbers),
            "<main>",
            *_sections(numbers),
            "</main>",
            f'<script type="application/json" id="pipecut-data">{embedded(content)}</script>',
            f"<script>{script}</script>\n</body>\n</html>\n",
        )
    )


def embedded(content: dict[str, Any]) -> str:
    """Return JSON that cannot end the element which it stands in: ASCII, without ``<``, ``>`` and ``&``."""
    plain = json.dumps(content, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        plain = plain.replace(character, f"\\u{ord(character):04x}")
    return plain


def _header(numbers: Numbers) -> str:
    content = numbers.content
    stages = content["stages"]
    used = sum(devices for rank in content["ranks"] for _, devices in stages[rank["stages"][0]]["devices"])
    there = sum(server["devices"] for server in content["servers"])
    kind, words = PROOFS[content["claim"]["proof"]]
    if content["claim"]["broken_rules"]:
        kind, words = "broken", "breaks rules"
    facts = (
        f"{text(content['model'])}, {count(len(content['layers']), 'layer')}",
        f"{count(len(stages), 'stage')} on {used} of {count(there, 'device')}",
        f"schedule <code>{text(content['schedule'])}</code>",
        f"{count(content['micro_batches_run'], 'micro-batch')} of "
        f"{count(content['micro_batch_samples'], 'sample')}",
    )
    return (
        f'<header><p class="brand">pipecut simulate</p><h1>{text(content["scenario"])}'
        f' <span class="badge {kind}">{words}</span></h1>'
        f'<p class="facts">{" <i>·</i> ".join(facts)}</p>{_cards(numbers)}</header>'
    )


def _cards(numbers: Numbers) -> str:
    """Return the key figures."""
    measures = numbers.at("measures")
    first = {one["key"]: index for index, one in reversed(list(enumerate(measures)))}
    fullest = max(
        range(len(numbers.at("ranks"))),
        key=lambda index: numbers.at(f"ranks.{index}.peak_bytes") / numbers.at(f"ranks.{index}.capacity_bytes"),
    )
    limit = numbers.show(f"ranks.{fullest}.capacity_bytes", "bytes")
    rounded, _ = formats_of(numbers.at("claim.unit"))
    objective = numbers.show("claim.objective", rounded)
    name, _ = rank_name(numbers.content, fullest)
    makespan = text(measures[first["makespan"]]["name"])
    gap = numbers.show("claim.gap", "share")
    cards = (
        ("objective", objective, f"gap {gap}"),
        ("makespan", numbers.show("makespan_ns", "ns"), makespan.removeprefix("makespan of ")),
        ("period", numbers.show(f"measures.{first['period']}.timeline", "ns"), "in the middle of the run"),
        ("bubble", numbers.show(f"measures.{first['bubble']}.timeline", "share"), "idle device time"),
        ("peak memory", numbers.show(f"ranks.{fullest}.peak_bytes", "bytes"), f"of {limit}, {name}"),
    )
    return "".join(
        (
            '<div class="cards">',
            *(
                f"<div><b>{name}</b><strong>{value}</strong><span>{more}</span></div>"
                for name, value, more in cards
            ),
            "</div>",
        )
    )


def _sections(numbers: Numbers) -> list[str]:
    plan, timeline, memory, time = (picture.inline() for picture in pictures(numbers.content))
    sections = [
        _section(
            "The plan", "The model, cut into stages, on the servers.", _figure(plan) + tables.stage_table(numbers)
        ),
        _section("The timeline", _what_is_drawn(numbers.content), _zoomable(timeline)),
        _section("Memory over time", "On the fullest device of each rank; dashed: its limit.", _figure(memory)),
        _section("Where the time goes", "", _figure(time) + tables.time_table(numbers)),
        _section("Formula and timeline, side by side", "", tables.measure_table(numbers)),
    ]
    if numbers.content["comparison"] is not None:
        words = "The same scenario, asked of every solver; gaps are measured to the strongest proved bound."
        sections.append(_section("Other solvers", words, tables.solver_table(numbers)))
    sections.append(_section("The claim", "", _claim(numbers)))
    return sections


def _section(title: str, words: str, body: str) -> str:
    lead = f'<p class="lead">{words}</p>' if words else ""
    return f"<section><h2>{title}</h2>{lead}{body}</section>"


def _figure(picture: str) -> str:
    return f'<figure class="scroll">{picture}</figure>'


def _zoomable(picture: str) -> str:
    buttons = "".join(
        f'<button type="button" data-zoom="{kind}" aria-label="{words}">{sign}</button>'
        for kind, sign, words in (
            ("in", "+", "zoom in"),
            ("out", "−", "zoom out"),
            ("all", "all", "show everything"),
        )
    )
    hint = "Ctrl + wheel zooms, drag moves, double click shows everything; with the keyboard: + − 0 and arrows."
    focus = 'id="gantt" tabindex="0" aria-label="timeline; arrow keys step through events"'
    return (
        f'<div class="tools" hidden>{buttons}<span>{hint}</span></div>'
        f'<figure class="scroll" {focus}>{picture}</figure>'
        '<p class="said" id="said" role="status" aria-live="polite"></p><div id="tip" hidden></div>'
    )


def _what_is_drawn(content: dict[str, Any]) -> str:
    """Say what the timeline shows, and what it leaves out."""
    shown = content["timeline"]
    words = "Numbers are micro-batches. Thin bars between two stages are the tensors sent from one to the other. "
    if shown["whole"]:
        return words + "The whole run is drawn."
    numbers = Numbers(content)
    head, tail = (numbers.show(f"timeline.{key}", "ns") for key in ("head_stop_ns", "tail_start_ns"))
    return words + f"<strong>Only the beginning and the end are drawn: until {head}, and from {tail} on.</strong>"


def _claim(numbers: Numbers) -> str:
    claim = numbers.content["claim"]
    solver = (
        "–" if claim["solver"] is None else f"{text(claim['solver'])}, {numbers.show('claim.seconds', 'seconds')}"
    )
    _, exact = formats_of(claim["unit"])
    rows = [
        (
            "objective",
            f"{numbers.show('claim.objective', exact)}<br><small>{text(claim['meaning'])}</small>",
        ),
        ("bound", numbers.show("claim.bound", exact)),
        ("gap", numbers.show("claim.gap", "share")),
        ("proof", text(claim["proof"] or "the plan was given")),
        ("solver", solver),
    ]
    rows += [
        (
            text(one["goal"]).replace("_", " "),
            numbers.show(f"claim.further.{at}.value", formats_of(one["unit"])[1]),
        )
        for at, one in enumerate(claim["further"])
    ]
    rows += [("note", text(note)) for note in claim["notes"]]
    rows += [("breaks", f'<span class="alarm">{text(rule)}</span>') for rule in claim["broken_rules"]]
    return f"<dl>{''.join(f'<dt>{key}</dt><dd>{value}</dd>' for key, value in rows)}</dl>"
