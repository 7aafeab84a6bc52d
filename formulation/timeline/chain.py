"""What the critical chain of a timeline consists of: how long which sort of event at which stage is on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from formulation.timeline.critical import critical_chain
from formulation.timeline.timeline import Timeline

SYNCHRONISATION, OPTIMISER = "synchronisation", "optimiser"
NAMES = {
    "F": "forward",
    "B": "backward",
    "I": "gradient of the input",
    "W": "gradient of the weights",
    "S": SYNCHRONISATION,
    "U": OPTIMISER,
}
"""What the letters of the timeline stand for."""
MESSAGES = {"F": "activation", "B": "gradient", "I": "gradient"}


@dataclass(frozen=True, slots=True)
class ChainPart:
    """All events of one sort at one stage: passes, or messages that the stage sends (``transfer``)."""

    stage: int
    name: str
    transfer: bool
    events: int
    time_ns: int


def parts_of_chain(timeline: Timeline, updates_ns: Sequence[int] = ()) -> tuple[ChainPart, ...]:
    """Return the parts of the critical chain, the longest first; their times add up to the makespan.

    ``updates_ns`` is by stage how much of each synchronisation is the optimiser, a part of its own here
    (``formulation.costs.prices.updates_ns``). Cost: linear in the entries of the timeline.
    """
    sums: dict[tuple[int, str, bool], tuple[int, int]] = {}
    for event in critical_chain(timeline):
        letter = event.label.lstrip("0123456789")[0]
        name = MESSAGES.get(letter, NAMES[letter]) if event.transfer else NAMES[letter]
        key = int(event.label[: event.label.index(letter)]), name, event.transfer
        lasted = event.stop_ns - event.start_ns
        update = min(lasted, updates_ns[key[0]]) if updates_ns and name == SYNCHRONISATION else 0
        spent = [(key, lasted - update)] * (not update or update < lasted)
        spent += [((key[0], OPTIMISER, False), update)] * (update > 0)
        for part, time_ns in spent:
            events, known_ns = sums.get(part, (0, 0))
            sums[part] = events + 1, known_ns + time_ns
    parts = [ChainPart(*key, *found) for key, found in sums.items()]
    return tuple(sorted(parts, key=lambda part: (-part.time_ns, part.stage, part.name)))
