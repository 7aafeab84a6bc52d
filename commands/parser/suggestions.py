"""What a mistyped word may have been meant to be."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

CHOICE = re.compile(r"invalid choice: '(?P<word>[^']*)' \(choose from (?P<known>.*)\)$")
SURE = 0.6
"""How alike two words must be (``difflib``), from 0 to 1."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question for a message's end; nothing where no known word is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=SURE)
    return f"; did you mean '{near[0]}'?" if near else ""


def explained(message: str) -> str:
    """Return argparse's message about a choice that there is not, with the choice that is near."""
    found = CHOICE.search(message)
    if found is None:
        return message
    word, known = found["word"], [name.strip(" '") for name in found["known"].split(",")]
    return f"{message[: found.start()]}there is no '{word}', only {', '.join(known)}{did_you_mean(word, known)}"
