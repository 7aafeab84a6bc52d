"""A cluster of machines and devices of the library, written out as devices, servers and links.

``completed`` adds to the data of a scenario what the file leaves to the library, before the schema looks at it; so
everything after it (the schema, the checks, constraints that name servers) sees one form only. Own numbers come
first, each by itself: ``cluster.devices.h100-sxm.memory`` replaces the memory and leaves the peak to the library.

* A device that a server or a machine names, or whose entry lacks memory or peak, gets both from the library.
* Each entry of ``machines`` becomes an entry of ``servers`` behind those of the file, with the machine's link.
* Servers of machines are joined: all by ``between_servers`` where they are alike, else over a switch ``network``,
  each at its own speed. ``between_servers`` with a bandwidth, or own links to ``network``, come first.

What was added has the place of the key that asked for it. A mistake (an unknown machine, a peak that the library
does not have) leaves a stand-in, so that the checks that follow do not tell of it again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from pipecut.ingest.mistakes import Mistake, Where, path_text
from pipecut.ingest.scenario.fields import NumberFormat
from pipecut.ingest.scenario.library import DeviceFacts, Library, MachineGroup, near_names
from pipecut.ingest.scenario.messages import mistake_at
from pipecut.ingest.scenario.schema import machine_row
from pipecut.ingest.text.yaml_source import Document

NETWORK = "network"
"""The switch that joins machines of different speeds."""
STAND_IN = {"memory": "1 PB", "peak": "1 FLOP/s"}
"""A device of which the file or the library lacks something; the mistake has been told."""
MILLIONTHS = 10**6

_DEVICES: Where = ("cluster", "devices")
_SERVERS: Where = ("cluster", "servers")
_MACHINES: Where = ("cluster", "machines")


def by_hand(name: str) -> str:
    """Return the end of a message about an unknown card: the lines with which a file says it itself."""
    key = path_text((name,))
    numbers = "{memory: 24 GiB, peak: 100 TFLOP/s, memory_bandwidth: 600 GB/s}"
    return (
        f"; 'pipecut devices' lists the library. By hand, with the card's own numbers:\n"
        f"    cluster:\n      devices:\n        {key}: {numbers}"
    )


@dataclass(frozen=True, slots=True)
class Completed:
    """A document in which the cluster names nothing of the library any more; with the mistakes found.

    ``open_peaks`` are the devices whose peak follows from the elements of the model, as the file says nothing of
    them: what stands in the document is a stand-in (``ingest.scenario.library.with_peaks``).
    """

    document: Document
    open_peaks: tuple[str, ...] = ()


def completed(document: Document, read: Callable[[], Library] = Library.read) -> Completed:
    """Write out what a document leaves to the library.

    A document that needs no library is returned as it is, and none is read. Raises ScenarioError where a file of
    the library is wrong.
    """
    data = document.data if isinstance(document.data, dict) else {}
    cluster = data.get("cluster")
    if not isinstance(cluster, dict) or not _asks(cluster):
        return Completed(document)
    data = copy.deepcopy(data)
    whole = replace(document, data=data, places=dict(document.places))
    work = _Completion(whole, data["cluster"], data.get("training"), read())
    work.add_servers()
    work.add_devices()
    work.join()
    done = replace(whole, mistakes=(*document.mistakes, *work.mistakes))
    return Completed(done, tuple(work.open_peaks))


def _asks(cluster: dict[str, Any]) -> bool:
    """Tell whether a cluster leaves anything to the library."""
    own = _section(cluster.get("devices"))
    return (
        bool(cluster.get("machines"))
        or any(isinstance(row, dict) and not row.keys() >= STAND_IN.keys() for row in own.values())
        or any(name not in own for _, name in _named(cluster))
    )


def _named(cluster: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Yield the devices that servers name, with the index of the server."""
    rows = cluster.get("servers")
    for index, row in enumerate(rows if isinstance(rows, list) else []):
        if isinstance(row, dict) and isinstance(row.get("device"), str):
            yield index, row["device"]


def _section(raw: object) -> dict[str, Any]:
    return raw if isinstance(raw, dict) else {}


