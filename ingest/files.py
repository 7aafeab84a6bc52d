"""Files read up to a limit and written whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def read_limited(path: Path, limit: int) -> str:
    """Return the UTF-8 text of a file of at most ``limit`` bytes.

    Raises OSError if it cannot be read and ValueError if it is larger or not UTF-8.
    """
    with path.open("rb") as file:
        raw = file.read(limit + 1)
    if len(raw) > limit:
        raise ValueError(f"the file is larger than {limit} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text at byte {error.start}") from error


def atomic_write(path: Path, content: str | bytes) -> None:
    """Write so that readers see the old file or the new one, never a part: write beside it, then rename.

    Raises OSError; then the old file, if there was one, is untouched and nothing is left beside it.
    """
    part = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
