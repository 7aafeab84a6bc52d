"""How many examples a law is held against: all of them in ``.ci/run``, a tenth where somebody waits."""

from __future__ import annotations

import os

LEAST, PART = 3, 10


def so_many(number: int) -> int:
    """Return so many examples where ``PIPECUT_EXAMPLES=all`` is set, as ``.ci/run`` does, else a tenth of them."""
    return number if os.environ.get("PIPECUT_EXAMPLES") == "all" else max(LEAST, number // PART)
