"""Processes on this machine: started together, watched, and ended together.

The starting process watches the others: when one fails or dies, all are ended at once, and the reason is that of
the first that did not merely miss another. A process whose starter is gone ends by itself. What they need to find
each other is a file in a temporary folder, which is removed, so no port is asked for.

A process of a run that torchrun has started: its work, and how it ends when another one fails.

torchrun ends all processes when one of them fails, by SIGTERM, a tenth of a second later. A process that waits for
another in C++ runs no Python handler then, and would end without a word. So signals are written to a pipe (that
is done by the interpreter's own handler, in any state), and a thread that reads it says where the process was and
ends it. The same thread looks whether torchrun is still there: nobody else would end a process without it.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipecut.execution.errors import PeerError, RunFailedError, StagesError
from pipecut.ingest.errors import ModelError

Work = Callable[..., Any]
"""``work(process, say, *arguments)``: what a process does; ``say`` sends news to the starting process."""
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**33), "MALLOC_MMAP_MAX_": "0", "MALLOC_TOP_PAD_": str(2**28)}
"""What tells the C library to keep memory between passes: each page that it gives back costs a fault."""
NOW_BYTES = 200
"""Of what a process says that it does just now."""
GRACE_S = 2.0
"""How long others may take to tell their reasons when one has failed; then all are ended."""


@dataclass(slots=True)
class _Watch:
    """What is known of the processes: results, and reasons of failures (own ones, and of missing another)."""

    results: dict[int, Any] = field(default_factory=dict)
    failures: list[tuple[int, str, bool]] = field(default_factory=list)

    def reason(self, doing: Sequence[str]) -> str:
        """Say why: the first failure that is no miss, else all misses, and where the others were."""
        own = [one for one in self.failures if not one[2]]
        if own:
            return f"process {own[0][0]}: {own[0][1]}"
        missed = {process: text for process, text, _ in self.failures}
        others = [f"process {at} was at: {text}" for at, text in enumerate(doing) if at not in missed and text]
        return "; ".join([*(f"process {at}: {text}" for at, text in sorted(missed.items())), *others])


class Voice:
    """How a process tells: ``hear`` gets its news, ``now`` has what it does just now, where others can read it."""

    def __init__(self, hear: Callable[[Any], None], now: Any = None) -> None:  # noqa: ANN401 (shared memory)
        """Keep who hears."""
        self._hear, self._now = hear, now

    def __call__(self, news: Any) -> None:  # noqa: ANN401 (anything that can be pickled)
        """Tell news."""
        self._hear(news)

    def doing(self, what: str) -> None:
        """Note what is done from now on."""
        if self._now is not None:
            self._now.value = what.encode()[:NOW_BYTES]


def in_processes(
    size: int, work: Work, arguments: Sequence[Any] = (), heard: Callable[[int, Any], None] = lambda *_: None
) -> list[Any]:
    """Run work in so many new processes that form a group of torch.distributed; return what each returns.

    ``work`` must be a function of a module, its arguments and results be picklable. ``heard`` gets the news of
    each process. Raises RunFailedError when one fails; then, and on Ctrl-C, none is left.
    """
    context = _context()
    with tempfile.TemporaryDirectory(prefix="pipecut-run-") as folder:
        lifeline, held = context.Pipe(duplex=False)
        pipes, processes = [], []
        doing: list[Any] = [context.Array("c", NOW_BYTES + 1) for _ in range(size)]
        try:
            for number in range(size):
                ours, theirs = context.Pipe(duplex=False)
                target = (number, size, folder, (theirs, lifeline, doing[number]), work, tuple(arguments))
                process = context.Process(target=_child, args=target, name=f"pipecut {number}")
                with _memory_kept():
                    process.start()
                theirs.close()
                pipes.append(ours)
                processes.append(process)
            watch = _watched(processes, pipes, heard)
        finally:
            _end(processes)
            for one in (*pipes, lifeline, held):
                one.close()
    if watch.failures:
        raise RunFailedError(watch.reason([one.value.decode(errors="replace") for one in doing]))
    return [watch.results[number] for number in range(size)]


def _context() -> Any:  # noqa: ANN401 (of any start method)
    """Return how processes are made: forked from one that has imported all that they need, where that is safe.

    That one listens at a path in the folder of temporary files, which may have 107 bytes.
    """
    forks = sys.platform == "linux" and len(tempfile.gettempdir().encode()) < 75
    context = multiprocessing.get_context("forkserver" if forks else "spawn")
    context.set_forkserver_preload(["pipecut.execution.measuring", "torch.export._trace"])
    return context


@contextlib.contextmanager
def _memory_kept() -> Iterator[None]:
    """Let processes that are started keep memory that they will need again (``KEEP_MEMORY``)."""
    added = {name: value for name, value in KEEP_MEMORY.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _watched(processes: Sequence[Any], pipes: Sequence[Connection], heard: Callable[[int, Any], None]) -> _Watch:
    """Wait until all have told their results, or one has failed and the others have had time to tell why."""
    watch, open_pipes = _Watch(), dict(zip(pipes, range(len(pipes)), strict=True))
    until: float | None = None
    while open_pipes and (until is None or time.monotonic() < until):
        for ready in wait(list(open_pipes), 0.2):
            if not isinstance(ready, Connection):
                continue
            number = open_pipes[ready]
            try:
                kind, told = ready.recv()
            except EOFError:
                del open_pipes[ready]
                if number not in watch.results and number not in {one for one, _, _ in watch.failures}:
                    watch.failures.append((number, _death(processes[number]), False))
            else:
                if kind == "news":
                    heard(number, told)
                elif kind == "result":
                    watch.results[number] = told
                else:
                    watch.failures.append((number, told, kind == "missed"))
        if watch.failures and until is None:
            until = time.monotonic() + GRACE_S
    return watch


def _death(process: Any) -> str:  # noqa: ANN401 (of any start method)
    process.join(GRACE_S)
    code = process.exitcode
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code} and without a word"


def _end(processes: Sequence[Any]) -> None:
    """End processes: by asking, then by force."""
    for process in processes:
        if process.is_alive():
            process.terminate()
    for process in processes:
        process.join(GRACE_S)
        if process.is_alive():
            process.kill()
            process.join()


def _child(
    number: int,
    size: int,
    folder: str,
    ways: tuple[Connection, Connection, Any],
    work: Work,
    arguments: tuple[Any, ...],
) -> None:
    """Join the group, do the work, and tell how it went."""
    pipe, lifeline, now = ways
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_starter, args=(lifeline, folder), daemon=True).start()
    import torch
    import torch.distributed as dist

    from pipecut.execution.processes.channel import join

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // size))
    if "lo" in {name for _, name in socket.if_nameindex()}:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        rendezvous = (Path(folder) / "rendezvous").as_uri()
        join(number, size, rendezvous)
        result = together(work, number, Voice(lambda told: pipe.send(("news", told)), now), arguments)
        pipe.send(("result", result))
        dist.destroy_process_group()
    except Exception as error:
        with contextlib.suppress(OSError):
            pipe.send(("missed" if is_missed(error) else "failed", reason_of(error)))
        os._exit(1)


def is_missed(error: Exception) -> bool:
    """Tell whether a process failed because another one is gone: that one knows the reason."""
    lost = isinstance(error, RuntimeError) and "/gloo/" in str(error)  # another process closed its connection
    return lost or isinstance(error, PeerError)


def reason_of(error: Exception) -> str:
    """Return why a process failed; of an error that nobody expected with the line that raised it."""
    if isinstance(error, (PeerError, StagesError, ModelError)):
        return str(error)
    *_, raised = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {error} ({raised.filename}:{raised.lineno})"


def together(work: Work, number: int, say: Voice, arguments: Sequence[Any]) -> Any:  # noqa: ANN401
    """Do the work, and wait until all others have done theirs; return its result."""
    import torch.distributed as dist

    result = work(number, say, *arguments)
    dist.barrier()
    gc.collect()  # groups that a circle of references keeps would be ended after Python, which aborts the process
    return result


def _end_with_starter(lifeline: Connection, folder: str) -> None:
    """Wait for the end of the starting process, which holds the other end of a pipe; tidy up for it, and end."""
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


LOOK_S = 1.0
"""How often a process looks whether torchrun is still there."""


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
    number, now = int(os.environ["RANK"]), SimpleNamespace(value=b"starting")
    if int(os.environ["WORLD_SIZE"]) != size:
        raise RunFailedError(f"devices of the plan: {size}, processes of torchrun: {os.environ['WORLD_SIZE']}")
    import torch.distributed as dist

    from pipecut.execution.processes.channel import join

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
        # Who fails says why, also where torchrun ends all others because of that.
        signal.signal(signal.SIGTERM, before if sys.exc_info()[0] is None else signal.SIG_IGN)
        os.close(written)
        thread.join()
        os.close(read)


def _watch(pipe: int, starter: int, tell: Callable[[str], None]) -> None:
    """End the process when a signal or the end of its starter asks for it; return when the pipe is closed."""
    while True:
        if select.select([pipe], [], [], LOOK_S)[0]:
            if not (came := os.read(pipe, 64)):
                return
            if signal.SIGTERM in came:
                _end_under_torchrun(tell, "ended by torchrun, as another process failed", signal.SIGTERM)
            if signal.SIGINT in came:
                time.sleep(GRACE_S)  # enough for the main thread, unless it waits for another process
                _end_under_torchrun(tell, "interrupted", signal.SIGINT)
        if os.getppid() != starter:
            _end_under_torchrun(tell, "torchrun is gone", signal.SIGTERM)


def _end_under_torchrun(tell: Callable[[str], None], why: str, by: int) -> None:
    with contextlib.suppress(Exception):
        tell(why)
    os._exit(128 + by)
