"""JSON that would take far more memory than its text is refused before anything of it is made."""

from __future__ import annotations

import json
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.ingest import files as strict_json
from pipecut.ingest.errors import ModelError
from pipecut.ingest.files import parse_json
from pipecut.ingest.torch.exported_file import open_archive

VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


def number_of_values(value: object) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(number_of_values, inside))


@given(VALUES, st.sampled_from(["utf-8", "utf-16", "utf-32"]))
def test_no_document_of_more_values_is_read_in_any_encoding(value: object, encoding: str) -> None:
    text = json.dumps(value)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(strict_json, "MOST_VALUES", number_of_values(value) - 1)
        for written in (text, text.encode(encoding)):
            with pytest.raises(ValueError, match="values, expected at most"):
                parse_json(written)
    assert parse_json(text.encode(encoding)) == value


@pytest.mark.parametrize("unit", [b"{},", b"[],", b'{"":0},'])
def test_a_small_archive_does_not_grow_into_the_memory(tmp_path: Path, unit: bytes) -> None:
    path = tmp_path / "bomb.pt2"
    document = b'{"a": [' + unit * (40 * 2**20 // len(unit)) + b"0]}"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/models/model.json", document)
    assert path.stat().st_size < 200_000
    tracemalloc.start()
    with pytest.raises(ModelError, match=r"bomb.pt2: no exported model can be read: ValueError: about \d+ values"):
        open_archive(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * len(document)
