"""What is watched while a reader reads: processor time, memory, and the files that it touches."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = frozenset({"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"})
OF_TWO = frozenset({"os.rename", "os.link", "os.symlink"})
STARTS = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect"})
WAITED = 20
"""How many times longer a reader may take by the clock than of the processor, which others may use as well."""


class HangError(BaseException):
    """A reader took longer than it may. No reader catches it: it is none of their errors."""


class Watch:
    """Limits on each input, and whatever was written outside of ``folder``. One for a process: its hook stays."""

    def __init__(self, folder: Path, seconds: float, memory_bytes: int) -> None:
        self.seconds, self.memory_bytes = seconds, memory_bytes
        self.touched: list[str] = []
        self._folder = str(folder.resolve())
        self._active = False
        sys.addaudithook(self._audit)
        signal.signal(signal.SIGALRM, _stop)
        signal.signal(signal.SIGPROF, _stop)

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Watch the reading of one input. Raises HangError and MemoryError out of the reader."""
        self.touched.clear()
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (_address_space_bytes() + self.memory_bytes, before[1]))
        signal.setitimer(signal.ITIMER_PROF, self.seconds)
        signal.setitimer(signal.ITIMER_REAL, WAITED * self.seconds)
        self._active = True
        try:
            yield
        finally:
            self._active = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_PROF, 0)
            resource.setrlimit(resource.RLIMIT_AS, before)

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self._active:
            return
        if event in STARTS:
            self.touched.append(event)
        elif event == "open" and isinstance(arguments[2], int) and not arguments[2] & WRITING:
            return
        elif event == "open" or event in CHANGES:
            paths = arguments[: 2 if event in OF_TWO else 1]
            self.touched += [f"{event} {path!r}" for path in paths if not self._inside(path)]

    def _inside(self, path: object) -> bool:
        text = os.fsdecode(path) if isinstance(path, str | bytes) else str(path)
        return text == os.devnull or os.path.realpath(text).startswith(self._folder)


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise HangError


def _address_space_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()
