"""Quantities: what is read and to which whole number, and what is refused in which words."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.ingest.text.quantities import (
    LARGEST,
    QuantityError,
    bandwidth,
    duration,
    memory,
    needed_memory,
    ratio,
    speed,
)

READ: tuple[tuple[Callable[[object], int], str, int], ...] = (
    (bandwidth, "10 Gbit/s", 10_000_000_000),
    (bandwidth, "10Gbit/s", 10_000_000_000),
    (bandwidth, "1 Gbps", 1_000_000_000),
    (bandwidth, "15.75 GB/s", 126_000_000_000),
    (bandwidth, "1 GiB/s", 8 * 2**30),
    (bandwidth, "1 Kibit/s", 1024),
    (bandwidth, "9600 bps", 9600),
    (bandwidth, "0.5 B/s", 4),
    (memory, "11 GiB", 11_811_160_064),
    (memory, "11 GB", 11_000_000_000),
    (memory, "1.5 KiB", 1536),
    (memory, "7 B", 7),
    (memory, "23.64 GiB", 25_383_256_719),  # as PyTorch prints it: rounded down
    (memory, "1.9 B", 1),
    (needed_memory, "1.4 GiB", 1_503_238_554),  # rounded up
    (needed_memory, "0.1 B", 1),
    (needed_memory, "0", 0),
    (bandwidth, "1.1 Gibit/s", 1_181_116_006),
    (speed, "1.5 FLOP/s", 1),
    (memory, "2 TB", 2 * 10**12),
    (speed, "13.4 TFLOP/s", 13_400_000_000_000),
    (speed, "2 PFLOP/s", 2 * 10**15),
    (speed, "1 FLOP/s", 1),
    (duration, "5 us", 5_000),
    (duration, "5 µs", 5_000),
    (duration, "0.001 us", 1),
    (duration, "10 min", 600 * 10**9),
    (duration, "0 s", 0),
    (duration, "0", 0),
)


@pytest.mark.parametrize(("read", "text", "expected"), READ)
def test_quantity_is_read_exactly(read: Callable[[object], int], text: str, expected: int) -> None:
    found = read(text)
    assert found == expected
    assert type(found) is int


BANDWIDTH, DATA = "expected a bandwidth like '10 Gbit/s', got ", "expected an amount of data like '11 GiB', got "
SPEED, DURATION = "expected a speed like '13.4 TFLOP/s', got ", "expected a duration like '5 us', got "
REFUSED: tuple[tuple[Callable[[object], object], object, str], ...] = (
    (bandwidth, "10 GB", BANDWIDTH + "'10 GB' (an amount of data)"),
    (bandwidth, "5 us", BANDWIDTH + "'5 us' (a duration)"),
    (bandwidth, "10 Gb/s", BANDWIDTH + "'10 Gb/s'; did you mean '10 Gbit/s' or '10 GB/s'?"),
    (bandwidth, "10 mB/s", BANDWIDTH + "'10 mB/s'; did you mean '10 Mbit/s' or '10 MB/s'?"),
    (bandwidth, "10 gbit/s", BANDWIDTH + "'10 gbit/s'; did you mean '10 Gbit/s'?"),
    (bandwidth, "10 GBps", BANDWIDTH + "'10 GBps'; did you mean '10 Gbit/s' or '10 GB/s'?"),
    (bandwidth, 10, BANDWIDTH + "10 without a unit; write '10 Gbit/s' or '10 GB/s'"),
    (bandwidth, "0 Gbit/s", BANDWIDTH + "'0 Gbit/s', which is not above 0"),
    (bandwidth, "0.1 bit/s", "'0.1 bit/s' is not a whole number of bit/s"),
    (bandwidth, "1000001 TB/s", "'1000001 TB/s' is more than 10^18 bit/s, the most that pipecut counts"),
    (memory, 11, DATA + "11 without a unit; write '11 GiB' or '11 GB'"),
    (memory, "11", DATA + "'11' without a unit; write '11 GiB' or '11 GB'"),
    (memory, "11 G", DATA + "'11 G'; did you mean '11 GB'?"),
    (memory, "11 Gb", DATA + "'11 Gb'; did you mean '11 GB'?"),
    (memory, "11 gib", DATA + "'11 gib'; did you mean '11 GiB'?"),
    (memory, "11 Gbit", DATA + "'11 Gbit' (an amount in bits; pipecut counts data in bytes, B)"),
    (memory, "-1 GB", DATA + "'-1 GB', which is not above 0"),
    (memory, "1,5 GB", DATA + "'1,5 GB'"),
    (memory, "1e9 B", DATA + "'1e9 B'"),
    (memory, "nan GB", DATA + "'nan GB'"),
    (memory, "inf", DATA + "'inf'"),
    (memory, "١ GB", DATA + "'١ GB'"),
    (memory, "9" * 41, DATA + "a text of 41 characters"),
    (memory, True, DATA + "True"),
    (memory, None, DATA + "nothing"),
    (memory, [1], DATA + "a list"),
    (memory, "0.5 B", "'0.5 B' is not a whole number of bytes"),
    (speed, "13.4 TFLOPS", SPEED + "'13.4 TFLOPS'; did you mean '13.4 TFLOP/s'?"),
    (speed, "13.4 TiFLOP/s", SPEED + "'13.4 TiFLOP/s'; did you mean '13.4 TFLOP/s'?"),
    (duration, "5", DURATION + "'5' without a unit; write '5 us' or '5 ms' or '5 s'"),
    (duration, "-1 us", DURATION + "'-1 us', which is below 0"),
    (duration, "0.5 ns", "'0.5 ns' is not a whole number of ns"),
    (duration, False, DURATION + "False"),
    (ratio, "3/0", "expected a number of 0 or more like '2', '1.5' or '3/2', got '3/0'"),
    (ratio, "-1", "expected a number of 0 or more like '2', '1.5' or '3/2', got '-1'"),
    (ratio, True, "expected a number of 0 or more like '2', '1.5' or '3/2', got True"),
)


@pytest.mark.parametrize(("read", "value", "message"), REFUSED)
def test_quantity_is_refused_in_words_that_help(
    read: Callable[[object], object], value: object, message: str
) -> None:
    with pytest.raises(QuantityError) as caught:
        read(value)
    assert str(caught.value) == message


def test_ratio_is_exact() -> None:
    assert [ratio(value) for value in (2, "2", "1.5", "3/2", "0.1")] == [
        2,
        2,
        Fraction(3, 2),
        Fraction(3, 2),
        Fraction(1, 10),
    ]


UNITS: tuple[tuple[Callable[[object], int], str, int], ...] = (
    (bandwidth, "bit/s", 1),
    (bandwidth, "Mbit/s", 10**6),
    (bandwidth, "kB/s", 8_000),
    (bandwidth, "MiB/s", 8 * 2**20),
    (memory, "B", 1),
    (memory, "GB", 10**9),
    (memory, "TiB", 2**40),
    (needed_memory, "GiB", 2**30),
    (speed, "GFLOP/s", 10**9),
    (duration, "ms", 10**6),
    (duration, "h", 3600 * 10**9),
)


@given(st.sampled_from(UNITS), st.integers(1, 10**18))
def test_whole_numbers_round_trip(unit: tuple[Callable[[object], int], str, int], number: int) -> None:
    read, name, size = unit
    if number * size <= LARGEST:
        assert read(f"{number} {name}") == number * size


@given(st.sampled_from(UNITS), st.integers(0, 10**9), st.integers(0, 999_999_999))
def test_decimals_are_rounded_once_and_times_exact(
    unit: tuple[Callable[[object], int], str, int], whole: int, billionths: int
) -> None:
    """What there is down, what is needed up; a part of a nanosecond is refused."""
    read, name, size = unit
    exact = (whole + Fraction(billionths, 10**9)) * size
    text = f"{whole}.{billionths:09d} {name}"
    if (exact.denominator == 1 or read is not duration) and 1 <= exact <= LARGEST:
        assert read(text) == (math.ceil(exact) if read is needed_memory else math.floor(exact))
    elif exact > 0 and read is not needed_memory:
        with pytest.raises(QuantityError):
            read(text)


@given(st.one_of(st.text(), st.from_regex(r"[0-9.,e+-]{1,8} ?[kKMGTPi]{0,2}[bB]?(it)?(/s|ps)?", fullmatch=True)))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (bandwidth, memory, speed, duration):
        try:
            assert 0 <= read(text) <= LARGEST
        except QuantityError as error:
            assert len(str(error)) < 250
