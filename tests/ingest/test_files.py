"""Files are whole or not there: after a full disk, a kill, and beside other writers."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pipecut.ingest import files
from pipecut.ingest.files import WriteError, atomic_write

ROOT = Path(__file__).parents[2]
KILLED_BEFORE_THE_RENAME = """
import os, signal, sys
from pathlib import Path
from pipecut.ingest import files
Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
files.atomic_write(Path(sys.argv[1]), "half")
"""


def killed_writer(path: Path) -> None:
    command = [sys.executable, "-c", KILLED_BEFORE_THE_RENAME, str(path)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL


def parts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix == ".part")


def test_the_next_write_cleans_what_a_killed_writer_left(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    atomic_write(path, "old")
    killed_writer(path)
    assert len(parts(tmp_path)) == 1 and path.read_text() == "old"
    atomic_write(tmp_path / "plan", "another file")
    assert len(parts(tmp_path)) == 1
    atomic_write(path, "new")
    assert parts(tmp_path) == [] and path.read_text() == "new"


def test_a_file_of_the_user_is_not_taken_for_an_unfinished_one(tmp_path: Path) -> None:
    own = [".plan.json.part", ".plan.json.notes.part", "plan.json.0123456789abcdef.part"]
    for name in own:
        (tmp_path / name).write_text("mine")
    atomic_write(tmp_path / "plan.json", "new")
    assert parts(tmp_path) == sorted(own)


def test_a_living_writer_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second writer comes while the first one is between writing and renaming."""
    path, rename = tmp_path / "plan.json", Path.replace
    seen: list[list[str]] = []

    def interrupted(part: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", rename)
        atomic_write(path, "second")
        seen.append(parts(tmp_path))
        return rename(part, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    atomic_write(path, "first")
    assert len(seen[0]) == 1 and parts(tmp_path) == [] and path.read_text() == "first"


def test_a_copy_removed_before_its_lock_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lock = tmp_path / "plan.json", files._lock

    def too_late(descriptor: int, *, wait: bool) -> bool:
        monkeypatch.setattr(files, "_lock", lock)
        files._remove_stale(path)
        return lock(descriptor, wait=wait)

    monkeypatch.setattr(files, "_lock", too_late)
    atomic_write(path, "whole")
    assert path.read_text() == "whole" and parts(tmp_path) == []


def test_many_writers_at_once(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    texts = [str(number) * 10_000 for number in range(8)]
    writers = [threading.Thread(target=atomic_write, args=(path, text)) for text in texts for _ in range(5)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert path.read_text() in texts and parts(tmp_path) == []


def test_a_full_disk_names_the_file_that_was_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError) as caught:
        atomic_write(path, "new")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert path.read_text() == "old" and parts(tmp_path) == []


@pytest.mark.parametrize("name", ["ü" * 100, "漢" * 80, "a" * 255])
def test_the_longest_names(tmp_path: Path, name: str) -> None:
    atomic_write(tmp_path / name, "whole")
    assert [path.name for path in tmp_path.iterdir()] == [name]
