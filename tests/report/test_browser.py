"""The page in a real browser: Chromium without a window, where there is one (``apt-get install chromium``)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.report.content import content_of
from pipecut.report.page import Numbers, page_of
from pipecut.report.simulation import simulate
from pipecut.report.wording import FORMATS
from tests.report.runs import COMPARISON, EVIL, content
from tests.report.test_orders import dealt
from tests.report.test_page import Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --enable-logging=stderr --v=0 --virtual-time-budget=4000 --dump-dom"
)

ACT = """
<script>
const found = { errors: [] };
addEventListener("error", (event) => found.errors.push(event.message));
addEventListener("load", () => {
  const figure = document.getElementById("gantt"), svg = document.getElementById("timeline");
  const first = svg.querySelector("[data-i='0'] rect");
  const press = (key) => figure.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  first.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: 300, clientY: 300 }));
  found.tip = document.getElementById("tip").textContent;
  found.mates = svg.querySelectorAll(".mate").length;
  const before = Number(first.getAttribute("width"));
  press("ArrowRight"); press("ArrowRight"); press("ArrowDown");
  found.said = document.getElementById("said").textContent;
  const wheel = { bubbles: true, cancelable: true, ctrlKey: true, deltaY: -300, clientX: 100, clientY: 300 };
  svg.dispatchEvent(new WheelEvent("wheel", wheel));
  found.wider = Number(svg.querySelector("[data-i='0'] rect").getAttribute("width")) / before;
  for (let at = 0; at < 60; at += 1) press("+");
  found.ticks = svg.querySelectorAll(".ticks line").length;
  press("0");
  const wanted = document.getElementById("wanted");
  const listed = () => [...document.querySelectorAll("#rows tr")].map((row) => row.textContent);
  const search = (words) => { wanted.value = words; wanted.dispatchEvent(new Event("input")); return listed(); };
  found.layers = [listed().length, search("block.3"), search("stage 1"), search("nothing like it")];
  found.matched = document.getElementById("matched").textContent;
  found.again = Number(first.getAttribute("width")) / before;
  const ready = document.createElement("pre");
  ready.id = "found";
  ready.textContent = JSON.stringify(found);
  document.body.append(ready);
});
</script>
</head>"""


def dom(html: str, folder: Path) -> tuple[str, list[str]]:
    """Return the page after its scripts have run, and what the browser's console says."""
    page = folder / "page.html"
    page.write_text(html, encoding="utf-8")
    command = [str(CHROMIUM), *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_the_page_renders_without_a_word_on_the_console(tmp_path: Path) -> None:
    found = content(4, 300, name=EVIL, scenario=EVIL, shown=12) | {"comparison": COMPARISON}
    rendered, console = dom(page_of(found), tmp_path)
    assert console == []
    assert f'data-ready="{len(found["timeline"]["events"])}"' in rendered
    page = Page(rendered)
    assert "img" not in page.tags and page.json == found
    numbers = Numbers(found)
    assert len(page.numbers) >= 80
    for attributes, shown in page.numbers:
        assert shown == FORMATS[attributes["data-unit"] or ""](numbers.at(attributes["data-path"] or ""))


def test_the_policy_stops_what_escaping_would_have_missed(tmp_path: Path) -> None:
    html = page_of(content()).replace("<main>", "<main><script>document.title = 'taken'</script>")
    rendered, console = dom(html, tmp_path)
    assert "<title>taken" not in rendered and "Content Security Policy" in "".join(console)


def test_zoom_tooltip_and_keyboard(tmp_path: Path) -> None:
    html = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page_of(content(3, 6)))
    rendered, console = dom(html.replace("</head>", ACT), tmp_path)
    result = re.search(r'<pre id="found">(.*?)</pre>', rendered, re.DOTALL)
    assert result and console == []
    found: dict[str, Any] = json.loads(result[1])
    assert found["errors"] == []
    assert found["tip"].startswith("forward pass, micro-batch 0, stage 0\nfrom 0 ns to 3,000 ns\ntakes 3,000 ns")
    assert found["mates"] == 3 * 2 + 2 * 2
    assert found["said"].startswith("activation sent, micro-batch 0, stage 0 to 1, from 3,000 ns to ")
    assert found["wider"] > 1.5 and found["again"] == pytest.approx(1, rel=0.01)
    assert 1 <= found["ticks"] <= 12
    every, by_name, by_stage, none = found["layers"]
    assert every == 6 and len(by_name) == 1 and by_name[0].startswith("block.3") and none == []
    assert [row[:7] for row in by_stage] == ["block.2", "block.3"] and found["matched"] == "0 of 6 layers"


