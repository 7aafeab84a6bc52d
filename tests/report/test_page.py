"""The page says what its JSON says, needs nothing from outside, and takes no orders from names."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecut.formulation.problem.training import Schedule
from pipecut.report import page as templating
from pipecut.report.content import content_of
from pipecut.report.page import Numbers, page_of, pictures, standalone
from pipecut.report.pictures.shapes import Rect, Shape, ShapeGroup
from pipecut.report.simulation import simulate
from pipecut.report.wording import FORMATS
from tests.formulation.timeline.test_timeline_of_plan import line_plans
from tests.generators import OF_SINGLE_STAGES, instances
from tests.laws import so_many
from tests.report.runs import COMPARISON, EVIL, content, ran


class Page(HTMLParser):
    """What a browser would make of a page: its elements, its data elements with their text, its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.numbers: list[tuple[dict[str, str | None], str]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._inside: str = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._inside = tag
        if tag == "data":
            self.numbers.append((dict(attrs), ""))
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._inside == "data":
            self.numbers[-1] = (self.numbers[-1][0], self.numbers[-1][1] + data)
        if self._inside == "script":
            self.scripts[-1] += data

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.scripts[0])


def evil_content() -> dict[str, Any]:
    run = ran(name=EVIL, devices=2)
    return content_of(run, scenario=EVIL, comparison=COMPARISON)


@pytest.mark.parametrize("schedule", OF_SINGLE_STAGES)
@pytest.mark.parametrize("stages", [1, 2, 5])
def test_numbers_on_the_page_are_those_of_its_json(schedule: Schedule, stages: int) -> None:
    found = content(stages, 6, schedule) | {"comparison": COMPARISON}
    page = Page(page_of(found))
    assert page.json == found
    numbers = Numbers(page.json)
    assert len(page.numbers) > 20 * min(2, stages)
    for attributes, shown in page.numbers:
        value = numbers.at(attributes["data-path"] or "")
        assert json.loads(attributes["value"] or "") == value
        assert shown == FORMATS[attributes["data-unit"] or ""](value)


def test_the_tables_leave_nothing_out() -> None:
    found = content(3, 6) | {"comparison": COMPARISON}
    paths = {attributes["data-path"] for attributes, _ in Page(page_of(found)).numbers}
    for stage in range(3):
        for key in ("forward_ns", "backward_ns"):
            assert f"stages.{stage}.{key}" in paths
        for key in ("utilisation", "peak_bytes", "peak_bytes_formula", "spent.idle_ns"):
            assert f"ranks.{stage}.{key}" in paths
    assert {"makespan_ns", "claim.objective", "comparison.solvers.0.gap", "boundaries.1.price_ns"} <= paths


def test_the_timeline_is_drawn_to_scale() -> None:
    found = content(3, 6)
    svg = page_of(found)
    boxes = re.findall(r'<g data-i="(\d+)"[^>]*><rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', svg)
    events = found["timeline"]["events"]
    assert [int(index) for index, _, _ in boxes] == list(range(len(events)))
    scale = (1120 - 84 - 10) / found["makespan_ns"]
    for (_, left, width), event in zip(boxes, events, strict=True):
        assert float(left) == pytest.approx(84 + event[3] * scale, abs=0.01)
        assert float(width) == pytest.approx(max(1, (event[4] - event[3]) * scale), abs=0.02)


def test_a_long_run_says_what_it_leaves_out() -> None:
    found = content(4, 500, shown=10)
    page = page_of(found)
    assert "Only the beginning and the end are drawn" in page and 'class="gap"' in page
    assert "The whole run is drawn" in page_of(content(4, 5))


def test_names_are_harmless() -> None:
    html = page_of(evil_content())
    html.encode("utf-8")
    page = Page(html)
    assert page.tags.count("script") == 2 and "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.json["scenario"] == EVIL
    shown = "</script><img src=x onerror=alert(1)>\"'&??"
    assert page.words.count(shown) >= 2 and "\u202e" not in html


