"""The readers of the literature with valid input to spoil."""

from __future__ import annotations

from pathlib import Path

from benchmarks.checks.fuzzing import samples
from benchmarks.checks.fuzzing.readers import Reader, RefusedError
from benchmarks.checks.fuzzing.samples import as_json
from pipecut.ingest.graphs.foreign import FormatError
from pipecut_literature.dnn_partitioning.file import EdgeCosts, read_dnn_partitioning
from pipecut_literature.pipedream.profile import measured_layers, read_profile
from pipecut_literature.sailor.plan_file import read_sailor_plan
from pipecut_literature.sailor.profile_file import read_links, read_sizes, read_times


def readers_of_papers() -> tuple[Reader, ...]:
    """Return all readers."""
    return (
        Reader("PipeDream profile", (samples.PROFILE.encode(),), "lines", FormatError, _profile, ".txt"),
        Reader("dnn-partitioning", (as_json(samples.DNN_PARTITIONING),), "json", FormatError, _partitioning),
        Reader("Sailor plan", (as_json(samples.SAILOR_PLAN),), "json", FormatError, _sailor),
        Reader("Sailor times", (as_json(samples.SAILOR_TIMES),), "json", FormatError, read_times),
        Reader("Sailor sizes", (as_json(samples.SAILOR_SIZES),), "json", FormatError, read_sizes),
        Reader("Sailor links", (as_json(samples.SAILOR_LINKS),), "json", FormatError, read_links),
    )


def _profile(path: Path) -> None:
    profile = read_profile(path)
    try:
        measured_layers(profile, 4, "made", "unit")
    except ValueError as error:
        raise RefusedError(str(error)) from error


def _partitioning(path: Path) -> None:
    read_dnn_partitioning(path, transfers=EdgeCosts.AS_PROGRAM)


def _sailor(path: Path) -> None:
    read_sailor_plan(path, 64)
