"""What other distributions bring to pipecut: found by entry points, and loaded when it is asked for.

Nothing here knows what there is to find. A distribution registers, under the name of a group, objects of its own:
planners (``solvers.catalogue``), commands and arguments of the command line, readers of files, searches for
orders of actions. The planners of papers are such a distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PLANNERS = "pipecut.planners"
"""The group of planners: each object is a tuple of ``solvers.catalogue.SolverEntry``."""
INSTALL = "pip install pipecut-literature"


class InstalledError(ValueError):
    """What is registered cannot be loaded; the message says which entry of which distribution, and why."""


def registered(group: str, name: str | None = None) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group, or those of one name, by name. Nothing is loaded."""
    from importlib.metadata import entry_points  # takes longer than all that starts before it

    found = entry_points(group=group) if name is None else entry_points(group=group, name=name)
    return tuple(sorted(found, key=lambda entry: entry.name))


def loaded(entry: EntryPoint) -> Any:  # noqa: ANN401 (whatever is registered)
    """Return the object of an entry point. Raises InstalledError where it is not there."""
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        where = f" of {entry.dist.name}" if entry.dist else ""
        raise InstalledError(
            f"{entry.group}: {entry.name}{where} cannot be loaded, install it again: {error}"
        ) from error


def missing(group: str, what: str) -> str:
    """Return the end of a message about what is not there; nothing where the group has been brought along."""
    return "" if registered(group) else f"; {what} of papers come with {INSTALL}"