def hostile(value: Any, key: str = "") -> Any:
    """A content in which every word that comes from outside is the hostile one; those of closed sets stay."""
    if isinstance(value, dict):
        return {name: hostile(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [hostile(one, key) for one in value]
    return (
        EVIL
        if isinstance(value, str) and key not in ("unit", "key", "proof", "event_columns", "events")
        else value
    )


def test_every_word_of_a_content_is_escaped_wherever_it_is_shown() -> None:
    found = content_of(ran(3, 6, devices=2), scenario="x", comparison=json.loads(json.dumps(COMPARISON)))
    found["claim"] |= {
        "notes": ["a note"],
        "broken_rules": ["a rule"],
        "breaks": ["a rule"],
        "solver": "a solver",
        "seconds": 1.0,
        "further": [{"goal": "cost", "unit": "ns", "value": 1, "status": "open"}],
    }
    found["comparison"]["solvers"][1]["violations"] = ["a rule"]
    found = hostile(found)
    harmless = json.dumps(found).replace(json.dumps(EVIL), json.dumps("a" * len(EVIL)))
    page, mild = Page(page_of(found)), Page(page_of(json.loads(harmless)))
    assert page.tags == mild.tags, "no name makes an element"
    assert [name for name, _ in page.attributes] == [name for name, _ in mild.attributes], "nor an attribute"
    assert page.json == found
    shown = "".join(page.words).count("</script><img src=x onerror=alert(1)>\"'&??")
    assert shown >= 40 and "\u202e" not in "".join(page.words)
    for picture in pictures(found):
        assert ElementTree.fromstring(standalone(picture)).tag.endswith("svg")  # noqa: S314 (our own)


def test_only_files_of_the_package_are_called_safe() -> None:
    folder = Path(templating.__file__).parent / "templates"
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.j2"))]
    assert len(texts) > 5
    safe = [name for text in texts for name in re.findall(r"\{\{ *([\w.]+) *\|[^}]*safe", text)]
    assert sorted(safe) == ["script", "style", "style"] and "autoescape" not in "".join(texts)


def test_the_policy_knows_the_script_and_lets_nothing_in() -> None:
    html = page_of(content())
    page = Page(html)
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert ("content", policy) in page.attributes
    assert not re.search(r"\b(src|href)=|@import|url\((?!#plot)", html.replace(page.scripts[0], ""))
    assert re.findall(r"https?://[^\"' ]+", html) == ["http://www.w3.org/2000/svg"]


@settings(max_examples=so_many(40))
@given(st.data())
def test_any_plan_can_be_drawn(data: st.DataObject) -> None:
    instance = data.draw(instances())
    found = content_of(simulate(instance, data.draw(line_plans(instance))), scenario="any")
    assert Page(page_of(found)).json == found
    for picture in pictures(found):
        ElementTree.fromstring(standalone(picture))  # noqa: S314 (our own)


@pytest.mark.parametrize("stages", [1, 2, 16])
def test_pictures_are_files_of_their_own(stages: int) -> None:
    drawn = pictures(content(stages, 8, name=EVIL))
    assert [picture.name for picture in drawn] == ["plan", "timeline", "memory", "time"]
    for picture in drawn:
        text = standalone(picture)
        root = ElementTree.fromstring(text.encode("utf-8"))  # noqa: S314 (our own)
        assert (
            root.tag == "{http://www.w3.org/2000/svg}svg"
            and "var(" not in text
            and "script" not in {element.tag.rpartition("}")[2] for element in root.iter()}
        )


def test_nothing_sticks_out_of_a_picture() -> None:
    for picture in pictures(content(16, 40, devices=2)):
        boxes = list(boxes_of(picture.shapes))
        assert len(boxes) > 10
        for left, top, width, height in boxes:
            assert left >= 0 and left + width <= 1120.5
            assert top >= 0 and top + height <= picture.height + 0.5


def boxes_of(shapes: Sequence[Shape], right: float = 0, down: float = 0) -> Iterator[tuple[float, ...]]:
    """The rectangles of a picture where they are drawn."""
    for one in shapes:
        if isinstance(one, Rect):
            left, top, width, height = one.box
            yield left + right, top + down, width, height
        if isinstance(one, ShapeGroup) and one.element == "g":
            moved = re.findall(r"[-\d.]+", str(one.attributes.get("transform", "0 0")))
            yield from boxes_of(one.shapes, right + float(moved[0]), down + float(moved[1]))


def test_usual_pages_are_small() -> None:
    assert len(page_of(content(16, 512)).encode()) < 1_000_000
    assert len(page_of(content(2, 16)).encode()) < 100_000
