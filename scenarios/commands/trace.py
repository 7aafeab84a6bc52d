"""``pipecut trace``: the layer graph of a model as a file, so that a scenario needs no torch to use it."""

from __future__ import annotations

import argparse
from pathlib import Path

from formulation.layers import layers_of
from ingest.graph_file import write_graph
from ingest.model_source import load_model_graph
from scenarios import human, output
from scenarios.exit_codes import ExitCode
from scenarios.failures import InputError, output_path, reading


def run(arguments: argparse.Namespace) -> int:
    """Build and trace the model, write its layer graph, and say how large it is."""
    out = output_path(arguments.out)
    if out is None:
        raise InputError("--out: expected a file to write")
    with reading(arguments.model):
        graph = load_model_graph(arguments.model, Path.cwd())
    with reading(out):
        write_graph(graph, out)
    rows = layers_of(graph)
    parameters = human.amount(sum(layer.parameter_bytes for layer in rows))
    edges = human.count(graph.number_of_edges(), "edge")
    output.write(f"{arguments.out}: {human.count(len(rows), 'layer')}, {edges}, {parameters} of parameters\n")
    return ExitCode.DONE
