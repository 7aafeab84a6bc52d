"""The fuzzing: readers that lie are caught, inputs come again from their seed, and a short run finds nothing."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.checks.fuzzing import samples
from benchmarks.checks.fuzzing.mutate import mutated

ROOT = Path(__file__).parents[1]
LYING = """
import sys, tempfile, time
from pathlib import Path
from benchmarks.checks import fuzz
from benchmarks.checks.fuzzing.readers import Reader
from benchmarks.checks.fuzzing.watch import Watch

def read(path):
    {code}

folder = Path(tempfile.mkdtemp())
(folder / "spoilt.json").write_text("x")
watch = Watch(folder, 0.2, 2**28)
print(*fuzz._verdict(Reader("liar", (b"x",), "lines", ValueError, read), folder / "spoilt.json", watch))
"""


def verdict(code: str, folder: Path) -> str:
    """Return what is said of a reader, in a process of its own: the hook of a watch stays for ever."""
    done = subprocess.run(
        [sys.executable, "-c", LYING.format(code=code)],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("pass", "accepted"),
        ("raise ValueError('x:1: no number')", "refused"),
        ("raise ValueError('')", "defect a message of 0 characters"),
        ("raise ValueError('x' * 100_000)", "defect a message of 100000 characters"),
        ("raise KeyError('lost')", "defect Traceback"),
        ("raise RecursionError", "defect Traceback"),
        ("time.sleep(60)", "defect longer than 0.2 s"),
        ("while True: pass", "defect longer than 0.2 s"),
        ("bytearray(2**30)", "defect Traceback"),
        ("Path('outside').write_text('x')", "outside"),
        ("Path('outside').mkdir()", "os.mkdir"),
        ("import os; os.rename(path, 'elsewhere')", "os.rename"),
        ("import subprocess; subprocess.run(['/bin/true'])", "subprocess.Popen"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="limits and signals of Linux")
def test_a_reader_that_misbehaves_is_caught(tmp_path: Path, code: str, said: str) -> None:
    assert said in verdict(code, tmp_path)


@pytest.mark.few("sample1")
@pytest.mark.parametrize(
    ("sample", "structure"),
    [
        (samples.SCENARIO.encode(), "yaml"),
        (samples.as_json(samples.graph()), "json"),
        (samples.SCHEDULE.encode(), "lines"),
    ],
)
def test_inputs_come_again_from_their_seed_and_are_spoilt(sample: bytes, structure: str) -> None:
    made: Callable[[int], bytes] = lambda seed: mutated(sample, structure, random.Random(seed))  # noqa: E731, S311
    first = [made(seed) for seed in range(300)]
    assert first == [made(seed) for seed in range(300)]
    assert len(set(first)) > 200 and sum(one == sample for one in first) < 30


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits and signals of Linux")
def test_some_hundred_spoilt_inputs_find_no_defect(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.checks.fuzz", "--inputs", "900", "--seed", "1", "--json"]
    kept = ["--keep", str(tmp_path / "defects"), "--limit", "60"]
    done = subprocess.run([*command, *kept], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    rows = json.loads(done.stdout)
    whole = rows[-1]
    assert done.returncode == 0 and whole["defects"] == 0, done.stderr
    assert whole["inputs"] == 900 == whole["accepted"] + whole["refused"]
    assert whole["accepted"] > 20, "input that is always refused at once tests little"
    assert {row["reader"] for row in rows} >= {"scenario", "overrides", "layer graph", "plan", "certificate"}
