"""Spoilt input for every reader.

``python -m benchmarks.checks.fuzz [--inputs N] [--seed S] [--only TEXT] [--json]``

Each input is a valid file with one to four mistakes in its bytes, lines or values
(``benchmarks.checks.fuzzing.mutate``), made from the seed, the reader and its number alone. Counted are those that
are accepted, those that are refused with the reader's own error, and defects: any other exception, more than
``--limit`` seconds of processor time or 1 GiB of memory, a message that is empty or endless, a spoilt certificate
or trace that is believed, and anything written outside the scratch folder. A defect is saved with its traceback in
``--keep``; the exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.checks.fuzzing.mutate import mutated
from benchmarks.checks.fuzzing.readers import Reader, RefusedError, ground, readers
from benchmarks.checks.fuzzing.watch import HangError, Watch
from benchmarks.table import print_rows

ACCEPTED, REFUSED, DEFECT = "accepted", "refused", "defect"
MEMORY_BYTES = 2**30
LONGEST_MESSAGE = 10_000


def main() -> int:
    """Feed all readers, print a row for each and one for all, and return the exit code."""
    options = _options()
    logging.disable()
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory() as name:
        fed = list(_rows(Path(name), options))
    print_rows(fed, as_json=options.json)
    return 1 if any(row["defects"] for row in fed) else 0


def _rows(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the counts of every reader, then of all together."""
    chosen = [one for one in readers(ground(folder)) if options.only in one.name]
    for reader in chosen:  # imports whatever is imported at first use, and tells samples that are wrong
        for number, sample in enumerate(reader.samples):
            reader.read(_written(folder, reader, f"valid{number}", sample))
    watch = Watch(folder, options.limit, MEMORY_BYTES)
    total: Counter[str] = Counter()
    slowest = 0.0
    for at, reader in enumerate(chosen):
        many = options.inputs // len(chosen) + (at < options.inputs % len(chosen))
        counts, longest = _feed(reader, many, folder, watch, options)
        total += counts
        slowest = max(slowest, longest)
        yield _row(reader.name, counts, longest)
    yield _row("all", total, slowest)


def _feed(
    reader: Reader, many: int, folder: Path, watch: Watch, options: argparse.Namespace
) -> tuple[Counter[str], float]:
    """Give a reader so many spoilt inputs; return the counts and the longest time in seconds."""
    counts: Counter[str] = Counter()
    longest = 0.0
    for number in range(many):
        rng = random.Random(f"{options.seed} {reader.name} {number}")  # noqa: S311 (to be made again, not secret)
        content = mutated(rng.choice(reader.samples), reader.structure, rng)
        path = _written(folder, reader, "spoilt", content)
        began = time.perf_counter()
        verdict, what = _verdict(reader, path, watch)
        longest = max(longest, time.perf_counter() - began)
        counts[verdict] += 1
        if verdict == DEFECT:
            saved = _saved(options.keep, reader, number, content, what)
            print(f"{reader.name}, input {number} of seed {options.seed}: {saved}", file=sys.stderr, flush=True)
    return counts, longest


def _verdict(reader: Reader, path: Path, watch: Watch) -> tuple[str, str]:
    """Read one input under watch; return what became of it, and of a defect what happened."""
    verdict, what = ACCEPTED, ""
    try:
        with watch.one():
            reader.read(path)
    except (reader.error, RefusedError) as error:
        verdict = REFUSED
        if not 0 < len(str(error).strip()) <= LONGEST_MESSAGE:
            verdict, what = DEFECT, f"a message of {len(str(error))} characters: {str(error)[:1000]}"
    except HangError:
        verdict, what = DEFECT, f"longer than {watch.seconds} s:\n{traceback.format_exc()}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        verdict, what = DEFECT, traceback.format_exc()
    if watch.touched:
        verdict, what = DEFECT, f"{what}\ntouched: {', '.join(watch.touched)}"
    return verdict, what


def _written(folder: Path, reader: Reader, name: str, content: bytes) -> Path:
    path = folder / f"{name}{reader.ending}"
    path.write_bytes(content)
    return path


def _saved(keep: Path, reader: Reader, number: int, content: bytes, what: str) -> Path:
    """Keep an input that shows a defect, and its traceback beside it."""
    keep.mkdir(exist_ok=True)
    path = keep / f"{reader.name.replace(' ', '-')}-{number}{reader.ending}"
    path.write_bytes(content)
    path.with_name(path.name + ".traceback").write_text(what, encoding="utf-8", errors="backslashreplace")
    return path


def _row(name: str, counts: Counter[str], seconds: float) -> dict[str, Any]:
    return {
        "reader": name,
        "inputs": counts.total(),
        "accepted": counts[ACCEPTED],
        "refused": counts[REFUSED],
        "defects": counts[DEFECT],
        "slowest": f"{seconds:.2f} s",
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Feed every reader with spoilt input.")
    parser.add_argument("--inputs", type=int, default=10_000, help="of all readers together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="TEXT", help="readers whose name holds this")
    parser.add_argument("--limit", type=float, default=10.0, metavar="SECONDS", help="longest time of one input")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-defects"), metavar="FOLDER")
    parser.add_argument("--json", action="store_true", help="write the counts as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
