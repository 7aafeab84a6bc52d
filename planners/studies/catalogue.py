"""Every study by name: the explicit table behind ``pipecut study``. Importing it imports no study."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pipecut.planners.studies.study import Study, StudyInputs

    Run = Callable[[StudyInputs], Study]


class StudyEntry(NamedTuple):
    """A study: one line about it, the document that holds its result, and a function that loads it."""

    summary: str
    document: str
    load: Callable[[], Run]


def _from(module: str) -> Callable[[], Run]:
    """Return a function that imports a study when it is called."""
    return lambda: importlib.import_module(f"pipecut.planners.{module}").run


STUDIES: dict[str, StudyEntry] = {
    "accpar": StudyEntry(
        "AccPar's and HyPar's types and speed-ups", "docs/studies/accpar.md", _from("accpar.study")
    ),
    "dnn-partitioning": StudyEntry(
        "published placements of operator graphs, proved node by node",
        "docs/studies/dnn-partitioning.md",
        _from("dnn_partitioning.study"),
    ),
    "fidelity": StudyEntry("published times and memories, predicted", "docs/fidelity.md", _from("fidelity.study")),
    "gpipe": StudyEntry(
        "GPipe's Table 1: how large a Transformer fits", "docs/studies/gpipe.md", _from("gpipe.study")
    ),
    "ordering": StudyEntry(
        "fixed schedules against the best order", "docs/studies/ordering.md", _from("studies.orders")
    ),
    "hetpipe": StudyEntry(
        "HetPipe's allocations on unlike GPUs", "docs/studies/hetpipe.md", _from("hetpipe.study")
    ),
    "pipedream": StudyEntry(
        "PipeDream's program and paper", "docs/studies/pipedream.md", _from("pipedream.study")
    ),
    "pipepar": StudyEntry(
        "PipePar's Tables I and II and its Fig. 4", "docs/studies/pipepar.md", _from("pipepar.study")
    ),
    "sailor": StudyEntry(
        "real runs of Sailor on GH200: time and memory", "docs/studies/sailor.md", _from("sailor.study")
    ),
}
