"""Ctrl-C while modules are still being imported: one line, exit code 130, no traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.commands.fakes import ROOT

SLOWLY = """\
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.stderr.write("importing\\n")
            sys.stderr.flush()
            try:
                time.sleep(60)
            except BaseException:
                raise ImportError("an interrupt that comes out as something else")

sys.meta_path.insert(0, Slow())
from pipecut.commands.entry import main
sys.exit(main())
"""
POSIX = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")


def interrupted(name: str, *arguments: str) -> tuple[int, str, str]:
    """Run the program, and send SIGINT while a module of this name is imported."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOWLY.format(name=name), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
    )
    assert process.stderr is not None and process.stderr.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@POSIX
@pytest.mark.parametrize(
    "name", ["pipecut.commands.main", "pipecut.commands.parser.options", "pipecut.commands.plan", "yaml"]
)
def test_an_interrupt_during_imports_is_one_line(name: str) -> None:
    scenario = str(ROOT / "scenarios" / "pipepar" / "vgg16.yaml")
    assert interrupted(name, "plan", scenario) == (130, "", "aborted\n")


@pytest.mark.slow
def test_a_limit_that_ends_during_imports_is_one_line() -> None:
    """On a busy machine importing takes seconds, in which nobody looks at the clock."""
    scenario = str(ROOT / "scenarios" / "pipepar" / "vgg16.yaml")
    for name in ("yaml", "pipecut.commands.plan"):
        words = [sys.executable, "-c", SLOWLY.format(name=name), "plan", scenario, "--time-limit", "0.2"]
        ran = subprocess.run(
            words, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=50
        )
        assert (ran.returncode, ran.stdout) == (3, "")
        assert ran.stderr.endswith("the time limit of 0.2 s was over while the program started\n")


@POSIX
def test_with_json_it_is_one_object_as_well() -> None:
    code, out, err = interrupted("pipecut.commands.main", "plan", "x.yaml", "--json")
    assert (code, err) == (130, "aborted\n")
    assert json.loads(out) == {"error": {"code": 130, "kind": "aborted", "messages": [{"message": "aborted"}]}}


def test_nothing_is_imported_before_an_interrupt_is_one_line() -> None:
    """What Python itself imports is there already; in everything else Ctrl-C would still be a traceback."""
    code = (
        "import sys; before = set(sys.modules); import pipecut.commands.entry; print(*set(sys.modules) - before)"
    )
    path = {"PYTHONPATH": str(ROOT / ".links")}  # without site packages nothing else says where pipecut lies
    done = subprocess.run([sys.executable, "-S", "-c", code], env=path, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) - {
        "os",
        "stat",
        "_stat",
        "os.path",
        "posixpath",
        "genericpath",
        "_collections_abc",
    } == {
        "__future__",
        "pipecut",
        "pipecut.commands",
        "pipecut.commands.entry",
        "pipecut.commands.terminal",
        "pipecut.commands.terminal.first_interrupt",
    }
