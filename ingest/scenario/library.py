"""The library of devices and machines: read from ``scenarios/library``, checked, and asked for peaks and links.

Which peak a device has is said by the number format (:func:`peak_of`): the one that ``cluster.arithmetic`` names,
else the one of elements of so many bytes (8: fp64, 4: fp32, 2: bf16 or fp16, 1: fp8). TF32 is never guessed.
Which link joins two machines: what the adapters of one device carry (:func:`link_bits`), because a transfer goes
from one device to another; all adapters together would be a speed that no single transfer has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from formulation.problem.units import ceil_div
from ingest.mistakes import Mistake, ScenarioError, Where, did_you_mean
from ingest.scenario.fields import NumberFormat
from ingest.scenario.library_schema import DeviceFacts, Fact, LibraryFile, MachineFacts, SourceSection
from ingest.scenario.messages import mistake_at, mistakes_of
from ingest.scenario.shipped import LIBRARY
from ingest.text.yaml_source import Document, read_document

if TYPE_CHECKING:
    import networkx as nx

    from formulation.problem.cluster import Server

__all__ = ["Library", "facts_of", "link_bits", "read_library"]

FORMATS: dict[int, tuple[NumberFormat, ...]] = {
    8: (NumberFormat.FP64,),
    4: (NumberFormat.FP32,),
    2: (NumberFormat.BF16, NumberFormat.FP16),
    1: (NumberFormat.FP8,),
}
"""The number formats of elements of so many bytes; a device that has several has the same peak in them."""


@dataclass(frozen=True, slots=True)
class Library:
    """Devices and machines by name, each kind in the order of the files; ``files`` says in which file each is.

    ``sources`` are those of each device and machine, by the key that its numbers name.
    """

    devices: dict[str, DeviceFacts]
    machines: dict[str, MachineFacts]
    files: dict[str, str]
    sources: dict[str, dict[str, SourceSection]]


def read_library(folder: Path = LIBRARY) -> Library:
    """Read every file of a folder and its sub-folders, by name. Raises ScenarioError with every mistake.

    Cost: some tens of milliseconds for the library that ships.
    """
    library = Library({}, {}, {}, {})
    mistakes: list[Mistake] = []
    read = [(path, read_document(path)) for path in sorted(folder.rglob("*.yaml"))]
    for path, document in read:
        mistakes += document.mistakes
        try:
            found = LibraryFile.model_validate(document.data)
        except ValidationError as error:
            mistakes += mistakes_of(error, document, LibraryFile)
            continue
        mistakes += _added(library, found, document, path.relative_to(folder).as_posix())
    if not mistakes:
        mistakes += (one for _, document in read for one in _unknown_devices(library, document))
    if mistakes:
        raise ScenarioError(mistakes)
    return library


def _added(library: Library, found: LibraryFile, document: Document, file: str) -> Iterator[Mistake]:
    """Add a file to the library; yield what is wrong with its names."""
    for kind, entries in (("devices", found.devices), ("machines", found.machines)):
        for name, entry in entries.items():
            if name in library.files:
                yield mistake_at(document, (kind, name), f"the name is taken in {library.files[name]}")
            for where, fact in facts_of(entry):
                if fact.source not in found.sources:
                    hint = did_you_mean(fact.source, found.sources)
                    yield mistake_at(
                        document, (kind, name, *where, "source"), f"no source '{fact.source}' in this file{hint}"
                    )
            library.files[name] = file
            library.sources[name] = found.sources
    library.devices.update(found.devices)
    library.machines.update(found.machines)


def _unknown_devices(library: Library, document: Document) -> Iterator[Mistake]:
    data = document.data if isinstance(document.data, dict) else {}
    for name in data.get("machines", {}):
        device = library.machines[name].device
        if device not in library.devices:
            hint = did_you_mean(device, library.devices)
            yield mistake_at(document, ("machines", name, "device"), f"no device '{device}' in the library{hint}")


def facts_of(entry: BaseModel) -> Iterator[tuple[Where, Fact]]:
    """Yield every number of an entry with the path to it."""
    for key in type(entry).model_fields:
        yield from _facts(getattr(entry, key), (key,))


def _facts(value: object, where: Where) -> Iterator[tuple[Where, Fact]]:
    if isinstance(value, Fact):
        yield where, value
    elif isinstance(value, BaseModel):
        yield from ((where + inner, fact) for inner, fact in facts_of(value))
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _facts(inner, (*where, str(key)))


def peak_of(name: str, device: DeviceFacts, bytes_per_element: int, arithmetic: NumberFormat | None = None) -> int:
    """Return a device's peak in FLOP/s for elements of so many bytes, or for the number format that is named.

    Raises LookupError, which says what the library has instead.
    """
    wanted = FORMATS.get(bytes_per_element, ()) if arithmetic is None else (arithmetic,)
    for one in wanted:
        if one in device.peaks:
            return device.peaks[one].value
    asked = " or ".join(wanted) or "no format"
    of = f" (elements of {bytes_per_element} bytes)" if arithmetic is None else ""
    known = ", ".join(device.peaks)
    raise LookupError(
        f"the library has no peak of '{name}' for {asked}{of}; it has {known}."
        f" Set cluster.arithmetic to one of these, or give cluster.devices.{name}.peak"
    )


def with_peaks(cluster: nx.Graph, names: Collection[str], bytes_per_element: int) -> nx.Graph:
    """Return a cluster graph in which these devices of the library have the peaks for elements of so many bytes.

    Raises ValueError where the library has no such peak of one of them.
    """
    if not names:
        return cluster
    library = read_library()
    try:
        peaks = {name: peak_of(name, library.devices[name], bytes_per_element) for name in names}
    except LookupError as error:
        raise ValueError(str(error)) from error
    graph = cluster.copy()
    for _, row in graph.nodes(data=True):
        server: Server | None = row.get("server")
        if server is not None and server.device_class.name in peaks:
            peak = peaks[server.device_class.name]
            row["server"] = replace(server, device_class=replace(server.device_class, flops_per_second=peak))
    return graph


def link_bits(machine: MachineFacts, adapters: int | None = None) -> int:
    """Return the bandwidth in bit/s of a transfer from one machine to another over so many of its adapters.

    Without a number: over those that one device has for itself.
    """
    return machine.adapters.bandwidth.value * (adapters or machine.own_adapters)


def device_price(machine: MachineFacts) -> int:
    """Return the price of one device for an hour in millionths, rounded up; 0 where none is known."""
    price = machine.price_per_hour
    return 0 if price is None else ceil_div(price.value, machine.devices.value)
