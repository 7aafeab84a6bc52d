"""``pipecut devices``: the library of devices and machines, as tables, with sources, or as JSON."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from commands.outputs.devices import (
    DevicePart,
    DevicesOutput,
    FactPart,
    MachinePart,
    MachinePricePart,
    SourcePart,
)
from commands.tables.device_tables import Grid, entry_lines, grids, markdown
from commands.terminal import output
from commands.terminal.exit_codes import ExitCode
from commands.terminal.failures import InputError, reading
from ingest.scenario.library import Library, near_names
from ingest.scenario.library_schema import Fact, PriceFact
from ingest.scenario.shipped import LIBRARY

if TYPE_CHECKING:
    from rich.table import Table


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
