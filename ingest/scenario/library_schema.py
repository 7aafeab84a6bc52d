"""The shape of a file of the library: devices and machines of which every number names its source.

A file has ``sources``, and ``devices`` or ``machines`` or both. Peaks are dense (nothing skipped for being zero)
and those of matrix products whose sums are kept in fp32 or wider; bandwidths are those of one direction.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Annotated, Generic, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from formulation.problem.units import ceil_div
from ingest.mistakes import Where
from ingest.scenario.fields import (
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
        of = f" (elements of {bytes_per_element} bytes)" if arithmetic is None else ""
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
