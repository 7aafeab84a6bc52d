"""Stages of known sizes into servers of their class, of which each has so many devices: bin packing, exactly."""

from __future__ import annotations

from collections.abc import Sequence

MOST_TRIES = 100_000
"""How often a stage is tried in a server before it is given up."""


def packed(
    wanted: Sequence[tuple[int, int]], joined: Sequence[bool], sizes: Sequence[int], numbers: Sequence[int]
) -> list[int] | None:
    """Return for every stage the number of a server of its class; None if no way is found.

    ``wanted`` are the stages as (class of servers, devices); ``joined[s]``: stages s and s + 1 share a server.
    ``sizes`` and ``numbers``: devices of a server of each class, and how many there are. Not finding a way proves
    that there is none unless MOST_TRIES were used up.
    """
    blocks: list[list[int]] = []
    for stage in range(len(wanted)):
        if stage > 0 and joined[stage - 1]:
            blocks[-1].append(stage)
        else:
            blocks.append([stage])
    found = [0] * len(wanted)
    for one, (size, number) in enumerate(zip(sizes, numbers, strict=True)):
        own = [block for block in blocks if any(wanted[stage][0] == one for stage in block)]
        if any(wanted[stage][0] != one for block in own for stage in block):
            return None
        own.sort(key=lambda block: -sum(wanted[stage][1] for stage in block))
        bins = _in_bins([sum(wanted[stage][1] for stage in block) for block in own], size, number)
        if bins is None:
            return None
        for block, at in zip(own, bins, strict=True):
            for stage in block:
                found[stage] = at
    return found


def _in_bins(items: list[int], size: int, number: int) -> list[int] | None:
    """Return a bin for every item, which fall in size: the first that fits, else the next, by depth first."""
    room, at = [size] * number, [0] * len(items)
    tries, item, start = 0, 0, 0
    while item < len(items):
        # Bins with equal room are alike: only the first of them is tried.
        fitting = (one for one in range(start, number) if room[one] >= items[item] and room[one] not in room[:one])
        chosen = next(fitting, None)
        tries += 1
        if chosen is not None:
            at[item], room[chosen] = chosen, room[chosen] - items[item]
            item, start = item + 1, 0
            continue
        item -= 1
        if item < 0 or tries > MOST_TRIES:
            return None
        room[at[item]] += items[item]
        start = at[item] + 1
    return at