CHOOSE = """
<script>
const found = { errors: [] };
addEventListener("error", (event) => found.errors.push(event.message));
addEventListener("load", () => {
  const all = (words) => [...document.querySelectorAll(words)];
  const state = () => ({
    stages: all(".stages tr.picked").map((row) => row.dataset.stage),
    memory: all(".memory tr.picked").length, curves: all("#memory .picked").length,
    devices: all("#plan .picked").length,
    events: all("#timeline [data-i].picked").length, here: all("#plan .here").map((box) => box.dataset.layer),
    row: all("#rows tr.here").map((row) => row.dataset.at), said: document.getElementById("choice").textContent,
    shown: !document.getElementById("choice").hidden, rows: all("#rows tr").length,
    other: all("#other .picked").length,
  });
  const click = (node) => { node.dispatchEvent(new MouseEvent("click", { bubbles: true })); return state(); };
  const key = (node, name) => {
    node.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
    return state();
  };
  found.none = state();
  found.table = click(document.querySelector(".stages [data-pick='1']"));
  found.next = click(document.querySelector("[data-next='1']"));
  found.escaped = key(document.body, "Escape");
  found.box = click(all("#plan [data-layer]")[3]);
  found.again = click(all("#plan [data-layer]")[3]);
  found.layer = click(document.querySelector("#rows tr[data-at='2'] button"));
  found.down = key(document.querySelector("#rows tr[data-at='2'] button"), "ArrowDown");
  found.event = click(document.querySelector("#timeline [data-i='0'] rect"));
  found.curve = click(document.querySelector("#memory [data-stage='2'] rect"));
  for (const button of all("[data-chain='1']")) { button.click(); button.click(); }
  found.chain = document.getElementById("said").textContent;
  found.far = null;
  const last = all("#plan [data-layer]").pop();
  click(last);
  found.far = state();
  const box = document.querySelector("#timeline");
  const touch = (name, pointerId, clientX) =>
    box.dispatchEvent(new PointerEvent(name, { bubbles: true, pointerId, clientX, clientY: 300 }));
  touch("pointerdown", 7, 100); touch("pointerdown", 8, 200); touch("pointermove", 8, 400);
  touch("pointerup", 8, 400); touch("pointerup", 7, 100);
  found.pinched = all("#timeline [data-i]").filter((event) => event.style.display === "none").length;
  const ready = document.createElement("pre");
  ready.id = "found";
  ready.textContent = JSON.stringify(found);
  document.body.append(ready);
});
</script>
</head>"""


def chosen(found: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What the page shows after clicks, keys and touches."""
    html = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page_of(found))
    rendered, console = dom(html.replace("</head>", CHOOSE), folder)
    result = re.search(r'<pre id="found">(.*?)</pre>', rendered, re.DOTALL)
    assert result and console == []
    acted: dict[str, Any] = json.loads(result[1])
    assert acted["errors"] == []
    return acted


def test_what_is_chosen_anywhere_is_shown_everywhere(tmp_path: Path) -> None:
    found = content(3, 6) | {"against": content(2, 6) | {"plan": "other.json"}}
    acted = chosen(found, tmp_path)
    assert not acted["none"]["shown"] and acted["none"]["events"] == 0
    mine = sum(row[1] == 1 if row[0] not in "ag" else row[1] in (0, 1) for row in found["timeline"]["events"])
    table = acted["table"]
    assert table["stages"] == ["1"] and table["memory"] == table["curves"] == 1 and table["events"] == mine > 0
    assert table["devices"] >= 3 and table["other"] == 0 and table["shown"]
    assert table["said"].endswith("stage 1: block.2 … block.3, on 1 × s0; 12.00 µs, 25.59 KiB of 1.000 TiB×")
    assert acted["next"]["stages"] == ["2"] and acted["escaped"]["stages"] == [] and not acted["escaped"]["shown"]
    assert acted["box"]["here"] == ["3"] == acted["box"]["row"] and acted["box"]["stages"] == ["1"]
    assert acted["again"]["here"] == [] and acted["layer"]["here"] == ["2"]
    assert acted["down"]["row"] == ["3"] and "layer block.3 in stage 1: computes" in acted["down"]["said"]
    assert acted["event"]["stages"] == ["0"] and acted["curve"]["stages"] == ["2"]
    assert acted["chain"].endswith("on the critical chain") and "micro-batch" in acted["chain"]
    assert acted["pinched"] > 0, "two fingers zoom, and what is out of view is hidden"


@pytest.mark.slow
def test_any_of_ten_thousand_layers_is_found_from_the_picture(tmp_path: Path) -> None:
    found = content(64, 8, layers=157)
    assert len(found["layers"]) > 10_000 and len(page_of(found).encode()) < 2_000_000
    acted = chosen(found, tmp_path)
    (row,) = acted["far"]["row"]
    assert int(row) > 9_900 and acted["far"]["stages"] == ["63"] and acted["far"]["rows"] <= 200


@pytest.mark.slow
def test_a_large_page_stays_usable(tmp_path: Path) -> None:
    found = content(64, 10_000, devices=2)
    html = page_of(found)
    assert len(html.encode()) < 2_000_000
    rendered, console = dom(html, tmp_path)
    assert console == [] and f'data-ready="{len(found["timeline"]["events"])}"' in rendered


def test_lanes_of_shared_ranks_are_stepped_through(tmp_path: Path) -> None:
    instance, plan = dealt(2, 2, 4)
    found = content_of(simulate(instance, plan, interleaved(2, 2, 4)), scenario="shared")
    html = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page_of(found))
    rendered, console = dom(html.replace("</head>", ACT), tmp_path)
    result = re.search(r'<pre id="found">(.*?)</pre>', rendered, re.DOTALL)
    assert result and console == []
    acted: dict[str, Any] = json.loads(result[1])
    assert acted["errors"] == [] and acted["mates"] == 4 * 2 + 3 * 2
    assert acted["said"].startswith("activation sent, micro-batch 0, stage 0 to 1")
