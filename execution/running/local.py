"""Processes on this machine: started together, watched, and ended together.

The starting process watches the others: when one fails or dies, all are ended at once, and the reason is that of
the first that did not merely miss another. A process whose starter is gone ends by itself. What they need to find
each other is a file in a temporary folder, which is removed, so no port is asked for.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from execution.errors import PeerError, RunFailedError, StagesError
from ingest.errors import ModelError

__all__ = ["as_one_of", "in_processes"]

Work = Callable[..., Any]
"""``work(process, say, *arguments)``: what a process does; ``say`` sends news to the starting process."""
GRACE_S = 2.0
"""How long others may take to tell their reasons when one has failed; then all are ended."""


@dataclass(slots=True)
class _Watch:
    """What is known of the processes: results, and reasons of failures (own ones, and of missing another)."""

    results: dict[int, Any] = field(default_factory=dict)
    failures: list[tuple[int, str, bool]] = field(default_factory=list)

    def reason(self) -> str:
        process, text, _ = min(self.failures, key=lambda one: one[2])
        return f"process {process}: {text}"


def in_processes(
    size: int, work: Work, arguments: Sequence[Any] = (), heard: Callable[[int, Any], None] = lambda *_: None
) -> list[Any]:
    """Run work in so many new processes that form a group of torch.distributed; return what each returns.

    ``work`` must be a function of a module, its arguments and results be picklable. ``heard`` gets the news of
    each process. Raises RunFailedError when one fails; then, and on Ctrl-C, none is left.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="pipecut-run-") as folder:
        lifeline, held = context.Pipe(duplex=False)
        pipes, processes = [], []
        try:
            for number in range(size):
                ours, theirs = context.Pipe(duplex=False)
                target = (number, size, folder, theirs, lifeline, work, tuple(arguments))
                process = context.Process(target=_child, args=target, name=f"pipecut {number}")
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
        raise RunFailedError(watch.reason())
    return [watch.results[number] for number in range(size)]


def as_one_of(size: int, work: Work, arguments: Sequence[Any], heard: Callable[[Any], None]) -> dict[int, Any]:
    """Do the work as one of the processes that torchrun has started; return its result under its number.

    Raises RunFailedError where torchrun started another number of them, and where another one is missed.
    """
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        if dist.get_world_size() != size:
            raise RunFailedError(
                f"the plan has {size} devices, torchrun started {dist.get_world_size()} processes"
            )
        number = dist.get_rank()
        return {number: _together(work, number, heard, arguments)}
    except PeerError as error:
        raise RunFailedError(str(error)) from error
    finally:
        dist.destroy_process_group()


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
    pipe: Connection,
    lifeline: Connection,
    work: Work,
    arguments: tuple[Any, ...],
) -> None:
    """Join the group, do the work, and tell how it went."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_starter, args=(lifeline, folder), daemon=True).start()
    import torch
    import torch.distributed as dist

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // size))
    if "lo" in {name for _, name in socket.if_nameindex()}:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        rendezvous = (Path(folder) / "rendezvous").as_uri()
        dist.init_process_group("gloo", init_method=rendezvous, rank=number, world_size=size)
        result = _together(work, number, lambda told: pipe.send(("news", told)), arguments)
        pipe.send(("result", result))
        dist.destroy_process_group()
    except PeerError as error:
        _tell(pipe, "missed", str(error))
    except (StagesError, ModelError) as error:
        _tell(pipe, "failed", str(error))
    except Exception as error:
        _tell(pipe, "failed", f"{type(error).__name__}: {error}")


def _together(work: Work, number: int, say: Callable[[Any], None], arguments: Sequence[Any]) -> Any:  # noqa: ANN401
    """Do the work, and wait until all others have done theirs; return its result."""
    import torch.distributed as dist

    result = work(number, say, *arguments)
    dist.barrier()
    gc.collect()  # groups that a circle of references keeps would be ended after Python, which aborts the process
    return result


def _tell(pipe: Connection, kind: str, text: str) -> None:
    with contextlib.suppress(OSError):
        pipe.send((kind, text))
    os._exit(1)


def _end_with_starter(lifeline: Connection, folder: str) -> None:
    """Wait for the end of the starting process, which holds the other end of a pipe; tidy up for it, and end."""
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
