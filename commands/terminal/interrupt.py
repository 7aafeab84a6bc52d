"""Ctrl-C while a solver works: the first one stops the search, the second one aborts.

A solver may sit in C++ where no Python signal handler runs. So the search runs in a thread, and the main thread
does nothing but wait for it and for signals. The thread is a daemon: an abort does not wait for the solver.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import TypeVar

__all__: list[str] = []

Result = TypeVar("Result")

THREAD_NAME = "pipecut-search"
POLL_S = 0.05
"""How often the main thread looks whether the search was asked to stop."""


def run_stoppable(
    work: Callable[[], Result], stop: threading.Event, on_stop: Callable[[], None] = lambda: None
) -> Result:
    """Run ``work`` in a thread and return its result, or raise what it raises.

    The first SIGINT sets ``stop``, which ``work`` is expected to look at, and calls ``on_stop``; the second one
    raises KeyboardInterrupt and leaves the thread behind. Outside the main thread no signal is handled.
    """
    future: Future[Result] = Future()

    def target() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # handed on to the caller, whatever it is
            future.set_exception(error)

    with _handled(stop):
        thread = threading.Thread(target=target, name=THREAD_NAME, daemon=True)
        thread.start()
        told = False
        while not future.done():
            with contextlib.suppress(TimeoutError):
                future.exception(timeout=POLL_S)
            if stop.is_set() and not told:
                told = True
                on_stop()
        thread.join()  # its work is done; a thread that is still ending would be taken for a search that was left
    return future.result()


def is_search_left() -> bool:
    """Tell whether an aborted search still runs in the background."""
    return any(thread.name == THREAD_NAME for thread in threading.enumerate())


@contextlib.contextmanager
def _handled(stop: threading.Event) -> Iterator[None]:
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not main or before in (signal.SIG_IGN, None):
        yield
        return

    def handle(_signal: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
