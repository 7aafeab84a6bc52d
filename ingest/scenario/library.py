"""The library of devices and machines: read from ``scenarios/library``, checked, and asked for peaks and links.

Which peak a device has is said by the number format (``DeviceFacts.peak``): the one that ``cluster.arithmetic``
names, else the one of elements of so many bytes (8: fp64, 4: fp32, 2: bf16 or fp16, 1: fp8). TF32 is never
guessed. Which link joins two machines: what the adapters of one device carry (``MachineFacts.link_bits``), because
a transfer goes from one device to another; all adapters together would be a speed that no single transfer has. How
many transfers have it at once is what a server's adapters say.

The shape of a file of the library: devices and machines of which every number names its source.

A file has ``sources``, and ``devices`` or ``machines`` or both. Peaks are dense (nothing skipped for being zero)
and those of matrix products whose sums are kept in fp32 or wider; bandwidths are those of one direction.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from pipecut.formulation.costs.amounts import counted
from pipecut.formulation.problem.units import ceil_div
from pipecut.ingest.mistakes import Mistake, ScenarioError, Where, did_you_mean
from pipecut.ingest.scenario.fields import (
    Bandwidth,
    Byname,
    Memory,
    Name,
    NeededMemory,
    NumberFormat,
    Price,
    Speed,
    StrictPart,
    Whole,
)
from pipecut.ingest.scenario.messages import mistake_at, mistakes_of
from pipecut.ingest.scenario.schema import MachineSection
from pipecut.ingest.scenario.shipped import LIBRARY
from pipecut.ingest.text.yaml_source import Document

if TYPE_CHECKING:
    import networkx as nx

    from pipecut.formulation.problem.cluster import Server

Number = TypeVar("Number")
LONGEST_NOTE = 300
"""Characters of the longest note."""
FORMATS: dict[int, tuple[NumberFormat, ...]] = {
    8: (NumberFormat.FP64,),
    4: (NumberFormat.FP32,),
    2: (NumberFormat.BF16, NumberFormat.FP16),
    1: (NumberFormat.FP8,),
}
"""The number formats of elements of so many bytes; a device that has several has the same peak in them."""


def _address(text: str) -> str:
    """Keep the address of a page. Raises ValueError for what is none."""
    if not text.startswith(("https://", "http://")) or not text.isprintable() or " " in text:
        raise ValueError("expected the address of a page, starting with https:// or http://")
    return text


def _day(value: object) -> date:
    """Read a day as ``2026-11-09``. Raises ValueError for anything else."""
    if isinstance(value, str) and len(value) == len("2026-11-09"):
        return date.fromisoformat(value)
    raise ValueError("expected a day like 2026-11-09")


def _note(text: str) -> str:
    """Keep a sentence that can be shown. Raises ValueError for an empty, long or unprintable one."""
    if not text.strip() or len(text) > LONGEST_NOTE or not text.isprintable():
        raise ValueError(f"expected a note of 1 to {LONGEST_NOTE} printable characters")
    return text


Address = Annotated[str, AfterValidator(_address)]
Day = Annotated[date, BeforeValidator(_day)]
Note = Annotated[str, AfterValidator(_note)]


class SourceSection(StrictPart):
    """Where numbers come from."""

    title: Name = Field(description="what the source is called")
    url: Address = Field(description="its address")
    through: Address | None = Field(
        default=None, description="the page that repeats the source and was read in its place"
    )


class Fact(StrictPart, Generic[Number]):
    """A number, the key of its source among the file's sources, and what one must know to read it."""

    value: Number = Field(description="the number, with its unit")
    source: Name = Field(description="the key of its source")
    note: Note | None = Field(default=None, description="what one must know to read the number")


class PriceFact(Fact[Price]):
    """What a machine costs for an hour, and when it did."""

    currency: Name = Field(description="the currency, like USD")
    day: Day = Field(description="the day of the price, like 2026-11-09")


class FactsPart(StrictPart):
    """A part of an entry, which can list its numbers."""

    def facts(self) -> Iterator[tuple[Where, Fact]]:
        """Yield every number with the path to it."""
        for key in type(self).model_fields:
            yield from _facts(getattr(self, key), (key,))


def _facts(value: object, where: Where) -> Iterator[tuple[Where, Fact]]:
    if isinstance(value, Fact):
        yield where, value
    elif isinstance(value, FactsPart):
        yield from ((where + inner, fact) for inner, fact in value.facts())
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _facts(inner, (*where, str(key)))


