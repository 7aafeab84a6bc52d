"""Files read up to a limit and written whole or not at all.

JSON as its standard has it: no repeated keys, no NaN, no infinity; and not more of it than fits into memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pipecut.formulation.costs.amounts import counted

try:
    import fcntl
except ImportError:  # a system without such locks: what a killed writer leaves stays
    fcntl = None

_LONGEST_STEM = 100
"""Bytes of a file's name that its unfinished copy is called by: the longest name that any system takes is 255."""
_RANDOM_BYTES = 8


class WriteError(OSError):
    """A file could not be written; ``filename`` is the file that was meant, whatever stood in the way."""


def read_limited(path: Path, limit: int) -> str:
    """Return the UTF-8 text of a file of at most ``limit`` bytes.

    Raises OSError if it cannot be read and ValueError if it is larger or not UTF-8.
    """
    with path.open("rb") as file:
        raw = file.read(limit + 1)
    if len(raw) > limit:
        raise ValueError(f"the file is larger than {counted(limit, 'byte')}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text at byte {error.start}") from error


def atomic_write(path: Path, content: str | bytes) -> None:
    """Write so that readers see the old file or the new one, never a part: write beside it, then rename.

    What an earlier writer of the same file left when it was killed is cleaned away. Raises WriteError (an
    OSError); then the old file, if there was one, is untouched and nothing is left beside it.
    """
    raw = content.encode("utf-8") if isinstance(content, str) else content
    try:
        _remove_stale(path)
        with _unfinished(path) as (part, file):
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
            if fcntl is None:
                file.close()  # such systems rename no open file
            part.replace(path)
    except OSError as error:
        raise WriteError(error.errno, error.strerror or str(error), str(path)) from error


@contextlib.contextmanager
def _unfinished(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Open a new file beside ``path``, locked for as long as this process works on it; gone after a failure."""
    while True:
        part = path.with_name(f"{_stem(path)}{secrets.token_hex(_RANDOM_BYTES)}.part")
        with part.open("xb") as file:
            _lock(file.fileno(), wait=True)
            if fcntl is not None and not os.fstat(file.fileno()).st_nlink:
                continue  # taken for a stale one before it was locked
            try:
                yield part, file
            except BaseException:
                part.unlink(missing_ok=True)
                raise
            return


def _remove_stale(path: Path) -> None:
    """Remove unfinished copies of a file whose writers are gone: nobody holds their lock any more.

    A lock ends with its process, however that ends, and says so across machines that share a folder. Where
    there are no locks nothing is removed.
    """
    if fcntl is None:
        return
    name = re.compile(re.escape(_stem(path)) + rf"[0-9a-f]{{{2 * _RANDOM_BYTES}}}\.part")
    with os.scandir(path.parent) as entries:
        found = [Path(entry.path) for entry in entries if name.fullmatch(entry.name)]
    for part in found:
        with contextlib.suppress(OSError), part.open("r+b") as file:
            if _lock(file.fileno(), wait=False):
                part.unlink(missing_ok=True)


def _lock(descriptor: int, *, wait: bool) -> bool:
    """Lock an open file and return whether that worked; with ``wait`` it takes what a remover needs at most."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _stem(path: Path) -> str:
    """Return what the names of all unfinished copies of a file begin with."""
    return f".{os.fsdecode(os.fsencode(path.name)[:_LONGEST_STEM])}."


MOST_VALUES = 4_000_000
"""Values in one document: an object takes 50 times its text and more, so bytes alone bound nothing."""
LONGEST_KEY = 60
"""Characters of a key that a message shows."""


def parse_json(text: str | bytes) -> object:
    """Parse strict JSON. Raises ValueError for what is none, RecursionError for what is nested too deeply.

    ValueError, too, for text with signs of more than MOST_VALUES values, before any is made: every value but the
    first follows a comma or the begin of a list or an object, and in text that is ASCII these are single bytes.
    """
    signs = (",", "[", "{") if isinstance(text, str) else (b",", b"[", b"{")
    values = 1 + sum(text.count(sign) for sign in signs)  # type: ignore[arg-type]
    if values > MOST_VALUES:
        raise ValueError(f"about {values} values, expected at most {MOST_VALUES}")
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key[:LONGEST_KEY]!r} appears twice in one object")
        found[key] = value
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number of JSON")
