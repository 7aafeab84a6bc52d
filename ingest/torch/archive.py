"""Models that ``torch.export.save`` has written, opened as what they are: a zip with JSON in it.

Nothing in the file is executed: ``torch.export.load`` would load pickles that lie beside the JSON. Weights and
example inputs are left where they are. Only the layout that this program knows is read; any other is refused.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

from ingest.errors import ModelError, first_line
from ingest.strict_json import parse_json

MAJOR = 8
"""The version of the schema that is read; torch changes it when a reader of the old one would misread the new."""
LARGEST_DOCUMENT = 64 * 2**20
"""Bytes of the largest model that is read; a network of 70 billion weights in 80 blocks takes 10 MB."""
_MODEL, _WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"


def open_archive(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the exported program of an archive, and what it says of its weights (nothing, in an old archive).

    Raises ModelError for what is no such archive, or of another version.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            program, weights = (_document(archive, path, name) for name in (_MODEL, _WEIGHTS))
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path}: no exported model can be read: {first_line(error)}") from error
    if program is None:
        raise ModelError(f"{path}: holds no {_MODEL}, as torch.export.save would have written")
    version = program.get("schema_version")
    major = version.get("major") if isinstance(version, dict) else None
    if major != MAJOR:
        found = f"{major}.{version.get('minor')}" if isinstance(version, dict) else "unknown"
        by = f" (torch {program['torch_version']})" if program.get("torch_version") else ""
        raise ModelError(
            f"{path}: the schema of the exported model is version {found}{by}, this pipecut reads {MAJOR}; "
            "trace the model by model.build, or export it with a torch of that schema"
        )
    return program, weights or {}


def _document(archive: zipfile.ZipFile, path: Path, name: str) -> dict[str, Any] | None:
    """Return the JSON object in an entry of an archive, whatever folder everything lies in; None without one."""
    entry = next((one for one in archive.infolist() if f"/{one.filename}".endswith(f"/{name}")), None)
    if entry is None:
        return None
    if entry.file_size > LARGEST_DOCUMENT:
        raise ModelError(f"{path}: {name} has {entry.file_size} bytes, expected at most {LARGEST_DOCUMENT}")
    with archive.open(entry) as file:
        content = file.read(LARGEST_DOCUMENT + 1)
    if len(content) > LARGEST_DOCUMENT:
        raise ModelError(f"{path}: {name} is larger than {LARGEST_DOCUMENT} bytes")
    document = parse_json(content)
    if not isinstance(document, dict):
        raise ModelError(f"{path}: {name} is no object of JSON")
    return document
