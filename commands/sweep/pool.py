"""Work given to an executor, and results as they come, however often a process of it is killed.

Anything with the interface of ``concurrent.futures.Executor`` will do. Where a process dies the executor is broken
and another one takes its place: what was being worked on is asked again, one after another, so that the one point
that kills its process (out of memory, say) is known, and told, and the others are not lost with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from dataclasses import dataclass, field
from typing import Any

from commands.sweep.work import SweepWork, failed

POLL_S = 0.1
"""How often somebody who asks to stop is heard."""
DIED = "the process that planned it died (killed, or out of memory), twice"
Item = tuple[str, SweepWork]
"""What is known by a key, and is to be planned."""


@dataclass(slots=True)
class WorkPool:
    """``make`` returns a new executor; at most ``at_once`` items are given to it at a time."""

    make: Callable[[], Executor]
    work: Callable[[SweepWork], dict[str, Any]]
    at_once: int
    stopped: Callable[[], bool]
    _executor: Executor | None = None
    _running: dict[Future[dict[str, Any]], Item] = field(default_factory=dict)
    _suspects: deque[Item] = field(default_factory=deque)

    def results(self, items: Iterable[Item]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield key and result of every item as they come; end early once somebody asks to stop."""
        coming = iter(items)
        try:
            while not self.stopped():
                self._fill(coming)
                if not self._running:
                    return
                done, _ = wait(self._running, timeout=POLL_S, return_when=FIRST_COMPLETED)
                yield from self._taken(done)
        finally:
            self._leave()

    def _fill(self, coming: Iterator[Item]) -> None:
        """Give the executor as much as it may have; a suspect alone."""
        if self._suspects:
            if not self._running:
                self._submit(self._suspects[0])
            return
        while len(self._running) < self.at_once and not self.stopped():
            item = next(coming, None)
            if item is None or not self._submit(item):
                return

    def _submit(self, item: Item) -> bool:
        if self._executor is None:
            self._executor = self.make()
        try:
            future = self._executor.submit(self.work, item[1])
        except BrokenExecutor as error:  # it broke since it was last asked, so this one is told like those it had
            future = Future()
            future.set_exception(error)
        self._running[future] = item
        return not _lost(future)

    def _taken(self, done: Iterable[Future[dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any]]]:
        broken = False
        for future in done:
            key, work = self._running.pop(future)
            alone = bool(self._suspects) and self._suspects[0][0] == key
            try:
                result = future.result()
            except (BrokenExecutor, CancelledError):
                broken = True
                if not alone:
                    self._suspects.append((key, work))
                    continue
                result = failed(DIED)
            except Exception as error:  # of an executor that has its own ways to fail: a worker that is lost
                result = failed(f"{type(error).__name__}: {error}")
            if alone:
                self._suspects.popleft()
            yield key, result
        if broken:
            self._broken()

    def _broken(self) -> None:
        """Leave an executor that has lost a process, and remember what it was working on but what is done."""
        finished = {one: item for one, item in self._running.items() if one.done() and not _lost(one)}
        self._suspects.extend(item for one, item in self._running.items() if one not in finished)
        self._leave()
        self._running.update(finished)

    def _leave(self) -> None:
        """Take back what the executor has not begun, and leave it; not all take it back as they are shut down."""
        for future in self._running:
            future.cancel()
        self._running.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=False)
        self._executor = None


def _lost(future: Future[dict[str, Any]]) -> bool:
    """Say whether a future ended with its executor, and not with work that was done."""
    return future.done() and (future.cancelled() or isinstance(future.exception(), BrokenExecutor))
