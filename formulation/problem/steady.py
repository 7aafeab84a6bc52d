"""How long a run without a flush is looked at: until its middle is steady."""

from __future__ import annotations

from formulation.problem.options import Training
from formulation.problem.units import ceil_div

__all__ = ["LEAST_MICRO_BATCHES", "steps_run"]

LEAST_MICRO_BATCHES = 16
"""Of a run without a flush; so many that a short pipeline shows its steady state."""
MICRO_BATCHES_A_STAGE = 4
"""Of a run without a flush: the pipeline fills and drains in one for each stage; the middle half is steady."""


def steps_run(training: Training, stages: int) -> int:
    """Return how many optimiser steps are run: one with a flush, else until the middle of the run is steady."""
    if training.schedule.flushes:
        return 1
    wanted = max(LEAST_MICRO_BATCHES, MICRO_BATCHES_A_STAGE * stages)
    return ceil_div(wanted, training.micro_batches)
