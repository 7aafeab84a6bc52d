"""Layers and the layer graph: what is cut.

A *layer graph* is a ``networkx.DiGraph``. Its nodes are fully qualified layer names in execution order, each
with the attribute ``layer`` (a :class:`Layer`); its edges carry ``bytes``, the tensor that flows from producer
to consumer for one sample. Its attribute ``cuts``, where it has one, names the layers at which a stage may start,
``notes`` what is to be said of how the model was read, and ``free_order`` is true where the layers may run in any
order that keeps producers before consumers. ``ties`` are weights that several layers use: tuples (names of the
layers, bytes, bytes that are trained). Everything in a layer graph is *per sample*: the batch enters with the
instance.

What a layer does across rows or columns, and which further ways to split it that makes possible.

Beside samples, input features and output features (forms 0 to 2) devices may split a layer along an :class:`Axis`.
Each axis brings forms of its own; what they send and hold are rows of ``formulation.costs.forms.SHARDINGS``. They
are offered only where ``constraints.splits`` names their axis.

Where it names ``pairs``, the devices of a replica may lie in a grid, in rows of neighbours (``Mode.grid``). Then a
layer may be split in one form over the neighbours and in another over the rows: a *pair* (:data:`PAIRS`). In one
of the two every device has samples or tokens of its own, so that sums of one tensor are never over both at once.

Ties: weights that several layers use.

A layer graph counts such weights at the first layer that uses them. A stage is a run of layers, so it has them
once however many of its layers use them; but where a layer uses weights that no earlier layer *of its stage* has,
its stage holds a copy (``formulation.problem.precision.Copy``).
"""

from __future__ import annotations

import enum
import itertools
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from pipecut.formulation.predictor.curves import Measured
from pipecut.formulation.predictor.roofline import Work

if TYPE_CHECKING:  # the schema of scenarios reads this module, and needs no graph
    import networkx as nx

FORMS = (0, 1, 2)
"""The three parallel forms of a matrix product (PipePar Fig. 1; AccPar's Types I, II, III)."""


class Axis(enum.StrEnum):
    """Along what devices may split layers beside samples, input features and output features."""

    SEQUENCE = "sequence"
    """Matrix products leave or take parts of the sequence (Korthikanti et al., arXiv 2205.05198, §4.2.2)."""
    CONTEXT = "context"
    """Attention on parts of the sequence: keys and values go round all devices (arXiv 2310.01889)."""
    EXPERTS = "experts"
    """Each device has some of the experts of a mixture, and gets their tokens (GShard, arXiv 2006.16668)."""
    VOCABULARY = "vocabulary"
    """A loss on parts of the vocabulary adds up a few numbers a token (Megatron-LM, arXiv 1909.08053, §3)."""
    PAIRS = "pairs"
    """Two forms at once, one over neighbouring devices and the other over the rest: no axis of a layer."""


FORMS_ALONG: Mapping[Axis, Mapping[int, int]] = MappingProxyType(
    {
        Axis.SEQUENCE: MappingProxyType({3: 1, 4: 2}),
        Axis.CONTEXT: MappingProxyType({5: 0}),
        Axis.EXPERTS: MappingProxyType({6: 0}),
        Axis.VOCABULARY: MappingProxyType({7: 1}),
    }
)
"""By axis its forms, each with the form beside which it is offered: who may not take that gets neither."""
SINGLE_FORMS = (*FORMS, *(form for forms in FORMS_ALONG.values() for form in forms))
"""With those along a further axis, which ``constraints.splits`` offers."""
OWN_TOKENS = (0, 5, 6)
"""Forms in which a device works on samples or tokens of its own: by rows, in a ring, by experts."""
TOGETHER = ((0, 1, 2, 3, 4, 6), (0, 1, 2, 5), (0, 1, 2, 7))
"""Forms that some layer may have all of: a product, attention, a loss."""
PAIRS: Mapping[int, tuple[int, int]] = MappingProxyType(
    dict(
        enumerate(
            dict.fromkeys(
                pair
                for forms in TOGETHER
                for pair in itertools.permutations(forms, 2)
                if set(pair).intersection(OWN_TOKENS)
            ),
            start=len(SINGLE_FORMS),
        )
    )
)
"""By number the form over neighbouring devices, and that over the rows of them."""
EVERY_FORM = (*SINGLE_FORMS, *PAIRS)
"""All of them: a plan names one for each layer."""


