"""The command line: ``pipecut plan``, ``compare``, ``evaluate``, ``simulate``, ``trace``.

This module only turns results and failures into exit codes; each command is a module of ``commands`` and is
imported when it is asked for. Whatever a user gets wrong ends in a message on stderr and exit code 2, never in
a traceback.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Sequence

from commands.parser.arguments import asks_for_json, parse
from commands.parts.named_files import inputs_of, refuse_overwriting
from commands.parts.opening import file_of, open_scenario
from commands.terminal.ending import guarded
from commands.terminal.exit_codes import ExitCode
from commands.terminal.first_interrupt import imported
from commands.terminal.reply import Reply
from commands.terminal.starting import Starting
from commands.terminal.terminal import cleaned

LIMITED = ("commands.plan", "commands.simulate")
"""Commands whose time limit is one for everything that they do."""


def main(argv: Sequence[str] | None = None, began_s: float | None = None) -> int:
    """Run a command and return its exit code (see ``commands.terminal.exit_codes``).

    Its time runs from ``began_s`` of ``time.monotonic``, or from now.
    """
    words = sys.argv[1:] if argv is None else argv
    reply = Reply(asks_for_json(words))
    with cleaned():
        return guarded(lambda: _run(words, reply, began_s), reply)


def _run(words: Sequence[str], reply: Reply, began_s: float | None) -> int:
    now_s = time.monotonic()
    try:
        arguments = parse(words)
    except SystemExit:  # help was asked for, and argparse has said what there is to say
        sys.stdout.flush()
        return ExitCode.DONE
    arguments.reply, arguments.began_s = reply, now_s if began_s is None else began_s
    arguments.starting = Starting(arguments.began_s)
    # The process may be ended where it is the program's own; --json promises an object that is not known yet.
    if began_s is not None and arguments.run in LIMITED and not reply.wanted:
        arguments.starting.limit(arguments.scenario, arguments.time_limit)
    if "scenario" in arguments:
        arguments.scenario = file_of(arguments.scenario)
        reply.files = (arguments.scenario,)
        arguments.scenario = open_scenario(arguments.scenario, arguments.overrides, strict=arguments.strict)
    reply.files = tuple(str(named.path) for named in inputs_of(arguments))
    refuse_overwriting(arguments)
    command = importlib.import_module(arguments.run)
    imported()
    return command.run(arguments)
