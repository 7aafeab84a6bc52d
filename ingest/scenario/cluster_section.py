"""The shape of ``cluster:`` in a scenario file: devices, servers, whole machines of the library, links.

A cluster that names machines or devices of the library is completed first (``ingest.scenario.machines``): what
these sections demand is there by then, so memory, peak, devices and servers are needed here and may still be left
out in a file.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from ingest.mistakes import shown
from ingest.scenario.fields import (
    Bandwidth,
    Byname,
    Duration,
    Memory,
    Name,
    NeededMemory,
    NumberFormat,
    Price,
    Section,
    Speed,
    Whole,
)

MOST_DEVICES = 4096
"""Most devices of one server."""
MOST_SERVERS = 2048
"""Most servers of a cluster; a full mesh of them has half a million links."""


def _needs_nothing(schema: dict[str, Any]) -> None:
    """Tell editors that any key may be left out: the library may have it."""
    schema.pop("required", None)


def _or_a_number(schema: dict[str, Any]) -> None:
    """Tell editors that a bare number may stand for the section."""
    section = dict(schema)
    schema.clear()
    schema["anyOf"] = [{"type": "integer", "minimum": 1}, section]


class LinkSection(Section):
    """A connection between two devices, or of a device with its host."""

    bandwidth: Bandwidth = Field(description="bandwidth in one direction, like '10 Gbit/s' or '15.75 GB/s'")
    latency: Duration = Field(default=0, description="latency of one message, like '5 us'")


class DeviceSection(Section):
    """A class of accelerators; what is left out of a device of the library is the library's."""

    model_config = ConfigDict(json_schema_extra=_needs_nothing)

    memory: Memory = Field(description="memory of one device, like '11 GiB'")
    kept: NeededMemory = Field(
        default=0,
        description="memory of one device that no plan gets, like '2 GiB': the driver's context, buffers of"
        " communicators, the allocator's rest; with the library's memory the library's, else 0",
    )
    peak: Speed = Field(description="peak speed of one device, like '13.4 TFLOP/s'")
    memory_bandwidth: Bandwidth | None = Field(
        default=None,
        description="bandwidth of a device's memory, like '616 GB/s'; without it moving bytes takes no time",
    )
    price_per_hour: Price = Field(
        default=0, description="price of one device for an hour, like 2.48, any currency"
    )
    host_link: LinkSection | None = Field(
        default=None,
        description="what joins each device to the memory of its host, like PCIe: {bandwidth: 32 GB/s}",
    )

    @property
    def usable(self) -> int:
        """The bytes of one device that plans may fill."""
        return self.memory - self.kept


class NameSection(Section):
    """What one server, or ``count`` alike ones, are called."""

    name: Name = Field(
        description="the server's name; alike servers get it with a number: node0, node1 (after a digit: a1-0)"
    )
    count: Annotated[int, Field(ge=1, le=MOST_SERVERS)] | None = Field(
        default=None, description="how many alike servers; without it one server, named without a number"
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the servers that this entry stands for."""
        if self.count is None:
            return (self.name,)
        stem = f"{self.name}-" if self.name[-1].isdigit() else self.name
        return tuple(f"{stem}{number}" for number in range(self.count))


class ServerSection(NameSection):
    """One server, or ``count`` alike ones."""

    device: Name = Field(description="the name of a device class of this file, or of a device of the library")
    devices: Annotated[int, Field(ge=1, le=MOST_DEVICES)] = Field(description="how many devices a server holds")
    link: LinkSection | None = Field(default=None, description="what joins every two devices inside the server")
    adapters: Whole | None = Field(
        default=None,
        description="how many transfers to other servers at once have the whole bandwidth of the link to them,"
        " shared by the devices; without it every transfer has",
    )


class PairSection(LinkSection):
    """A link between two servers or switches."""

    between: Annotated[list[Name], Field(min_length=2, max_length=2)] = Field(
        description="two servers or switches; the name of alike servers stands for each of them"
    )


class PartialLinkSection(Section):
    """What replaces the numbers of a machine's own link."""

    bandwidth: Bandwidth | None = Field(default=None, description="bandwidth in one direction, like '450 GB/s'")
    latency: Duration = Field(default=0, description="latency of one message, like '5 us'")


class MachineSection(Section):
    """How many machines of one kind of the library, and what is different about them."""

    model_config = ConfigDict(json_schema_extra=_or_a_number)

    count: Annotated[int, Field(ge=1, le=MOST_SERVERS)] = Field(description="how many machines")
    name: Name | None = Field(
        default=None, description="what the servers are called, with a number; default: as the machine"
    )
    devices: Annotated[int, Field(ge=1, le=MOST_DEVICES)] | None = Field(
        default=None, description="how many of its devices are used; default: all of them"
    )
    link: PartialLinkSection | None = Field(
        default=None, description="own numbers for the link inside the machine"
    )
    adapters: Whole | None = Field(
        default=None,
        description="how many of its adapters the devices use; default: all of them",
    )


def _machine(value: object) -> object:
    """Take a bare number as the count. Raises ValueError for what is neither a number nor a section."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"count": value}
    if not isinstance(value, dict):
        raise ValueError(f"expected how many, like 4, or a section like {{count: 4}}, got {shown(value)}")
    return value


Machines = dict[Name, Annotated[MachineSection, BeforeValidator(_machine)]]


class ClusterSection(Section):
    """Devices, servers, machines, and the links between servers."""

    model_config = ConfigDict(json_schema_extra=_needs_nothing)

    devices: Annotated[dict[Name, DeviceSection], Field(min_length=1)] = Field(
        description="the device classes, by name"
    )
    servers: Annotated[list[ServerSection], Field(min_length=1)] = Field(
        description="the servers, in the order of the line of devices"
    )
    machines: Machines = Field(
        default={},
        description="machines of the library, and how many of each: {dgx-h100: 4}; they follow the servers",
    )
    arithmetic: Annotated[NumberFormat, Byname] | None = Field(
        default=None,
        description="the number format whose peak the library gives; default: by the size of an element",
    )
    between_servers: LinkSection | None = Field(
        default=None, description="a link between every two servers (full mesh)"
    )
    links: list[PairSection] = Field(default=[], description="single links; they override between_servers")
    switches: list[Name] = Field(default=[], description="names of switches that links may use")


def machine_row(name: str, raw: object) -> MachineSection | None:
    """Return an entry of ``machines`` if it keeps its schema."""
    try:
        return TypeAdapter(Machines).validate_python({name: raw}, strict=True)[name]
    except ValidationError:
        return None
