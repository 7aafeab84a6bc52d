"""Certificate files: a plan, its objective, a bound, and the labels that prove it (``formulation.certificate``).

The plan is written as in a plan file, by names; labels by places of the line of devices and layer numbers. Reading
checks the shape only; what the file claims is for ``formulation.certificate.verify``. The format is described in
``docs/formats/certificate.md``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from formulation.certificate import Certificate
from formulation.instance import Instance
from ingest.files import atomic_write, read_limited
from ingest.plan_file import parse_strictly, stage_to_dict
from ingest.plan_reader import plan_of

FORMAT = "pipecut certificate"
FORMAT_VERSION = 1
LARGEST_FILE = 64 * 2**20
"""Bytes of the largest certificate that is read."""


class CertificateFileError(ValueError):
    """A file is no certificate; the message has one line for each mistake."""


class _Label(BaseModel):
    """No stage on devices ``first`` to ``stop - 1`` of the line stops behind layer ``label``."""

    model_config = ConfigDict(extra="forbid", strict=True)
    first: int = Field(ge=0)
    stop: int = Field(ge=1)
    label: int = Field(ge=0)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    format: str = Field(pattern=f"^{FORMAT}$")
    version: int = Field(ge=FORMAT_VERSION, le=FORMAT_VERSION)
    fingerprint: str = Field(pattern="^[0-9a-f]{64}$")
    objective: int = Field(ge=0)
    bound: int = Field(ge=0)
    plan: dict[str, Any]
    labels: list[_Label]


def write_certificate(path: str | Path, instance: Instance, certificate: Certificate) -> None:
    """Write a certificate; an existing file is replaced whole or not at all. Raises OSError."""
    stages = [stage_to_dict(instance, stage) for stage in certificate.plan.stages]
    content = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "fingerprint": certificate.fingerprint,
        "objective": certificate.objective,
        "bound": certificate.bound,
        "plan": {"stages": stages},
        "labels": [
            {"first": first, "stop": stop, "label": label}
            for (first, stop), label in sorted(certificate.labels.items())
        ],
    }
    atomic_write(Path(path), json.dumps(content, indent=1) + "\n")


def read_certificate(path: str | Path, instance: Instance) -> Certificate:
    """Read a certificate about an instance. Raises CertificateFileError with every mistake of the file."""
    source = Path(path)
    try:
        found = _File.model_validate(parse_strictly(read_limited(source, LARGEST_FILE)))
    except ValidationError as error:
        rows = (f"{source}: {'.'.join(map(str, row['loc']))}: {row['msg']}" for row in error.errors()[:20])
        raise CertificateFileError("\n".join(rows)) from error
    except OSError as error:
        raise CertificateFileError(f"{source}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CertificateFileError(f"{source}: not a JSON certificate: {error}") from error
    plan, mistakes = plan_of(found.plan, instance)
    places = [(row.first, row.stop) for row in found.labels]
    if len(set(places)) < len(places):
        mistakes = [*mistakes, "labels: a place is repeated"]
    if plan is None or mistakes:
        raise CertificateFileError("\n".join(f"{source}: {mistake}" for mistake in mistakes))
    labels = {place: row.label for place, row in zip(places, found.labels, strict=True)}
    return Certificate(found.fingerprint, plan, found.objective, found.bound, labels)
