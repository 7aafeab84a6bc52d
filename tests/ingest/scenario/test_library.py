"""The library: every file loads, numbers are plausible and have sources, a wrong file is told with its line."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path

import pytest

from pipecut.formulation.problem.units import BITS_PER_BYTE
from pipecut.ingest.mistakes import ScenarioError
from pipecut.ingest.scenario.fields import NumberFormat
from pipecut.ingest.scenario.library import Library, LibraryFile
from pipecut.ingest.scenario.shipped import LIBRARY, SHIPPED, scenario_files
from pipecut.ingest.text.yaml_source import Document

LIBRARY_READ = Library.read()
DEVICES, MACHINES = LIBRARY_READ.devices, LIBRARY_READ.machines
FILES = sorted(LIBRARY.rglob("*.yaml"))
WANTED = [
    "v100-sxm-16gb",
    "v100-sxm-32gb",
    "v100-pcie-16gb",
    "v100-pcie-32gb",
    "a100-sxm-40gb",
    "a100-sxm-80gb",
    "a100-pcie-40gb",
    "a100-pcie-80gb",
    "h100-sxm",
    "h100-pcie",
    "h100-nvl",
    "h200-sxm",
    "b200-sxm",
    "l40s",
    "rtx-2080-ti",
    "rtx-3090",
    "rtx-4090",
    "mi250x",
    "mi250x-gcd",
    "mi300x",
    "tpu-v4",
    "tpu-v5e",
    *[
        "t4",
        "l4",
        "a10",
        "a10g",
        "a40",
        "a6000",
        "rtx-5090",
        "rtx-4080",
        "gh200",
        "gb200",
        "b300",
        "h20",
        "h800",
        "a800",
        "p100",
        "mi325x",
    ],
    "ascend-910b",
    "gaudi2",
]
FASTER = (NumberFormat.FP64, NumberFormat.FP32, NumberFormat.TF32, NumberFormat.BF16, NumberFormat.FP8)
GIGA, TERA, GIB = 10**9, 10**12, 2**30

FILE = """\
sources:
  sheet: {title: a data sheet, url: "https://example.org/sheet"}
devices:
  card:
    title: A card
    memory: {value: 16 GiB, source: sheet}
    kept: {value: 1 GiB, source: sheet}
    memory_bandwidth: {value: 900 GB/s, source: sheet}
    peaks:
      fp32: {value: 10 TFLOP/s, source: sheet}
machines:
  box:
    title: A box
    device: card
    devices: {value: 8, source: sheet}
    inside:
      each_pair: {value: 25 GB/s, source: sheet}
      each_device: {value: 150 GB/s, source: sheet}
    adapters:
      number: {value: 4, source: sheet}
      bandwidth: {value: 100 Gbit/s, source: sheet}
    price_per_hour: {value: 32.77, source: sheet, currency: USD, day: 2026-11-09}
