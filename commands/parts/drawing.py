"""The files that a simulation can be written to: page, trace, and pictures; each whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands.terminal import output
from commands.terminal.failures import InputError, output_path
from ingest.files import atomic_write

if TYPE_CHECKING:
    from report.pictures.shapes import Picture
    from report.simulation import Simulation

Make = Callable[[], str | bytes]


@dataclass(frozen=True, slots=True)
class Targets:
    """Where to write what was asked for: two files and two folders. ``draw`` makes a PNG of an SVG."""

    page: Path | None = None
    trace: Path | None = None
    svg: Path | None = None
    png: Path | None = None
    draw: Callable[[str], bytes] | None = None

    @property
    def paths(self) -> list[Path]:
        """Everything that is to be written, in order."""
        return [path for path in (self.page, self.trace, self.svg, self.png) if path is not None]


def targets_of(page: str | None, trace: str | None, svg: str | None, png: str | None) -> Targets:
    """Check before any work that all this can be written. Raises InputError, also where PNG cannot be drawn."""
    draw = None
    if png is not None:
        from commands.parts.png import png_writer

        draw = png_writer()
    return Targets(output_path(page), output_path(trace), _folder(svg), _folder(png), draw)


def _folder(text: str | None) -> Path | None:
    """Return the folder to write pictures to, which may have to be made. Raises InputError before any work."""
    if text is None:
        return None
    path = Path(text)
    try:
        if not path.is_dir():
            if path.exists():
                raise InputError(f"{text}: is not a directory, expected a folder for pictures")
            return output_path(text)
    except (OSError, ValueError) as error:
        raise InputError(f"{text!r}: {error}") from error
    if not os.access(path, os.W_OK):
        raise InputError(f"{text}: no permission to write to it")
    return path.resolve()


def write_files(simulation: Simulation, content: dict[str, Any], targets: Targets) -> None:
    """Write all that was asked for. Raises OSError, naming the file, for the first that cannot be written."""
    for path, make in _files(simulation, content, targets):
        path.parent.mkdir(exist_ok=True)
        atomic_write(path, make())


def say_what_was_written(targets: Targets) -> None:
    """Name every file and folder that was written, on stderr."""
    written = (
        (targets.page, "page"),
        (targets.trace, "trace"),
        (targets.svg, "pictures"),
        (targets.png, "pictures"),
    )
    for path, what in written:
        if path is not None:
            output.remark(f"{path}: the {what}")


def _files(simulation: Simulation, content: dict[str, Any], targets: Targets) -> list[tuple[Path, Make]]:
    """Return the files to write, and what makes each of them."""
    from report.page.page import page_of, pictures
    from report.page.templating import standalone
    from report.trace.whole import trace_of

    files: list[tuple[Path, Make]] = []
    if targets.page is not None:
        files.append((targets.page, lambda: page_of(content)))
    if targets.trace is not None:
        files.append((targets.trace, lambda: trace_of(simulation)))
    drawn = pictures(content) if targets.svg or targets.png else ()
    if targets.svg is not None:
        folder = targets.svg
        files += [(folder / f"{picture.name}.svg", partial(standalone, picture)) for picture in drawn]
    if targets.png is not None and targets.draw is not None:
        folder, draw = targets.png, targets.draw
        for picture in drawn:
            files.append((folder / f"{picture.name}.png", partial(_drawn, picture, draw)))
    return files


def _drawn(picture: Picture, draw: Callable[[str], bytes]) -> bytes:
    from report.page.templating import standalone

    return draw(standalone(picture))
