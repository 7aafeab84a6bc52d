"""Time to proof against layers, devices and device classes: ``python -m benchmarks.size.scaling``.

Options: ``--json FILE``, ``--svg FILE``, ``--limit SECONDS`` (for each method and point, 20), ``--axes "A;B"``.
Prints two tables in Markdown: processor seconds (of all threads: wall time says little on a shared machine) by
point and method, and fitted exponents (least squares of log seconds over log size). The limit is one of wall time.

Instances are the first layers of ResNet-152 at operator grain (batch 64, one micro-batch) on servers of two
devices, 300 GB/s inside and 12.5 GB/s between servers. With several device classes the servers of each class
stand together, at 13.4 TFLOP/s times 1, 0.8, 0.6, 0.4. ``cpsat``, ``line_dp`` and
``brute_force`` search and prove from nothing; the column *last question* is the one question that closes the
proof (is there a plan below the optimum?). Optima that differ end the run.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import networkx as nx
from ortools.sat.python import cp_model

from benchmarks.size import scaling_picture
from pipecut.formulation.costs.tables import all_tables
from pipecut.formulation.outcome import Limits, Outcome, Proof, checked
from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import layer_graph, layers_of
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers import exhaustive as brute_force
from pipecut.solvers.cpsat import cpsat as layered
from pipecut.solvers.cpsat.engine import make_solver
from pipecut.solvers.cpsat.model import FAMILIES, build_model, redundant_families
from pipecut.solvers.reference import line_dp

SCENARIO = Path(__file__).parents[2] / "scenarios" / "pipepar" / "resnet152.yaml"
GIGABYTE_BITS = 8 * 10**9
INSIDE, BETWEEN = Link(300 * GIGABYTE_BITS, 0), Link(25 * GIGABYTE_BITS // 2, 0)
FLOPS = 13_400_000_000_000
SPEEDS = (10, 8, 6, 4)
"""Tenths of the first class's speed."""
MOST_PLANS = 5_000_000
"""Brute force is not begun where it cannot end within a minute or so."""
QUICK_S = 0.5
"""A run this short is repeated twice, and the shortest counts."""
FEWEST = 3
"""Points that an exponent is fitted to."""


@dataclass(frozen=True, slots=True)
class Point:
    """An instance on an axis, by what is varied; ``size`` is the number that varies."""

    axis: str
    size: int
    layers: int
    devices: int
    classes: int


@dataclass(frozen=True, slots=True)
class ScalingRow:
    """One method at one point: processor and wall seconds, and why there is no proof (empty: there is one)."""

    point: Point
    method: str
    processor_s: float = 0.0
    wall_s: float = 0.0
    reason: str = ""

    @property
    def proved_s(self) -> float | None:
        """Processor seconds to proof; None without one."""
        return None if self.reason else self.processor_s


def points() -> Iterator[Point]:
    """Yield every point, axis by axis, small ones first."""
    for size in (4, 6, 8, 10, 12, 16, 20):
        yield Point("layers, 2 devices", size, size, 2, 1)
    for size in (8, 16, 32, 64, 128, 256, 512):
        yield Point("layers, 8 devices", size, size, 8, 1)
    for size in (2, 4, 8, 16, 32):
        yield Point("devices, 64 layers", size, 64, size, 1)
    for size in (1, 2, 3, 4):
        yield Point("device classes, 64 layers, 8 devices", size, 64, 8, size)


@cache
def network() -> nx.DiGraph:
    """Return the layer graph of ResNet-152."""
    return load_scenario(SCENARIO).load().layer_graph