@dataclass(slots=True)
class _Completion:
    """The cluster being written out, with the places of what is added and the mistakes."""

    document: Document
    cluster: dict[str, Any]
    training: object
    library: Library
    own_servers: list[tuple[int, str]] = field(init=False)
    groups: list[MachineGroup] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)
    open_peaks: list[str] = field(default_factory=list)
    stand_ins: bool = False

    def __post_init__(self) -> None:
        self.own_servers = list(_named(self.cluster))

    def _wrong(self, where: Where, message: str) -> None:
        self.mistakes.append(mistake_at(self.document, where, message))

    def _at(self, where: Where, asked_at: Where) -> None:
        """Give what is added the place of the key that asked for it."""
        self.document.places.setdefault(where, self.document.place(asked_at))

    def _add(self, key: str, entry: object, asked_at: Where) -> None:
        """Put an entry behind a list of the cluster."""
        rows = self.cluster.setdefault(key, [])
        if isinstance(rows, list):
            self._at(("cluster", key, len(rows)), asked_at)
            rows.append(entry)

    def add_servers(self) -> None:
        """Write every entry of ``machines`` out as servers."""
        if not self.cluster.get("machines"):
            return
        machines = self.cluster.get("machines")
        for name, raw in machines.items() if isinstance(machines, dict) else [("machines", None)]:
            where = (*_MACHINES, name)
            row = machine_row(name, raw)
            machine = self.library.machines.get(name)
            if machine is None and isinstance(machines, dict):
                hint = near_names(name, self.library.machines)
                self._wrong(where, f"no machine '{name}' in the library{hint}")
            if row is None or machine is None:  # a stand-in; what the schema finds wrong is its to tell
                self._add("servers", {"name": name, "count": 1, "device": name, "devices": 1}, where)
                _section(self.cluster.setdefault("devices", {}))[name] = STAND_IN
                self.stand_ins = True
                continue
            self.groups.append(MachineGroup(name, where, row, machine))
            self._add("servers", self._server(self.groups[-1]), where)

    def _server(self, group: MachineGroup) -> dict[str, Any]:
        row, machine = group.row, group.machine
        for key, asked, most in (
            ("adapters", row.adapters, machine.shared_adapters),
            ("devices", row.devices, machine.devices.value),
        ):
            if asked is not None and asked > most:
                self._wrong((*group.where, key), f"{asked} {key} of the {most} that it has")
        return group.server(self._adapters(group))

    def _adapters(self, group: MachineGroup) -> int | None:
        """Return how many adapters the devices share; None where the file itself joins the machines to others."""
        mesh, row = _section(self.cluster.get("between_servers")), group.row
        joined = "bandwidth" in mesh or self._is_joined(group.servers)
        most = group.machine.shared_adapters
        return None if joined and row.adapters is None else min(group.devices, row.adapters or most)

    def add_devices(self) -> None:
        """Give every device that is named, or half described, what it lacks."""
        own = self.cluster.setdefault("devices", {})
        if not isinstance(own, dict):
            return
        self._tell_unknown(own)
        asked: dict[str, Where] = {group.machine.device: group.where for group in self.groups}
        asked |= {name: (*_SERVERS, index, "device") for index, name in self.own_servers}
        asked |= {name: (*_DEVICES, name) for name in own}
        for name, where in asked.items():
            entry = own.get(name, {})
            if isinstance(entry, dict) and not entry.keys() >= STAND_IN.keys():
                self._fill(name, entry, where)
        for name in dict.fromkeys(group.machine.device for group in self.groups):
            self._price(name, _section(own.get(name)))

    def _tell_unknown(self, own: dict[str, Any]) -> None:
        """Tell of devices that neither the file nor the library has, and put stand-ins for them."""
        known, library = list(own), self.library.devices
        for index, name in self.own_servers:
            if name not in known and name not in library:
                hint = near_names(name, known) or near_names(name, library)
                where = (*_SERVERS, index, "device")
                message = f"no device class '{name}' in cluster.devices or the library{hint}"
                self._wrong(where, f"{message}{by_hand(name)}")
                own[name] = STAND_IN
        for name in known:
            lacking = isinstance(own[name], dict) and not own[name].keys() >= STAND_IN.keys()
            hint = near_names(name, library)
            if lacking and name not in library and hint:
                message = f"no device '{name}' in the library (your own needs memory and peak){hint}"
                self._wrong((*_DEVICES, name), message)
                own[name] = STAND_IN | own[name]

    def _fill(self, name: str, entry: dict[str, Any], where: Where) -> None:
        device = self.library.devices.get(name)
        if device is None:  # the schema tells what is missing
            return
        memory, bits = device.memory.value, device.memory_bandwidth.value
        facts: dict[str, Any] = {"memory": f"{memory} B", "memory_bandwidth": f"{bits} bit/s"}
        if "memory" not in entry:  # who writes a number means it
            facts["kept"] = f"{device.kept.value} B"
        if "peak" not in entry:
            facts["peak"] = f"{self._peak(name, device, where)} FLOP/s"
        self.cluster["devices"][name] = facts | entry
        self._at((*_DEVICES, name), where)

    def _peak(self, name: str, device: DeviceFacts, where: Where) -> int:
        """Return the peak for the number format or the elements that the file names, else any: it is left open."""
        size, named = _section(self.training).get("bytes_per_element"), self.cluster.get("arithmetic")
        known = isinstance(named, str) and named in list(NumberFormat)
        if size is None and not known:
            self.open_peaks.append(name)
        elif known or (isinstance(size, int) and size > 0):  # else the schema tells what is wrong
            try:
                return device.peak(name, size or 0, NumberFormat(named) if known else None)
            except LookupError as error:
                self._wrong(where, str(error))
        return next(iter(device.peaks.values())).value

    def _price(self, name: str, entry: dict[str, Any]) -> None:
        """Take the price of a device from its machines, if all of them agree and the file has none of its own.

        Where they do not it has none, and the file is wrong if plans are judged by what they cost.
        """
        prices = {group.name: group.machine.device_price for group in self.groups if group.machine.device == name}
        if "price_per_hour" in entry or not any(prices.values()):
            return
        own = [index for index, device in self.own_servers if device == name]
        if own or len(set(prices.values())) > 1:
            data = _section(self.document.data)
            if "cost" not in str((data.get("objective"), _section(data.get("constraints")).get("at_most"))):
                return
            said = ", ".join(f"{key} {_amount(price) if price else 'unknown'}" for key, price in prices.items())
            said += ", of servers of your own unknown" if own else ""
            self._wrong(
                self.groups[0].where,
                f"'{name}' has several prices for an hour ({said}); give cluster.devices.{name}.price_per_hour",
            )
            return
        self.cluster["devices"][name]["price_per_hour"] = _amount(next(iter(prices.values())))

    def join(self) -> None:
        """Join the servers of machines by their adapters, but for what the file says of it."""
        mesh = self.cluster.get("between_servers")
        if self.stand_ins and mesh is None:
            self.cluster["between_servers"] = {"bandwidth": "1 Gbit/s"}
        elif self.groups and (mesh is None or (isinstance(mesh, dict) and "bandwidth" not in mesh)):
            self._join(mesh)

    def _join(self, mesh: dict[str, Any] | None) -> None:
        lists = [self.cluster.get(key, []) for key in ("servers", "switches", "links")]
        if not all(isinstance(rows, list) for rows in lists):
            return
        alone = len(self.cluster["servers"]) == len(self.groups)
        speeds = {group.bits for group in self.groups}
        if alone and len(speeds) == 1 and not self.cluster.get("switches"):
            self.cluster["between_servers"] = {"bandwidth": f"{min(speeds)} bit/s"} | (mesh or {})
            self._at(("cluster", "between_servers"), self.groups[0].where)
        elif mesh is None:
            self._switch()

    def _switch(self) -> None:
        names = self.cluster.setdefault("switches", [])
        if isinstance(names, list) and NETWORK not in names:
            self._add("switches", NETWORK, self.groups[0].where)
        for group in self.groups:
            name = group.servers
            if not self._is_joined(name):
                link = {"between": [name, NETWORK], "bandwidth": f"{group.bits} bit/s"}
                self._add("links", link, group.where)

    def _is_joined(self, name: str) -> bool:
        """Tell whether the file joins the machines of a name to the network itself."""
        links = self.cluster.get("links")
        rows = [_section(row).get("between") for row in (links if isinstance(links, list) else [])]
        return any(isinstance(ends, list) and name in ends and NETWORK in ends for ends in rows)


def _amount(millionths: int) -> str:
    """Write a price as a file does."""
    return f"{millionths // MILLIONTHS}.{millionths % MILLIONTHS:06d}".rstrip("0").rstrip(".")
