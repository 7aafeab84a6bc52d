"""What a device holds over time, each moment once."""

from __future__ import annotations

from formulation.timeline.footprint import DeviceMemory


def curve_of(memory: DeviceMemory) -> dict[int, int]:
    """Return the bytes that are held from each moment on, in order of time.

    Of several values at one moment the last goes on being held. At the first moment of the peak it is the peak,
    also where an action that takes no time gives it back at once.
    """
    curve = dict(zip(memory.time_ns.tolist(), memory.held_bytes.tolist(), strict=True))
    curve[memory.peak_ns] = memory.peak_bytes
    return curve
