"""Times of layers and of a link of this machine, measured in fresh processes and refused where unsteady."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from execution.errors import RunFailedError
from execution.measuring.clocks import clock_here, processor_name
from execution.measuring.layers import ProfiledPasses, ProfileJob, measure_link, profile_layers
from execution.processes.local import in_processes
from ingest.graphs.layer_profile import LayerProfile

MOST_DRIFT = 0.05
"""Over which share of their median the middle half of equal products may spread on a GPU."""
MOST_FAULTS = 2000
"""Pages that the system may give to one micro-batch, before that is what is measured."""


def profiled(
    job: ProfileJob, device_class: str, most_spread: float, say: Callable[[int, Any], None]
) -> LayerProfile:
    """Return the times of a model's layers on this machine, as those of a device class, and of a link within it.

    ``say`` hears a process and a size of micro-batches that is measured. Raises RunFailedError where a process
    fails, where the middle half of the rounds spreads over more than ``most_spread`` of their median, where memory
    is short, and where the clock of a GPU moves: such times say more about the machine than about the layers.
    Cost: that of :func:`execution.measuring.layers.profile_layers`.
    """
    if job.at_once > 1 and torch.cuda.is_available():
        raise RunFailedError(f"{job.at_once} processes at once: a GPU has its memory to itself, profile one alone")
    each = in_processes(job.at_once, profile_layers, (job,), say)
    found = [_together(rows) for rows in zip(*each, strict=True)]
    latency_ns, bits_per_second = in_processes(2, measure_link)[0]
    for one in found:
        _check_steady(one, most_spread)
    return LayerProfile.model_validate(
        {
            "model": job.model,
            "device_class": device_class,
            "machine": processor_name(clock_here().device),
            "torch": torch.__version__,
            "threads": 1,
            "at_once": job.at_once,
            "link": {"latency_ns": latency_ns, "bits_per_second": bits_per_second},
            "times": [_times(one) for one in found],
        }
    )


def _together(rows: Sequence[ProfiledPasses]) -> ProfiledPasses:
    """Return the mean of what processes measured at the same time; the least steady of them counts."""

    def mean(pairs: Iterable[tuple[int, int]]) -> tuple[int, int]:
        forward, backward = zip(*pairs, strict=True)
        return round(statistics.mean(forward)), round(statistics.mean(backward))

    return ProfiledPasses(
        rows[0].samples,
        {name: mean(one.layers[name] for one in rows) for name in rows[0].layers},
        mean(one.whole for one in rows),
        max(one.spread for one in rows),
        max(one.faults for one in rows),
        statistics.mean(one.probe_ns for one in rows),
        max(one.drift for one in rows),
    )


def _check_steady(found: ProfiledPasses, most: float) -> None:
    where = f"micro-batches of {found.samples}"
    if found.spread > most:
        raise RunFailedError(
            f"{where}: the middle half of the rounds spreads over {found.spread:.1%} of their median, at most"
            f" {most:.1%} is taken: leave the machine alone, take more --rounds, or allow more with --most-spread"
        )
    if found.drift > MOST_DRIFT:
        raise RunFailedError(
            f"{where}: the middle half of equal matrix products spreads over {found.drift:.1%} of their median, at"
            f" most {MOST_DRIFT:.0%} is taken: the clock of the GPU moves, fix it (nvidia-smi --lock-gpu-clocks)"
        )
    if found.faults > MOST_FAULTS:
        raise RunFailedError(
            f"{where}: {found.faults:.0f} page faults each, at most {MOST_FAULTS} are taken: the memory is short,"
            " or MALLOC_ variables of the environment let the C library give it back"
        )


def _times(found: ProfiledPasses) -> dict[str, Any]:
    """Return the times of one size as a profile has them."""
    layers = found.layers.items()
    return {
        "samples": found.samples,
        "whole_forward_ns": found.whole[0],
        "whole_backward_ns": found.whole[1],
        "spread": found.spread,
        "probe_ns": round(found.probe_ns),
        "layers": [{"name": name, "forward_ns": one, "backward_ns": two} for name, (one, two) in layers],
    }
