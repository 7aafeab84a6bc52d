"""Where the scenarios that come with pipecut lie."""

from __future__ import annotations

from pathlib import Path

__all__ = ["SHIPPED"]

SHIPPED = Path(__file__).resolve().parents[2] / "scenarios"
"""The folder of the shipped scenarios, one sub-folder for each source."""
