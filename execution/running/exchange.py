"""What a process sends to and receives from its neighbours in the pipeline, piece by piece.

A tensor goes whole where sender and receiver take the same samples; else its first dimension is that of the
samples, and the receiver puts the pieces together. Bytes are sent: transports know few number formats. What a
process sends to itself stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from execution.running.channel import Channel, Ticket
from execution.running.layout import RunLayout, Shipment
from execution.splitting.programs import HandedTensor

__all__: list[str] = []

FORWARD, BACKWARD = 0, 1
_WORDS = ("activation", "gradient")


@dataclass(slots=True)
class Arriving:
    """Tensors under way to this process (None: not wanted), and the transfers that bring them.

    ``own`` lists the places of those that this process sends to itself, with their tags.
    """

    tensors: list[torch.Tensor | None]
    tickets: list[Ticket] = field(default_factory=list)
    own: list[tuple[int, int]] = field(default_factory=list)


class Exchange:
    """The transfers of one process.

    ``handed[s]`` are the tensors that cross the cut behind stage s, for as many samples as this process takes.
    """

    def __init__(
        self,
        layout: RunLayout,
        channel: Channel,
        handed: Sequence[Sequence[HandedTensor]],
        device: torch.device,
    ) -> None:
        """Note who exchanges what with whom; nothing is sent yet."""
        self._layout = layout
        self._channel = channel
        self._handed = handed
        self._device = device
        self._most = max((len(one) for one in handed), default=0) + 1
        pieces = [layout.pieces(cut) for cut in range(len(handed))]
        both, me = (FORWARD, BACKWARD), channel.process
        self._going = [[[one for one in cut if _ends(one, way)[0] == me] for cut in pieces] for way in both]
        self._coming = [[[one for one in cut if _ends(one, way)[1] == me] for cut in pieces] for way in both]
        self._own: dict[int, torch.Tensor] = {}
        self._sending: list[tuple[Ticket, torch.Tensor]] = []

    def expect(self, direction: int, cut: int, number: int) -> Arriving:
        """Begin to receive what crosses a cut for a micro-batch; gradients of what has one only."""
        me, stage = self._channel.process, cut + (direction == FORWARD)
        mine = self._layout.samples(stage, me)
        found = Arriving([])
        for at, one in enumerate(self._handed[cut]):
            if direction == BACKWARD and not one.differentiable:
                found.tensors.append(None)
                continue
            tag = self._tag(direction, cut, number, at)
            senders = [(_ends(piece, direction)[0], piece) for piece in self._coming[direction][cut]]
            if [sender for sender, _ in senders] == [me]:
                found.own.append((at, tag))
                found.tensors.append(None)
                continue
            buffer = torch.empty(one.shape, dtype=one.dtype, device=self._device)
            for sender, piece in senders:
                part = _bytes(_part(buffer, piece, mine))
                if part.numel():
                    what = f"stage {stage}: {_WORDS[direction]} of micro-batch {number} from process {sender}"
                    found.tickets.append(self._channel.receive(part, sender, tag, what))
            found.tensors.append(buffer)
        return found

    def arrived(self, found: Arriving) -> list[torch.Tensor | None]:
        """Return the tensors when they are there. Raises PeerError where they do not come."""
        for ticket in found.tickets:
            ticket.wait()
        for at, tag in found.own:
            found.tensors[at] = self._own.pop(tag)
        return found.tensors

    def send(self, direction: int, cut: int, number: int, tensors: Sequence[torch.Tensor | None]) -> None:
        """Begin to send what crosses a cut for a micro-batch, and let go of what has arrived since."""
        self._sending = [entry for entry in self._sending if not entry[0].done()]
        me, stage = self._channel.process, cut + (direction == BACKWARD)
        mine = self._layout.samples(stage, me)
        for at, tensor in enumerate(tensors):
            if tensor is None:
                continue
            for piece in self._going[direction][cut]:
                receiver = _ends(piece, direction)[1]
                tag = self._tag(direction, cut, number, at)
                if receiver == me:
                    self._own[tag] = tensor
                    continue
                part = _bytes(_part(tensor, piece, mine).contiguous())
                if part.numel():
                    what = f"stage {stage}: {_WORDS[direction]} of micro-batch {number} to process {receiver}"
                    self._sending.append((self._channel.send(part, receiver, tag, what), part))

    def finish(self) -> None:
        """Wait until all that was sent has arrived. Raises PeerError where it does not."""
        for ticket, _ in self._sending:
            ticket.wait()
        self._sending.clear()

    def _tag(self, direction: int, cut: int, number: int, at: int) -> int:
        many = self._layout.schedule.micro_batches
        return ((direction * len(self._handed) + cut) * many + number) * self._most + at


def _ends(piece: Shipment, direction: int) -> tuple[int, int]:
    return (piece.sender, piece.receiver) if direction == FORWARD else (piece.receiver, piece.sender)


def _part(tensor: torch.Tensor, piece: Shipment, mine: range) -> torch.Tensor:
    """Return the samples of a piece out of a tensor that holds those of this process."""
    if piece.first == mine.start and piece.stop == mine.stop:
        return tensor
    return tensor[piece.first - mine.start : piece.stop - mine.start]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor as the bytes that it lies in."""
    return tensor.reshape(-1).view(torch.uint8)
