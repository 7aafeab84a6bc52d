"""Settings of all tests: Hypothesis without a deadline, as the first call of a solver imports and warms up."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.command_line import own_cache, pipecut, scenario

__all__ = ["own_cache", "pipecut", "scenario"]

settings.register_profile(
    "pipecut", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("pipecut")
