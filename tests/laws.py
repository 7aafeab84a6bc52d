"""How many examples a law is held against: a tenth where somebody waits, more in ``.ci/run``, all if asked."""

from __future__ import annotations

import os

LEAST, PERCENT = 3, "10"


def so_many(number: int) -> int:
    """Return such a percentage of a number as ``PIPECUT_EXAMPLES`` says (``all``: all of it), a tenth without it.

    Fewer examples are the first ones of more: what is drawn does not change (``tests/conftest.py``).
    """
    said = os.environ.get("PIPECUT_EXAMPLES", PERCENT)
    return number if said == "all" else max(LEAST, number * int(said) // 100)
