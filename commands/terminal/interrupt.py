"""Ctrl-C and the end of the time while a solver works: both stop the search, a second Ctrl-C aborts.

A solver may sit in C++ where no Python signal handler runs. So the search runs in a thread, and the main thread
does nothing but wait for it, for signals and for the end of the time. A search that does not end then is left. The
thread is a daemon: nobody waits for it, and it ends as soon as it is back in Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import TypeVar

from pipecut.formulation.limits import NEVER, Deadline

Result = TypeVar("Result")

THREAD_NAME = "pipecut-search"
POLL_S = 0.05
"""How often the main thread looks whether the search was asked to stop."""
GRACE_S = 0.5
"""How long a search may take to stop before it is left."""


ECHO_S = 0.05
"""A signal so soon after the first is that one again: ``timeout -s INT`` sends it to a process and its group."""


class LeftError(BaseException):
    """Nobody waits for this search any more. It is no Exception, so that no search takes it for its own."""


def run_stoppable(
    work: Callable[[], Result],
    stop: threading.Event,
    on_stop: Callable[[], None] = lambda: None,
    *,
    deadline: Deadline = NEVER,
    instead: Callable[[], Result] | None = None,
) -> Result:
    """Run ``work`` in a thread and return its result, or raise what it raises.

    The first SIGINT sets ``stop``, which ``work`` is expected to look at, and calls ``on_stop``; the second one
    raises KeyboardInterrupt and leaves the thread behind. Where ``work`` is not back GRACE_S after it was asked to
    stop, or after the deadline, it is left, and what ``instead`` returns is the result. Outside the main thread no
    signal is handled.
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
        told, over_s = False, None
        while not future.done():
            with contextlib.suppress(TimeoutError):
                future.exception(timeout=POLL_S)
            if stop.is_set() and not told:
                told = True
                on_stop()
            if over_s is None and (stop.is_set() or deadline.over()):
                now_s = time.monotonic()
                over_s = min(now_s, now_s if deadline.end_s is None else deadline.end_s)
            if instead is not None and over_s is not None and time.monotonic() - over_s > GRACE_S:
                _end(thread)
                return instead()
        thread.join()  # its work is done; a thread that is still ending would be taken for a search that was left
    return future.result()


def _end(thread: threading.Thread) -> None:
    """Have a thread end at its next step in Python."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(LeftError))


def is_search_left() -> bool:
    """Tell whether a search that was left still runs in the background."""
    return any(thread.name == THREAD_NAME for thread in threading.enumerate())


@contextlib.contextmanager
def _handled(stop: threading.Event) -> Iterator[None]:
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not main or before in (signal.SIG_IGN, None):
        yield
        return

    at_s = list[float]()

    def handle(_signal: int, _frame: FrameType | None) -> None:
        at_s.append(time.monotonic())
        if stop.is_set() and not 0 < at_s[-1] - at_s[0] < ECHO_S:
            raise KeyboardInterrupt
        stop.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