class DeviceFacts(FactsPart):
    """What is known of an accelerator."""

    title: Name = Field(description="what its maker calls it")
    memory: Fact[Memory] = Field(description="memory of one device")
    kept: Fact[NeededMemory] = Field(
        description="what of it no plan gets: the driver's context, buffers of communicators, the allocator's rest"
    )
    memory_bandwidth: Fact[Bandwidth] = Field(description="bandwidth of the memory")
    peaks: Annotated[dict[Annotated[NumberFormat, Byname], Fact[Speed]], Field(min_length=1)] = Field(
        description="dense peak speed by number format"
    )
    links: dict[Name, Fact[Bandwidth]] = Field(
        default={}, description="what a device sends over all links of a kind together, in one direction"
    )
    note: Note | None = Field(default=None, description="what is not known, and why")

    @property
    def usable(self) -> int:
        """The bytes that plans may fill."""
        return self.memory.value - self.kept.value

    def peak(self, name: str, bytes_per_element: int, arithmetic: NumberFormat | None = None) -> int:
        """Return the peak in FLOP/s for elements of so many bytes, or for the number format that is named.

        Raises LookupError, which calls the device by ``name`` and says what the library has instead.
        """
        wanted = FORMATS.get(bytes_per_element, ()) if arithmetic is None else (arithmetic,)
        for one in wanted:
            if one in self.peaks:
                return self.peaks[one].value
        asked = " or ".join(wanted) or "no format"
        of = f" (elements of {counted(bytes_per_element, 'byte')})" if arithmetic is None else ""
        known = ", ".join(self.peaks)
        raise LookupError(
            f"the library has no peak of '{name}' for {asked}{of}; it has {known}."
            f" Set cluster.arithmetic to one of these, or give cluster.devices.{name}.peak"
        )


class InsideFacts(FactsPart):
    """What joins the devices of a machine."""

    each_pair: Fact[Bandwidth] = Field(description="between two devices, at least; in one direction")
    each_device: Fact[Bandwidth] = Field(description="what a device sends to all others together")


class AdapterFacts(FactsPart):
    """What joins a machine to others: adapters that its devices use."""

    number: Fact[Whole] = Field(description="how many adapters")
    bandwidth: Fact[Bandwidth] = Field(description="bandwidth of one adapter")


