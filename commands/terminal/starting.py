"""A time limit that ends while the program is still starting: one line, and the process ends.

Until a command has its model nothing can be asked to stop: modules are being imported, on a busy machine for
seconds. From then on its searches look at the clock themselves.
"""

from __future__ import annotations

import os
import threading
import time

GRACE_S = 0.5
"""How long after the limit the program may still be starting."""
NOT_PROVED = 3


class Starting:
    """The clock of a program that starts; ``began_s`` is when, by ``time.monotonic``."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._timer: threading.Timer | None = None

    def limit(self, name: str, seconds: float | None) -> None:
        """End the process GRACE_S after the limit, saying so of a scenario."""
        if seconds is None:
            return
        said = f"{name}: no plan found in time: the time limit of {seconds:g} s was over while the program started"
        left_s = max(0.0, self._began_s + seconds + GRACE_S - time.monotonic())
        self._timer = threading.Timer(left_s, _end, (said,))
        self._timer.daemon = True
        self._timer.start()

    def done(self) -> None:
        """Take the clock off: what is to come looks at it itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _end(said: str) -> None:
    os.write(2, f"{said}\n".encode())
    os._exit(NOT_PROVED)
