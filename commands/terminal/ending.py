"""How a command ends: its exit code, what went wrong on stderr, and with ``--json`` one object on stdout."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from commands.terminal import output, terminal
from commands.terminal.exit_codes import ExitCode
from commands.terminal.failures import ClaimFailedError, InputError, OutOfTimeError, lines_of
from commands.terminal.reply import Reply
from ingest.files import WriteError

DEFECT = "pipecut: this is a defect in pipecut"


def guarded(work: Callable[[], int], reply: Reply) -> int:
    """Run a command and its reply to the end; nothing is raised, and whatever went wrong has been said."""
    try:
        code = work()
        reply.send(ExitCode(code))
    except BrokenPipeError:
        terminal.close_stdout()
        return ExitCode.BROKEN_PIPE
    except BaseException as error:  # KeyboardInterrupt with it
        return _failed(error, reply)
    return code


def _failed(error: BaseException, reply: Reply) -> ExitCode:
    """Say what went wrong, on stderr and in the reply, and return the exit code."""
    code, message = _said(error)
    output.remark(message.rstrip("\n"))
    if isinstance(error, InputError):
        reply.problems += error.problems
    elif code is ExitCode.DEFECT:
        reply.problems += lines_of("".join(traceback.format_exception_only(error)))
    else:
        reply.problems += lines_of(message)
    if isinstance(error, ValueError):  # a result with a number that JSON lacks is none
        reply.content = None
    try:
        reply.send(code)
    except BrokenPipeError:
        terminal.close_stdout()
    except InputError:  # stdout takes nothing more, as was said
        terminal.close_stdout()
    return code


def _said(error: BaseException) -> tuple[ExitCode, str]:
    """Return the exit code of an error and the message for people."""
    if isinstance(error, InputError):
        return ExitCode.BAD_INPUT, str(error)
    if isinstance(error, WriteError):
        return ExitCode.BAD_INPUT, f"{error.filename}: not written: {error.strerror}"
    if isinstance(error, OutOfTimeError):
        return ExitCode.NOT_PROVED, str(error)
    if isinstance(error, ClaimFailedError):
        return ExitCode.FALSE_CLAIM, str(error)
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.ABORTED, "aborted"
    return ExitCode.DEFECT, f"{''.join(traceback.format_exception(error))}{DEFECT}"
