"""The settings and fixtures of the core's tests, which also hold here (``tests/conftest.py``)."""

from __future__ import annotations

import pytest

from pipecut.solvers.installed import PLANNERS, registered
from tests.conftest import own_cache, pipecut, pytest_collection_modifyitems, scenario

__all__ = ["own_cache", "pipecut", "pytest_collection_modifyitems", "scenario"]

if not registered(PLANNERS):
    raise pytest.UsageError("pipecut-literature is not installed: pip install -e literature")
