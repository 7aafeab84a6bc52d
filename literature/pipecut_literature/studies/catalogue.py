"""Every study by name: the explicit table behind ``pipecut study``. Importing it imports no study."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pipecut_literature.studies.study import Study, StudyInputs

    Run = Callable[[StudyInputs], Study]


class StudyEntry(NamedTuple):
    """A study: one line about it, the document that holds its result, and a function that loads it."""

    summary: str
    document: str
    load: Callable[[], Run]


def _from(module: str) -> Callable[[], Run]:
    """Return a function that imports a study when it is called."""
    return lambda: importlib.import_module(f"pipecut_literature.{module}").run


STUDIES: dict[str, StudyEntry] = {
    "accpar": StudyEntry(
        "AccPar's and HyPar's types and speed-ups", "literature/docs/studies/accpar.md", _from("accpar.study")
    ),
    "dnn-partitioning": StudyEntry(
        "published placements of operator graphs, proved node by node",
        "literature/docs/studies/dnn-partitioning.md",
        _from("dnn_partitioning.study"),
    ),
    "fidelity": StudyEntry(
        "published times and memories, predicted", "literature/docs/fidelity.md", _from("fidelity.study")
    ),
    "gpipe": StudyEntry(
        "GPipe's Table 1: how large a Transformer fits", "literature/docs/studies/gpipe.md", _from("gpipe.study")
    ),
    "ordering": StudyEntry(
        "fixed schedules against the best order", "literature/docs/studies/ordering.md", _from("studies.orders")
    ),
    "hetpipe": StudyEntry(
        "HetPipe's allocations on unlike GPUs", "literature/docs/studies/hetpipe.md", _from("hetpipe.study")
    ),
    "pipedream": StudyEntry(
        "PipeDream's program and paper", "literature/docs/studies/pipedream.md", _from("pipedream.study")
    ),
    "pipepar": StudyEntry(
        "PipePar's Tables I and II and its Fig. 4", "literature/docs/studies/pipepar.md", _from("pipepar.study")
    ),
    "sailor": StudyEntry(
        "real runs of Sailor on GH200: time and memory", "literature/docs/studies/sailor.md", _from("sailor.study")
    ),
}
