"""The words of studies and published tables: each paragraph and each table of their files is used by its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pipecut_literature
from pipecut.ingest.text.yaml_source import Document
from pipecut_literature.studies.study import PUBLISHED, WORDS, words

ROOM = Path(pipecut_literature.__file__).parent
TABLES = sorted({path.parent for path in ROOM.rglob(PUBLISHED)} - {ROOM / "recipes"})


@pytest.mark.parametrize("path", sorted(ROOM.rglob(WORDS)), ids=lambda path: path.parent.name)
def test_what_is_said_is_written_and_the_other_way_round(path: Path) -> None:
    modules = "\n".join(module.read_text(encoding="utf-8") for module in path.parent.glob("*.py"))
    written = Document.read(path)
    assert isinstance(written.data, dict) and not written.mistakes
    assert set(re.findall(r'words\(\s*__file__,\s*"([^"]+)"', modules)) == set(written.data)


@pytest.mark.parametrize("folder", TABLES, ids=lambda folder: folder.name)
def test_every_published_table_is_read(folder: Path) -> None:
    written = Document.read(folder / PUBLISHED)
    assert isinstance(written.data, dict) and not written.mistakes
    modules = "\n".join(module.read_text(encoding="utf-8") for module in folder.glob("*.py"))
    assert [name for name in written.data if f'"{name}"' not in modules] == []


def test_numbers_stand_in_their_places(tmp_path: Path) -> None:
    (tmp_path / WORDS).write_text("one: ['{name} of {all:.1f}', none]\n", encoding="utf-8")
    assert words(str(tmp_path / "study.py"), "one", name=1, all=2) == ("1 of 2.0", "none")
    with pytest.raises(KeyError):
        words(str(tmp_path / "study.py"), "one", name=1)
    with pytest.raises(KeyError):
        words(str(tmp_path / "study.py"), "two")
