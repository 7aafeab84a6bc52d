"""What each choice of a plan is worth: the time of a step with all allowed, then with each choice forbidden.

``python -m benchmarks.proof.choices [--out FILE] [--results FILE] [--limit S] [--only TEXT] [--goal GOAL]
[--choices FILE]``

Models, clusters and choices are data: ``benchmarks/instances/choices.yaml``, or another such file. A cell is one
search by ``auto`` (or by the planner that the row names) of at most ``--limit`` seconds; a plan that was found is
also executed, so that each cell has two times. Cells are appended to ``--results`` as they come, and a command
that was killed goes on from there; ``--out`` writes the document from all that are known.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.proof.choices_text import document
from benchmarks.proof.found import read_plan, searched, with_each_number
from pipecut.commands.sweep.sweep import ResultsFile, key_of
from pipecut.formulation.constraints.layers.forms import FormLimit
from pipecut.formulation.costs.megatron_forms import megatron_forms
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Axis, Layer, Split
from pipecut.formulation.problem.layers import with_pairs as with_both
from pipecut.formulation.problem.plan import Plan, Span
from pipecut.ingest.scenario.load import scenario_of
from pipecut.ingest.text.overrides import Setting, apply_settings
from pipecut.ingest.text.yaml_source import Document, parse_document

if TYPE_CHECKING:
    import networkx as nx

    from pipecut.ingest.scenario.load import Scenario

ROOT = Path(__file__).parents[2]
FILE = ROOT / "benchmarks" / "instances" / "choices.yaml"
EVERYTHING = "everything allowed"
FORMS = "constraints.forms"
PAIRS, BY_ROWS, WHOLE = "pairs", "rows", "whole"
WITH_ROWS = {(Split.MATRIX, 1): 3, (Split.MATRIX, 2): 4, (Split.JOIN, 1): 0}
"""Forms of Megatron-LM's pairs with sequence parallelism, by those without."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the document: where it stands, and what is set by path, in order."""

    cluster: str
    model: str
    row: str
    added: bool
    settings: dict[str, Any]

    forbids: tuple[str, ...] = ()

    @property
    def only_forbids(self) -> bool:
        """Whether the row narrows constraints or numbers of micro-batches, and changes nothing else."""
        narrow = ("constraints.", "training.micro_batches")
        return bool(self.forbids) and all(path.startswith(narrow) for path in self.forbids)

    @property
    def name(self) -> str:
        """All three in one line."""
        return f"{self.cluster}; {self.model}; {self.row}"


def cells(written: dict[str, Any]) -> Iterator[Cell]:
    """Yield all cells of a file of choices, cluster by cluster."""
    rows = [{"name": EVERYTHING, "set": {}}, *written["forbidden"]]
    for cluster, of_cluster in written["clusters"].items():
        for model, of_model in written["models"].items():
            common = written["everything"] | of_model | of_cluster
            for added, some in ((False, rows), (True, written["added"])):
                for row in some:
                    if model in row.get("models", (model,)):
                        yield Cell(cluster, model, row["name"], added, common | row["set"], tuple(row["set"]))


@dataclass(slots=True)
class Instances:
    """Instances of cells; the graph of a model is made once."""

    graphs: dict[str, nx.DiGraph] = field(default_factory=dict)

    def of(self, cell: Cell, goal: str | None) -> tuple[Instance, Scenario]:
        """Return the instance of a cell, and its scenario."""
        chosen = dict(cell.settings)
        forms = chosen.pop(FORMS, None)
        if goal is not None and not cell.added:
            chosen["objective"] = goal
        empty = parse_document("name: choices\nsearch: paper", str(FILE))
        settings = [Setting(path, value, empty.place(())) for path, value in chosen.items()]
        scenario = scenario_of(apply_settings(empty, settings), FILE)
        if scenario.model not in self.graphs:
            self.graphs[scenario.model] = scenario.layers()
        instance = scenario.instance(self.graphs[scenario.model])
        return (with_pairs(instance, forms) if forms in (PAIRS, BY_ROWS, WHOLE) else instance), scenario


def with_pairs(instance: Instance, forms: str) -> Instance:
    """Return the instance with the forms of Megatron-LM's pairs, by rows between them or not, or by rows alone."""
    found = megatron_forms(instance, Span(0, len(instance.layers)))
    limits = [
        FormLimit(row.name, _paired(row, form, forms))
        for row, form in zip(instance.layers, found, strict=True)
        if row.split is not Split.FOLLOW
    ]
    return replace(instance, constraints=replace(instance.constraints, forms=tuple(limits)))