class MachineFacts(FactsPart):
    """What is known of a machine."""

    title: Name = Field(description="what its maker calls it")
    device: Name = Field(description="the name of its devices in the library")
    devices: Fact[Whole] = Field(description="how many it has")
    inside: InsideFacts = Field(description="what joins its devices")
    adapters: AdapterFacts = Field(description="what joins it to other machines")
    price_per_hour: PriceFact | None = Field(default=None, description="price of the machine for an hour")
    note: Note | None = Field(default=None, description="what is not known, and why")

    @property
    def own_adapters(self) -> int:
        """How many adapters one device has for itself: 1 where several devices share one."""
        return max(1, self.adapters.number.value // self.devices.value)

    @property
    def shared_adapters(self) -> int:
        """How many adapters its devices share, those that one device has for itself taken as one."""
        return self.adapters.number.value // self.own_adapters

    @property
    def link_bits(self) -> int:
        """The bandwidth in bit/s between a device and another machine: that of the adapters that it has."""
        return self.adapters.bandwidth.value * self.own_adapters

    @property
    def device_price(self) -> int:
        """The price of one device for an hour in millionths, rounded up; 0 where none is known."""
        price = self.price_per_hour
        return 0 if price is None else ceil_div(price.value, self.devices.value)


class LibraryFile(StrictPart):
    """A file of the library."""

    sources: dict[Name, SourceSection] = Field(description="where the numbers come from, by a short key")
    devices: dict[Name, DeviceFacts] = Field(default={}, description="accelerators, by name")
    machines: dict[Name, MachineFacts] = Field(default={}, description="machines, by name")


_KINDS = frozenset({"sxm", "pcie", "nvl", "16gb", "32gb", "40gb", "80gb"})
"""Words of a name that say which kind of a card it is: who leaves them out may mean any."""
_MAKERS = frozenset({"nvidia", "geforce", "tesla", "amd", "instinct", "intel", "huawei"})


@dataclass(frozen=True, slots=True)
class Library:
    """Devices and machines by name, each kind in the order of the files; ``files`` says in which file each is.

    ``sources`` are those of each device and machine, by the key that its numbers name.
    """

    devices: dict[str, DeviceFacts]
    machines: dict[str, MachineFacts]
    files: dict[str, str]
    sources: dict[str, dict[str, SourceSection]]

    @staticmethod
    def read(folder: Path = LIBRARY) -> Library:
        """Read every file of a folder and its sub-folders, by name. Raises ScenarioError with every mistake.

        Cost: some tens of milliseconds for the library that ships.
        """
        library = Library({}, {}, {}, {})
        mistakes: list[Mistake] = []
        read = [(path, Document.read(path)) for path in sorted(folder.rglob("*.yaml"))]
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
            for where, fact in entry.facts():
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


def near_names(word: str, names: Iterable[str]) -> str:
    """Return the end of a message about an unknown card or machine: the names that may have been meant.

    Those that say the same card: one of other digits, or with a letter more, is another one (an L4 is no L40S, a
    GB200 no B200, an RTX 2080 no RTX 2080 Ti). Empty if there is none.
    """
    near = [f"'{name}'" for name in names if _same_card(word, name)]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _same_card(word: str, name: str) -> bool:
    """Tell whether a name says the card that a word says: its model, and whatever else the word tells."""
    (model, told), (other, known) = _card(word), _card(name)
    if re.findall(r"\d+", model) != re.findall(r"\d+", other):
        return False
    if not re.search(r"\d", model):
        return _alike(model, other)
    return (
        sorted(model) == sorted(other)  # letters in another order are a mistake of typing
        and all(any(_alike(one, two) for two in known) for one in told)
        and all(two in _KINDS or any(_alike(one, two) for one in told) for two in known)
    )


def _card(name: str) -> tuple[str, list[str]]:
    """Return the model that a name says, all up to its first number, and the words behind it."""
    text = re.sub(r"(?<=\d)o|o(?=\d)", "0", name.casefold())
    words = [re.sub(r"^sxm\d$", "sxm", word) for word in re.findall(r"[a-z0-9]+", text)]
    words = [word for word in words if word not in _MAKERS]
    first = next((at for at, word in enumerate(words) if re.search(r"\d", word)), len(words))
    return "".join(words[: first + 1]), words[first + 1 :]


def _alike(one: str, other: str) -> bool:
    """Tell whether one word may be a misspelt other one; of words with digits only the same one is."""
    digits = re.search(r"\d", one + other)
    return one == other or (not digits and difflib.SequenceMatcher(None, one, other).ratio() >= 0.6)


def with_peaks(cluster: nx.Graph, names: Collection[str], bytes_per_element: int) -> nx.Graph:
    """Return a cluster graph in which these devices of the library have the peaks for elements of so many bytes.

    Raises ValueError where the library has no such peak of one of them.
    """
    if not names:
        return cluster
    library = Library.read()
    try:
        peaks = {name: library.devices[name].peak(name, bytes_per_element) for name in names}
    except LookupError as error:
        raise ValueError(str(error)) from error
    graph = cluster.copy()
    for _, row in graph.nodes(data=True):
        server: Server | None = row.get("server")
        if server is not None and server.device_class.name in peaks:
            peak = peaks[server.device_class.name]
            row["server"] = replace(server, device_class=replace(server.device_class, flops_per_second=peak))
    return graph


@dataclass(frozen=True, slots=True)
class MachineGroup:
    """Machines of one kind: their place in a scenario, what it says of them, and what the library does."""

    name: str
    where: Where
    row: MachineSection
    machine: MachineFacts

    @property
    def bits(self) -> int:
        """Bandwidth between one of its devices and another machine, in bit/s."""
        return self.machine.link_bits

    @property
    def devices(self) -> int:
        """How many devices of each machine are used."""
        return self.row.devices or self.machine.devices.value

    @property
    def servers(self) -> str:
        """What the servers are called, before their number."""
        return self.row.name or self.name

    def server(self, adapters: int | None) -> dict[str, Any]:
        """Return the entry of ``cluster.servers`` that stands for them, with so many adapters."""
        own = self.row.link
        bits = own.bandwidth if own and own.bandwidth else self.machine.inside.each_pair.value
        return {
            "name": self.servers,
            "count": self.row.count,
            "device": self.machine.device,
            "devices": self.devices,
            "adapters": adapters,
            "link": {"bandwidth": f"{bits} bit/s", "latency": f"{own.latency if own else 0} ns"},
        }
