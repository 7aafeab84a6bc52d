"""Certificate files: a plan, its objective, a bound, and what proves it (``certificates.check``).

The plan is written as in a plan file, by names; labels by numbers of devices, servers and layers, and paths by
numbers of stages and micro-batches. Reading checks
the shape only; what the file claims is for ``formulation.certificates.check.verify``. The format is described in
``docs/formats/certificate.md``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pipecut.formulation.certificates.check import Certificate
from pipecut.formulation.certificates.executed.paths import PathPass, WeighedPaths
from pipecut.formulation.certificates.labels import Key, Runs
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.suffixes import slots_matter
from pipecut.ingest.files import atomic_write, parse_json, read_limited
from pipecut.ingest.mistakes import MOST_SHOWN, problems_of
from pipecut.ingest.plans.plan_file import as_planned, choices_to_dict, plan_of, stage_to_dict

FORMAT = "pipecut certificate"
FORMAT_VERSION = 3
OLDEST_VERSION = 2
"""The oldest one that is read: it has no paths."""
LARGEST_FILE = 64 * 2**20
"""Bytes of the largest certificate that is read."""


_Whole = Annotated[int, Field(ge=0, le=2**62)]
_Positive = Annotated[int, Field(ge=1, le=2**62)]
"""What no count, time or weight of a certificate exceeds."""


class CertificateFileError(ValueError):
    """A file is no certificate; the message has one line for each mistake."""


class _Label(BaseModel):
    """Suffixes from ``slot`` on in this state, with the first stage on ``servers``, start at ``starts``.

    ``lanes``: how many adapters the first stage has.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    slot: _Whole = 0
    state: list[_Whole]
    servers: list[_Whole]
    lanes: _Positive = 1
    starts: list[list[_Whole]]

    @field_validator("starts")
    @classmethod
    def _pairs(cls, starts: list[list[int]]) -> list[list[int]]:
        if any(len(run) != 2 for run in starts):
            raise ValueError("expected pairs of a first and a last layer")
        return starts

    @property
    def key(self) -> Key:
        return self.slot, tuple(self.state), (tuple(self.servers), self.lanes)

    @property
    def runs(self) -> Runs:
        return tuple((first, last) for first, last in self.starts)


class _Path(BaseModel):
    """A path through the passes of plans of so many ``stages``: stage, "F" or "B", and micro-batch of each.

    Those with the same ``mean`` are of one mean, with their weights.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    stages: _Positive
    mean: _Whole = 0
    weight: _Positive
    passes: list[tuple[_Whole, Literal["F", "B"], _Whole]]

    @field_validator("passes", mode="before")
    @classmethod
    def _triples(cls, passes: object) -> object:
        """Let lists stand for triples, as JSON has nothing else."""
        rows = passes if isinstance(passes, list) else []
        return [tuple(row) if isinstance(row, list) else row for row in rows] if rows else passes


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    format: str = Field(pattern=f"^{FORMAT}$")
    version: int = Field(ge=OLDEST_VERSION, le=FORMAT_VERSION)
    fingerprint: str = Field(pattern="^[0-9a-f]{64}$")
    objective: _Whole
    bound: _Whole
    plan: dict[str, Any]
    labels: list[_Label]
    paths: list[_Path] = []


def write_certificate(path: str | Path, instance: Instance, certificate: Certificate) -> None:
    """Write a certificate; an existing file is replaced whole or not at all. Raises OSError."""
    stages = [stage_to_dict(instance, stage) for stage in certificate.plan.stages]
    head = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "fingerprint": certificate.fingerprint,
        "objective": certificate.objective,
        "bound": certificate.bound,
        "plan": choices_to_dict(instance) | {"stages": stages},
    }
    slotted = slots_matter(instance)
    rows = (json.dumps(_row(key, runs, slotted=slotted)) for key, runs in sorted(certificate.labels.items()))
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    lines.append('"labels": [' + ",\n  ".join(("", *rows))[1:] + "\n ]")
    if certificate.paths:
        numbered = enumerate(certificate.paths)
        paths = (json.dumps(_path_row(one.stages, mean, *path)) for mean, one in numbered for path in one.paths)
        lines.append('"paths": [' + ",\n  ".join(("", *paths))[1:] + "\n ]")
    atomic_write(Path(path), "{" + ",\n ".join(lines) + "}\n")


def _row(key: Key, runs: Runs, *, slotted: bool) -> dict[str, Any]:
    slot, state, (servers, lanes) = key
    head = ({"slot": slot} if slotted else {}) | {"state": state, "servers": servers}
    return head | ({"lanes": lanes} if lanes > 1 else {}) | {"starts": runs}


def _path_row(stages: int, mean: int, weight: int, passes: Sequence[PathPass]) -> dict[str, Any]:
    return {"stages": stages, "mean": mean, "weight": weight, "passes": passes}


def read_certificate(path: str | Path, instance: Instance) -> Certificate:
    """Read a certificate about an instance. Raises CertificateFileError with every mistake of the file."""
    source = Path(path)
    return _certificate(source, _file(source), instance)


def read_certificate_as_made(path: str | Path, instance: Instance) -> tuple[Instance, Certificate]:
    """Read a certificate; return what it is about, with the order and micro-batches that its plan chose, and it.

    Raises CertificateFileError with every mistake of the file.
    """
    source = Path(path)
    found = _file(source)
    about = as_planned(found.plan, instance)
    return about, _certificate(source, found, about)


def _file(source: Path) -> _File:
    try:
        return _File.model_validate(parse_json(read_limited(source, LARGEST_FILE)))
    except ValidationError as error:
        rows = problems_of(error.errors(), MOST_SHOWN)
        raise CertificateFileError("\n".join(f"{source}: {row}" for row in rows)) from error
    except OSError as error:
        raise CertificateFileError(f"{source}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CertificateFileError(f"{source}: not a JSON certificate: {error}") from error


def _certificate(source: Path, found: _File, instance: Instance) -> Certificate:
    plan, mistakes = plan_of(found.plan, instance)
    keys = [row.key for row in found.labels]
    if len(set(keys)) < len(keys):
        mistakes = [*mistakes, "labels: one is repeated"]
    if plan is None or mistakes:
        raise CertificateFileError("\n".join(f"{source}: {mistake}" for mistake in mistakes))
    labels = {key: row.runs for key, row in zip(keys, found.labels, strict=True)}
    return Certificate(found.fingerprint, plan, found.objective, found.bound, labels, _paths(found.paths))


def _paths(rows: list[_Path]) -> tuple[WeighedPaths, ...]:
    """Return the paths of a file, those of one mean together."""
    means: dict[tuple[int, int], list[tuple[int, tuple[PathPass, ...]]]] = {}
    for row in rows:
        passes = tuple(PathPass(*one) for one in row.passes)
        means.setdefault((row.mean, row.stages), []).append((row.weight, passes))
    return tuple(WeighedPaths(stages, tuple(own)) for (_, stages), own in means.items())
