"""``pipecut trace``: the layer graph of a model as a file, so that a scenario needs no torch to use it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pipecut.commands.terminal import terminal as human
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import ExitCode, InputError, output_path, reading
from pipecut.formulation.problem.layers import layers_of
from pipecut.ingest.errors import told_of_unpriced
from pipecut.ingest.graphs.graph_file import write_graph
from pipecut.ingest.torch.source import load_model_graph

if TYPE_CHECKING:
    import networkx as nx


def run(arguments: argparse.Namespace) -> int:
    """Build and trace the model, write its layer graph, and say how large it is."""
    out = output_path(arguments.out)
    if out is None:
        raise InputError("--out: expected a file to write")
    with reading(arguments.model):
        graph = _profiled(arguments) if _is_profile(arguments) else load_model_graph(arguments.model, Path.cwd())
        told_of_unpriced(graph, strict=arguments.strict)
    with reading(out):
        write_graph(graph, out)
    rows = layers_of(graph)
    size, many = sum(layer.parameter_bytes for layer in rows), graph.number_of_edges()
    if arguments.json:
        content = {"model": arguments.model, "out": arguments.out}
        arguments.reply.put(content | {"layers": len(rows), "edges": many, "parameter_bytes": size})
    else:
        counts = f"{human.count(len(rows), 'layer')}, {human.count(many, 'edge')}"
        output.write(f"{arguments.out}: {counts}, {human.amount(size)} of parameters\n")
        for note in told_of_unpriced(graph).graph.get("notes", ()):
            output.write(f"note: {human.printable(note)}\n")
    return ExitCode.DONE


def _is_profile(arguments: argparse.Namespace) -> bool:
    """Tell whether the model is a profile. Raises InputError where options say otherwise."""
    named = arguments.model.endswith(".txt")
    given = arguments.samples is not None or arguments.device_class is not None
    if given and not named:
        raise InputError(f"{arguments.model}: --samples and --device-class are for a PipeDream profile (*.txt)")
    return named


def _profiled(arguments: argparse.Namespace) -> nx.DiGraph:
    """Read a PipeDream profile as a layer graph with measured times."""
    from pipecut.ingest.graphs.pipedream_profile import measured_layers, read_profile

    if arguments.samples is None or not arguments.device_class:
        raise InputError(
            f"{arguments.model}: a profile does not say its minibatch and its device;"
            " give --samples N and --device-class NAME"
        )
    path = Path(arguments.model)
    name = path.parent.resolve().name if path.stem == "graph" else path.stem
    return measured_layers(read_profile(path), arguments.samples, name, arguments.device_class)