def instance_of(point: Point) -> Instance:
    """Build the instance of a point: the same numbers on every machine."""
    graph = network()
    layers = layers_of(graph)[: point.layers]
    kept = {layer.name for layer in layers}
    edges = [(one, other, size) for one, other, size in graph.edges(data="bytes") if {one, other} <= kept]
    number = math.ceil(point.devices / 2)
    names = [f"server{at}" for at in range(number)]
    servers = [
        Server(name, _class(at * point.classes // number), min(2, point.devices), INSIDE)
        for at, name in enumerate(names)
    ]
    pairs = [(one, other, BETWEEN) for at, one in enumerate(names) for other in names[:at]]
    return build_instance(
        layer_graph(f"{point.layers} layers", layers, edges, graph.graph["element_bytes"]),
        cluster_graph(f"{point.devices} devices", servers, pairs),
        Training(global_batch=64),
        CostModel(),
    )


def _class(index: int) -> DeviceClass:
    return DeviceClass(f"class{index}", 11 * 2**30, FLOPS * SPEEDS[index] // 10)


def _search(solve: Callable[[Instance, Limits], Outcome], instance: Instance, optimum: int, limit_s: float) -> str:
    try:
        outcome = checked(instance, solve(instance, Limits(time_limit_s=limit_s)))
    except ValueError as error:
        return "too many plans" if "plans to price" in str(error) else str(error)
    if outcome.proof is not Proof.OPTIMAL:
        return "time"
    if outcome.objective != optimum:
        raise SystemExit(f"{outcome.solver} finds {outcome.objective}, not {optimum}")
    return ""


def _cpsat_question(instance: Instance, optimum: int, limit_s: float) -> str:
    began = time.monotonic()
    tables = all_tables(instance)
    v = build_model(tables, optimum - 1, (*FAMILIES, *redundant_families(tables)))
    solver = make_solver(Limits(limit_s).begun(began))
    status = solver.solve(v.model)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise SystemExit(f"CP-SAT finds a plan below {optimum}")
    return "" if status == cp_model.INFEASIBLE else "time"


Method = Callable[[Instance, int, float], str]
"""Runs a method on (instance, optimum, limit in s); returns why there is no proof, or nothing."""

METHODS: dict[str, Method] = {
    "cpsat": partial(_search, layered.solve),
    "line_dp": partial(_search, line_dp.solve),
    "brute_force": partial(_search, partial(brute_force.solve, max_plans=MOST_PLANS)),
    "CP-SAT, last question": _cpsat_question,
}


def measure(point: Point, method: str, instance: Instance, optimum: int, limit_s: float) -> ScalingRow:
    """Run one method at one point, three times if it is quick."""
    runs: list[ScalingRow] = []
    for _ in range(3):
        began, worked = time.perf_counter(), time.process_time()
        reason = METHODS[method](instance, optimum, limit_s)
        wall_s, processor_s = time.perf_counter() - began, time.process_time() - worked
        runs.append(ScalingRow(point, method, processor_s, wall_s, reason))
        if reason or wall_s > QUICK_S:
            break
    return min(runs, key=lambda one: (bool(one.reason), one.processor_s))


def measure_all(chosen: Sequence[Point], limit_s: float) -> Iterator[ScalingRow]:
    """Measure every method at every point; one that failed at a point is not run at larger ones of its axis."""
    failed: dict[tuple[str, str], str] = {}
    for point in chosen:
        instance = instance_of(point)
        optimum = line_dp.solve(instance).objective or 0
        for method in METHODS:
            reason = failed.get((point.axis, method))
            if reason:
                yield ScalingRow(point, method, reason="not run")
                continue
            found = measure(point, method, instance, optimum, limit_s)
            if found.reason:
                failed[point.axis, method] = found.reason
            yield found


def exponent(found: Sequence[ScalingRow]) -> tuple[float, float] | None:
    """Return the least-squares exponent of seconds over size, and R squared; None for too few points."""
    pairs = [(math.log(one.point.size), math.log(one.proved_s)) for one in found if one.proved_s]
    if len(pairs) < FEWEST:
        return None
    mean_x, mean_y = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    xx = sum((x - mean_x) ** 2 for x, _ in pairs)
    xy = sum((x - mean_x) * (y - mean_y) for x, y in pairs)
    yy = sum((y - mean_y) ** 2 for _, y in pairs)
    return xy / xx, (xy * xy / (xx * yy) if yy else 1.0)


def table(found: Sequence[ScalingRow]) -> str:
    """Return processor seconds by point and method as Markdown; ``> 31``: no proof within the limit, 31 s used."""
    lines = ["| " + " | ".join(("axis", "layers", "devices", "classes", *METHODS)) + " |"]
    lines.append("|" + "---|" * (len(METHODS) + 4))
    for point in dict.fromkeys(one.point for one in found):
        cells = {one.method: _cell(one) for one in found if one.point == point}
        row = (point.axis.split(",")[0], point.layers, point.devices, point.classes, *cells.values())
        lines.append("| " + " | ".join(str(cell) for cell in row) + " |")
    return "\n".join(lines)


def _cell(one: ScalingRow) -> str:
    if one.proved_s is not None:
        return f"{one.proved_s:.3g}"
    return {"time": f"> {one.processor_s:.3g}", "not run": "-"}.get(one.reason, one.reason)


def exponents(found: Sequence[ScalingRow]) -> str:
    """Return fitted exponents by axis and method as Markdown: exponent (R squared; points)."""
    lines = ["| seconds ~ size^b | " + " | ".join(METHODS) + " |", "|" + "---|" * (len(METHODS) + 1)]
    for axis in dict.fromkeys(one.point.axis for one in found):
        cells: list[str] = []
        for method in METHODS:
            these = [one for one in found if (one.point.axis, one.method) == (axis, method)]
            fit, number = exponent(these), sum(1 for one in these if one.proved_s)
            cells.append("-" if fit is None else f"{fit[0]:.2f} ({fit[1]:.2f}; {number})")
        lines.append(f"| {axis} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def curves(found: Sequence[ScalingRow], limit_s: float) -> list[scaling_picture.Panel]:
    """Return what the picture shows: by axis, each method's points and where it gave up."""
    panels: list[scaling_picture.Panel] = []
    for axis in dict.fromkeys(one.point.axis for one in found):
        lines: list[scaling_picture.Curve] = []
        for method in METHODS:
            these = [one for one in found if (one.point.axis, one.method) == (axis, method)]
            ended = next(((one.point.size, one.processor_s) for one in these if one.reason == "time"), None)
            proved = tuple((one.point.size, one.proved_s) for one in these if one.proved_s)
            lines.append(scaling_picture.Curve(method, proved, ended))
        panels.append(scaling_picture.Panel(axis, tuple(lines), limit_s))
    return panels


def main() -> int:
    """Measure, print the tables, write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write every measurement")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="also draw the picture")
    parser.add_argument("--limit", metavar="SECONDS", type=float, default=20.0, help="for each method and point")
    parser.add_argument("--axes", metavar="A;B", help="only axes whose names begin with one of these")
    arguments = parser.parse_args()
    axes = tuple(arguments.axes.split(";")) if arguments.axes else ("",)
    chosen = [point for point in points() if point.axis.startswith(axes)]
    found = list(measure_all(chosen, arguments.limit))
    print(table(found), exponents(found), sep="\n\n")
    if arguments.json:
        rows: list[dict[str, Any]] = [asdict(one) for one in found]
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if arguments.svg:
        picture = scaling_picture.draw(curves(found, arguments.limit))
        arguments.svg.write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
