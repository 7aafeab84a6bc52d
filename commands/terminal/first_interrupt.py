"""Ctrl-C before a command runs: the process ends at once, in one line.

While modules are still being imported there is nothing to stop in good order and nothing to clean up, and an
exception out of the middle of an import can come out as anything. Once the command runs, it is up to the command
(``commands.terminal.interrupt``).
"""

import os
import sys
import time

try:  # what ``signal`` is made of: that one imports a dozen modules, in which Ctrl-C would be a traceback
    import _signal as signal  # pyright: ignore[reportMissingImports]
except ImportError:
    import signal

BEGAN_S = time.monotonic()
"""When the program began: everything that it does from here on counts against a time limit."""
ABORTED = 130
JSON = b'{"error": {"code": 130, "kind": "aborted", "messages": [{"message": "aborted"}]}}\n'
"""What ``commands.terminal.reply`` answers to ``--json`` when a command is aborted."""


def importing() -> None:
    """Let Ctrl-C end the process at once, unless somebody handles it already."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _abort)


def imported() -> None:
    """Give Ctrl-C back its usual meaning: what there is to import for a command is there."""
    if signal.getsignal(signal.SIGINT) is _abort:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _abort(_signal: int, _frame: object) -> None:
    if "--json" in sys.argv:
        os.write(1, JSON)
    os.write(2, b"aborted\n")
    os._exit(ABORTED)