@dataclass(frozen=True, slots=True)
class Across:
    """What a layer does across the rows or columns of its input, for one sample.

    ``axis``: ``CONTEXT`` is attention, ``EXPERTS`` what works on tokens sorted by expert, ``VOCABULARY`` a loss.
    ``pieces`` are the heads of attention (of queries or of keys and values, whichever are fewer) or the experts:
    a device has some of them, never a part of one; 0 where any number of devices will do. ``sent_bytes`` are the
    keys and values, or the numbers that a loss adds up over the vocabulary in one sum. ``samples`` are those of a
    micro-batch, where rows may be parts of a sequence: each replica has a whole sample of attention, and in form
    0 all devices have equally many whole ones (0: rows are samples). Raises ValueError for a negative number, and
    for pairs, which are no axis of a layer.
    """

    axis: Axis
    pieces: int = 0
    sent_bytes: int = 0
    samples: int = 0

    def __post_init__(self) -> None:
        if min(self.pieces, self.sent_bytes, self.samples) < 0:
            raise ValueError(f"{self}: expected numbers of 0 or more")
        if self.axis is Axis.PAIRS:
            raise ValueError(f"{self}: pairs are no axis of a layer, expected one of {', '.join(FORMS_ALONG)}")

    def allows(self, form: int, degree: int, devices: int, grid: int = 1) -> bool:
        """Tell whether replicas of ``degree`` devices in rows of ``grid``, ``devices`` in all, can have this form.

        Where rows may be parts of a sequence, no two replicas share a sample of attention, and in form 0 no two
        devices do, as all have equally many rows. Of a pair each form has its own devices: those that the other
        one leaves.
        """
        if form in PAIRS:
            (one, other), rows = PAIRS[form], degree // grid
            return self.allows(one, grid, devices // rows) and self.allows(other, rows, devices // grid)
        if self.axis is Axis.CONTEXT and self.samples > 0:
            shared = form == 0 and degree > 1 and self.samples % devices
            if shared or self.samples < devices // degree:
                return False
        pieces = self.pieces if (self.axis, form) in ((Axis.CONTEXT, 2), (Axis.EXPERTS, 6)) else 0
        return pieces % degree == 0

    def has_form(self, forms: Iterable[int], degree: int, devices: int, grid: int = 1) -> bool:
        """Tell whether replicas of ``degree`` devices, ``devices`` in all, can have one of these forms.

        A replica of one device has form 0.
        """
        if degree == 1:
            return self.allows(0, 1, devices)
        return any(self.allows(form, degree, devices, grid) for form in forms if grid > 1 or form not in PAIRS)


def with_pairs(forms: Iterable[int]) -> tuple[int, ...]:
    """Return forms of a layer, and the pairs of which it may take both."""
    own = {*forms}
    return (*sorted(own), *(number for number, pair in PAIRS.items() if own.issuperset(pair)))


def axes_of(layer: Layer) -> tuple[Axis, ...]:
    """Return along what devices may split a layer, beside samples and features."""
    across = () if layer.across is None or layer.split == "follow" else (layer.across.axis,)
    return (Axis.SEQUENCE, *across) if layer.is_matrix else across


def forms_problem(layer: Layer) -> str:
    """Say what is wrong with the forms that a layer may take; nothing if they will do."""
    known = (*FORMS, *(form for axis in axes_of(layer) for form in FORMS_ALONG[axis]))
    if not layer.allowed_forms or not set(layer.allowed_forms) <= set(with_pairs(known)):
        return f", expected some of {known}"
    return ""


@dataclass(frozen=True, slots=True)
class Tie:
    """Weights of so many bytes that all of these layers use; ``trainable_bytes`` of them are trained (None: all).

    They are part of the ``parameter_bytes`` of the first of the layers alone, in execution order. Raises
    ValueError for fewer than two layers, a layer twice, and sizes that cannot be.
    """

    layers: tuple[int, ...]
    parameter_bytes: int
    trainable_bytes: int | None = None

    def __post_init__(self) -> None:
        if len(set(self.layers)) < 2 or len(set(self.layers)) < len(self.layers):
            raise ValueError(f"weights tied between layers {self.layers}, expected two or more, each once")
        if type(self.parameter_bytes) is not int or self.parameter_bytes < 0:
            raise ValueError(f"tied weights of {self.parameter_bytes!r} bytes, expected a whole number, 0 or more")
        if type(self.trained_bytes) is not int or not 0 <= self.trained_bytes <= self.parameter_bytes:
            most = f"0 to {self.parameter_bytes}, the bytes of all these weights"
            raise ValueError(f"tied weights with trainable_bytes {self.trainable_bytes!r}, expected {most}")
        object.__setattr__(self, "layers", tuple(sorted(self.layers)))

    @property
    def trained_bytes(self) -> int:
        """Bytes of these weights that are trained."""
        return self.parameter_bytes if self.trainable_bytes is None else self.trainable_bytes


def moved(layers: Sequence[Layer], tie: Tie, factor: int, at: int) -> list[Layer]:
    """Return the layers with a tie's weights put to one of them (``factor`` 1) or taken away from it (-1)."""
    rows, one = list(layers), layers[at]
    trained = one.trained_bytes + factor * tie.trained_bytes
    total = one.parameter_bytes + factor * tie.parameter_bytes
    rows[at] = replace(one, parameter_bytes=total, trainable_bytes=None if trained == total else trained)
    return rows


def ties_problems(layers: Sequence[Layer], ties: Iterable[Tie]) -> list[str]:
    """Say which tied weights are not there: in layers that the graph does not have, or more than layers have."""
    ties = tuple(ties)
    if any(not 0 <= at < len(layers) for tie in ties for at in tie.layers):
        return ["weights are tied between layers that it does not have"]
    problems: list[str] = []
    for at, layer in enumerate(layers):
        first = [tie for tie in ties if tie.layers[0] == at]
        size, trained = sum(tie.parameter_bytes for tie in first), sum(tie.trained_bytes for tie in first)
        fixed = layer.parameter_bytes - layer.trained_bytes
        if trained > layer.trained_bytes or size - trained > fixed:
            problems.append(
                f"layer {layer.name} has weights of {layer.parameter_bytes} bytes, {layer.trained_bytes} of them"
                f" trained, and shares {size} and {trained} with later layers, which count at the first of them"
            )
    return problems


class Split(enum.StrEnum):
    """How a layer takes part in the choice of parallel forms.

    The form of a layer says how its output (and the gradient of its output) lies on the devices of a stage:
    after form 0 by rows (the batch), after form 1 whole on every device (partial sums were added), after
    form 2 by columns (the output dimension).
    """

    MATRIX = "matrix"
    """A matrix product with weights: any form, each with communication inside the layer."""
    FOLLOW = "follow"
    """Works element by element on the output of one producer and keeps its layout; has no form of its own."""
    JOIN = "join"
    """No matrix product, but brings several inputs (or a restricted layout) together: chooses a layout."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The smallest unit that the planner may cut between. All quantities are for one sample.

    ``parameter_bytes`` are the weights (not multiplied by the batch), ``trainable_bytes`` those of them that are
    trained (None: all; frozen weights have no gradient and no optimiser state); ``input_bytes`` and
    ``output_bytes`` the activations read and written; ``stash_bytes`` what the layer keeps for its backward pass;
    ``macs`` the multiply-accumulates of one forward pass (zero for layers that multiply no matrices);
    ``torchstat_flops`` the same layer by the rule behind PipePar's Table I. ``allowed_forms`` are the forms
    that the layer can take; a FOLLOW layer has none of its own and is listed with form 0. ``measured`` are times
    that count instead of operations on the device classes that they name, one row or several for each of them;
    ``work`` the sizes of its products, for a roofline (None: not known). ``backward`` is False where no
    gradient passes the layer: nothing in it or before it is trained. ``across`` is what it does across its rows or
    columns (None: nothing that its forms do not say).
    """

    name: str
    operator: str
    split: Split
    parameter_bytes: int
    input_bytes: int
    output_bytes: int
    stash_bytes: int
    macs: int
    torchstat_flops: int = 0
    allowed_forms: tuple[int, ...] = FORMS
    measured: tuple[Measured, ...] = ()
    trainable_bytes: int | None = None
    backward: bool = True
    work: Work | None = None
    across: Across | None = None

    def __post_init__(self) -> None:
        for key in ("parameter_bytes", "input_bytes", "output_bytes", "stash_bytes", "macs", "torchstat_flops"):
            value = getattr(self, key)
            if type(value) is not int or value < 0:
                raise ValueError(f"layer {self.name}: {key} is {value!r}, expected a whole number, 0 or more")
        trained = self.trained_bytes
        if type(trained) is not int or not 0 <= trained <= self.parameter_bytes:
            most = f"0 to {self.parameter_bytes}, the bytes of all its weights"
            raise ValueError(f"layer {self.name}: trainable_bytes is {trained!r}, expected {most}")
        if problem := forms_problem(self):
            raise ValueError(f"layer {self.name}: allowed_forms {self.allowed_forms}{problem}")
        if len({(row.device_class, row.samples, row.width) for row in self.measured}) < len(self.measured):
            raise ValueError(f"layer {self.name}: measured twice on one device class, in one size")

    @property
    def trained_bytes(self) -> int:
        """Bytes of the weights that are trained."""
        return self.parameter_bytes if self.trainable_bytes is None else self.trainable_bytes

    @property
    def is_matrix(self) -> bool:
        """Whether the layer multiplies by a weight matrix, so that its form shards its weights."""
        return self.split is Split.MATRIX

    def measured_on(self, device_class: str) -> tuple[Measured, ...]:
        """Return the times that were measured on a device class, of all sizes."""
        return tuple(row for row in self.measured if row.device_class == device_class)


def layer_graph(
    name: str,
    layers: Iterable[Layer],
    edges: Iterable[tuple[str, str, int]],
    element_bytes: int = 4,
    cuts: Iterable[str] | None = None,
) -> nx.DiGraph:
    """Build a checked layer graph from layers in execution order and edges (producer, consumer, bytes).

    ``element_bytes`` is the size of the number format that the byte counts were taken in; ``cuts`` names the
    layers at which a stage may start beside the first one (None: any).
    Raises ValueError naming every repeated layer, unknown end of an edge, repeated edge, edge against
    the execution order, negative size, FOLLOW layer with more than one producer, and unknown layer of ``cuts``.
    """
    import networkx as nx

    graph = nx.DiGraph(name=name, element_bytes=element_bytes)
    problems: list[str] = []
    position: dict[str, int] = {}
    for layer in layers:
        if layer.name in position:
            problems.append(f"layer {layer.name} appears twice")
            continue
        position[layer.name] = len(position)
        graph.add_node(layer.name, layer=layer)
    for producer, consumer, size in edges:
        unknown = [end for end in (producer, consumer) if end not in position]
        if unknown:
            problems.append(f"edge {producer} -> {consumer}: no layer {', '.join(unknown)}")
        elif graph.has_edge(producer, consumer):
            problems.append(f"edge {producer} -> {consumer} appears twice; add the bytes into one edge")
        elif position[producer] >= position[consumer]:
            problems.append(f"edge {producer} -> {consumer} goes against the execution order of the layers")
        elif size < 0:
            problems.append(f"edge {producer} -> {consumer}: {size} bytes, expected 0 or more")
        else:
            graph.add_edge(producer, consumer, bytes=int(size))
    if cuts is not None:
        graph.graph["cuts"] = tuple(cuts)
    problems += _problems(graph)
    if problems:
        raise ValueError(f"layer graph {name}: " + "; ".join(problems))
    return graph


@dataclass(frozen=True, slots=True)
class LayerGraph:
    """A layer graph that cannot change, as an instance keeps it: :meth:`of` copies a networkx graph.

    ``edges`` are (producer, consumer, bytes of one sample) by the positions of the layers, in order of consumer,
    then of producer. ``cuts`` are the layers at which a stage may start beside the first one, sorted; None: any.
    ``notes`` say how the model was read. ``free_order``: a planner may run the layers in any order in which
    producers come before consumers, not only in this one. ``ties`` are weights that several layers use; ``known``
    keeps what instances of it have in common (``formulation.problem.demands.offered``). Raises ValueError as
    :func:`layer_graph` does, and for ties of weights that are not there.
    """

    name: str
    layers: tuple[Layer, ...]
    edges: tuple[tuple[int, int, int], ...]
    element_bytes: int
    cuts: tuple[int, ...] | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)
    free_order: bool = field(default=False, compare=False)
    ties: tuple[Tie, ...] = ()
    known: dict[tuple[Axis, ...], tuple[Layer, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if type(self.element_bytes) is not int or self.element_bytes < 1:
            raise ValueError(f"layer graph {self.name}: element_bytes {self.element_bytes!r}, expected 1 or more")
        if any(not 0 <= end < len(self.layers) for one, other, _ in self.edges for end in (one, other)):
            raise ValueError(f"layer graph {self.name}: an edge joins layers that it does not have")
        object.__setattr__(self, "edges", tuple(sorted(self.edges, key=lambda row: (row[1], row[0]))))
        if self.cuts is not None:
            object.__setattr__(self, "cuts", tuple(sorted({cut for cut in self.cuts if cut})))
            if any(not 0 < cut < len(self.layers) for cut in self.cuts):
                raise ValueError(f"layer graph {self.name}: a cut at a layer that it does not have")
        if problems := ties_problems(self.layers, self.ties):
            raise ValueError(f"layer graph {self.name}: " + "; ".join(problems))
        self.graph()

    @classmethod
    def of(cls, graph: nx.DiGraph) -> LayerGraph:
        """Return a copy of a layer graph, checked again. Raises ValueError as :func:`layer_graph` does."""
        position = {name: index for index, name in enumerate(graph)}
        layers = tuple(layers_of(graph))
        named = {name: layer.name for name, layer in zip(graph, layers, strict=True) if name != layer.name}
        if named:
            raise ValueError(f"layer graph: nodes and their layers have different names ({named})")
        edges = tuple((position[one], position[other], size) for one, other, size in graph.edges(data="bytes"))
        named_cuts = graph.graph.get("cuts")
        return cls(
            str(graph.graph.get("name", "")),
            layers,
            edges,
            graph.graph["element_bytes"],
            None if named_cuts is None else tuple(position[cut] for cut in named_cuts),
            tuple(graph.graph.get("notes", ())),
            bool(graph.graph.get("free_order", False)),
            tuple(Tie(tuple(position[one] for one in names), *sizes) for names, *sizes in _ties(graph)),
        )

    @classmethod
    def chain(cls, name: str, layers: Iterable[Layer], element_bytes: int = 4) -> LayerGraph:
        """Return a graph in which every layer passes its whole output to the next one."""
        rows = tuple(layers)
        edges = tuple((at, at + 1, layer.output_bytes) for at, layer in enumerate(rows[:-1]))
        return cls(name, rows, edges, element_bytes)

    def in_order(self, order: Sequence[int]) -> LayerGraph:
        """Return the same graph with its layers in another order: ``order[i]`` is the layer that comes ``i``-th.

        Raises ValueError where a layer is left out or named twice, and as :func:`layer_graph` does where an edge
        would go against the order.
        """
        if sorted(order) != list(range(len(self.layers))):
            raise ValueError(f"layer graph {self.name}: an order names each of {len(self.layers)} layers once")
        place = {layer: at for at, layer in enumerate(order)}
        layers: Sequence[Layer] = tuple(self.layers[layer] for layer in order)
        edges = tuple((place[one], place[other], size) for one, other, size in self.edges)
        # The first layer starts a stage wherever it comes.
        cuts = None if self.cuts is None else tuple(place[cut] for cut in (0, *self.cuts))
        ties = tuple(replace(tie, layers=tuple(place[layer] for layer in tie.layers)) for tie in self.ties)
        # Tied weights count at the first layer that uses them, which may be another one now.
        for before, tie in zip(self.ties, ties, strict=True):
            layers = moved(moved(layers, tie, -1, place[before.layers[0]]), tie, 1, tie.layers[0])
        return replace(self, layers=tuple(layers), edges=edges, cuts=cuts, ties=ties)

    def untied(self) -> LayerGraph:
        """Return the same graph without the weights that layers share: it takes no more than this in any order.

        No gradient is asked of layers all of whose weights are shared and frozen: one product less is theirs, as
        of no layer without weights.
        """
        layers = list(self.layers)
        for tie in self.ties:
            layers = moved(layers, tie, -1, tie.layers[0])
        trained = {at for tie in self.ties if tie.trained_bytes for at in tie.layers}
        for at in {at for tie in self.ties for at in tie.layers} - trained:
            layers[at] = replace(layers[at], backward=layers[at].backward and layers[at].parameter_bytes > 0)
        return replace(self, layers=tuple(layers), ties=())

    def graph(self) -> nx.DiGraph:
        """Return a new networkx graph of these layers."""
        names = [layer.name for layer in self.layers]
        edges = ((names[one], names[other], size) for one, other, size in self.edges)
        cuts = None if self.cuts is None else [names[cut] for cut in self.cuts]
        graph = layer_graph(self.name, self.layers, edges, self.element_bytes, cuts)
        ties = tuple(
            (tuple(names[at] for at in tie.layers), tie.parameter_bytes, tie.trained_bytes) for tie in self.ties
        )
        said = {"notes": self.notes, "free_order": self.free_order, "ties": ties}
        graph.graph.update({key: value for key, value in said.items() if value})
        return graph

    def closed(self) -> tuple[int, ...]:
        """Return the layers at which the model lets no stage start; the first layer is none of them."""
        open_at = range(len(self.layers)) if self.cuts is None else (0, *self.cuts)
        return tuple(sorted(set(range(len(self.layers))).difference(open_at)))


def _problems(graph: nx.DiGraph) -> list[str]:
    """Say what is wrong with a graph as a whole."""
    problems = [
        f"layer {name} has split 'follow' and {graph.in_degree(name)} producers; expected at most one (or 'join')"
        for name, row in graph.nodes(data=True)
        if row["layer"].split is Split.FOLLOW and graph.in_degree(name) > 1
    ]
    problems += [f"no layer {cut} to cut at" for cut in graph.graph.get("cuts", ()) if cut not in graph]
    return problems if len(graph) else [*problems, "the graph has no layer"]


def _ties(graph: nx.DiGraph) -> Iterable[tuple[tuple[str, ...], int, int]]:
    """Return the ties of a graph. Raises ValueError for one that names a layer that is not there."""
    ties = graph.graph.get("ties", ())
    unknown = [name for names, *_ in ties for name in names if name not in graph]
    if unknown:
        raise ValueError(f"layer graph: weights are tied to layers that it does not have ({', '.join(unknown)})")
    return ties


def layers_of(graph: nx.DiGraph) -> Sequence[Layer]:
    """Return the layers of a graph in execution order, the order in which stages cut them."""
    return [row["layer"] for _, row in graph.nodes(data=True)]


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor that flows from layer ``producer`` to layer ``consumer``: bytes of one micro-batch."""

    producer: int
    consumer: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FormEdge:
    """An edge at which a layout may have to change: from the form of ``source`` to that of ``consumer``.

    ``source`` is the layer whose form decides how the tensor lies: the producer itself, or the layer that the
    chain of FOLLOW layers before the edge copies its layout from. The change costs nothing unless ``source``
    belongs to the same stage as ``consumer``: a boundary delivers a tensor in the layout that is asked for.
    """

    source: int
    consumer: int
    size_bytes: int


AnyEdge = TypeVar("AnyEdge", Edge, FormEdge)


def into(edges: tuple[AnyEdge, ...], layers: range) -> tuple[AnyEdge, ...]:
    """Return of edges, in order of consumer, those into a run of layers. Cost: two searches, and these."""
    first, stop = (bisect_left(edges, end, key=attrgetter("consumer")) for end in (layers.start, layers.stop))
    return edges[first:stop]
