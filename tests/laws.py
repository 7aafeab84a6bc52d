"""How much of a test is held against where somebody waits; ``.ci/run`` holds more of laws, and all of the rest."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

import pytest

LEAST, PERCENT = 2, "3"


def so_many(number: int) -> int:
    """Return such a percentage of a number as ``PIPECUT_EXAMPLES`` says (``all``: all of it), three without it.

    Fewer examples are the first ones of more: what is drawn does not change (``tests/conftest.py``).
    """
    said = os.environ.get("PIPECUT_EXAMPLES", PERCENT)
    return number if said == "all" else max(LEAST, number * int(said) // 100)


def mark_slow(items: Iterable[pytest.Item]) -> None:
    """Mark as slow the cases of tests marked ``few`` that it does not name: ``few(3)``, ``few("cnn", "gpt")``.

    A number is that of the first ones which are not slow, a text is what the names of cases begin with.
    """
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("few")
        if mark is None or item.get_closest_marker("slow") is not None:
            continue
        test, _, case = item.nodeid.partition("[")
        seen[test] += 1
        named = (case.startswith(one) if isinstance(one, str) else seen[test] <= one for one in mark.args)
        if not any(named):
            item.add_marker(pytest.mark.slow)
