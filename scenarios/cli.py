"""The command line: ``pipecut plan``, ``compare``, ``evaluate``, ``simulate``, ``trace``.

This module only turns results and failures into exit codes; each command lives in ``scenarios.commands`` and is
imported when it is asked for. Whatever a user gets wrong ends in a message on stderr and exit code 2, never in
a traceback.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence

from scenarios.arguments import parse
from scenarios.exit_codes import ExitCode
from scenarios.failures import ClaimFailedError, InputError
from scenarios.opening import open_scenario


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code (see ``scenarios.exit_codes``)."""
    _never_fail_on_characters()
    code = _guarded(argv)
    if "scenarios.interrupt" in sys.modules and sys.modules["scenarios.interrupt"].is_search_left():
        # An aborted solver is still inside C++; the interpreter must not be torn down around it.
        _flush()
        os._exit(code)
    return code


def _guarded(argv: Sequence[str] | None) -> int:
    try:
        code = _run(argv)
        sys.stdout.flush()
    except InputError as error:
        return _fail(str(error), ExitCode.BAD_INPUT)
    except ClaimFailedError as error:
        return _fail(str(error), ExitCode.FALSE_CLAIM)
    except KeyboardInterrupt:
        return _fail("aborted", ExitCode.ABORTED)
    except BrokenPipeError:
        _close_stdout()
        return ExitCode.BROKEN_PIPE
    except Exception:  # a defect: say so, and keep it apart from exit code 1
        import traceback

        return _fail(f"{traceback.format_exc()}pipecut: this is a defect in pipecut", ExitCode.DEFECT)
    return code


def _run(argv: Sequence[str] | None) -> int:
    try:
        arguments = parse(argv)
    except SystemExit as ended:  # argparse has said what there is to say
        return ended.code if isinstance(ended.code, int) else ExitCode.BAD_INPUT
    if "scenario" in arguments:
        arguments.scenario = open_scenario(arguments.scenario, arguments.overrides)
    return importlib.import_module(arguments.run).run(arguments)


def _fail(message: str, code: ExitCode) -> ExitCode:
    _flush()
    if sys.stderr is not None:
        sys.stderr.write(message.rstrip("\n") + "\n")
    return code


def _flush() -> None:
    try:
        sys.stdout.flush()
    except (OSError, AttributeError):
        _close_stdout()


def _close_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's own last flush stays quiet."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _never_fail_on_characters() -> None:
    """Show characters that a terminal's encoding lacks as ``?`` instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
