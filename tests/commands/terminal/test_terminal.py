"""No name out of a file steers the terminal: every command, every format of input, both streams."""

from __future__ import annotations

import ast
import io
import json
import os
import pty
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO, cast

import pytest
from rich.table import Table
from rich.text import Text

from pipecut.commands.main import main
from pipecut.commands.terminal import terminal
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.progress import ProgressLine
from pipecut.formulation.outcome import Progress
from tests.command_line import Command, Ran
from tests.commands.fakes import ROOT, write_scenario

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202egnp\u2066\u200b\r\x08"
"""A new title, a cleared screen, a colour in one byte, a deletion, text turned around, a line written over."""
QUOTED = json.dumps(EVIL)
WRITERS = {"commands/terminal/terminal.py"}


def harmless(ran: Ran) -> None:
    """Nothing but printable characters, the ends of lines and tabs."""
    for text in (ran.out, ran.err):
        assert not re.sub(r"[\n\t]", "", text) or re.sub(r"[\n\t]", "", text).isprintable(), repr(text)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A layer graph, a plan and a certificate that pipecut wrote."""
    folder = tmp_path_factory.mktemp("made")
    out = ("--out", str(folder / "plan.json"), "--certificate", str(folder / "proof.json"))
    assert main(["plan", str(write_scenario(folder)), *out]) == 0
    return {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}


@pytest.fixture
def files(made: dict[str, str], scenario: Path) -> Path:
    """The scenario, with these files beside it."""
    for name, text in made.items():
        Path(name).write_text(text, encoding="utf-8")
    return scenario


@pytest.fixture
def named_evil(made: dict[str, str], scenario: Path) -> Path:
    """The scenario with hostile names of layers, servers, devices, model and scenario."""
    for name, text in made.items():
        text = text.replace('conv1"', f'conv1{QUOTED[1:-1]}"').replace('"tiny"', QUOTED)
        Path(name).write_text(text.replace('"node', f'"{QUOTED[1:-1]}node'), encoding="utf-8")
    text = scenario.read_text(encoding="utf-8").replace("name: tiny", f"name: {QUOTED}")
    evil = QUOTED.replace("\\u0008", "\\b")
    scenario.write_text(text.replace("name: node", f'name: "{evil[1:-1]}node"'), encoding="utf-8")
    return scenario


COMMANDS = [
    ("plan", "S"),
    ("plan", "S", "--solver", "wrong_price"),
    ("plan", "S", "--solver", "broken"),
    ("plan", "S", "--set", "cluster.devices.card.memory=1 KiB"),
    ("plan", "S", "--set", f"constraints.pin=[{{layers: {QUOTED}, stage: 0}}]"),
    ("compare", "S", "--solvers", "line_dp,one_stage,hopeless,broken,picky"),
    ("evaluate", "plan.json", "S"),
    ("simulate", "S"),
    ("simulate", "S", "--plan", "plan.json"),
    ("verify", "proof.json", "S"),
    ("trace", f"{EVIL}:build", "--out", "graph.json"),
    (EVIL,),
    ("plan", EVIL),
    ("plan", "S", "--out", f"{EVIL}/plan.json"),
    ("plan", "S", "--set", f"{EVIL}=1"),
    ("plan", "S", "--set", f"training.{EVIL}=1"),
    ("plan", "S", "--set", f"training.global_batch={EVIL}"),
    ("plan", "S", "--set", f"model.graph={EVIL}.json"),
    ("plan", "S", "--solver", EVIL),
    ("evaluate", f"{EVIL}.json", "S"),
    ("verify", f"{EVIL}.json", "S"),
    ("simulate", "S", "--schedule-file", f"{EVIL}.csv"),
    ("simulate", "S", "--schedule", EVIL),
    ("simulate", "S", "--png", f"{EVIL}/x"),
]


@pytest.mark.few(16)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: ascii(" ".join(words))[:40])
def test_hostile_names_in_every_command(
    named_evil: Path, pipecut: Command, command: tuple[str, ...], as_json: bool
) -> None:
    words = [str(named_evil) if word == "S" else word for word in command]
    ran = pipecut(*words, *(["--json"] if as_json else []))
    harmless(ran)
    assert ran.out or ran.err


@pytest.mark.parametrize("file", ["tiny.json", "plan.json", "proof.json", "tiny.yaml"])
@pytest.mark.parametrize("kind", ["key", "value", "bytes", "name"])
def test_hostile_files_of_every_format(pipecut: Command, files: Path, file: str, kind: str) -> None:
    path = Path(file)
    text = path.read_text(encoding="utf-8")
    if kind == "key":
        changed = f"{QUOTED}: 1\n{text}" if file == "tiny.yaml" else text.replace("{", f"{{{QUOTED}: 1, ", 1)
    elif kind == "value":
        wrong = re.compile(r'(training:|"devices":|"layers":).*')
        changed = wrong.sub(lambda found: f"{found[1]} {QUOTED}", text, count=1)
    else:
        changed = EVIL + text
    assert changed != text
    if kind == "name":
        path = Path(f"{EVIL}{file}")
    path.write_text(changed, encoding="utf-8")
    more = () if file != "tiny.json" or kind != "name" else ("--set", f"model.graph={EVIL}{file}")
    given = {"tiny.json": ("plan", files), "plan.json": ("evaluate", path, files)}
    given |= {"proof.json": ("verify", path, files), "tiny.yaml": ("plan", path)}
    for as_json in ((), ("--json",)):
        ran = pipecut(*given[file], *more, *as_json)
        assert ran.code == 2, ran
        harmless(ran)


def test_a_hostile_schedule(pipecut: Command, scenario: Path) -> None:
    Path("order.csv").write_text(f"0F0,{EVIL}\n", encoding="utf-8")
    harmless(pipecut("simulate", scenario, "--schedule-file", "order.csv"))


def test_what_a_model_says_is_cleaned(pipecut: Command, scenario: Path) -> None:
    pytest.importorskip("torch")
    code = f"print({EVIL!r})\ndef build():\n    raise ValueError({EVIL!r})\n"
    Path("evil_model.py").write_text(code, encoding="utf-8")
    ran = pipecut("trace", "evil_model:build", "--out", "graph.json")
    assert ran.code == 2 and "ValueError" in ran.err
    harmless(ran)


class Screen(io.StringIO):
    """A terminal of which everything written is kept."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def on_a_screen(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any], stream: str) -> str:
    screen = Screen()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, stream, screen)
    with terminal.cleaned():
        work()
    return screen.getvalue()


