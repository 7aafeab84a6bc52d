"""A scenario small enough to be planned at once, and solvers that misbehave on purpose.

``python -m tests.commands.fakes ARGUMENTS`` is ``pipecut ARGUMENTS`` with those solvers in the catalogue: what
the tests of Ctrl-C run in a process of their own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from pipecut.commands.entry import ended
from pipecut.commands.main import main
from pipecut.commands.terminal import interrupt
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Outcome, Progress, Proof
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Layer, Split, layer_graph
from pipecut.ingest.graphs.graph_file import write_graph
from pipecut.solvers import catalogue
from pipecut.solvers.catalogue import SolverEntry
from pipecut.solvers.reference import line_dp
from tests.one_stage import one_stage

ROOT = Path(__file__).resolve().parents[2]
SEARCHING = "the fake search has begun\n"
GIVES_UP_S = 60
GRACE = "PIPECUT_TEST_GRACE_S"
"""How long these may take to stop, in a process of their own."""

SCENARIO = """\
name: tiny
model:
  graph: tiny.json
cluster:
  devices:
    card: {memory: 1 GiB, peak: 1 TFLOP/s}
  servers:
    - {name: node, count: 2, device: card, devices: 2, link: {bandwidth: 100 Gbit/s}}
  between_servers: {bandwidth: 10 Gbit/s}
training: {global_batch: 8, micro_batches: 1}
objective: bottleneck
search: paper
"""


def saying_nothing_of(key: str, text: str) -> str:
    """Return the text of a scenario without the line of a key."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(f"{key}:"))


def write_scenario(folder: Path) -> Path:
    """Write a scenario of five layers and four devices with its layer graph; return its path."""
    layers = [
        Layer("conv1", "conv2d", Split.MATRIX, 4_000, 40_000, 80_000, 40_000, 9_000_000),
        Layer("relu1", "relu", Split.FOLLOW, 0, 80_000, 80_000, 80_000, 0),
        Layer("conv2", "conv2d", Split.MATRIX, 16_000, 80_000, 80_000, 80_000, 30_000_000),
        Layer("relu2", "relu", Split.FOLLOW, 0, 80_000, 80_000, 80_000, 0),
        Layer("fc[3]", "linear", Split.MATRIX, 4_000_000, 80_000, 4_000, 80_000, 12_000_000),
    ]
    edges = [(one.name, other.name, one.output_bytes) for one, other in itertools.pairwise(layers)]
    write_graph(layer_graph("tiny", layers, edges), folder / "tiny.json")
    path = folder / "tiny.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


def some_plan(instance: Instance, name: str) -> Outcome:
    """Return a plan that keeps the rules and is not optimal."""
    return replace(one_stage(instance), solver=name)


def slow(instance: Instance, limits: Limits) -> Outcome:
    """Search until stopped or out of time, like CP-SAT on a hard instance."""
    found = some_plan(instance, "slow")
    limits.progress(Progress(found.objective, 1))
    sys.stderr.write(SEARCHING)
    sys.stderr.flush()
    began = time.monotonic()
    while not limits.stopped() and time.monotonic() - began < (limits.time_limit_s or GIVES_UP_S):
        time.sleep(0.01)
    return replace(found, bound=1, seconds=time.monotonic() - began)


def stuck(instance: Instance, limits: Limits) -> Outcome:
    """Search without ever looking at the limits."""
    return slow(instance, replace(limits, stopped=lambda: False, time_limit_s=None))


def spinning(instance: Instance, limits: Limits) -> Outcome:
    """Go round in Python for ever, and take every error for its own."""
    found = some_plan(instance, "spinning")
    limits.progress(Progress(found.objective, 1, found.plan))
    sys.stderr.write(SEARCHING)
    while True:
        with contextlib.suppress(Exception):
            len(SEARCHING)


def buried(instance: Instance, limits: Limits) -> Outcome:
    """Sit in C, where no exception comes."""
    found = some_plan(instance, "buried")
    limits.progress(Progress(found.objective, 1, found.plan))
    sys.stderr.write(SEARCHING)
    time.sleep(GIVES_UP_S)
    return found


def wrong_price(instance: Instance, limits: Limits) -> Outcome:
    """Claim a price that the plan does not have."""
    found = some_plan(instance, "wrong_price")
    return replace(found, objective=(found.objective or 0) - 1)


def wrong_proof(instance: Instance, limits: Limits) -> Outcome:
    """Claim that a plan is optimal which is not."""
    found = some_plan(instance, "wrong_proof")
    return replace(found, proof=Proof.OPTIMAL, bound=found.objective)


def wrong_excluded(instance: Instance, limits: Limits) -> Outcome:
    """Claim that there is no plan."""
    return Outcome("wrong_excluded", Proof.INFEASIBLE)


def empty_handed(instance: Instance, limits: Limits) -> Outcome:
    """Find nothing, prove nothing."""
    return Outcome("empty_handed", Proof.UNKNOWN)


def picky(instance: Instance, limits: Limits) -> Outcome:
    """Refuse the instance."""
    raise ValueError("more layers than this solver takes")


def broken(instance: Instance, limits: Limits) -> Outcome:
    """Break down."""
    raise ZeroDivisionError("a slip")


def hopeless(instance: Instance, limits: Limits) -> Outcome:
    """Ask for a plan that breaks a rule: too many devices."""
    found = line_dp.solve(instance)
    plan = found.plan
    if plan is None:
        return found
    stage = plan.stages[0]
    more = replace(stage.group, counts=tuple((server, count + 9) for server, count in stage.group.counts))
    wrong = replace(plan, stages=(replace(stage, group=more), *plan.stages[1:]))
    return Outcome("hopeless", Proof.FEASIBLE, wrong, evaluate(instance, wrong).objective)


FAKES = (
    slow,
    stuck,
    spinning,
    buried,
    wrong_price,
    wrong_proof,
    wrong_excluded,
    empty_handed,
    picky,
    broken,
    hopeless,
    one_stage,
)


def entries() -> tuple[SolverEntry, ...]:
    """Return the catalogue with the fakes at its end."""
    fakes = (SolverEntry(fake.__name__, "a fake", lambda fake=fake: fake) for fake in FAKES)
    return (*catalogue.SOLVERS, *fakes)


def instead_of(name: str, fake: catalogue.Solve) -> tuple[SolverEntry, ...]:
    """Return the catalogue with one solver replaced by a fake that signs with its name."""

    def signed(instance: Instance, limits: Limits) -> Outcome:
        return replace(fake(instance, limits), solver=name)

    return tuple(
        replace(entry, load=lambda: signed) if entry.name == name else entry for entry in catalogue.SOLVERS
    )


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job would ignore Ctrl-C
    catalogue.SOLVERS = entries()
    interrupt.GRACE_S = float(os.environ.get(GRACE, interrupt.GRACE_S))
    sys.exit(ended(main()))
