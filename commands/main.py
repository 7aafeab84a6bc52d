"""The command line: ``pipecut plan``, ``compare``, ``evaluate``, ``simulate``, ``trace``.

This module only turns results and failures into exit codes; each command is a module of ``commands`` and is
imported when it is asked for. Whatever a user gets wrong ends in a message on stderr and exit code 2, never in
a traceback.

The files that a command line names: none that is read may be written over, and no two outputs may be one file.

Each command declares in the grammar which arguments it ``reads`` and ``writes``; a folder for pictures is written
in files of one ending. Files are the same if the system says so: over links, other spellings, and other mounts.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipecut.commands.parser.options import asks_for_json, parse
from pipecut.commands.parts.opening import ARGUMENTS, file_of, open_scenario
from pipecut.commands.terminal.failures import ExitCode, InputError, reading
from pipecut.commands.terminal.first_interrupt import imported
from pipecut.commands.terminal.reply import Reply, guarded
from pipecut.commands.terminal.starting import Starting
from pipecut.commands.terminal.terminal import cleaned

MODEL = "the model"
SHIPPED = "shipped"
"""What a command reads that reads all scenarios that ship."""
PICTURES = {"svg": ".svg", "png": ".png"}
"""Arguments that name a folder, and the ending of the files that are written there."""

DOCUMENT = ".md"
"""Ending of what a study writes, perhaps once more, into a folder of data."""


@dataclass(frozen=True, slots=True)
class Named:
    """A file or folder as the command line names it, and what it is: ``--out``, ``SCENARIO``, the model."""

    what: str
    path: Path
    ending: str = ""
    """Of the files that are written into a folder; empty for what is itself read or written."""


def refuse_overwriting(arguments: argparse.Namespace) -> None:
    """Raise InputError where an output would replace what is read, or another output; nothing is written yet."""
    outputs = list(outputs_of(arguments))
    inputs = list(inputs_of(arguments))
    for at, one in enumerate(outputs):
        for other in inputs:
            if _meet(one, other) or _inside(one, other):
                raise InputError(f"{one.what} {one.path}: would replace {other.what}, {other.path}, which is read")
        for other in outputs[:at]:
            if _meet(one, other) or _meet(other, one):
                raise InputError(f"{one.what} {one.path}: is the same file as {other.what} {other.path}")


def inputs_of(arguments: argparse.Namespace) -> Iterator[Named]:
    """Yield the files that a command line names to be read, the model of its scenario with them."""
    for name in arguments.reads:
        if name == SHIPPED:
            yield from _shipped()
        value = getattr(arguments, name, None)
        if value is None:
            continue
        if name == "scenario":
            yield Named("the scenario", Path(value.path))
            yield from _model(value.model, value.path.parent)
        elif name == "model":
            yield from _model(value, Path.cwd())
        else:
            with reading(value):
                path = file_of(value, ARGUMENTS[name]) if name in ARGUMENTS else value
            yield Named(f"the file of {_word(name)}", Path(path))


def _shipped() -> Iterator[Named]:
    from pipecut.ingest.scenario import shipped

    yield from (Named("a shipped scenario", path) for path in shipped.scenario_files(shipped.SHIPPED))


def outputs_of(arguments: argparse.Namespace) -> Iterator[Named]:
    """Yield the files and folders that a command line names to be written."""
    for name in arguments.writes:
        value = getattr(arguments, name)
        if value is not None:
            yield Named(f"--{name}", Path(value), PICTURES.get(name, ""))


def _model(model: str, folder: Path) -> Iterator[Named]:
    """Yield the file that a model is read from, if it is found without running anything."""
    if model.endswith((".json", ".txt", ".pt2")) or (folder / model).is_dir():
        yield Named(MODEL, folder / model)
        return
    from pipecut.ingest.torch.cache import find_module

    try:
        origin = find_module(model.partition(":")[0], [folder, Path.cwd()])
    except (OSError, ValueError):  # the reader of models says what is wrong with the name
        return
    if origin is not None:
        yield Named(MODEL, origin)


def _meet(written: Named, other: Named) -> bool:
    """Tell whether writing one thing writes the other, or into it."""
    if written.ending and not other.ending:
        same = other.path.suffix.casefold() == written.ending and _same(written.path, other.path.parent)
        return same or (_same(written.path, other.path) and not other.path.is_file())
    if written.ending and written.ending != other.ending:
        return False  # two kinds of pictures may share a folder
    return _same(written.path, other.path)


def _inside(written: Named, read: Named) -> bool:
    """Tell whether an output would replace a file of a folder that is read; a document in it is none of these."""
    if written.ending or written.path.suffix == DOCUMENT:
        return False
    return _asked(lambda: read.path.is_dir() and written.path.exists()) and any(
        _same(folder, read.path) for folder in written.path.resolve().parents
    )


def _same(one: Path, other: Path) -> bool:
    """Tell whether two paths are one file, which need not exist yet."""
    return _asked(lambda: one.samefile(other)) or _asked(lambda: one.resolve() == other.resolve())


def _asked(question: Callable[[], bool]) -> bool:
    """Ask the system about paths; what is no path at all is refused elsewhere, with its reason."""
    try:
        return question()
    except (OSError, ValueError, RuntimeError):
        return False


def _word(name: str) -> str:
    options = {"plan", "schedule_file", "data", "plans"}
    return f"--{name.replace('_', '-')}" if name in options else name.upper()


LIMITED = ("pipecut.commands.plan", "pipecut.commands.simulate")
"""Commands whose time limit is one for everything that they do."""


def main(argv: Sequence[str] | None = None, began_s: float | None = None) -> int:
    """Run a command and return its exit code (see ``commands.terminal.failures``).

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
        reply.files = (arguments.scenario,)
        with reading(arguments.scenario):
            arguments.scenario = file_of(arguments.scenario)
        reply.files = (arguments.scenario,)
        arguments.scenario = open_scenario(arguments.scenario, arguments.overrides, strict=arguments.strict)
    reply.files = tuple(str(named.path) for named in inputs_of(arguments))
    refuse_overwriting(arguments)
    command = importlib.import_module(arguments.run)
    imported()
    return command.run(arguments)
