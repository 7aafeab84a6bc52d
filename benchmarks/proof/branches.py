"""What the order of the layers is worth: models with branches, planned as traced and in the best order.

    python -m benchmarks.proof.branches [--limit SECONDS] [--json]

Towers of blocks side by side, one device a stage and any groups, on eight cards of 312 TFLOP/s in two servers. A
row has the best plan of the traced order, the best of any order that was found, what no order can undercut, how
many orders were searched, and the seconds of all of it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import networkx as nx

from benchmarks.table import print_rows
from pipecut.formulation.outcome import Limits, Outcome
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.constraints import Constraints
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import Layer, Split, layer_graph
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.choices.any_order import any_order

GIB = 1 << 30
CARD = DeviceClass("card", 80 * GIB, 312 * 10**12)
INSIDE, BETWEEN = Link(2_400_000_000_000), Link(100_000_000_000)
Tower = tuple[int, int, int]
"""Blocks of a tower, their width, and the tokens of a sample."""
MODELS: dict[str, Sequence[Tower]] = {
    "image 24, text 12": ((24, 1024, 257), (12, 768, 77)),
    "two unequal towers": ((9, 1024, 256), (7, 1280, 200)),
    "three branches": ((8, 1024, 256), (6, 768, 256), (5, 1280, 128)),
}


def main() -> int:
    """Print one row for each model, number of devices, and rule of groups."""
    parser = argparse.ArgumentParser(description="what the order of the layers is worth")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each row")
    parser.add_argument("--json", action="store_true", help="write one JSON list")
    arguments = parser.parse_args()
    print_rows(rows(arguments.limit), as_json=arguments.json)
    return 0


def rows(limit_s: float) -> Iterator[dict[str, Any]]:
    """Yield what is found of each case."""
    for name, towers in MODELS.items():
        for devices in (6, 8):
            for groups, constraints in (("1", Constraints(devices_per_stage=(1,))), ("any", Constraints())):
                yield row(f"{name}", devices, groups, instance(towers, devices, constraints), limit_s)


def row(name: str, devices: int, groups: str, problem: Instance, limit_s: float) -> dict[str, Any]:
    """Search all orders of one case."""
    began = time.monotonic()
    found = any_order(problem, ask, Limits(time_limit_s=limit_s))
    seconds = time.monotonic() - began
    first, best = found.first.objective or 0, found.outcome.objective or 0
    return {
        "model": name,
        "devices": devices,
        "devices a stage": groups,
        "traced, ms": f"{first / 1e6:.3f}",
        "any order, ms": f"{best / 1e6:.3f}",
        "loss of the traced": f"{(first - best) / best:.1%}",
        "no order below, ms": f"{min(found.bound, best) / 1e6:.3f}",
        "proved": "yes" if found.proved else "no",
        "orders": found.asked,
        "seconds": f"{seconds:.1f}",
    }


def ask(problem: Instance, limits: Limits) -> Outcome:
    """Plan one order as ``pipecut plan`` does, without the second opinion."""
    return plan(problem, limits, cross_check=False)


def instance(towers: Sequence[Tower], devices: int, constraints: Constraints) -> Instance:
    """Return towers on so many cards in two servers."""
    servers = [Server(f"node{at}", CARD, devices // 2, INSIDE) for at in range(2)]
    cluster = cluster_graph("two servers", servers, [("node0", "node1", BETWEEN)])
    training = Training(256, 32, bytes_per_element=2)
    return build_instance(model(towers), cluster, training, CostModel(), replace(constraints, memory=True))


def model(towers: Sequence[Tower]) -> nx.DiGraph:
    """Return towers of feed-forward blocks that meet at the end; as traced, one comes after another."""
    layers: list[Layer] = []
    edges: list[tuple[str, str, int]] = []
    for at, (blocks, width, tokens) in enumerate(towers):
        sent, weights = 2 * width * tokens, 12 * width * width
        names = [f"tower{at}.{block}" for block in range(blocks)]
        layers += [
            Layer(name, "block", Split.MATRIX, 2 * weights, sent, sent, 17 * sent, weights * tokens)
            for name in names
        ]
        edges += [(one, other, sent) for one, other in pairwise(names)]
        edges.append((names[-1], "join", 2 * width))
    layers.append(Layer("join", "add", Split.JOIN, 0, 4096, 4096, 4096, 0))
    return layer_graph("towers", layers, edges, element_bytes=2)


if __name__ == "__main__":
    raise SystemExit(main())
