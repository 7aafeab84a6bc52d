"""Work that cannot be stopped is waited for only as long as there is time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")

THREAD_NAME = "pipecut-search"
"""The name that tells the command line not to tear the interpreter down around a thread that is left behind."""
POLL_S = 0.05


def in_background(work: Callable[[], Result], over: Callable[[], bool]) -> Result | None:
    """Return what ``work`` returns, or raise what it raises; None if ``over`` is true first.

    The thread is then left behind. It is a daemon, so the program can end without it.
    """
    future: Future[Result] = Future()

    def target() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # handed on to the caller, whatever it is
            future.set_exception(error)

    threading.Thread(target=target, name=THREAD_NAME, daemon=True).start()
    while not future.done() and not over():
        with contextlib.suppress(TimeoutError):
            future.exception(timeout=POLL_S)
    return future.result() if future.done() else None
