"""Where the program begins: before anything else is imported, Ctrl-C already ends it in one line."""

import sys

from commands.terminal.first_interrupt import importing


def main() -> int:
    """Run the command line; return its exit code."""
    importing()
    from commands.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
