"""Where the program begins and ends: before anything else is imported, Ctrl-C already ends it in one line."""

import os
import sys

from pipecut.commands.terminal.first_interrupt import BEGAN_S, importing


def main() -> int:
    """Run the command line; return its exit code."""
    importing()
    from pipecut.commands.main import main as run

    return ended(run(began_s=BEGAN_S))


def ended(code: int) -> int:
    """Return the exit code, or end the process with it at once where an aborted search is still running.

    Such a search is inside C++, and the interpreter must not be torn down around it.
    """
    interrupt = sys.modules.get("pipecut.commands.terminal.interrupt")
    if interrupt is not None and interrupt.is_search_left():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
