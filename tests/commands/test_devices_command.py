"""``pipecut devices``: the tables, one entry with its sources, JSON, and what is wrong with a name or a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipecut.commands import devices
from pipecut.formulation.problem.cluster import servers_of
from pipecut.ingest.scenario.library import Library
from pipecut.ingest.scenario.load import load_scenario
from tests.command_line import Command
from tests.commands.fakes import ROOT

PAGE = (ROOT / "docs" / "devices.md").read_text(encoding="utf-8")
NAMES = [*Library.read().files]
COLUMNS = 80


def test_the_whole_library_fits_eighty_columns(pipecut: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    ran = pipecut("devices")
    assert ran.code == 0 and ran.err == ""
    assert max(len(line) for line in ran.out.splitlines()) <= COLUMNS
    words = [line.split(" ")[0] for line in ran.out.splitlines() if line]
    assert all(words.count(name) == 1 for name in NAMES)  # no name is cut
    assert re.search(
        r"^h100-sxm +79\.65 +4\.5 +3350 +66\.9 +66\.9 +494\.7 +989\.4 +1978\.9$", ran.out, re.MULTILINE
    )
    assert re.search(r"^p5 +8 x h100-sxm +450 +450 +32 x 100 +400 +55\.04$", ran.out, re.MULTILINE)


@pytest.mark.few(6)
@pytest.mark.parametrize("name", NAMES)
def test_one_entry_is_shown_with_every_source(pipecut: Command, name: str) -> None:
    library = Library.read()
    ran = pipecut("devices", name)
    assert ran.code == 0 and ran.out.startswith(f"{name}: ")
    content = pipecut("devices", name, "--json").json
    (entry,) = [*content["devices"], *content["machines"]]
    assert entry["name"] == name and entry["file"] == library.files[name]
    numbers = [value for value in entry.values() if isinstance(value, dict) and "source" in value]
    numbers += [
        fact for key in ("peak_flops_per_second", "link_bits_per_second") for fact in entry.get(key, {}).values()
    ]
    for number in numbers:
        assert number["source"]["url"] in ran.out and number["source"]["title"] in ran.out
        assert number["note"] is None or number["note"] in ran.out


@pytest.mark.slow
def test_json_has_the_numbers_that_a_scenario_gets(pipecut: Command, tmp_path: Path) -> None:
    content = pipecut("devices", "--json").json
    assert [row["name"] for row in (*content["devices"], *content["machines"])] == sorted(
        NAMES, key=lambda name: (name in Library.read().machines, NAMES.index(name))
    )
    machine = next(row for row in content["machines"] if row["name"] == "p5")
    device = next(row for row in content["devices"] if row["name"] == machine["device"])
    path = tmp_path / "p5.yaml"
    path.write_text(
        "name: x\nmodel: {graph: g.json}\ncluster: {machines: {p5: 2}}\n"
        "training: {global_batch: 8, bytes_per_element: 2}\n",
        encoding="utf-8",
    )
    scenario = load_scenario(path)
    server = servers_of(scenario.cluster)[0]
    assert server.link and server.link.bits_per_second == machine["each_pair_bits_per_second"]["value"]
    assert server.device_class.memory_bytes == device["memory_bytes"]["value"] - device["kept_bytes"]["value"]
    assert server.device_class.flops_per_second == device["peak_flops_per_second"]["bf16"]["value"]
    assert server.device_class.price_per_hour * 8 == machine["price_per_hour"]["value"]
    link = scenario.cluster.graph["mesh"]
    assert link.bits_per_second == machine["between_bits_per_second"]


def test_an_unknown_name_is_bad_input(pipecut: Command) -> None:
    ran = pipecut("devices", "h100-smx")
    assert ran.code == 2 and ran.out == ""
    assert ran.err == "no device or machine 'h100-smx' in the library; did you mean 'h100-sxm'?\n"
    told = pipecut("devices", "h100-smx", "--json")
    assert told.code == 2 and told.json["error"]["kind"] == "bad input"


def test_a_wrong_file_is_told_with_its_line(
    pipecut: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "library" / "own.yaml"
    path.parent.mkdir()
    path.write_text("sources: {}\ndevices:\n  card: {title: A card, memory: 7}\n", encoding="utf-8")
    monkeypatch.setattr(devices, "LIBRARY", path.parent)
    ran = pipecut("devices")
    assert ran.code == 2 and ran.out == ""
    assert f"{path}:3: devices.card.memory: expected a section" in ran.err
    assert f"{path}:3: devices.card.memory_bandwidth: missing: bandwidth of the memory" in ran.err
    path.unlink()
    assert pipecut("devices").code == 0


def test_the_page_has_the_tables_that_the_command_writes(pipecut: Command) -> None:
    written = PAGE.split("<!-- tables: pipecut devices --markdown -->\n")[1].split("<!-- end of tables -->")[0]
    again = "write the output of pipecut devices --markdown to docs/devices.md"
    assert pipecut("devices", "--markdown").out == written, again


@pytest.mark.parametrize("example", re.findall(r"```yaml\n(.+?)```", PAGE, re.DOTALL))
def test_the_scenarios_of_the_page_load(tmp_path: Path, example: str) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(example, encoding="utf-8")
    found = servers_of(load_scenario(path).cluster)
    names = [server.name for server in found]
    assert names[:4] in ([f"dgx-h100-{at}" for at in range(4)], [f"node{at}" for at in range(4)])


def test_the_page_says_which_overrides_there_are(tmp_path: Path) -> None:
    example = re.findall(r"```yaml\n(.+?)```", PAGE, re.DOTALL)[0]
    path = tmp_path / "example.yaml"
    path.write_text(example, encoding="utf-8")
    overrides = [word.strip("'") for word in re.findall(r"`--set ([^`]+)`", PAGE)]
    assert len(overrides) == 4 and len(servers_of(load_scenario(path, overrides).cluster)) == 8
