"""A folder of Sailor's measurements, read as a whole: what was profiled of one model, and plans (docs/formats).

::

    layer_sizes.json
    network_coeffs_<any>.json
    training_config_<any>.json          optional: the global batch of plans that do not name one
    profiles/<model>/<card>.json
    measured/<any>/<plan>.json          plans that were run
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pipecut.ingest.graphs.foreign import FormatError
from pipecut_literature.common.json_source import Count, read_json
from pipecut_literature.sailor.plan_file import read_sailor_plan
from pipecut_literature.sailor.profile import ProfiledMachine
from pipecut_literature.sailor.profile_file import read_links, read_sizes, read_times
from pipecut_literature.sailor.run import SailorPlan


class _Training(BaseModel):
    """A training set-up, of which only the global batch is of interest here."""

    model_config = ConfigDict(strict=True, frozen=True)
    global_batch_size: Count


def read_machine(folder: Path) -> ProfiledMachine:
    """Read everything that was profiled of the one model in a folder.

    Raises FormatError for a file that is missing or of another format; OSError if a file cannot be read.
    """
    sizes_file = _one(folder, "layer_sizes.json")
    links = read_links(_one(folder, "network_coeffs_*.json"))
    sizes = read_sizes(sizes_file)
    profiled = sorted(path.name for path in (folder / "profiles").glob("*") if path.is_dir())
    models = [model for model in profiled if model in sizes]
    if len(models) != 1:
        found = ", ".join(profiled) or "no folder"
        raise FormatError(
            folder / "profiles",
            [f": found {found}, expected one folder named like a model of {sizes_file.name} ({', '.join(sizes)})"],
        )
    cards = sorted((folder / "profiles" / models[0]).glob("*.json"))
    if not cards:
        raise FormatError(folder / "profiles" / models[0], [": found no profile, expected <card>.json"])
    profiles = {path.stem: read_times(path) for path in cards}
    counts = {len(layers) for layers in sizes[models[0]].values()}
    for path in cards:
        if not profiles[path.stem]:
            raise FormatError(path, [": found no layer times"])
        expected = max(counts, default=0)
        problems = [
            f": {size}.{degree}: found {len(layers)} layers, expected {expected}, as in {sizes_file.name}"
            for (size, degree), layers in profiles[path.stem].items()
            if counts != {len(layers)}
        ]
        if problems:
            raise FormatError(path, problems)
    return ProfiledMachine.of(profiles, sizes[models[0]], links)


def read_global_batch(folder: Path) -> int | None:
    """Return the global batch of the training set-up in a folder; None where there is not exactly one set-up.

    Raises FormatError for a file of another format; OSError if it cannot be read.
    """
    found = sorted(folder.glob("training_config*.json"))
    return read_json(found[0], _Training).global_batch_size if len(found) == 1 else None


def read_plans(folder: Path, global_batch: int | None) -> dict[str, SailorPlan]:
    """Read every plan below a folder, by its path there without the suffix, in the order of names.

    Raises FormatError with the problems of all of them, or where there is no plan; OSError if one cannot be read.
    """
    found: dict[str, SailorPlan] = {}
    problems: list[str] = []
    for path in _in_order(folder.rglob("*.json")):
        try:
            found[path.relative_to(folder).with_suffix("").as_posix()] = read_sailor_plan(path, global_batch)
        except FormatError as error:
            problems += [f"/{path.relative_to(folder).as_posix()}{text}" for text in error.problems]
    if problems or not found:
        raise FormatError(folder, problems or [": found no plan, expected <name>.json"])
    return found


def _in_order(paths: Iterable[Path]) -> list[Path]:
    """Sort paths so that numbers in names count as numbers: N2 before N16."""

    def key(path: Path) -> list[tuple[int, str]]:
        parts: list[tuple[int, str]] = []
        text = ""
        for letter in path.as_posix():
            if text and letter.isdecimal() != text[-1].isdecimal():
                parts.append(_numbered(text))
                text = ""
            text += letter
        return [*parts, _numbered(text)]

    return sorted(paths, key=key)


def _numbered(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdecimal() else (-1, text)


def _one(folder: Path, pattern: str) -> Path:
    """Return the one file of this name. Raises FormatError for none or several."""
    found = sorted(path for path in folder.glob(pattern) if path.is_file())
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "no such file"
        raise FormatError(folder / pattern, [f": found {names}, expected one file"])
    return found[0]
