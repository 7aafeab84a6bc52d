"""The one JSON object that ``--json`` promises, whatever happens: the result, the error, or both.

``error`` is there exactly if the exit code is 2, 4, 70 or 130. A plan that was found but could not be written to
its file is a result with an error. ``scenarios/output.schema.json`` describes the object.

How a command ends: its exit code, what went wrong on stderr, and with ``--json`` one object on stdout.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pipecut.commands.terminal import terminal
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import (
    MEANINGS,
    ClaimFailedError,
    ExitCode,
    InputError,
    OutOfTimeError,
    Problem,
    lines_of,
)
from pipecut.ingest.files import WriteError
from pipecut.solvers.installed import InstalledError

KINDS = {
    ExitCode.BAD_INPUT: "bad input",
    ExitCode.FALSE_CLAIM: "false claim",
    ExitCode.DEFECT: "defect",
    ExitCode.ABORTED: "aborted",
}
"""Exit codes that tell of an error, and what its kind is called."""
_DELETE = "\x7f"
"""The one control character that JSON may hold as it is."""


@dataclass(slots=True)
class Reply:
    """What a run of a command answers. Without ``wanted`` (no ``--json``) nothing is written.

    ``files`` are those that the command line names: messages that begin with one tell place and line.
    """

    wanted: bool
    files: tuple[str, ...] = ()
    content: dict[str, Any] | None = None
    problems: list[Problem] = field(default_factory=list)
    _sent: bool = False

    def put(self, content: dict[str, Any], problems: Iterable[str] = ()) -> None:
        """Take the result, and what is wrong with it where the command will end in an error all the same."""
        self.content = content
        self.problems += [Problem(text) for text in problems]

    def text(self, code: ExitCode) -> str:
        """Return the object as text that any terminal can take. Raises ValueError for a number that JSON lacks."""
        content = dict(self.content or {})
        if code in KINDS:
            said = self.problems or [Problem(MEANINGS[code])]
            rows = [_known(_placed(one, self.files)) for one in said]
            content["error"] = {"code": int(code), "kind": KINDS[code], "messages": rows}
        return json.dumps(content, indent=2, allow_nan=False).replace(_DELETE, "\\u007f") + "\n"

    def send(self, code: ExitCode) -> None:
        """Write the object to stdout, once. Raises as ``output.write`` does, and ValueError as :meth:`text`."""
        if self.wanted and not self._sent and (self.content is not None or code in KINDS):
            text = self.text(code)
            self._sent = True
            output.write(text)


def _known(problem: Problem) -> dict[str, Any]:
    """Return a problem as plain data, without what is not known of its place."""
    return {key: value for key, value in asdict(problem).items() if value is not None}


def _placed(problem: Problem, files: Sequence[str]) -> Problem:
    """Read the place out of a message ``file:line:column: ...`` about one of these files."""
    for file in sorted(files, key=len, reverse=True):
        match = re.match(rf"{re.escape(file)}(?::(\d+))?(?::(\d+))?: ", problem.message)
        if problem.file is None and match is not None:
            line, column = (None if number is None else int(number) for number in match.groups())
            return replace(problem, file=file, line=line, column=column)
    return problem


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
    if isinstance(error, InputError | InstalledError):
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
