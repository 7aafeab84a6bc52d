"""Trace a torch module into a layer graph: every layer costed per sample, nothing allocated.

The module is exported with ``torch.export`` (in training mode, on the meta device if it was built there), its
operations are grouped into layers, and every layer is costed from the shapes of its tensors by the table in
``ingest.operators.costs``. What is counted how stands in docs/decisions/0002-tracing.md.

The operation count behind PipePar's Table I ("Total Flops (G)"), reproduced for comparison only.

It is the count of the tool torchstat: one per multiply-accumulate and per bias addition of a convolution, input
features x output features for a linear layer (no bias), one per element for ReLU and its kin, one per input
element for pooling with a window, two per element for batch normalisation. It counts modules only (a functional
ReLU is free), only of the classes listed here, and a module that is called several times counts its last call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import networkx as nx

from pipecut.formulation.problem.layers import Across, Layer, Split, layer_graph
from pipecut.ingest.errors import TraceError
from pipecut.ingest.graphs.module_calls import ModuleCall
from pipecut.ingest.operators.costs import Operator, is_known, rules_of
from pipecut.ingest.operators.keeping import Keeping
from pipecut.ingest.operators.operations import ModuleKind, Operation, Recording, Tensor
from pipecut.ingest.operators.samples import BATCH_STATISTICS, mixing, statistics
from pipecut.ingest.operators.work import work_of
from pipecut.ingest.torch.export import Inputs
from pipecut.ingest.torch.groups import Run, group, names
from pipecut.ingest.torch.record import record

if TYPE_CHECKING:
    from torch import nn

_PER_ELEMENT = frozenset(
    {"ReLU", "ReLU6", "PReLU", "ELU", "LeakyReLU", "MaxPool2d", "MaxPool3d", "AvgPool2d", "AvgPool3d"}
)


def total(kind: str, operations: Sequence[Operation]) -> int:
    """Return the count for one call of a module of class ``kind``, for the whole example batch."""
    products = sum(rules_of(operation).macs(operation) for operation in operations)
    first, last = operations[0], operations[-1]
    if kind in ("Conv2d", "Conv3d"):
        bias = isinstance(first.arguments.get("bias"), Tensor)
        return products + (last.output.elements if bias else 0)
    if kind == "Linear":
        return products
    if kind in ("BatchNorm2d", "BatchNorm3d"):
        affine = isinstance(last.arguments.get("weight"), Tensor)
        return last.output.elements * (2 if affine else 1)
    if kind in _PER_ELEMENT:
        return first.operands[0].elements
    return last.output.elements if kind == "Upsample" else 0


_NO_MODULE = ModuleKind("", "")


def trace(
    module: nn.Module,
    inputs: Inputs,
    name: str,
    operators: Mapping[str, str | Operator] | None = None,
    *,
    follow: bool = True,
) -> nx.DiGraph:
    """Return the layer graph of a module, in execution order, per sample.

    ``inputs`` are example inputs (a tuple, or a mapping of keywords) whose dimension 0 is the batch; take a batch
    of 2 or more, so that mixing of samples is noticed. Build the module under ``torch.device("meta")`` and no
    weight is allocated. ``operators`` are rules for operators that are not known, or the names of known ones that
    count the same. What has no rule counts as the bytes that it reads and writes, and stands in the graph's
    attribute ``unpriced``. Without ``follow`` the module is exported even where it need not be. Raises TraceError,
    which names the layer and operator, when the module cannot be followed or costed.
    """
    return graph_of(record(module, inputs, name, operators or {}, follow=follow), name)


def graph_of(recording: Recording, name: str) -> nx.DiGraph:
    """Return the layer graph of a recording. Raises TraceError where a layer cannot be costed."""
    loss = _loss(recording)
    if (found := mixing(recording, loss)) is not None:
        raise mixed(found)
    runs, home = group(recording)
    return _Costing(name, recording, runs, home, loss).graph()


class _Costing:
    """Turns the runs of a recording into layers and edges."""

    def __init__(
        self, model: str, recording: Recording, runs: Sequence[Run], home: Mapping[int, int], loss: Collection[int]
    ) -> None:
        self._model = model
        self._recording = recording
        self._runs = runs
        self._home = home
        self._names = names(runs)
        self._users: dict[str, list[str]] = {}
        smooth = (one for one in recording.operations if any(output.differentiable for output in one.outputs))
        used = {key for one in smooth for operand in one.operands for key in operand.parameters}
        self._trained = used - recording.frozen
        self._loss = loss
        self._kept = Keeping(recording)
        self._arriving = [self._arrivals(index) for index in range(len(runs))]
        self._leaving: list[dict[str, Tensor]] = [{} for _ in runs]
        read = [tensor for sources in self._arriving for tensors in sources.values() for tensor in tensors]
        for tensor in [*read, *recording.outputs]:
            if tensor.producer is not None and tensor.producer in home:
                self._leaving[home[tensor.producer]][tensor.key] = tensor

    def graph(self) -> nx.DiGraph:
        """Build the checked layer graph."""
        last = {run.call.module: index for index, run in enumerate(self._runs)}
        layers = [self._layer(index, last[run.call.module] == index) for index, run in enumerate(self._runs)]
        flows = sorted(
            (source, index, self._distinct(tensors, self._names[source][0]))
            for index, sources in enumerate(self._arriving)
            for source, tensors in sources.items()
            if source is not None
        )
        edges = [(self._names[source][0], self._names[index][0], size) for source, index, size in flows]
        graph = layer_graph(self._model, layers, edges, self._recording.element_bytes)
        if calls := self._calls():
            graph.graph["modules"] = calls
        if unpriced := self._unpriced():
            graph.graph["unpriced"] = unpriced
        if normal := self._statistics():
            graph.graph["notes"] = (normal,)
        if ties := self._ties():
            graph.graph["ties"] = ties
        return graph

    def _ties(self) -> tuple[tuple[tuple[str, ...], int, int], ...]:
        """Return the weights that several layers use: (layers, bytes, trained bytes), added up by layers."""
        found: dict[tuple[str, ...], list[str]] = {}
        for key, users in self._users.items():
            if len(users) > 1:
                found.setdefault(tuple(users), []).append(key)
        return tuple((users, *self._sizes(keys)) for users, keys in found.items())

    def _sizes(self, keys: Iterable[str]) -> tuple[int, int]:
        """Return the bytes of some parameters, and of those of them that are trained."""
        known, trained = self._recording.parameter_bytes, self._trained
        sizes = [(known[key], known[key] if key in trained else 0) for key in keys]
        return sum(size for size, _ in sizes), sum(part for _, part in sizes)

    def _calls(self) -> tuple[ModuleCall, ...]:
        """Return the calls of modules with the layers that they hold, outer calls first."""
        ends: dict[str, list[str]] = {}
        for run, (name, _) in zip(self._runs, self._names, strict=True):
            inside = (*zip(run.call.outer, run.call.around, strict=True), (run.call.key, run.call.module))
            for key, module in inside:
                if module:
                    ends.setdefault(key, [module, name])[2:] = [name]
        kinds = self._recording.modules
        return tuple(
            ModuleCall(module, kinds.get(module, _NO_MODULE).name or module, first, last)
            for module, first, last in ends.values()
        )

    def _unpriced(self) -> tuple[str, ...]:
        """Name every operator without a formula, once, with the first layer that it stands in and its line."""
        found: dict[str, str] = {}
        for run, (name, _) in zip(self._runs, self._names, strict=True):
            for operation in run.operations:
                if not is_known(operation):
                    line = f" ({operation.source})" if operation.source else ""
                    found.setdefault(operation.name, f"{operation.name} in {name}{line}")
        return tuple(found.values())

    def _statistics(self) -> str:
        """Say which layers take statistics over all samples, and which plans compute something else for it."""
        homes = (self._home.get(one.position) for one in statistics(self._recording))
        found = tuple(dict.fromkeys(self._names[at][0] for at in homes if at is not None))
        if not found:
            return ""
        more = f" and {len(found) - 1} more" if found[1:] else ""
        return (
            f"{BATCH_STATISTICS} ({found[0]}{more}) are those of the samples that a device has: devices that share"
            " a micro-batch compute something else than one device would, which pipecut run, validate and export"
            " --to script refuse"
        )

    def _arrivals(self, index: int) -> dict[int | None, list[Tensor]]:
        """Return the tensors that a run reads, by the run they come from (None: the example inputs)."""
        found: dict[int | None, list[Tensor]] = {}
        for operation in self._runs[index].operations:
            for tensor in operation.batched:
                source = None if tensor.producer is None else self._home[tensor.producer]
                if source != index:
                    found.setdefault(source, []).append(tensor)
        return found

    def _layer(self, index: int, last_call: bool) -> Layer:
        run, (name, is_module) = self._runs[index], self._names[index]
        kind = self._recording.modules.get(run.call.module, _NO_MODULE) if is_module else _NO_MODULE
        counted = total(kind.torch_name, run.operations) if is_module and last_call else 0
        macs = sum(rules_of(operation).macs(operation) for operation in run.operations)
        arriving = [tensor for tensors in self._arriving[index].values() for tensor in tensors]
        split, forms = run.split()
        size, trained = self._parameters(run, name)
        stash = self._kept.add(run.operations)
        return Layer(
            name=name,
            operator=kind.name or run.principal().name,
            split=split,
            parameter_bytes=size,
            input_bytes=self._distinct(arriving, name),
            output_bytes=self._distinct(self._leaving[index].values(), name),
            stash_bytes=self._per_sample(stash, name, "bytes kept for the backward pass", loss=self._ends(run)),
            macs=self._per_sample(macs, name, "multiply-accumulates", loss=self._ends(run)),
            torchstat_flops=self._per_sample(counted, name, "operations", loss=self._ends(run)),
            allowed_forms=forms,
            trainable_bytes=None if trained == size else trained,
            backward=any(output.differentiable for operation in run.operations for output in operation.outputs),
            work=work_of(run.operations, self._recording.batch),
            across=self._across(run, name, split),
        )

    def _across(self, run: Run, name: str, split: Split) -> Across | None:
        """Return what a layer does across its rows or columns, for one sample."""
        if run.across is None or run.rows_only or split is Split.FOLLOW:
            return None
        sent = self._per_sample(run.across.sent_bytes, name, "bytes sent", loss=self._ends(run))
        return replace(run.across, sent_bytes=sent)

    def _parameters(self, run: Run, name: str) -> tuple[int, int]:
        """Return the bytes of the parameters that this layer is the first to use, and of the trained ones."""
        used = {
            key for operation in run.operations for operand in operation.operands for key in operand.parameters
        }
        for key in sorted(used):
            self._users.setdefault(key, []).append(name)
        return self._sizes(key for key in used if self._users[key][0] == name)

    def _ends(self, run: Run) -> bool:
        """Tell whether a loss begins in a layer, or goes on in it."""
        return any(operation.position in self._loss for operation in run.operations)

    def _distinct(self, tensors: Iterable[Tensor], name: str) -> int:
        """Return the bytes of distinct tensors per sample; views of one storage count it at most once."""
        views: dict[int, dict[str, Tensor]] = {}
        loss = False
        for tensor in tensors:
            loss |= (last := tensor.producer in self._loss)
            self._per_sample(tensor.elements, name, "elements of a tensor", loss=last)
            views.setdefault(tensor.storage, {})[tensor.key] = tensor
        total = 0
        for same in views.values():
            total += min(sum(each.total_bytes for each in same.values()), next(iter(same.values())).storage_bytes)
        return self._per_sample(total, name, "bytes of activations", loss=loss)

    def _per_sample(self, total: int, name: str, what: str, *, loss: bool) -> int:
        """Return a sample's share; of a loss, which all samples have in common, rounded up."""
        share, rest = divmod(total, self._recording.batch)
        if rest and not loss:
            raise TraceError(
                f"layer {name}: the number of {what} is {total}, not a multiple of the batch of "
                f"{self._recording.batch}; it mixes samples (as a mean over the batch does), so take it out"
            )
        return share + (rest > 0)


def mixed(operation: Operation) -> TraceError:
    """Return the error for an operation that brings samples together and whose result samples use."""
    where = f"layer {operation.call.module or 'of the model itself'}"
    line = f" ({operation.source})" if operation.source else ""
    return TraceError(
        f"{where}: operator {operation.target}{line} mixes samples, so micro-batches would compute something else;"
        " take it out of the model, or put the batch into dimension 0 of the example inputs if it is not there"
    )


def _loss(recording: Recording) -> frozenset[int]:
    """Return the operations that bring all samples together and whose results no sample uses: those of a loss."""
    used: set[int] = set()
    found: set[int] = set()
    for operation in reversed(recording.operations):
        uneven = all(output.elements % recording.batch for output in operation.outputs)
        if uneven and operation.position not in used:
            found.add(operation.position)
        elif uneven and operation.output.differentiable:
            raise mixed(operation)
        else:
            used |= {operand.producer for operand in operation.operands if operand.producer is not None}
    return frozenset(found)