"""


def test_what_a_user_expects_is_there() -> None:
    assert set(WANTED) <= set(DEVICES)
    assert {"dgx-1-v100", "dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "p4d", "p5", "a3-highgpu-8g"} <= set(
        MACHINES
    )
    assert {"nd-a100-v4", "nd-h100-v5", "nd-mi300x-v5"} <= set(MACHINES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(LIBRARY).as_posix())
def test_a_file_says_how_to_read_it_and_uses_its_sources(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# ")
    found = LibraryFile.model_validate(Document.read(path).data)
    entries = [*found.devices.values(), *found.machines.values()]
    used = {fact.source for entry in entries for _, fact in entry.facts()}
    assert entries and used == set(found.sources)


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_is_plausible(name: str) -> None:
    device = DEVICES[name]
    peaks = {key: fact.value for key, fact in device.peaks.items()}
    known = [peaks[one] for one in FASTER if one in peaks]
    assert known == sorted(known)
    if {NumberFormat.BF16, NumberFormat.FP16} <= peaks.keys():
        assert peaks[NumberFormat.BF16] == peaks[NumberFormat.FP16]
    assert all(TERA < peak < 10_000 * TERA for peak in known)
    assert 8 * GIB < device.memory.value < 512 * GIB
    assert device.kept.value >= GIB and 0.03 < device.kept.value / device.memory.value < 0.12
    memory = device.memory_bandwidth.value / BITS_PER_BYTE
    assert 300 * GIGA <= memory <= 10_000 * GIGA
    assert 10 < max(peaks.values()) / memory < 900, "FLOPs for each byte: a sparse peak, or bits for bytes?"
    assert all(link.value < device.memory_bandwidth.value for link in device.links.values())
    assert 0.001 < device.memory.value / memory < 0.1, "seconds to read the whole memory"


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_is_plausible(name: str) -> None:
    machine = MACHINES[name]
    device = DEVICES[machine.device]
    pair, each = machine.inside.each_pair.value, machine.inside.each_device.value
    assert pair <= each <= pair * (machine.devices.value - 1)
    assert each <= max(link.value for link in device.links.values())
    assert machine.devices.value == 8
    together = machine.adapters.number.value * machine.adapters.bandwidth.value
    assert 25 * GIGA <= together <= 3200 * GIGA
    assert machine.link_bits <= together < each * machine.devices.value
    if machine.price_per_hour is not None:
        assert 1 <= machine.device_price / 10**6 <= 20 and machine.price_per_hour.currency == "USD"


@pytest.mark.parametrize("name", DEVICES)
def test_half_the_bits_are_twice_as_fast(name: str) -> None:
    """So it is for the matrix units of every device: a sparse peak among dense ones would not fit."""
    peaks = {key: fact.value for key, fact in DEVICES[name].peaks.items()}
    chain = (NumberFormat.TF32, NumberFormat.BF16, NumberFormat.FP8)
    for slow, fast in itertools.pairwise(chain):
        if slow in peaks and fast in peaks:
            assert peaks[fast] / peaks[slow] == pytest.approx(2, rel=0.025)


def test_no_two_entries_are_alike() -> None:
    titles = [entry.title for entry in (*DEVICES.values(), *MACHINES.values())]
    assert len(set(titles)) == len(titles) and len(LIBRARY_READ.files) == len(titles)
    for one, other in itertools.combinations(DEVICES.values(), 2):
        assert one.model_dump(exclude={"title"}) != other.model_dump(exclude={"title"})


def test_halves_are_halves() -> None:
    """A note 'half of N' stands at a value that is half of N, and an odd sheet number is never taken whole."""
    checked = 0
    for entry in (*DEVICES.values(), *MACHINES.values()):
        for where, fact in entry.facts():
            found = re.search(r"half of ([\d,]+) (TFLOP/s|GB/s)", fact.note or "")
            if found:
                unit = TERA if found[2] == "TFLOP/s" else GIGA * BITS_PER_BYTE
                assert fact.value * 2 == int(found[1].replace(",", "")) * unit, where
                checked += 1
    assert checked > 5
    whole, part = DEVICES["mi250x"], DEVICES["mi250x-gcd"]
    assert part.memory.value * 2 == whole.memory.value
    assert {key: fact.value * 2 for key, fact in part.peaks.items()} == {
        k: f.value for k, f in whole.peaks.items()
    }


@pytest.mark.parametrize(
    ("name", "size", "arithmetic", "tera"),
    [
        ("a100-sxm-80gb", 2, None, 312),
        ("a100-sxm-80gb", 4, None, 19.5),
        ("a100-sxm-80gb", 8, None, 19.5),
        ("a100-sxm-80gb", 4, NumberFormat.TF32, 156),
        ("h100-sxm", 2, None, 989.4),
        ("h100-sxm", 2, NumberFormat.FP8, 1978.9),
        ("h100-sxm", 1, None, 1978.9),
        ("v100-sxm-16gb", 2, None, 125),
        ("tpu-v4", 2, None, 275),
        ("rtx-4090", 2, None, 165.15),
    ],
)
def test_the_peak_follows_the_number_format(
    name: str, size: int, arithmetic: NumberFormat | None, tera: float
) -> None:
    assert DEVICES[name].peak(name, size, arithmetic) == round(tera * TERA)


@pytest.mark.parametrize(
    ("name", "size", "arithmetic", "said"),
    [
        ("tpu-v4", 4, None, "no peak of 'tpu-v4' for fp32 (elements of 4 bytes); it has bf16"),
        ("a100-sxm-40gb", 1, None, "for fp8 (elements of 1 byte); it has fp64, fp32, tf32, bf16, fp16"),
        ("a100-sxm-40gb", 3, None, "for no format (elements of 3 bytes)"),
        ("v100-sxm-16gb", 2, NumberFormat.BF16, "for bf16; it has fp64, fp32, fp16"),
    ],
)
def test_a_peak_that_is_not_known_is_an_error(
    name: str, size: int, arithmetic: NumberFormat | None, said: str
) -> None:
    with pytest.raises(LookupError, match=re.escape(said)):
        DEVICES[name].peak(name, size, arithmetic)


def test_a_link_is_what_the_adapters_of_one_device_carry() -> None:
    gbit = {name: machine.link_bits // GIGA for name, machine in MACHINES.items()}
    assert gbit["dgx-h100"] == 400 and gbit["p5"] == 400  # 8 of 400, and 32 of 100: four for each device
    assert gbit["p4d"] == 100 and gbit["p3-16xlarge"] == 25  # shared by two devices, and by eight
    shared = {name: machine.shared_adapters for name, machine in MACHINES.items()}
    assert shared["dgx-h100"] == shared["p5"] == 8
    assert shared["p4d"] == 4 and shared["p3-16xlarge"] == 1


def test_the_library_is_no_scenario() -> None:
    assert FILES and not set(FILES) & set(scenario_files(SHIPPED))
    assert SHIPPED / "witness" / "line.yaml" in scenario_files(SHIPPED)


def test_the_library_is_in_the_installed_package() -> None:
    project = tomllib.loads((SHIPPED.parent / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["pipecut.scenarios"]
    assert set(FILES) <= {path for pattern in patterns for path in SHIPPED.glob(pattern)}


def error_of(folder: Path, text: str, *more: str) -> str:
    for number, one in enumerate((text, *more)):
        (folder / f"{number}.yaml").write_text(one, encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        Library.read(folder)
    return str(caught.value).replace(f"{folder}/", "")


def test_a_file_of_ones_own_is_read(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(FILE, encoding="utf-8")
    library = Library.read(tmp_path)
    assert library.devices["card"].memory.value == 16 * GIB and library.files["box"] == "own.yaml"
    assert library.machines["box"].device_price == 4_096_250


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("16 GiB", "16 GB/s", "0.yaml:6: devices.card.memory.value: expected an amount of data like '11 GiB'"),
        ("900 GB/s", "900 gb/s", "0.yaml:8: devices.card.memory_bandwidth.value: expected a bandwidth"),
        ("10 TFLOP/s", "10 TFLOPS", "0.yaml:10: devices.card.peaks.fp32.value: expected a speed"),
        ("fp32:", "fp33:", "0.yaml:10: devices.card.peaks.fp33: expected 'fp64', 'fp32', 'tf32'"),
        ("fp32: {value: 10 TFLOP/s, source: sheet}", "fp32: {value: 10 TFLOP/s, source: shet}",
         "0.yaml:10: devices.card.peaks.fp32.source: no source 'shet' in this file; did you mean 'sheet'?"),
        ("fp32: {value: 10 TFLOP/s, source: sheet}", "fp32: {value: 10 TFLOP/s}",
         "0.yaml:10: devices.card.peaks.fp32.source: missing: the key of its source"),
        ("device: card", "device: crad",
         "0.yaml:14: machines.box.device: no device 'crad' in the library; did you mean"),
        ("day: 2026-11-09", "day: 2026-13-09", "0.yaml:22: machines.box.price_per_hour.day: "),
        ("day: 2026-11-09", "day: soon",
         "0.yaml:22: machines.box.price_per_hour.day: expected a day like 2026-11-09"),
        ("https://", "ftp://", "0.yaml:2: sources.sheet.url: expected the address of a page"),
        ("    title: A card", "    titel: A card", "unknown key; did you mean 'title'?"),
        ("sources:", "sources: {}\nmore:", "0.yaml:2: more: unknown key"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_told_with_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in FILE
    assert said in error_of(tmp_path, FILE.replace(old, new, 1))


def test_a_name_is_used_once(tmp_path: Path) -> None:
    again = FILE[: FILE.index("machines:")]
    assert error_of(tmp_path, FILE, again) == "1.yaml:4: devices.card: the name is taken in 0.yaml"
