"""Output of ``scenarios``: what ships, by the names that other commands take."""

from __future__ import annotations

from pydantic import Field

from pipecut.commands.outputs.common import Output, Part


class AlikeServersPart(Part):
    """Neighbouring servers of one kind: how many, and the devices that each of them has."""

    servers: int = Field(ge=1)
    devices: int = Field(ge=1)
    device: str


class ShippedPart(Part):
    """A scenario that ships. ``name`` is what a command line may say for it, ``folder`` what it belongs to."""

    name: str
    folder: str
    title: str
    file: str
    model: str
    devices: int = Field(ge=1)
    cluster: list[AlikeServersPart]


class ScenariosOutput(Output):
    """``pipecut scenarios``: all scenarios that ship."""

    scenarios: list[ShippedPart]
