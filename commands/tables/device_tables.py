"""The library as tables of text, for a terminal and for a document; and one entry with its sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from commands.terminal import human
from ingest.mistakes import Where
from ingest.scenario.fields import NumberFormat
from ingest.scenario.library import Library
from ingest.scenario.library_schema import DeviceFacts, Fact, MachineFacts, PriceFact

BITS_PER_GIGABYTE = 8 * 10**9
GIGA, TERA, GIB, MILLIONTHS = 10**9, 10**12, 2**30, 10**6
UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of text; the first ``texts`` columns are words, the rest numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int


def grids(library: Library) -> Iterator[Grid]:
    """Yield a table of the devices and one of the machines, each where there are any."""
    if library.devices:
        columns = ("device", "GiB", "kept", "GB/s", "fp64", "fp32", "tf32", "16 bit", "fp8")
        rows = tuple(_device_row(name, facts) for name, facts in library.devices.items())
        yield Grid("Devices: memory and what is kept of it, bandwidth, dense peaks in TFLOP/s", columns, rows, 1)
    if library.machines:
        columns = ("machine", "devices", "pair", "device", "adapters", "between", "USD/h")
        rows = tuple(_machine_row(name, facts) for name, facts in library.machines.items())
        title = "Machines: GB/s inside (of a pair, of a device), Gbit/s outside (adapters, link)"
        yield Grid(title, columns, rows, 2)


def _device_row(name: str, facts: DeviceFacts) -> tuple[str, ...]:
    sixteen = facts.peaks.get(NumberFormat.BF16, facts.peaks.get(NumberFormat.FP16))
    of = facts.peaks.get
    peaks = (of(NumberFormat.FP64), of(NumberFormat.FP32), of(NumberFormat.TF32), sixteen, of(NumberFormat.FP8))
    return (
        name,
        f"{facts.memory.value / GIB:.4g}",
        f"{facts.kept.value / GIB:.4g}",
        f"{facts.memory_bandwidth.value / BITS_PER_GIGABYTE:g}",
        *(UNKNOWN if peak is None else f"{peak.value / TERA:g}" for peak in peaks),
    )


def _machine_row(name: str, facts: MachineFacts) -> tuple[str, ...]:
    adapters, price = facts.adapters, facts.price_per_hour
    return (
        name,
        f"{facts.devices.value} x {facts.device}",
        f"{facts.inside.each_pair.value / BITS_PER_GIGABYTE:g}",
        f"{facts.inside.each_device.value / BITS_PER_GIGABYTE:g}",
        f"{adapters.number.value} x {adapters.bandwidth.value / GIGA:g}",
        f"{facts.link_bits / GIGA:g}",
        UNKNOWN if price is None else f"{price.value / MILLIONTHS:.2f}",
    )


def markdown(tables: Iterable[Grid]) -> str:
    """Return the tables for a document."""
    return "\n".join(f"{grid.title}:\n\n" + "".join(_lines(grid)) for grid in tables)


def _lines(grid: Grid) -> Iterator[str]:
    yield f"| {' | '.join(grid.columns)} |\n"
    yield "|" + "|".join("---" if at < grid.texts else "---:" for at in range(len(grid.columns))) + "|\n"
    for row in grid.rows:
        yield f"| {' | '.join(row)} |\n"


def entry_lines(library: Library, name: str) -> Iterator[str]:
    """Yield the lines that show one entry: every number, its note, and the source by its number."""
    entry = library.devices.get(name) or library.machines[name]
    sources = library.sources[name]
    facts = list(entry.facts())
    keys = list(dict.fromkeys(fact.source for _, fact in facts))
    yield f"{name}: {entry.title}"
    if isinstance(entry, MachineFacts):
        yield f"  device               {entry.device}"
    for where, fact in facts:
        yield f"  {_label(where):<20} {_shown(where, fact)}  [{keys.index(fact.source) + 1}]"
        if fact.note:
            yield f"    {fact.note}"
    if isinstance(entry, MachineFacts):
        yield f"  {'between two of them':<20} {entry.link_bits / GIGA:g} Gbit/s, the adapters of one device"
    if entry.note:
        yield f"  {entry.note}"
    yield f"sources (scenarios/library/{library.files[name]}):"
    for number, key in enumerate(keys, start=1):
        yield f"  [{number}] {sources[key].title}"
        yield f"      {sources[key].url}"
        if (through := sources[key].through) is not None:
            yield f"      read through {through}"


def _label(where: Where) -> str:
    return " ".join(str(step) for step in where).replace("_", " ").removeprefix("inside ")


def _shown(where: Where, fact: Fact) -> str:
    if isinstance(fact, PriceFact):
        return f"{fact.value / MILLIONTHS:.2f} {fact.currency} on {fact.day.isoformat()}"
    if where[0] == "peaks":
        return f"{fact.value / TERA:g} TFLOP/s"
    if where[0] in ("memory", "kept"):
        return human.amount(fact.value)
    if where in (("devices",), ("adapters", "number")):
        return str(fact.value)
    if where[0] == "adapters":
        return f"{fact.value / GIGA:g} Gbit/s"
    return f"{fact.value / BITS_PER_GIGABYTE:g} GB/s"
