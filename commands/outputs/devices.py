"""Output of ``devices``: the library, every number with its source. Whole bytes, bit/s, FLOP/s and millionths."""

from __future__ import annotations

from pydantic import Field

from pipecut.commands.outputs.common import Output, Part


class SourcePart(Part):
    """Where a number comes from; ``through`` is the page that was read in its place."""

    title: str
    url: str
    through: str | None


class FactPart(Part):
    """A number, its source, and what one must know to read it."""

    value: int = Field(ge=1)
    source: SourcePart
    note: str | None


class DevicePart(Part):
    """A device of the library; peaks are dense, by number format. ``kept_bytes`` of its memory no plan gets."""

    name: str
    title: str
    file: str
    memory_bytes: FactPart
    kept_bytes: FactPart
    memory_bits_per_second: FactPart
    peak_flops_per_second: dict[str, FactPart]
    link_bits_per_second: dict[str, FactPart]
    note: str | None


class MachinePricePart(FactPart):
    """What a machine costs for an hour, in millionths of the currency, on a day like 2026-11-09."""

    currency: str
    day: str


class MachinePart(Part):
    """A machine of the library. ``between_bits_per_second`` is the link that a cluster of them gets."""

    name: str
    title: str
    file: str
    device: str
    devices: FactPart
    each_pair_bits_per_second: FactPart
    each_device_bits_per_second: FactPart
    adapters: FactPart
    adapter_bits_per_second: FactPart
    between_bits_per_second: int
    price_per_hour: MachinePricePart | None
    note: str | None


class DevicesOutput(Output):
    """``pipecut devices``: the whole library, or what it has under one name."""

    devices: list[DevicePart]
    machines: list[MachinePart]
