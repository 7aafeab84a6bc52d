"""``python -m pipecut``: the command line."""

import sys

from pipecut.commands.entry import main

if __name__ == "__main__":
    sys.exit(main())
