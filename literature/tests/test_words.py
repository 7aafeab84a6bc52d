"""The words of studies: every paragraph is said somewhere, and each by a name that its file has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pipecut_literature
from pipecut.ingest.text.yaml_source import Document
from pipecut_literature.studies.study import WORDS, words

FILES = sorted(Path(pipecut_literature.__file__).parent.rglob(WORDS))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_what_is_said_is_written_and_the_other_way_round(path: Path) -> None:
    modules = "\n".join(module.read_text(encoding="utf-8") for module in path.parent.glob("*.py"))
    written = Document.read(path)
    assert isinstance(written.data, dict) and not written.mistakes
    assert set(re.findall(r'words\(\s*__file__,\s*"([^"]+)"', modules)) == set(written.data)


def test_numbers_stand_in_their_places(tmp_path: Path) -> None:
    (tmp_path / WORDS).write_text("one: ['{name} of {all:.1f}', none]\n", encoding="utf-8")
    assert words(str(tmp_path / "study.py"), "one", name=1, all=2) == ("1 of 2.0", "none")
    with pytest.raises(KeyError):
        words(str(tmp_path / "study.py"), "one", name=1)
    with pytest.raises(KeyError):
        words(str(tmp_path / "study.py"), "two")
