"""PointSweep files: a scenario, and values of it that are varied, as a grid, as a list of points, or both.

    scenario: vgg16.yaml
    grid:                                  # every combination of these
      training.global_batch: [64, 128]
      cluster.between_servers.bandwidth: [1 Gbit/s, 10 Gbit/s]
    points:                                # each with every combination of the grid
      - {cluster.machines: {p4d: 2}}
      - {cluster.machines: {p5: 1}}

Keys are paths as ``--set`` writes them; a value may be a section or a list. What is wrong with a value is told at
its line in the sweep file, what is wrong with the scenario at its line there.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from pipecut.ingest.mistakes import FilePlace, Mistake, ScenarioError, shown
from pipecut.ingest.scenario.fields import Section
from pipecut.ingest.scenario.library import Library
from pipecut.ingest.scenario.load import Scenario, scenario_of
from pipecut.ingest.scenario.messages import mistake_at, mistakes_of
from pipecut.ingest.text.overrides import Setting, apply_overrides, apply_settings
from pipecut.ingest.text.yaml_source import Document

MOST_POINTS = 100_000
"""Most points of a sweep."""


def _values(value: object) -> object:
    """Take a list of values. Raises ValueError for anything else, and for none."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"expected a list of values, like [64, 128], got {shown(value)}")
    return value


class SweepFile(Section):
    """A sweep: one scenario, and which of its values are varied."""

    scenario: str = Field(min_length=1, description="the scenario file, relative to this file")
    grid: dict[str, Annotated[list[Any], BeforeValidator(_values)]] = Field(
        default={}, description="by path, the values that are combined with all others"
    )
    points: list[Annotated[dict[str, Any], Field(min_length=1)]] = Field(
        default=[], description="values that belong together, by path"
    )


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """A scenario of a sweep, and which values it has, by path."""

    settings: tuple[tuple[str, object], ...]
    scenario: Scenario


@dataclass(frozen=True, slots=True)
class PointSweep:
    """A sweep that is read: the file, and its points in order, the last path of the grid running fastest."""

    path: Path
    scenario: Path
    points: tuple[SweepPoint, ...]

    @staticmethod
    def read(path: Path, overrides: Sequence[str] = ()) -> PointSweep:
        """Read a sweep file, and every scenario in it with overrides applied first; no model is built.

        Raises ScenarioError with every mistake, each once. Cost: some milliseconds for each point.
        """
        document = Document.read(path)
        mistakes = list(document.mistakes)
        try:
            found = SweepFile.model_validate(document.data)
        except ValidationError as error:
            raise ScenarioError([*mistakes, *mistakes_of(error, document, SweepFile)]) from error
        mistakes += _too_many(found, document)
        if mistakes:
            raise ScenarioError(mistakes)
        base = path.parent / found.scenario
        text = apply_overrides(_scenario(base, document), overrides)
        library = functools.cache(Library.read)
        points: list[SweepPoint] = []
        wrong: dict[Mistake, None] = {}
        for settings in _settings(found, document):
            try:
                scenario = scenario_of(apply_settings(text, settings), base, library)
            except ScenarioError as error:
                wrong |= dict.fromkeys(_of_point(one, settings, document) for one in error.mistakes)
                continue
            points.append(SweepPoint(tuple((one.path, one.value) for one in settings), scenario))
        if wrong:
            raise ScenarioError(wrong)
        return PointSweep(path, base, tuple(points))


def _too_many(found: SweepFile, document: Document) -> Iterator[Mistake]:
    number = max(1, len(found.points))
    for values in found.grid.values():
        number *= len(values)
    if not found.grid and not found.points:
        yield mistake_at(document, (), "nothing is varied; give a grid, points, or both")
    if number > MOST_POINTS:
        yield mistake_at(document, ("grid",), f"{number} points, at most {MOST_POINTS}")


def _of_point(mistake: Mistake, settings: Sequence[Setting], document: Document) -> Mistake:
    """Return a mistake at a line of the sweep file: of what is wrong elsewhere, at the point's last value."""
    if mistake.place.source == document.source:
        return mistake
    words = ", ".join(f"{one.path}={shown(one.value)}" for one in settings)
    return Mistake(settings[-1].place, settings[-1].path, f"with {words}: {mistake}")


def _scenario(path: Path, document: Document) -> Document:
    """Read the scenario's text; that there is none is a mistake of the sweep file."""
    if not path.is_file():
        raise ScenarioError([mistake_at(document, ("scenario",), f"there is no file {path}")])
    return Document.read(path)


def _settings(found: SweepFile, document: Document) -> Iterator[list[Setting]]:
    """Yield the values of every point, with their places in the sweep file."""

    def place(*where: str | int) -> FilePlace:
        return document.place(where)

    rows = [
        [Setting(path, value, place("points", at, path)) for path, value in row.items()]
        for at, row in enumerate(found.points)
    ] or [[]]
    grid = [
        [Setting(path, value, place("grid", path, at)) for at, value in enumerate(values)]
        for path, values in found.grid.items()
    ]
    for row, chosen in itertools.product(rows, list(itertools.product(*grid))):
        yield [*row, *chosen]
