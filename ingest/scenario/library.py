"""The library of devices and machines: read from ``scenarios/library``, checked, and asked for peaks and links.

Which peak a device has is said by the number format (``DeviceFacts.peak``): the one that ``cluster.arithmetic``
names, else the one of elements of so many bytes (8: fp64, 4: fp32, 2: bf16 or fp16, 1: fp8). TF32 is never
guessed. Which link joins two machines: what the adapters of one device carry (``MachineFacts.link_bits``), because
a transfer goes from one device to another; all adapters together would be a speed that no single transfer has. How
many transfers have it at once is what a server's adapters say.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ingest.mistakes import Mistake, ScenarioError, Where, did_you_mean
from ingest.scenario.cluster_section import MachineSection
from ingest.scenario.library_schema import DeviceFacts, LibraryFile, MachineFacts, SourceSection
from ingest.scenario.messages import mistake_at, mistakes_of
from ingest.scenario.shipped import LIBRARY
from ingest.text.yaml_source import Document

if TYPE_CHECKING:
    import networkx as nx

    from formulation.problem.cluster import Server

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
