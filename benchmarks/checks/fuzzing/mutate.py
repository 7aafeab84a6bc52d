"""Valid input made wrong, one to four times over: its bytes, its lines and numbers, or the tree of its values."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

NUMBERS: tuple[object, ...] = (
    *(
        0,
        1,
        -1,
        2,
        7,
        1000,
        10**6,
        2**31 - 1,
        2**31,
        2**32,
        2**53 + 1,
        2**63 - 1,
        2**63,
        2**64,
        10**30,
        -(2**63),
        10**400,
    ),
    *(0.0, -0.0, 0.5, 1e-320, 1e-9, 1e18, 1.7e308, float("inf"), float("nan"), True, False),
)
TEXTS: tuple[str, ...] = (
    *(
        "",
        " ",
        "a",
        "0",
        "-1",
        "1e999",
        "null",
        "yes",
        "٣",
        "0x10",
        "1_000",
        "=1",
        "a=b",
        ".",
        "..",
        "/",
        "../../x",
    ),
    *("\x00", "\x1b[2J", "\u202e", "\ud800", "\n", "\r\n", "\ufeff", "漢" * 50, "x" * 5000, "[" * 500, "{" * 500),
    *("1 GiB", "-1 GiB", "1e30 TFLOP/s", "0 s", "9" * 400, "9" * 5000, "*anchor", "&a", "!!python/object:x", "<<"),
)
TOKENS: tuple[bytes, ...] = (
    *(
        b"",
        b"\x00",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xc0\x80",
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b'"',
        b"'",
        b"\n",
    ),
    *(b"\t", b"\r", b"#", b"--", b"-1", b"1e999", b"NaN", b"Infinity", b"null", b"true", b"9" * 30, b"9" * 5000),
    *(b"[" * 3000, b'{"a":' * 3000, b"- " * 300, b"&a [*a, *a]", b"\x1b[2J", b"\\ud800", b"0" * 400, b"e9" * 9),
)
TIMES = (1, 1, 1, 2, 4)
"""How often an input is changed: mostly once, since what is wrong all over is refused at its first mistake."""
_DIGITS = re.compile(rb"\d+(?:\.\d+)?")


def mutated(sample: bytes, structure: str, rng: random.Random) -> bytes:
    """Return a sample made wrong. ``structure``: json, yaml or lines."""
    if structure == "lines" or rng.random() < 0.4:
        for _ in range(rng.choice(TIMES)):
            sample = rng.choice(BYTEWISE)(sample, rng)
        return sample
    data = json.loads(sample) if structure == "json" else yaml.safe_load(sample)
    for _ in range(rng.choice(TIMES)):
        data = _changed(data, rng)
    text = _dumped(data, structure, rng)
    return rng.choice(BYTEWISE)(text, rng) if rng.random() < 0.1 else text


def _dumped(data: object, structure: str, rng: random.Random) -> bytes:
    text = json.dumps(data, ensure_ascii=rng.random() < 0.7)
    if structure == "yaml" and rng.random() < 0.5:
        with contextlib.suppress(RecursionError):  # a deep nest is written as JSON, which YAML is too
            text = yaml.safe_dump(data, allow_unicode=rng.random() < 0.5)
    return text.encode("utf-8", "surrogatepass")


def _flip(sample: bytes, rng: random.Random) -> bytes:
    spoilt = bytearray(sample or b"x")
    spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
    return bytes(spoilt)


def _cut(sample: bytes, rng: random.Random) -> bytes:
    start, stop = sorted(rng.randrange(len(sample) + 1) for _ in range(2))
    return sample[:start] + sample[stop:]


def _end(sample: bytes, rng: random.Random) -> bytes:
    return sample[: rng.randrange(len(sample) + 1)]


def _insert(sample: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(sample) + 1)
    return sample[:at] + rng.choice(TOKENS) + sample[at:]


def _repeat(sample: bytes, rng: random.Random) -> bytes:
    start, stop = sorted(rng.randrange(len(sample) + 1) for _ in range(2))
    return sample[:stop] + sample[start:stop] * rng.choice((1, 2, 50)) + sample[stop:]


def _noise(sample: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(sample) + 1)
    return sample[:at] + rng.randbytes(rng.randint(1, 30)) + sample[at:]


def _number(sample: bytes, rng: random.Random) -> bytes:
    found = list(_DIGITS.finditer(sample))
    if not found:
        return _insert(sample, rng)
    one = rng.choice(found)
    return sample[: one.start()] + str(rng.choice(NUMBERS)).encode() + sample[one.end() :]


def _lines(sample: bytes, rng: random.Random) -> bytes:
    lines = sample.splitlines(keepends=True)
    if not lines:
        return sample
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    if rng.random() < 0.3:
        del lines[one]
    elif rng.random() < 0.5:
        lines.insert(other, lines[one])
    else:
        lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


BYTEWISE: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(_flip, _cut, _end, _insert, _repeat, _noise, _number, _number, _lines),
)


def _changed(data: Any, rng: random.Random) -> Any:  # noqa: ANN401 (whatever a file holds)
    """Return a tree of values with one of them changed, left out, repeated, renamed, or put elsewhere."""
    data = copy.deepcopy(data)
    places = list(_places(data))
    if not places:
        return _value(rng)
    numbers = [(inside, key) for inside, key in places if type(inside[key]) in (int, float)]
    if numbers and rng.random() < 0.4:
        inside, key = rng.choice(numbers)
        inside[key] = rng.choice((*NUMBERS, inside[key] + 1, inside[key] - 1, -inside[key]))
        return data
    inside, key = rng.choice(places)
    kind = rng.randrange(7)
    if kind == 0:
        del inside[key]
    elif kind == 1 and isinstance(inside, list):
        inside.extend([inside[key]] * rng.choice((1, 3, 100)))
    elif kind == 1:
        inside[str(rng.choice((*TEXTS, f"{key} ", str(key).upper())))] = inside.pop(key)
    elif kind == 2:
        other, there = rng.choice(places)
        inside[key] = copy.deepcopy(other[there])
    elif kind == 3:
        inside[key] = rng.choice(([inside[key]], {"x": inside[key]}, [inside[key]] * 2))
    else:
        inside[key] = _value(rng)
    return data


def _places(data: object) -> Iterator[tuple[Any, Any]]:
    """Yield every value of a tree as the container that holds it and its key there."""
    pending: list[Any] = [data] if isinstance(data, dict | list) else []
    while pending:
        inside = pending.pop()
        keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        for key in keys:
            yield inside, key
            if isinstance(inside[key], dict | list):
                pending.append(inside[key])


def _value(rng: random.Random) -> object:
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice((None, [], {}, [[]], [{}], {"": None}))
    if kind == 1:
        nest: list[Any] = []
        for _ in range(rng.choice((3, 200))):
            nest = [nest]
        return nest
    return rng.choice(NUMBERS) if kind < 4 else rng.choice(TEXTS)
