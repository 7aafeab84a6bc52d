"""The files that a simulation can be written to: page, trace, and pictures; each whole or not at all.

Pictures as PNG, drawn from their SVG by resvg, an optional dependency.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import InputError, output_path
from pipecut.ingest.files import atomic_write

if TYPE_CHECKING:
    from pipecut.report.pictures.shapes import Picture
    from pipecut.report.simulation import Simulation

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
        pass

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
    from pipecut.report.page import page_of, pictures, standalone
    from pipecut.report.trace import trace_of

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
    from pipecut.report.page import standalone

    return draw(standalone(picture))


SCALE = 2
"""Pixels for each unit of a picture: 2280 across, enough for the width of a page at 300 dots per inch."""
MISSING = "writing PNG needs resvg: pip install 'pipecut[png]'"
FAMILIES = (
    "DejaVu Sans",
    "Liberation Sans",
    "Noto Sans",
    "Arial",
    "Helvetica",
    "Segoe UI",
    "Roboto",
    "Ubuntu",
    "Open Sans",
    "Cantarell",
    "FreeSans",
)
"""Fonts for labels, tried in turn."""
TRIAL = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">{}</svg>'
LETTER = '<text x="2" y="16" font-family="sans-serif" font-size="14">M</text>'

Draw = Callable[[str], bytes]


def png_writer() -> Draw:
    """Return what makes a PNG of an SVG, with letters of a font that is there.

    Raises InputError where resvg is not installed, or none of FAMILIES is: a picture without words says nothing.
    """
    try:
        resvg: Any = importlib.import_module("resvg_py")
    except ImportError as error:
        raise InputError(MISSING) from error

    def draw(svg: str, family: str) -> bytes:
        return bytes(resvg.svg_to_bytes(svg_string=svg, zoom=SCALE, font_family=family, sans_serif_family=family))

    blank = draw(TRIAL.format(""), FAMILIES[0])
    family = next((one for one in FAMILIES if draw(TRIAL.format(LETTER), one) != blank), None)
    if family is None:
        raise InputError(f"writing PNG needs a font for the labels, none of {', '.join(FAMILIES)} is installed")
    return lambda svg: draw(svg, family)
