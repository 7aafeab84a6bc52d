"""Numbers of a content by their paths, so that what a page shows can be traced to the JSON that it embeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Numbers:
    """Finds what stands in a content at a path such as ``stages.0.peak_bytes``."""

    content: dict[str, Any]

    def at(self, path: str) -> Any:  # noqa: ANN401 (whatever JSON holds)
        """Return what stands at a path."""
        found: Any = self.content
        for key in path.split("."):
            found = found[int(key)] if isinstance(found, list) else found[key]
        return found
