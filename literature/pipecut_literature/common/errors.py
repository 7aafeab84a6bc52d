"""Why a peer's planner returns no plan."""

from __future__ import annotations


class TooManyDownsetsError(ValueError):
    """The graph has more downsets than the caller is ready to enumerate."""


class NothingFitsError(ValueError):
    """No plan fits into the memory of the devices (or, for dnn-partitioning, onto what they support)."""
