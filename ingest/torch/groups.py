"""Group the operations of a model into layers, and name them.

A layer is a consecutive run of operations of one call of the innermost module, in execution order. Runs of an
order cannot form a cycle, which groups by module do: the additions of a residual block stand before and after
its children. A run is cut further so that a layer has one character:

- a product with weights stands alone with what follows it element by element, so that its form describes it;
- a second product of activations begins a new layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipecut.formulation.problem.layers import FORMS, Across, Axis, Split
from pipecut.ingest.operators import products
from pipecut.ingest.operators.columns import Columns, whole
from pipecut.ingest.operators.costs import rules_of
from pipecut.ingest.operators.operations import Call, Operation, Recording, Tensor
from pipecut.ingest.operators.products import across

_INPUT = -1
"""Stands for the example inputs among the producers of a run."""


@dataclass(slots=True)
class Run:
    """The operations of one layer, and what they are together.

    ``weighted`` is the product with weights, if there is one; ``forms`` its forms; ``restricted`` says that some
    operator needs to see all columns; ``multiplies`` that activations are multiplied with each other;
    ``rows_only`` that devices can share it by samples only; ``across`` what it does across rows or columns, with
    bytes of the whole example batch; ``producers`` are the runs that this one reads from.
    """

    call: Call
    operations: list[Operation] = field(default_factory=list)
    weighted: Operation | None = None
    forms: tuple[int, ...] = (0, 1, 2)
    restricted: bool = False
    multiplies: bool = False
    rows_only: bool = False
    across: Across | None = None
    producers: set[int] = field(default_factory=set)

    def principal(self) -> Operation:
        """Return the operation that the run is named after if its module's name will not do."""
        marked = [each for each in self.operations if products.is_product(each)]
        plain = [each for each in self.operations if not rules_of(each).is_view]
        smooth = [each for each in plain if each.output.differentiable]
        return self.weighted or (marked or smooth or plain or self.operations[-1:])[0]

    def split(self) -> tuple[Split, tuple[int, ...]]:
        """Return how the run takes part in the choice of forms, and the forms that it can take."""
        if self.weighted:
            return Split.MATRIX, self.forms
        if self.rows_only:
            return Split.JOIN, (0,)
        if self.restricted:
            return Split.JOIN, (0, 1)
        layers = [producer for producer in self.producers if producer >= 0]
        return Split.JOIN if self.multiplies or len(layers) > 1 else Split.FOLLOW, FORMS


class Grouper:
    """Takes the operations of a recording in order and grows the runs."""

    def __init__(self, recording: Recording) -> None:
        self.runs: list[Run] = []
        self.home: dict[int, int] = {}
        self._columns: dict[str, Columns | None] = {}
        self._readers: dict[int, set[int]] = {}
        for operation in recording.operations:
            for operand in operation.batched:
                if operand.producer is not None:
                    self._readers.setdefault(operand.producer, set()).add(operation.position)
        for tensor in recording.outputs:
            if tensor.producer is not None:
                self._readers.setdefault(tensor.producer, set()).add(_INPUT)

    def add(self, operation: Operation) -> None:
        """Put an operation into the last run, or begin a new one."""
        restricted = not self._follow_columns(operation)
        if not self.runs or not self._joins(self.runs[-1], operation, restricted):
            self.runs.append(Run(operation.call))
        run, index = self.runs[-1], len(self.runs) - 1
        run.operations.append(operation)
        run.producers |= self._sources(operation) - {index}
        self.home[operation.position] = index
        found = across(operation, self._find)
        if run.across is None and not run.restricted:
            run.across = found
        elif restricted and run.across is not None and run.across.axis is Axis.VOCABULARY:
            run.across = None  # it looks at all columns for another reason too
        run.restricted |= restricted
        run.rows_only |= rules_of(operation).rows_only
        run.multiplies |= products.is_product(operation)
        if products.is_weighted(operation):
            run.weighted = operation
            run.forms = products.forms(operation, self._find)

    def _sources(self, operation: Operation) -> set[int]:
        return {
            _INPUT if operand.producer is None else self.home.get(operand.producer, _INPUT)
            for operand in operation.batched
        }

    def _find(self, tensor: Tensor) -> Columns | None:
        return self._columns.get(tensor.key)

    def _follow_columns(self, operation: Operation) -> bool:
        """Note where the columns lie in the outputs; return whether the operator can work on a share of them."""
        legal, columns = rules_of(operation).columns(operation, self._find)
        first = operation.output
        filled = columns is not None and columns == whole(first, columns.dimension)
        for output in operation.outputs:
            self._columns[output.key] = whole(output, columns.dimension) if columns and filled else columns
        return legal and (columns is not None or len(operation.computed) < 2)

    def _joins(self, run: Run, operation: Operation, restricted: bool) -> bool:
        """Tell whether an operation can stand in the same layer as the run before it."""
        if run.call.key != operation.call.key or run.rows_only or rules_of(operation).rows_only:
            return False
        if run.weighted:
            start = run.weighted.position
            follows = all(each.producer is not None and each.producer >= start for each in operation.batched)
            matrix = products.is_weighted(operation) or products.is_product(operation)
            return follows and not restricted and not matrix
        if products.is_weighted(operation):
            sources = run.producers | (self._sources(operation) - {len(self.runs) - 1})
            private = {each.position for each in run.operations} | {operation.position}
            leaks = any(self._readers.get(each.position, set()) - private for each in run.operations)
            return not (run.multiplies or run.restricted or leaks) and len(sources) < 2
        return not (run.multiplies and products.is_product(operation))


def group(recording: Recording) -> tuple[list[Run], Mapping[int, int]]:
    """Return the runs in execution order, and the run of every operation by position."""
    grouper = Grouper(recording)
    for operation in recording.operations:
        grouper.add(operation)
    _mark_experts(grouper.runs)
    return grouper.runs, grouper.home


def _mark_experts(runs: Sequence[Run]) -> None:
    """Note which layers work on nothing but what experts made: on tokens that are sorted by expert."""
    pieces: dict[int, int] = {}
    for at, run in enumerate(runs):
        if run.across is not None and run.across.axis is Axis.EXPERTS:
            pieces[at] = run.across.pieces
        elif run.across is None and not run.weighted and run.producers and run.producers <= set(pieces):
            pieces[at] = min(pieces[one] for one in run.producers)
            run.across = Across(Axis.EXPERTS, pieces[at])


def names(runs: Sequence[Run]) -> list[tuple[str, bool]]:
    """Return a unique name for every run, and whether it is the name of a module.

    A run that is all a module does in one call bears the module's name. Others are named after their module and
    principal operator: ``layer1.0.add``. The second bearer of a name gets ``:1``, the third ``:2``; modules
    choose first.
    """
    count: dict[str, int] = {}
    for run in runs:
        count[run.call.key] = count.get(run.call.key, 0) + 1
    parents = {outer for run in runs for outer in run.call.outer}
    own = [bool(run.call.module) and count[run.call.key] == 1 and run.call.key not in parents for run in runs]
    taken: set[str] = set()
    result = [""] * len(runs)
    for wanted in (True, False):
        for index, run in enumerate(runs):
            if own[index] is wanted:
                short = run.principal().name.rpartition("::")[2]
                base = run.call.module if wanted else f"{run.call.module}.{short}".lstrip(".")
                result[index] = _free(base, taken)
                taken.add(result[index])
    return list(zip(result, own, strict=True))


def _free(base: str, taken: set[str]) -> str:
    name, repeat = base, 0
    while name in taken:
        repeat += 1
        name = f"{base}:{repeat}"
    return name
