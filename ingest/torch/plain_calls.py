"""Models called as training calls them: in training mode, without the key-value caches of Hugging Face models.

A language model of Hugging Face's transformers keeps keys and values for the next token unless it is told not to
(``use_cache``), and returns them in an object that torch.export does not know. Training has no use for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

__all__: list[str] = []


@contextlib.contextmanager
def as_in_training(module: nn.Module) -> Iterator[None]:
    """Put a module into training mode for a while, with the caches of its configurations switched off."""
    flags = {part: part.training for part in module.modules()}
    caching = [one for one in _configurations(module) if getattr(one, "use_cache", None) is True]
    module.train()
    for one in caching:
        setattr(one, "use_cache", False)  # noqa: B010
    try:
        yield
    finally:
        for part, flag in flags.items():
            part.training = flag
        for one in caching:
            setattr(one, "use_cache", True)  # noqa: B010


def _configurations(module: nn.Module) -> list[object]:
    """Return the configurations of a module and its parts, each once."""
    found = {id(one): one for part in module.modules() if (one := getattr(part, "config", None)) is not None}
    return list(found.values())
