"""Which operations mix samples: where the batch lies in each tensor, followed as columns are.

Micro-batches compute the same as the whole batch only if no sample looks at another one. The batch begins as
dimension 0 of every example input; the rules of ``ingest.operators.columns`` say where an operator leaves a cut,
and whether it looks across it. Where they cannot tell, the batch is lost from sight, and nothing is said: a model
is refused only for what is certain. Batch normalisation mixes samples by design and is not refused: whoever trains
in micro-batches takes the statistics of each. Only devices that share one take others (:func:`statistics`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pipecut.ingest.operators import columns, products
from pipecut.ingest.operators.columns import Columns
from pipecut.ingest.operators.costs import rules_of
from pipecut.ingest.operators.operations import Operation, Recording, Tensor

_FOLLOWED = (
    columns.view,
    columns.expand,
    columns.permutation,
    columns.splitting,
    columns.concatenation,
    columns.padding,
)
"""Rules that say where the batch goes; that they cannot split it further does not matter."""
_LOOKING = frozenset(
    {
        *(
            "softmax",
            "_softmax",
            "log_softmax",
            "layer_norm",
            "rms_norm",
            "cumsum",
            "sort",
            "topk",
            "flip",
            "roll",
        ),
        *("sum", "mean", "var", "var_mean", "std", "logsumexp", "norm", "linalg_vector_norm", "amax", "amin"),
        *("flip", "roll", "max", "min", "select", "slice", "narrow", "tril", "triu"),
    }
)
"""Operators that mix samples where they look across the batch."""
_ADDING = frozenset({"sum", "mean"})
"""Reductions of a loss that micro-batches can do one after the other."""
_LINEAR = frozenset({"add", "sub", "neg", "clone", "to", "_to_copy", "detach", "alias"})
_CURVED = frozenset(
    {
        "sqrt",
        "rsqrt",
        "pow",
        "square",
        "exp",
        "log",
        "log1p",
        "log2",
        "log10",
        "sigmoid",
        "tanh",
        "reciprocal",
        "abs",
    }
)
"""Operators on numbers that a mean does not go through."""
_KEPT = frozenset({"batch_norm", "instance_norm", "group_norm"})
BATCH_STATISTICS = "statistics of batch normalisation"
"""How the note begins that says what they are of."""
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


def statistics(recording: Recording) -> tuple[Operation, ...]:
    """Return the operations that take statistics over all samples, as batch normalisation does in training."""
    return tuple(one for one in recording.operations if "batch_norm" in one.name and one.arguments.get("training"))


def mixing(recording: Recording, loss: Collection[int]) -> Operation | None:
    """Return the first operation that surely mixes samples; None if there is none.

    A loss may add samples up or take their mean, and go on with that linearly: micro-batches then have the same.
    Anything else over all samples, as in a contrastive loss or the root of a mean, is a mixture. Only operations
    that a gradient goes through are looked at: masks and counts may look at the whole batch.
    """
    if recording.batch < 2:
        return None
    batch = _Batch()
    readers: dict[int, set[int]] = {}
    for operation in recording.operations:
        for operand in operation.operands:
            if operand.producer is not None:
                readers.setdefault(operand.producer, set()).add(operation.position)
    returned = {tensor.producer for tensor in recording.outputs}
    for operation in recording.operations:
        mixes = batch.follow(operation)
        leads = operation.position not in returned and readers.get(operation.position, {-1}) <= set(loss)
        of_loss = (leads or operation.position in loss) and operation.name in _ADDING
        bends = operation.position in loss and _bends(operation, loss)
        if operation.output.differentiable and ((mixes and not of_loss) or bends):
            return operation
    return None


def _bends(operation: Operation, loss: Collection[int]) -> bool:
    """Tell whether an operation of a loss is surely not linear in what has been added up over samples."""
    summed = [one for one in operation.batched if one.producer in loss and one.differentiable]
    if not summed or rules_of(operation).columns is not columns.element_wise:
        return False
    if operation.name in _LINEAR:
        return False
    if operation.name in ("mul", "div"):
        divisor = operation.batched[-1] if operation.name == "div" and len(operation.batched) > 1 else None
        return len(summed) > 1 or divisor in summed
    return operation.name in _CURVED


class _Batch:
    """Where the batch lies in the tensors so far, by their keys; it is in no tensor that is not there."""

    def __init__(self) -> None:
        self._places: dict[str, Columns] = {}

    def find(self, tensor: Tensor) -> Columns | None:
        """Return where the batch lies in a tensor, None where that is not known."""
        if tensor.batched and tensor.key not in self._places and tensor.producer in (None, _GIVEN) and tensor.rank:
            return Columns(0, 1, tensor.shape[0])
        return self._places.get(tensor.key)

    def follow(self, operation: Operation) -> bool:
        """Note where the batch lies in the results, and tell whether the operation surely mixes samples."""
        mixes, place = self._verdict(operation)
        for output in operation.outputs:
            if place is not None and place.dimension < output.rank:
                self._places[output.key] = place
        return mixes

    def _verdict(self, operation: Operation) -> tuple[bool, Columns | None]:
        rule = rules_of(operation).columns
        if operation.name in _RECURRENT:
            return self._recurrent(operation)
        if products.is_weighted(operation):
            return self._weighted(operation)
        if products.is_product(operation):
            return self._product(operation)
        if operation.name in _KEPT:
            return False, self.find(operation.operands[0])
        if rule is columns.element_wise:
            return self._element_wise(operation)
        if rule in _FOLLOWED:
            return False, rule(operation, self.find)[1]
        legal, place = rule(_inner(operation), self.find)
        known = self.find(operation.operands[0]) is not None if operation.operands else False
        return known and not legal and operation.name in _LOOKING, place if legal else None

    def _element_wise(self, operation: Operation) -> tuple[bool, Columns | None]:
        """Align the operands as broadcasting does; two batches in different dimensions meet pair by pair."""
        found: set[Columns] = set()
        for tensor in operation.batched:
            place = self.find(tensor)
            if place is None:
                return False, None
            shift = operation.output.rank - tensor.rank
            found.add(replace(place, dimension=place.dimension + shift))
        dimensions = {place.dimension for place in found}
        return len(dimensions) > 1, found.pop() if len(found) == 1 else None

    def _weighted(self, operation: Operation) -> tuple[bool, Columns | None]:
        """Keep the batch where it is behind a product with weights, unless that sums over it."""
        pair = products.factors(operation)
        data = next(tensor for tensor in pair or () if tensor.batched)
        place, result = self.find(data), operation.output
        if place is None or operation.name == "einsum":
            return False, None
        if operation.name != "embedding" and place.dimension in products.summed(operation, data):
            return operation.integer("groups", 1) == 1, None
        kept = place.dimension < result.rank and result.shape[place.dimension] == data.shape[place.dimension]
        return False, place if kept else None

    def _product(self, operation: Operation) -> tuple[bool, Columns | None]:
        """Activations are multiplied sample by sample only if the batch is a leading dimension of both."""
        if operation.name == "einsum":
            return False, None
        attends = operation.name == "scaled_dot_product_attention"
        names = ("query", "key", "value") if attends else products.FACTORS[operation.name]
        parts = [operation.tensor(name) for name in names]
        places = [(place, part) for part in parts if (place := self.find(part)) is not None]
        if any(place.dimension >= part.rank - 2 for place, part in places):
            return True, None
        kept = len(places) == len(parts) and parts[0].rank == operation.output.rank
        return False, places[0][0] if kept else None

    def _recurrent(self, operation: Operation) -> tuple[bool, Columns | None]:
        place = self.find(operation.tensor("input"))
        if place is None:
            return False, None
        first = 0 if operation.arguments.get("batch_first") else 1
        return place.dimension != first, place


_GIVEN = -1
"""Stands for the producer of example inputs where rules would take their channels for columns."""


def _inner(operation: Operation) -> Operation:
    """Return an operation whose example inputs look like any other tensor to a rule."""
    given = {
        name: replace(value, producer=_GIVEN) if isinstance(value, Tensor) and value.producer is None else value
        for name, value in operation.arguments.items()
    }
    return replace(operation, arguments=given)
