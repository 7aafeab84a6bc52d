"""``pipecut trace``: the layer graph of a model as a file, so that a scenario needs no torch to use it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import ExitCode, InputError, output_path, reading
from pipecut.formulation.problem.layers import layers_of
from pipecut.ingest.errors import told_of_unpriced
from pipecut.ingest.graphs.graph_file import write_graph
from pipecut.ingest.torch.source import load_model_graph
from pipecut.solvers.installed import loaded, missing, registered

if TYPE_CHECKING:
    import networkx as nx

READERS = "pipecut.readers"
"""The group of readers of files (``solvers.installed``), by their ending: each object is a function from the
arguments of this command to a layer graph."""
OURS = ("json", "pt2")


def run(arguments: argparse.Namespace) -> int:
    """Build and trace the model, write its layer graph, and say how large it is."""
    out = output_path(arguments.out)
    if out is None:
        raise InputError("--out: expected a file to write")
    with reading(arguments.model):
        graph = _read(arguments.model, arguments)
        told_of_unpriced(graph, strict=arguments.strict)
    with reading(out):
        write_graph(graph, out)
    rows = layers_of(graph)
    size, many = sum(layer.parameter_bytes for layer in rows), graph.number_of_edges()
    if arguments.json:
        content = {"model": arguments.model, "out": arguments.out}
        arguments.reply.put(content | {"layers": len(rows), "edges": many, "parameter_bytes": size})
    else:
        counts = f"{output.count(len(rows), 'layer')}, {output.count(many, 'edge')}"
        output.write(f"{arguments.out}: {counts}, {output.amount(size)} of parameters\n")
        for note in told_of_unpriced(graph).graph.get("notes", ()):
            output.write(f"note: {output.printable(note)}\n")
    return ExitCode.DONE


def _read(model: str, arguments: argparse.Namespace) -> nx.DiGraph:
    """Trace a model, or have a file read by what is installed for files of its ending."""
    ending = Path(model).suffix[1:]
    for entry in registered(READERS, ending) if ending else ():
        return loaded(entry)(arguments)
    if Path(model).is_file() and ending not in OURS:
        raise InputError(f"{model}: nothing is installed that reads *.{ending}{missing(READERS, 'readers')}")
    return load_model_graph(model, Path.cwd())
