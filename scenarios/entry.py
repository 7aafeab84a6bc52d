"""Where the program begins: before anything is imported, Ctrl-C already ends it in one line.

While modules are still being imported there is nothing to stop in good order and nothing to clean up, and an
exception out of the middle of an import can come out as anything; so a first Ctrl-C ends the process at once. Once
the command runs, it is up to the command (``scenarios.interrupt``).
"""

import os
import signal
import sys
from types import FrameType

ABORTED = 130
JSON = b'{"error": {"code": 130, "kind": "aborted", "messages": [{"message": "aborted"}]}}\n'
"""What ``scenarios.reply`` answers to ``--json`` when a command is aborted."""


def main() -> int:
    """Run the command line; return its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _abort)
    from scenarios.cli import main as run

    return run()


def imported() -> None:
    """Give Ctrl-C back its usual meaning: what there is to import for a command is there."""
    if signal.getsignal(signal.SIGINT) is _abort:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _abort(_signal: int, _frame: FrameType | None) -> None:
    if "--json" in sys.argv:
        os.write(1, JSON)
    os.write(2, b"aborted\n")
    os._exit(ABORTED)


if __name__ == "__main__":
    sys.exit(main())
