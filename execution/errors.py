"""What can go wrong when a plan is run."""

from __future__ import annotations


class StagesError(ValueError):
    """A model cannot be split as a plan wants it; ``str()`` names the stage or the layer, and what to do."""


class PeerError(RuntimeError):
    """Another process of a run is gone or does not answer; ``str()`` names what was waited for, and from whom."""


class RunFailedError(RuntimeError):
    """A run ended before its time; ``str()`` says which process failed, and why."""
