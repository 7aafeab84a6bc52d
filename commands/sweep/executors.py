"""Who plans the points of a sweep: processes of this machine, or the machines of a dask scheduler."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

from commands.sweep.work import begun
from commands.terminal.failures import InputError

AHEAD = 2
"""Points that are ready for every process, so that none waits for the next."""
CONNECT_S = 10
"""How long a scheduler may take to answer."""
AT_ONCE = 1000
"""Points that a scheduler may have; it knows how many machines share them."""


@contextlib.contextmanager
def processes(number: int | None) -> Iterator[tuple[Callable[[], Executor], int]]:
    """Provide what starts so many processes (None: one for each core), and how many points they may have at once.

    They are new ones, that share nothing with this one. In the end they are asked to stop their searches.
    """
    context = multiprocessing.get_context("spawn")
    stop, open_end = context.Pipe(duplex=False)
    many = number or len(os.sched_getaffinity(0))
    try:
        yield lambda: ProcessPoolExecutor(many, context, begun, (stop,)), AHEAD * many
    finally:
        open_end.close()


@contextlib.contextmanager
def scheduler(address: str) -> Iterator[tuple[Callable[[], Executor], int]]:
    """Provide the executor of a dask scheduler, as :func:`processes`. Raises InputError where there is none."""
    try:
        distributed: Any = importlib.import_module("distributed")  # not everybody has it
    except ImportError as error:
        raise InputError("--scheduler needs dask, which is not installed: pip install 'pipecut[dask]'") from error
    try:
        client = distributed.Client(address, timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        raise InputError(f"--scheduler {address}: {error}") from error
    try:
        yield lambda: client.get_executor(pure=False), AT_ONCE
    finally:
        client.close()
