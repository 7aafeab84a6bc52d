"""Layers and the layer graph: what is cut.

A *layer graph* is a ``networkx.DiGraph``. Its nodes are fully qualified layer names in execution order, each
with the attribute ``layer`` (a :class:`Layer`); its edges carry ``bytes``, the tensor that flows from producer
to consumer for one sample. Its attribute ``cuts``, where it has one, names the layers at which a stage may start,
``notes`` what is to be said of how the model was read, and ``free_order`` is true where the layers may run in any
order that keeps producers before consumers. ``ties`` are weights that several layers use: tuples (names of the
layers, bytes, bytes that are trained). Everything in a layer graph is *per sample*: the batch enters with the
instance.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import networkx as nx

from formulation.predictor.curves import Measured
from formulation.predictor.work import Work
from formulation.problem.model.across import FORMS, Across, forms_problem
from formulation.problem.model.ties import Tie, moved, ties_problems


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
        for key in (
            "parameter_bytes",
            "input_bytes",
            "output_bytes",
            "stash_bytes",
            "macs",
            "torchstat_flops",
        ):
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
    producers come before consumers, not only in this one. ``ties`` are weights that several layers use. Raises
    ValueError as :func:`layer_graph` does, and for ties of weights that are not there.
    """

    name: str
    layers: tuple[Layer, ...]
    edges: tuple[tuple[int, int, int], ...]
    element_bytes: int
    cuts: tuple[int, ...] | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)
    free_order: bool = field(default=False, compare=False)
    ties: tuple[Tie, ...] = ()

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
        """Return the same graph without the weights that layers share: what counts of it holds in any order."""
        layers: Sequence[Layer] = self.layers
        for tie in self.ties:
            layers = moved(layers, tie, -1, tie.layers[0])
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
