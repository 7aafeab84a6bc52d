"""A process of a run that torchrun has started: its work, and how it ends when another one fails.

torchrun ends all processes when one of them fails, by SIGTERM, a tenth of a second later. A process that waits for
another in C++ runs no Python handler then, and would end without a word. So signals are written to a pipe (that
is done by the interpreter's own handler, in any state), and a thread that reads it says where the process was and
ends it. The same thread looks whether torchrun is still there: nobody else would end a process without it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from execution.errors import RunFailedError
from execution.processes.local import GRACE_S, Voice, Work, reason_of, together

LOOK_S = 1.0
"""How often a process looks whether torchrun is still there."""


class _Now:
    """What a process does just now."""

    value: bytes = b"starting"


def as_one_of(
    size: int,
    work: Work,
    arguments: Sequence[Any],
    heard: Callable[[Any], None],
    tell: Callable[[str], None],
) -> dict[int, Any]:
    """Do the work as one of the processes that torchrun has started; return its result under its number.

    ``tell`` is told the reason when torchrun ends this process or is gone; the process ends behind it.
    Raises RunFailedError where torchrun started another number of processes, and where this one fails or misses
    another one.
    """
    number, now = int(os.environ["RANK"]), _Now()
    if int(os.environ["WORLD_SIZE"]) != size:
        raise RunFailedError(f"the plan has {size} devices, torchrun started {os.environ['WORLD_SIZE']} processes")
    import torch.distributed as dist

    from execution.processes.devices import join

    with _told_of_the_end(lambda why: tell(f"process {number}: {why}, at: {now.value.decode()}")):
        try:
            join(number, size)
            return {number: together(work, number, Voice(heard, now), arguments)}
        except Exception as error:
            raise RunFailedError(f"process {number}: {reason_of(error)}") from error
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


@contextlib.contextmanager
def _told_of_the_end(tell: Callable[[str], None]) -> Iterator[None]:
    """Let a thread say why torchrun ends this process, and end it. Only the main thread may handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read, written = os.pipe()
    os.set_blocking(written, False)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    outer = signal.set_wakeup_fd(written)
    thread = threading.Thread(target=_watch, args=(read, os.getppid(), tell), daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(outer)
        signal.signal(signal.SIGTERM, before)
        os.close(written)
        thread.join()
        os.close(read)


def _watch(pipe: int, starter: int, tell: Callable[[str], None]) -> None:
    """End the process when a signal or the end of its starter asks for it; return when the pipe is closed."""
    while True:
        if select.select([pipe], [], [], LOOK_S)[0]:
            came = os.read(pipe, 64)
            if not came:
                return
            if signal.SIGTERM in came:
                _end(tell, "ended by torchrun, as another process failed", signal.SIGTERM)
            if signal.SIGINT in came:
                time.sleep(GRACE_S)  # enough for the main thread, unless it waits for another process
                _end(tell, "interrupted", signal.SIGINT)
        if os.getppid() != starter:
            _end(tell, "torchrun is gone", signal.SIGTERM)


def _end(tell: Callable[[str], None], why: str, by: int) -> None:
    with contextlib.suppress(Exception):
        tell(why)
    os._exit(128 + by)
