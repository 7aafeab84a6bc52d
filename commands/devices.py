"""``pipecut devices``: the library of devices and machines, as tables, with sources, or as JSON.

The library as tables of text, for a terminal and for a document; and one entry with its sources.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipecut.commands.outputs.devices import (
    DevicePart,
    DevicesOutput,
    FactPart,
    MachinePart,
    MachinePricePart,
    SourcePart,
)
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import ExitCode, InputError, reading
from pipecut.ingest.mistakes import Where
from pipecut.ingest.scenario.fields import NumberFormat
from pipecut.ingest.scenario.library import DeviceFacts, Fact, Library, MachineFacts, PriceFact, near_names
from pipecut.ingest.scenario.shipped import LIBRARY

if TYPE_CHECKING:
    from rich.table import Table

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
        return output.amount(fact.value)
    if where in (("devices",), ("adapters", "number")):
        return str(fact.value)
    if where[0] == "adapters":
        return f"{fact.value / GIGA:g} Gbit/s"
    return f"{fact.value / BITS_PER_GIGABYTE:g} GB/s"


def run(arguments: argparse.Namespace) -> int:
    """Show the library or one entry of it. Exit code 2 for an unknown name and for a file that is wrong."""
    with reading(LIBRARY):
        library = Library.read(LIBRARY)
    name = arguments.name
    if name is not None and name not in library.files:
        raise InputError(f"no device or machine '{name}' in the library{near_names(name, library.files)}")
    chosen = library if name is None else _only(library, name)
    if arguments.json:
        arguments.reply.put(_content(chosen).model_dump(mode="json", exclude={"error"}))
    elif arguments.markdown:
        output.write(markdown(grids(chosen)))
    elif name is None:
        output.show(*(part for grid in grids(chosen) for part in (grid.title, "", _table(grid), "")))
    else:
        output.show(*entry_lines(chosen, name))
    return ExitCode.DONE


def _only(library: Library, name: str) -> Library:
    devices = {key: facts for key, facts in library.devices.items() if key == name}
    machines = {key: facts for key, facts in library.machines.items() if key == name}
    return replace(library, devices=devices, machines=machines)


def _table(grid: Grid) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for at, column in enumerate(grid.columns):
        table.add_column(column, justify="left" if at < grid.texts else "right")
    for row in grid.rows:
        table.add_row(*row)
    return table


def _content(library: Library) -> DevicesOutput:
    devices = [_device(library, name) for name in library.devices]
    return DevicesOutput(devices=devices, machines=[_machine(library, name) for name in library.machines])


def _device(library: Library, name: str) -> DevicePart:
    facts = library.devices[name]
    return DevicePart(
        name=name,
        title=facts.title,
        file=library.files[name],
        memory_bytes=_fact(library, name, facts.memory),
        kept_bytes=_fact(library, name, facts.kept),
        memory_bits_per_second=_fact(library, name, facts.memory_bandwidth),
        peak_flops_per_second={str(key): _fact(library, name, peak) for key, peak in facts.peaks.items()},
        link_bits_per_second={key: _fact(library, name, link) for key, link in facts.links.items()},
        note=facts.note,
    )


def _machine(library: Library, name: str) -> MachinePart:
    facts = library.machines[name]
    price = facts.price_per_hour
    return MachinePart(
        name=name,
        title=facts.title,
        file=library.files[name],
        device=facts.device,
        devices=_fact(library, name, facts.devices),
        each_pair_bits_per_second=_fact(library, name, facts.inside.each_pair),
        each_device_bits_per_second=_fact(library, name, facts.inside.each_device),
        adapters=_fact(library, name, facts.adapters.number),
        adapter_bits_per_second=_fact(library, name, facts.adapters.bandwidth),
        between_bits_per_second=facts.link_bits,
        price_per_hour=None if price is None else _price(library, name, price),
        note=facts.note,
    )


def _fact(library: Library, name: str, fact: Fact[int]) -> FactPart:
    source = library.sources[name][fact.source]
    said = SourcePart(title=source.title, url=source.url, through=source.through)
    return FactPart(value=fact.value, source=said, note=fact.note)


def _price(library: Library, name: str, price: PriceFact) -> MachinePricePart:
    plain = _fact(library, name, price)
    return MachinePricePart(
        value=plain.value,
        source=plain.source,
        note=plain.note,
        currency=price.currency,
        day=price.day.isoformat(),
    )
