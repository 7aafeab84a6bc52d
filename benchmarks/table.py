"""Rows of a benchmark as they come, as a table or as one JSON list."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any


def print_rows(rows: Iterable[dict[str, Any]], *, as_json: bool) -> None:
    """Print every row when it is there, the keys of the first above it; or all of them as JSON."""
    table: list[dict[str, Any]] = []
    for row in rows:
        table.append(row)
        if not as_json:
            if len(table) == 1:
                print(" | ".join(row))
            print(" | ".join(str(cell) for cell in row.values()), flush=True)
    if as_json:
        json.dump(table, sys.stdout, indent=1)
