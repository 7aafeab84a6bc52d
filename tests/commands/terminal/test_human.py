from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.commands.terminal import terminal as human


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.000 us"),
        (12_345_678, "12.35 ms"),
        (999_960, "1.000 ms"),
        (999_949, "999.9 us"),
        (61_000_000_000, "61.00 s"),
        (12_345_000_000_000, "12345 s"),
    ],
)
def test_durations(time_ns: int, text: str) -> None:
    assert human.duration(time_ns) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.500 KiB"),
        (11 * 2**30, "11 GiB"),
        (11 * 2**30 + 1, "11.00 GiB"),
        (2**40 - 1, "1.000 TiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)
def test_amounts(size_bytes: int, text: str) -> None:
    assert human.amount(size_bytes) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 %"), (1e-9, "< 0.01 %"), (-1e-9, "> -0.01 %"), (0.0336, "3.36 %"), (0.5, "50.0 %"), (1, "100 %")],
)
def test_gaps(value: float, text: str) -> None:
    assert human.gap(value) == text


@given(st.integers(1, 10**18))
def test_a_shown_time_is_close_to_the_true_one(time_ns: int) -> None:
    number, unit = human.duration(time_ns).split(" ")
    shown = float(number) * {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}[unit]
    assert shown == pytest.approx(time_ns, rel=1e-3)


def test_names_cannot_move_the_cursor() -> None:
    assert human.printable("a\x1b[2Jb\nc") == "a?[2Jb?c"
