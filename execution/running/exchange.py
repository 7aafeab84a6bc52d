"""What a process sends to and receives from its neighbours in the pipeline, piece by piece.

A tensor goes whole where sender and receiver take the same samples; else its first dimension is that of the
samples, and the receiver puts the pieces together. Bytes are sent: transports know few number formats. What a
process sends to itself stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from pipecut.execution.processes.channel import Channel, Tag, Ticket
from pipecut.execution.running.layout import BACKWARD, FORWARD, RunLayout, Shipment
from pipecut.execution.splitting.stages import StageModule

_WORDS = ("activation", "gradient")


@dataclass(slots=True)
class Arriving:
    """Tensors under way to this process (None: not wanted), and the transfers that bring them.

    ``own`` lists the places of those that this process sends to itself, with their tags, and the part of a tensor
    that they are (None: all of it).
    """

    tensors: list[torch.Tensor | None]
    tickets: list[Ticket] = field(default_factory=list)
    own: list[tuple[int, Tag, torch.Tensor | None]] = field(default_factory=list)


class Exchange:
    """The transfers of one process.

    ``stages`` are all stages, those of this process for as many samples as it takes in each of them.
    """

    def __init__(
        self, layout: RunLayout, channel: Channel, stages: Sequence[StageModule], device: torch.device
    ) -> None:
        """Note who exchanges what with whom; nothing is sent yet."""
        self._layout = layout
        self._channel = channel
        self._gives = gives = [stage.gives for stage in stages[:-1]]
        self._buffers = ([stage.takes for stage in stages[1:]], gives)
        self._device = device
        self._most = max((len(one) for one in gives), default=0) + 1
        both, me = (FORWARD, BACKWARD), channel.process
        pieces = [[layout.pieces(cut, way) for cut in range(len(gives))] for way in both]
        self._going = [[[one for one in cut if one.sender == me] for cut in ways] for ways in pieces]
        self._coming = [[[one for one in cut if one.receiver == me] for cut in ways] for ways in pieces]
        self._own: dict[Tag, torch.Tensor] = {}
        self._sending: list[Ticket] = []

    @property
    def crossing_bytes(self) -> tuple[int, ...]:
        """The bytes of the tensors that cross each cut."""
        return tuple(sum(one.bytes for one in cut) for cut in self._gives)

    def expect(self, direction: int, cut: int, number: int) -> Arriving:
        """Begin to receive what crosses a cut for a micro-batch; gradients of what has one only."""
        me, stage = self._channel.process, cut + (direction == FORWARD)
        mine = self._layout.samples(stage, me)
        what = f"stage {stage}: {_WORDS[direction]} of micro-batch {number}"
        found = Arriving([])
        for at, one in enumerate(self._buffers[direction][cut]):
            if direction == BACKWARD and not one.differentiable:
                found.tensors.append(None)
                continue
            tag = self._tag(direction, cut, number, at)
            pieces = self._coming[direction][cut]
            if [piece.sender for piece in pieces] == [me]:
                found.own.append((at, tag, None))
                found.tensors.append(None)
                continue
            buffer = torch.empty(one.shape, dtype=one.dtype, device=self._device)
            for piece in pieces:
                if piece.sender == me:
                    found.own.append((at, tag, _part(buffer, piece, mine)))
                    continue
                part = _bytes(_part(buffer, piece, mine))
                if part.numel():
                    told = f"{what} from process {piece.sender}"
                    found.tickets.append(self._channel.receive(part, piece.sender, tag, told))
            found.tensors.append(buffer)
        return found

    def arrived(self, found: Arriving) -> list[torch.Tensor | None]:
        """Return the tensors when they are there. Raises PeerError where they do not come."""
        for ticket in found.tickets:
            ticket.wait()
        for at, tag, part in found.own:
            if part is None:
                found.tensors[at] = self._own.pop(tag)
            else:
                part.copy_(self._own.pop(tag))
        return found.tensors

    def send(self, direction: int, cut: int, number: int, tensors: Sequence[torch.Tensor | None]) -> None:
        """Begin to send what crosses a cut for a micro-batch. Raises PeerError where an earlier one failed."""
        for ticket in [one for one in self._sending if one.done()]:
            ticket.wait()
            self._sending.remove(ticket)
        me, stage = self._channel.process, cut + (direction == BACKWARD)
        mine = self._layout.samples(stage, me)
        what = f"stage {stage}: {_WORDS[direction]} of micro-batch {number}"
        for at, tensor in enumerate(tensors):
            if tensor is None:
                continue
            for piece in self._going[direction][cut]:
                tag = self._tag(direction, cut, number, at)
                if piece.receiver == me:
                    self._own[tag] = _part(tensor, piece, mine)
                    continue
                part = _bytes(_part(tensor, piece, mine).contiguous())
                if part.numel():
                    told = f"{what} to process {piece.receiver}"
                    self._sending.append(self._channel.send(part, piece.receiver, tag, told))

    def finish(self) -> None:
        """Wait until all that was sent has arrived. Raises PeerError where it does not."""
        for ticket in self._sending:
            ticket.wait()
        self._sending.clear()

    def _tag(self, direction: int, cut: int, number: int, at: int) -> Tag:
        lane = direction * len(self._gives) + cut
        return Tag(lane, (lane * self._layout.schedule.micro_batches + number) * self._most + at)


def _part(tensor: torch.Tensor, piece: Shipment, mine: range) -> torch.Tensor:
    """Return the samples of a piece out of a tensor that holds those of this process."""
    if piece.first == mine.start and piece.stop == mine.stop:
        return tensor
    return tensor[piece.first - mine.start : piece.stop - mine.start]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor as the bytes that it lies in."""
    return tensor.reshape(-1).view(torch.uint8)
