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


def _study(summary: str, module: str, document: str = "") -> StudyEntry:
    """Return the entry of a study that a module runs; its document is called like its folder if not otherwise."""
    place = document or f"studies/{module.partition('.')[0].replace('_', '-')}.md"
    return StudyEntry(
        summary,
        f"literature/docs/{place}",
        lambda: importlib.import_module(f"pipecut_literature.{module}").run,
    )


STUDIES: dict[str, StudyEntry] = {
    "accpar": _study("AccPar's and HyPar's types and speed-ups", "accpar.study"),
    "dnn-partitioning": _study(
        "published placements of operator graphs, proved node by node", "dnn_partitioning.study"
    ),
    "fidelity": _study("published times and memories, predicted", "fidelity.study", "fidelity.md"),
    "gpipe": _study("GPipe's Table 1: how large a Transformer fits", "gpipe.study"),
    "ordering": _study("fixed schedules against the best order", "studies.orders", "studies/ordering.md"),
    "hetpipe": _study("HetPipe's allocations on unlike GPUs", "hetpipe.study"),
    "pipedream": _study("PipeDream's program and paper", "pipedream.study"),
    "pipepar": _study("PipePar's Tables I and II and its Fig. 4", "pipepar.study"),
    "sailor": _study("real runs of Sailor on GH200: time and memory", "sailor.study"),
}
