"""``--json``: exactly one object on stdout whatever happens, and the schema that describes it.

The fixture ``pipecut`` holds every object that any test of a command asks for against the schema; here is what
those tests do not reach.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipecut.commands.outputs.schema import OUTPUTS, schema_text
from pipecut.commands.parser.options import grammar_for
from pipecut.commands.terminal.failures import ExitCode, Problem
from pipecut.commands.terminal.interrupt import ECHO_S
from pipecut.commands.terminal.reply import Reply
from tests.command_line import Command, check_output
from tests.commands.fakes import ROOT, SEARCHING
from tests.commands.terminal.test_interrupt import PATIENCE_S, read_until, started, stderr_of
from tests.commands.test_bad_input import in_a_process

posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
COMMANDS = sorted(
    path.stem
    for folder in ("", "parts", "reasons", "sweep", "whatif")
    for path in (ROOT / "commands" / folder).glob("*.py")
    if "\ndef run(" in path.read_text(encoding="utf-8")
)


def error_of(text: str) -> dict[str, Any]:
    found = json.loads(text)
    assert set(found) == {"error"}
    return found["error"]


def test_every_command_has_its_outputs_in_the_schema() -> None:
    """Those of what is installed beside pipecut are there, too."""
    assert set(COMMANDS) <= set(OUTPUTS) and all(name in grammar_for([]) for name in COMMANDS)
    schema = json.loads(schema_text())
    assert {f"#/$defs/{name}" for name in OUTPUTS} == {row["$ref"] for row in schema["anyOf"]}
    references = {text.split('"')[0] for text in schema_text().split('"$ref": "#/$defs/')[1:]}
    assert references <= set(schema["$defs"])


def test_the_schema_that_ships_is_up_to_date() -> None:
    stored = (ROOT / "scenarios" / "output.schema.json").read_text(encoding="utf-8")
    again = "write commands.outputs.schema.schema_text() to scenarios/output.schema.json"
    assert stored == schema_text(), again


@pytest.mark.parametrize(
    "spoil",
    [
        lambda found: found.pop("proof"),
        lambda found: found.update(proof="sure"),
        lambda found: found.update(objective="fast"),
        lambda found: found.update(more=1),
        lambda found: found["stages"][0].update(forms=None),
        lambda found: found.update(error={"code": 3, "kind": "bad input", "messages": [{"message": "x"}]}),
        lambda found: found.update(error={"code": 2, "kind": "bad input", "messages": []}),
    ],
)
def test_the_schema_refuses_what_is_no_output(pipecut: Command, scenario: Path, spoil: Any) -> None:
    found = pipecut("plan", scenario, "--json").json
    check_output("plan", json.dumps(found))
    spoil(found)
    with pytest.raises(ValidationError):
        check_output("plan", json.dumps(found))


def test_exactly_one_object() -> None:
    with pytest.raises(ValidationError):
        check_output("verify", '{"error": {}}{"error": {}}')


@pytest.mark.parametrize(
    "words",
    [
        ["fly", "--json"],
        ["--json"],
        ["plan", "--json"],
        ["plan", "x", "--json", "--solver", "magic"],
        ["plan", "x", "--workers", "0", "--json"],
        ["trace", "a:b", "--json"],
        ["trace", "a:b", "--json", "--out", "nowhere/graph.json"],
        ["compare", "--json"],
        ["simulate", "tiny.yaml", "--json", "--schedule", "none"],
        ["verify", "absent", "tiny.yaml", "--json"],
        ["evaluate", "absent", "tiny.yaml", "--json"],
    ],
)
def test_the_command_line(pipecut: Command, words: list[str]) -> None:
    ran = pipecut(*words)
    error = error_of(ran.out)
    assert (ran.code, error["code"], error["kind"]) == (2, 2, "bad input")
    for row in error["messages"]:
        assert row["message"] in ran.err and "usage" not in row["message"]


def test_help_is_no_result(pipecut: Command, capsys: pytest.CaptureFixture[str]) -> None:
    from pipecut.commands.main import main

    assert main(["plan", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: pipecut plan")


def test_every_mistake_with_file_line_and_column(pipecut: Command, scenario: Path) -> None:
    text = (
        scenario.read_text(encoding="utf-8").replace("1 TFLOP/s", "1 TFLOPS").replace("devices: 2", "devices: two")
    )
    scenario.write_text(text, encoding="utf-8")
    ran = pipecut("plan", scenario, "--json", "--set", "training.nothing=1")
    *in_file, of_override = error_of(ran.out)["messages"]
    assert [(row["file"], row["line"]) for row in in_file] == [(str(scenario), 6), (str(scenario), 8)]
    assert "TFLOP/s" in in_file[0]["message"] and set(of_override) == {"message"}
    assert [row["message"] for row in (*in_file, of_override)] == ran.err.splitlines()


@pytest.mark.parametrize(
    ("words", "file", "line"),
    [
        (["plan", "absent.yaml"], "absent.yaml", None),
        (["evaluate", "plan.json", "tiny.yaml"], "plan.json", 2),
        (["plan", "tiny.yaml", "--solver", "picky"], "tiny.yaml", None),
        (["simulate", "tiny.yaml", "--schedule-file", "order.csv"], "order.csv", 2),
    ],
)
def test_files_of_every_kind(pipecut: Command, words: list[str], file: str, line: int | None) -> None:
    Path("plan.json").write_text('{\n"stages": }', encoding="utf-8")
    Path("order.csv").write_text("0F0\nnonsense\n", encoding="utf-8")
    (row, *_) = error_of(pipecut(*words, "--json").out)["messages"]
    assert (row["file"], row.get("line")) == (file, line)


def test_results_come_with_their_error(pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    ran = pipecut("plan", scenario, "--json", "--out", "plan.json")
    assert ran.code == 2 and ran.json["proof"] == "optimal"
    (row,) = ran.json["error"]["messages"]
    assert row["message"].endswith("plan.json: not written: No space left on device")
    assert not Path("plan.json").exists()


@pytest.mark.parametrize(("fake", "code"), [("wrong_price", 4), ("broken", 70)])
def test_a_comparison_that_fails_says_which_solver_did(
    pipecut: Command, scenario: Path, fake: str, code: int
) -> None:
    found = pipecut("compare", scenario, "--solvers", f"line_dp,{fake}", "--json").json
    assert len(found["solvers"]) == 2 and found["error"]["code"] == code
    assert found["error"]["messages"][0]["message"].startswith(f"{fake}: ")


def test_a_certificate_that_does_not_hold(pipecut: Command, scenario: Path) -> None:
    assert pipecut("plan", scenario, "--certificate", "proof.json").code == 0
    held = pipecut("verify", "proof.json", scenario, "--json")
    assert held.code == 0 and "error" not in held.json
    content = json.loads(Path("proof.json").read_text(encoding="utf-8"))
    content["bound"] = content["objective"] = content["objective"] - 1
    Path("proof.json").write_text(json.dumps(content), encoding="utf-8")
    ran = pipecut("verify", "proof.json", scenario, "--json")
    assert ran.code == 4 and not ran.json["holds"] and ran.json["error"]["kind"] == "false claim"


def test_a_number_that_json_lacks_is_a_defect(pipecut: Command, scenario: Path, monkeypatch: Any) -> None:
    from pipecut.commands import plan

    monkeypatch.setattr(plan, "outcome_to_dict", lambda *_: {"gap": float("nan")})
    ran = pipecut("plan", scenario, "--json")
    assert ran.code == 70 and error_of(ran.out)["kind"] == "defect" and "Traceback" in ran.err


@pytest.mark.slow
@posix
def test_ctrl_c_before_and_while_there_is_a_result(scenario: Path) -> None:
    with started("plan", scenario, "--solver", "stuck", "--json") as process:
        read_until(stderr_of(process), SEARCHING.encode())
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            read_until(stderr_of(process), b"\n")
            time.sleep(2 * ECHO_S)
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130 and error_of(out.decode()) == {
        "code": 130,
        "kind": "aborted",
        "messages": [{"message": "aborted"}],
    }


def test_an_interrupt_while_the_object_is_written_sends_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipecut.commands.terminal import reply as ending
    from pipecut.commands.terminal import terminal as output

    written: list[str] = []

    def interrupted(text: str) -> None:
        written.append(text)
        raise KeyboardInterrupt

    monkeypatch.setattr(output, "write", interrupted)
    reply = Reply(wanted=True)

    def work() -> int:
        reply.put({"study": "x"})
        return 0

    assert ending.guarded(work, reply) == 130 and len(written) == 1


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_behind_stdout(scenario: Path) -> None:
    code = "import os, sys\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)"
    for words in (["plan", str(scenario), "--json"], ["plan", "absent", "--json"], ["--help"]):
        done: subprocess.CompletedProcess[str] = in_a_process(*words, code=code)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr


def test_the_example_of_the_document(pipecut: Command, scenario: Path) -> None:
    document = (ROOT / "docs" / "formats" / "json.md").read_text(encoding="utf-8")
    text = scenario.read_text(encoding="utf-8").replace("1 TFLOP/s", "1 TFLOPS")
    Path("net.yaml").write_text(text, encoding="utf-8")
    ran = pipecut("plan", "net.yaml", "--json")
    assert ran.json == json.loads(document.split("```json\n")[1].split("```")[0])
    for models in OUTPUTS.values():
        assert all(f"`{model.__name__}`" in document for model in models)


def test_text_that_any_terminal_takes() -> None:
    reply = Reply(wanted=True)
    reply.put({"name": "\x7f\x1b\u202e\x9b"})
    text = reply.text(ExitCode.DONE)
    assert text.replace("\n", "").isprintable() and json.loads(text) == {"name": "\x7f\x1b\u202e\x9b"}


def test_places_are_read_from_messages_about_named_files_only() -> None:
    reply = Reply(wanted=True, files=("a.json", "a.json:1.yaml"))
    texts = ["a.json:12:3: x", "a.json: x", "a.json:1.yaml:7: x", "b.json:1: x", "a.json is odd"]
    reply.problems = [*map(Problem, texts), Problem("x", "c", 1)]
    rows = json.loads(reply.text(ExitCode.BAD_INPUT))["error"]["messages"]
    places = [(row.get("file"), row.get("line"), row.get("column")) for row in rows]
    none = (None, None, None)
    assert places == [
        ("a.json", 12, 3),
        ("a.json", None, None),
        ("a.json:1.yaml", 7, None),
        none,
        none,
        ("c", 1, None),
    ]
