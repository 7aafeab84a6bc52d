"""How much memory a method may take: what would take more is refused before anything of it is allocated."""

from __future__ import annotations

GIB = 1 << 30
MOST_BYTES = 4 * GIB
"""What the tables, or the model, of one method may take, with what is needed while they are made."""


class TooLargeError(ValueError):
    """An instance is too large for a method; the message has both numbers and says what to do."""

    @staticmethod
    def refuse_above(what: str, needed_bytes: int, instead: str) -> None:
        """Raise TooLargeError if something would take more bytes than a method may take."""
        if needed_bytes > MOST_BYTES:
            raise TooLargeError(
                f"{what} would take about {needed_bytes / GIB:.1f} GiB,"
                f" a method may take {MOST_BYTES / GIB:g} GiB; {instead}"
            )
