"""Layer graphs drawn as the files that scenarios name: chains, skips and branches of a few layers.

Sizes are chosen so that computing, synchronisation, changes of layout and boundaries all take times of the same
order. All keys of the format are written by some; ``tests/solvers/test_generated.py`` counts them.
"""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

from pipecut.formulation.problem.layers import FORMS_ALONG, Axis
from pipecut.ingest.graphs.graph_file import FORMAT, VERSION

Row = dict[str, Any]
MATRIX, FOLLOW, JOIN = "matrix", "follow", "join"
FORMS = ([0, 1, 2], [0, 1, 2], [0], [1], [2], [0, 1], [0, 2], [1, 2])
IN_ROWS = ([1, 3], [2, 4], [0, 3], [0, 1, 4])
"""Forms of sequence parallelism beside others, for matrix products."""
REPEATED = 0.25
"""How often all layers between the ends are alike, as the blocks of a transformer are."""
SIZES = (1, 2, 2, 3, 3, 4, 4, 5)


def drawn_graph(
    choice: Random, classes: list[str], *, measured: bool, sizes: tuple[int, ...] = SIZES, plain: bool = False
) -> Row:
    """Return the document of a layer graph, of one of so many layers.

    With ``measured`` its layers have times on some of these classes; ``plain``: cut anywhere, no weights shared.
    """
    number = choice.choice(sizes)
    blocks = sorted(choice.choices(range(3), k=number))
    names = [f"layers.{block}.op{at}" for at, block in enumerate(blocks)]
    if choice.random() < 0.2:
        names[0], names[-1] = "embed", "head"
    branching = choice.random() < 0.4
    kinds = choice.choices((MATRIX, FOLLOW, JOIN), (5, 2, 3), k=number)
    edges = [
        {"producer": names[one], "consumer": name, "bytes": _bytes(choice)}
        for at, (name, kind) in enumerate(zip(names, kinds, strict=True))
        for one in sorted(_producers(choice, at, kind, branching))
    ]
    layers = [_layer(choice, name, kind) for name, kind in zip(names, kinds, strict=True)]
    if choice.random() < REPEATED:
        edges = _repeated(layers, edges)
    document = {"format": FORMAT, "version": VERSION, "name": "drawn", "element_bytes": choice.choice([2, 4, 4])}
    document |= {"layers": layers, "edges": edges}
    if measured:
        _measure(choice, layers, classes)
    if not plain and (ties := _ties(choice, layers)):
        document["ties"] = ties
    if not plain and choice.random() < 0.25:
        document["cuts"] = sorted(choice.sample(names[1:], choice.randint(0, number - 1)))
    if choice.random() < 0.4:
        document["modules"] = list(_modules(names))
    if choice.random() < 0.1:
        document["unpriced"] = ["any"]
    if choice.random() < 0.1:
        document["notes"] = ["drawn"]
    return document


def _repeated(layers: list[Row], edges: list[Row]) -> list[Row]:
    """Make a chain, all of whose layers but the ends are the second one again; return its edges."""
    sizes = {edge["consumer"]: edge["bytes"] for edge in edges}
    for at in range(2, len(layers) - 1):
        layers[at] = {**layers[1], "name": layers[at]["name"]}
        sizes[layers[at]["name"]] = sizes.get(layers[1]["name"], 0)
    names = [row["name"] for row in layers]
    return [
        {"producer": one, "consumer": two, "bytes": sizes.get(two, 0)} for one, two in itertools.pairwise(names)
    ]


def profile_of(choice: Random, names: list[str], classes: list[str]) -> Row:
    """Return the document of a profile of layers with these names, on one of the classes, in several sizes."""
    rows = [
        {
            "samples": samples,
            "whole_forward_ns": 0,
            "whole_backward_ns": 0,
            "spread": 0.0,
            "layers": [{"name": name, **_times(choice)} for name in names],
        }
        for samples in choice.choice([(1, 2), (1, 4), (1, 2, 3)])
    ]
    link = {"latency_ns": 0, "bits_per_second": 10**9}
    about = {"model": "drawn", "device_class": choice.choice(classes), "machine": "any", "torch": "any"}
    return {"format": "pipecut profile", "version": 1, **about, "threads": 1, "link": link, "times": rows}


def _bytes(choice: Random) -> int:
    return choice.choice([choice.randint(0, 9), choice.randint(1_000, 100_000)])


def _times(choice: Random) -> Row:
    return {key: choice.randint(0, 400_000) for key in ("forward_ns", "backward_ns")}


