"""What docs/what-if.md shows is what the commands say."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pipecut.commands.main import main
from tests.commands.fakes import ROOT

PAGE = (ROOT / "docs" / "what-if.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"<!-- output: (.+?) -->\n```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "shown"), SHOWN, ids=[row[0] for row in SHOWN])
def test_the_examples_of_the_page_are_real(
    arguments: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("COLUMNS", raising=False)
    words = [word.replace("results.jsonl", str(tmp_path / "results.jsonl")) for word in shlex.split(arguments)]
    assert main(words) == 0
    assert capsys.readouterr().out == shown


def test_the_file_of_the_page_is_the_one_that_ships() -> None:
    for name, text in re.findall(r"<!-- file: (.+?) -->\n```yaml\n(.+?)```", PAGE, re.DOTALL):
        assert (ROOT / name).read_text(encoding="utf-8") == text
