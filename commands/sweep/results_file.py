"""The file that a sweep appends its results to, a line of JSON each: what a killed sweep goes on from.

A line is written whole, with its end, and is on the disk before the next one is. A sweep that is killed in the
middle of a line leaves it without an end: the next one that writes cuts it off, and plans its point again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from commands.terminal.failures import InputError

PROVED = ("optimal", "infeasible")

try:
    import fcntl
except ImportError:  # a system without such locks: two sweeps at once on one file are not noticed
    fcntl = None


class ResultsFile:
    """A file of results, open for one sweep alone; ``known`` has what it holds, by key, the last line of a key.

    Raises InputError for a file that is none, that cannot be written, or that another sweep writes just now.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, dict[str, Any]] = {}
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error
        try:
            self._lock()
            self._read()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a result. Raises InputError where it cannot be written (a full disk)."""
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            raise InputError(f"{self.path}: not written: {error.strerror}") from error
        self.known[row["key"]] = dict(row)

    def settled(self, key: str, search: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what is known of a key, if a search like this one would find no more."""
        found = self.known.get(key)
        if found is None or found["proof"] is None:
            return None
        return found if found["proof"] in PROVED or found["search"] == dict(search) else None

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(f"{self.path}: another sweep writes this file; give --results another one") from error

    def _read(self) -> None:
        raw = self.path.read_bytes()
        whole = raw.rfind(b"\n") + 1
        for number, line in enumerate(raw[:whole].splitlines(), start=1):
            try:
                row = json.loads(line)
                self.known[str(row["key"])] = {"proof": row["proof"], "search": row["search"]} | row
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{self.path}:{number}: no result of a sweep; give --results another file"
                ) from error
        if whole < len(raw):
            os.ftruncate(self._file, whole)
