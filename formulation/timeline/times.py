"""When everything happened: what an execution hands over."""

from __future__ import annotations

from dataclasses import dataclass

from formulation.schedules.table import Integers


@dataclass(frozen=True, slots=True, eq=False)
class ActionTimes:
    """Start and stop of every entry and of the message that it sends, in ns (its stop, where it sends none).

    ``link_before[i]`` is the entry whose message used the link right before that of entry ``i``; NONE where there
    is none, or links have no contention.
    """

    start_ns: Integers
    stop_ns: Integers
    depart_ns: Integers
    arrive_ns: Integers
    link_before: Integers