def _producers(choice: Random, at: int, kind: str, branching: bool) -> set[int]:
    if at == 0 or choice.random() < 0.1:
        return set()
    most = 1 if kind == FOLLOW else 2
    if branching:
        return set(choice.sample(range(at), choice.randint(1, min(most, at))))
    if kind == FOLLOW:
        return {choice.choice([at - 1, choice.randrange(at)])}
    return {at - 1, *choice.sample(range(at), choice.randint(0, min(most, at)))}


def _layer(choice: Random, name: str, kind: str) -> Row:
    matrix = kind == MATRIX
    weights = _bytes(choice) if matrix or choice.random() < 0.4 else 0
    forms = FORMS[0] if kind == FOLLOW else choice.choice((*FORMS, *IN_ROWS) if matrix else FORMS)
    row: Row = {
        "name": name,
        "operator": "any",
        "split": kind,
        "parameter_bytes": weights,
        **{f"{what}_bytes": _bytes(choice) for what in ("input", "output", "stash")},
        "macs": choice.randint(0, 1_000_000) if matrix else 0,
        "torchstat_flops": choice.randint(0, 1_000_000),
        "allowed_forms": sorted(forms),
    }
    if choice.random() < 0.25:
        row["trainable_bytes"] = choice.choice([0, weights // 2])
    if choice.random() < 0.15:
        row["backward"] = choice.random() < 0.2
    if choice.random() < 0.4:
        row["work"] = _work(choice)
    axes = (None, None, Axis.EXPERTS) if matrix else (None, None, *list(FORMS_ALONG)[1:])
    if kind != FOLLOW and (axis := choice.choice(axes)) is not None:
        row["across"] = {"axis": str(axis), "sent_bytes": _bytes(choice), "pieces": choice.choice([0, 0, 2, 3])}
        if axis is Axis.EXPERTS:
            row["across"]["sent_bytes"] = 0
        if axis is Axis.VOCABULARY:
            row["across"]["pieces"] = 0
        if choice.random() < 0.5:
            row["allowed_forms"] = sorted({*forms, *FORMS_ALONG[axis]})
    return row


def _work(choice: Random) -> Row:
    products = [
        {
            **{key: choice.randint(1, 40) for key in ("rows", "inner", "columns")},
            "copies": choice.randint(1, 3),
            "weighted": choice.random() < 0.5,
            "read_bytes": _bytes(choice),
            "written_bytes": _bytes(choice),
        }
        for _ in range(choice.randint(0, 2))
    ]
    rest = {"kernels": choice.randint(0, 2), "read_bytes": _bytes(choice), "written_bytes": _bytes(choice)}
    return {"products": products, **rest}


def _measure(choice: Random, layers: list[Row], classes: list[str]) -> None:
    """Give all layers times on one class or on all, in one size or in several."""
    for row in layers:
        row["measured"] = []
    sizes = choice.choice([[(1, 1)], [(2, 1)], [(1, 1), (2, 1)], [(1, 1), (1, 2), (3, 1)]])
    for name in classes if choice.random() < 0.5 else classes[:1]:
        for row in layers:
            row["measured"] += [
                {"device_class": name, "samples": samples, "width": width, **_times(choice)}
                for samples, width in sizes
            ]


def _ties(choice: Random, layers: list[Row]) -> list[Row]:
    """Return weights that a layer shares with one or two later ones, in every fourth graph that has some."""
    weighted = [at for at, row in enumerate(layers[:-1]) if row["parameter_bytes"]]
    if not weighted or choice.random() > 0.25:
        return []
    first = choice.choice(weighted)
    later = choice.sample(range(first + 1, len(layers)), choice.randint(1, min(2, len(layers) - first - 1)))
    size = layers[first]["parameter_bytes"]
    known, shared = layers[first].get("trainable_bytes", size), choice.choice([size, size // 2])
    trained = choice.choice([min(shared, known), max(0, shared - (size - known))])
    names = [layers[at]["name"] for at in (first, *sorted(later))]
    return [{"layers": names, "parameter_bytes": shared, "trainable_bytes": trained}]


def _modules(names: list[str]) -> list[Row]:
    """Return a call for every block of layers."""
    blocks: dict[str, list[str]] = {}
    for name in names:
        blocks.setdefault(name.rpartition(".")[0] or name, []).append(name)
    return [
        {"name": block, "operator": "Block", "first": inside[0], "last": inside[-1]}
        for block, inside in blocks.items()
    ]