def _paired(row: Layer, form: int, forms: str) -> tuple[int, ...]:
    by_rows = WITH_ROWS.get((row.split, form), form)
    if forms == BY_ROWS:
        return (by_rows,)
    of_experts = row.across is not None and row.across.axis is Axis.EXPERTS
    return with_both((form, *((by_rows,) if forms == PAIRS else ()), *((6,) if of_experts else ())))


@dataclass(slots=True)
class Knowledge:
    """What is known of a model on a cluster: plans that other searches may begin with, and the widest claim."""

    plans: list[tuple[int, Plan]] = field(default_factory=list)
    widest: dict[str, Any] | None = None

    def add(self, cell: Cell, one: dict[str, Any]) -> None:
        """Take what was found for a cell."""
        if cell.row == EVERYTHING:
            self.widest = one
        if one.get("plan") is not None and not cell.added:
            self.plans.append((one["micro_batches"], read_plan(one["plan"])))

    def implied(self, cell: Cell, instance: Instance) -> dict[str, Any] | None:
        """Return the best plan of everything, proved, where it keeps what a row allows; None where it does not.

        A row that only forbids has no better plan than everything has.
        """
        one = self.widest
        if one is None or cell.added or not cell.only_forbids or one["proof"] != "optimal":
            return None
        many, found = one["micro_batches"], read_plan(one["plan"])
        if all(other.training.micro_batches != many for other in with_each_number(instance)):
            return None
        judged = replace(instance, training=replace(instance.training, micro_batches=many))
        priced = evaluate(judged, found)
        return one if priced.feasible and priced.objective == one["objective"] else None

    def starts(self, instance: Instance) -> Iterator[tuple[int, Plan]]:
        """Yield the known plans that keep the rules of an instance, with their numbers of micro-batches."""
        judged = {one.training.micro_batches: one for one in with_each_number(instance)}
        for many, one in self.plans:
            if many in judged and evaluate(judged[many], one).feasible:
                yield many, one


def main() -> int:
    """Search what is not known yet, and write the document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--choices", type=Path, default=FILE, help="models, clusters and choices")
    parser.add_argument("--out", type=Path, help="write the document")
    parser.add_argument("--results", type=Path, default=Path("choices.results.jsonl"), help="cells that are known")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each search")
    parser.add_argument("--only", default="", help="only cells whose name contains this text")
    parser.add_argument("--goal", choices=("iteration_time", "step_time"), help="in place of that of the file")
    parser.add_argument("--known", action="store_true", help="search nothing, write what is known")
    arguments = parser.parse_args()
    written: Any = Document.read(arguments.choices).data
    made, rows, known = Instances(), list[tuple[Cell, dict[str, Any]]](), defaultdict[Any, Knowledge](Knowledge)
    with ResultsFile(arguments.results) as results:
        for cell in cells(written):
            name = f"{cell.name}; {arguments.goal or cell.settings['objective']}"
            here = known[cell.cluster, cell.model]
            if arguments.only in cell.name and not arguments.known:
                instance, scenario = made.of(cell, arguments.goal)
                search = {"key": key_of(instance), "solver": scenario.solver.name, "limit_s": arguments.limit}
                before = results.known.get(name)
                if before is None or before["search"]["key"] != search["key"]:
                    found = here.implied(cell, instance)
                    if found is None:
                        starts = here.starts(instance) if scenario.solver.name == "auto" else ()
                        found = searched(instance, scenario.solver.name, arguments.limit, starts)
                    results.add(found | {"key": name, "search": search})
                    print(name, found["proof"], found.get("objective"), found["seconds"], sep=" | ", flush=True)
            if name in results.known:
                rows.append((cell, results.known[name]))
                here.add(*rows[-1])
    if arguments.out is not None:
        named = arguments.choices.resolve().relative_to(ROOT) if arguments.choices != FILE else ""
        given = {"--choices": named, "--limit": f"{arguments.limit:g}", "--goal": arguments.goal}
        options = " ".join(f"{name} {value}" for name, value in given.items() if value)
        command = f"python -m benchmarks.proof.choices {options} --out {arguments.out}"
        arguments.out.write_text(document(written, rows, command, arguments.limit), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
