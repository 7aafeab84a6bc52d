"""The processes of a sweep: one that is killed at whatever moment leaves nothing behind that others wait for."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import BrokenExecutor

import pytest

from pipecut.commands.sweep.work import _STOP, processes


def looking(seconds: float) -> bool:
    """Ask all the time whether to stop, as a search does; in a process of the pool."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if _STOP[0].is_set():
            return True
    return False


@pytest.mark.slow
def test_a_killed_process_leaves_no_lock_behind() -> None:
    with processes(1) as (make, _):
        for _ in range(3):
            executor = make()
            process = executor.submit(os.getpid).result(timeout=60)
            busy = executor.submit(looking, 60)
            time.sleep(0.1)
            os.kill(process, signal.SIGKILL)
            with pytest.raises(BrokenExecutor):
                busy.result(timeout=60)
            executor.shutdown(wait=False)
        last = make()
        assert last.submit(looking, 0.01).result(timeout=60) is False
        stopped = last.submit(looking, 60)
        time.sleep(0.2)
    assert stopped.result(timeout=60) is True
    last.shutdown()