def test_tables_on_a_terminal_have_our_colours_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("column")
    table.add_row(Text(EVIL + "cell", style="bold red"))
    written = on_a_screen(monkeypatch, lambda: output.show(table, Text(EVIL + "text"), EVIL + "string"), "stdout")
    assert "\x1b[1;31m" in written and "cell" in written and "text" in written and "string" in written
    plain = re.sub(r"\x1b\[[0-9;]*m", "", written)
    assert plain.replace("\n", "").isprintable()


def test_the_progress_line_moves_the_cursor_and_its_title_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def search() -> None:
        with ProgressLine(f"cpsat on {EVIL}net", quiet=False) as line:
            line.report(Progress(2_000_000, 1_000_000))

    written = on_a_screen(monkeypatch, search, "stderr")
    assert "net: best 2.000 ms" in written
    assert re.sub(r"\x1b\[\??[0-9;]*[a-zA-Z]", "", written).replace("\n", "").replace("\r", "").isprintable()
    assert "owned" in written and "\x1b]0" not in written and "\x1b[2J" not in written


@pytest.mark.slow
def test_a_real_terminal(scenario: Path) -> None:
    """Through a pseudo-terminal, in a process of its own."""
    from tests.commands.terminal.test_interrupt import started

    ours, theirs = pty.openpty()
    written = bytearray()

    def read() -> None:
        while True:
            try:
                written.extend(os.read(ours, 4096))
            except OSError:
                return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with started("plan", scenario.with_name(f"{EVIL}x.yaml"), stderr=theirs) as process:
        process.communicate(timeout=60)
    os.close(theirs)
    reader.join(timeout=10)
    assert process.returncode == 2 and b"x.yaml" in written
    assert bytes(written).decode().replace("\r\n", "").isprintable()


def test_streams_stay_streams(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w", encoding="utf-8") as raw:
        stream = cast(TextIO, terminal.CleanStream(raw, needed=True))
        print("tab\there", EVIL, file=stream)
        assert stream.fileno() == raw.fileno() and not stream.isatty() and stream.writable()
        assert stream.encoding == "utf-8" and stream.errors == raw.errors and stream.name == raw.name
    assert (tmp_path / "file").read_text(encoding="utf-8").startswith("tab\there ?")


def test_remarks_that_nobody_can_read_are_no_failure() -> None:
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

    assert terminal.CleanStream(Full(), needed=False).write("words") == 5
    with pytest.raises(terminal.InputError, match="standard output: No space left on device"):
        terminal.CleanStream(Full(), needed=True).write("words")


def test_one_place_writes() -> None:
    """``sys.stdout``, ``sys.stderr``, ``print`` and rich's console are named in one place of the command line."""
    found: set[str] = set()
    for path in (ROOT / "scenarios").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            written = isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                ("stdout.write", "stderr.write")
            )
            printed = (
                isinstance(node, ast.Name) and node.id in ("print", "Console") and isinstance(node.ctx, ast.Load)
            )
            if written or (printed and not _annotates(tree, node)):
                found.add(path.relative_to(ROOT).as_posix())
    assert found <= WRITERS


def _annotates(tree: ast.Module, name: ast.AST) -> bool:
    """Tell whether a name only stands in an annotation."""
    places = (
        hint
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.arg)
        for hint in (node.returns if isinstance(node, ast.FunctionDef) else node.annotation,)
        if hint is not None
    )
    return any(name is inner for hint in places for inner in ast.walk(hint))
