"""The one clock: when it is over, what is left, and who is told."""

from __future__ import annotations

import pytest

from pipecut.formulation.limits import NEVER, Deadline, StoppedError, in_time
from pipecut.formulation.outcome import Limits, begin


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the clock, to be set."""
    time = [100.0]
    monkeypatch.setattr("pipecut.formulation.limits.time.monotonic", lambda: time[0])
    return time


def test_a_deadline_is_over_at_its_end_or_when_someone_asks(now: list[float]) -> None:
    deadline = Deadline(105.0)
    assert not deadline.over() and deadline.left_s() == 5
    now[0] = 105.0
    assert deadline.over() and deadline.left_s() == 0
    now[0] = 107.0
    assert deadline.left_s() == 0
    assert Deadline(None, lambda: True).over() and not NEVER.over() and NEVER.left_s() is None
    with pytest.raises(StoppedError):
        deadline.check()


def test_parts_never_end_later(now: list[float]) -> None:
    deadline = Deadline(110.0)
    assert deadline.share(4).end_s == 102.5
    assert deadline.within(3).end_s == 103 and deadline.within(30).end_s == 110
    assert NEVER.share(4) == NEVER and NEVER.within(3).end_s == 103


def test_items_end_with_the_time(now: list[float]) -> None:
    seen: list[int] = []
    with pytest.raises(StoppedError):
        for item in in_time(range(10), Deadline(103.0)):
            seen.append(item)
            now[0] += 1
    assert seen == [0, 1, 2]


def test_limits_begin_once_and_keep_their_end_whoever_gets_them(now: list[float]) -> None:
    limits = Limits(time_limit_s=10)
    assert limits.deadline.end_s is None
    begun = limits.begun()
    now[0] = 104.0
    assert begin(begun) is begun and begun.deadline.left_s() == 6
    assert limits.begun(since_s=99.0).deadline.left_s() == 5
    assert begun.within(2).deadline.left_s() == 2 and begun.within(60).deadline.left_s() == 6
    assert begun.share(3).deadline.left_s() == 2
    assert begin(None).deadline.left_s() is None
