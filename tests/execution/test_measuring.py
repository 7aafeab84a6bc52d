"""What is measured of a run: memory that tensors hold, and times beside the timeline."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

import pipecut
from benchmarks.running import sleeping
from pipecut.execution.measuring import HeldMemory
from pipecut.execution.processes.local import in_processes
from pipecut.execution.running.validating import TOLERANCE, _difference
from pipecut.report.simulation import simulate
from tests.execution import processes
from tests.execution.cases import equal_plan


def test_memory_is_counted_once_and_until_it_is_let_go() -> None:
    there, beside = torch.zeros(100), torch.zeros(1000)
    with HeldMemory([there], [beside]) as memory:
        assert memory.held_bytes == 400
        made = there + 1
        view = made.view(10, 10)
        beside.view(10, 100)
        assert memory.held_bytes == 800
        del made
        assert memory.held_bytes == 800
        del view
        assert (memory.held_bytes, memory.peak_bytes) == (400, 800)


@pytest.mark.parametrize(("size", "least"), [(3e-20, 1e-6), (1.0, 1e-6), (1e-9, 1e-6)])
def test_a_gradient_of_nothing_but_rounding_is_no_difference(size: float, least: float) -> None:
    """What the bias of keys before a softmax has: 0, and rounding that is another one in every order of sums."""
    reference, ours = torch.tensor([0.0, size], dtype=torch.double), torch.tensor([size, 0.0], dtype=torch.double)
    *values, relative = _difference(ours, reference, least)
    assert relative == pytest.approx(size / max(size, least)) and sorted(values) == [0.0, size]
    assert (relative > TOLERANCE) == (size > 1e-16)


@pytest.mark.slow
@pytest.mark.alone
def test_runs_keep_to_the_timeline_and_to_the_predicted_memory() -> None:
    """Stages that sleep end within 3 % of the timeline, in the best of thirty; tensors go when used."""
    found = in_processes(4, processes.sleeping_and_deep)
    for name in processes.SLEEPING:
        expected = sleeping.predicted_ns(sleeping.schedules()[name])
        assert expected <= min(found[0][0][name]) <= processes.CLOSE * expected, name
    gpu = pipecut.DeviceClass("gpu", 2**30, 10**12)
    cluster = pipecut.Cluster.mesh(
        "line", [pipecut.Server(str(at), gpu, 1) for at in range(2)], pipecut.Link(10**10)
    )
    training = pipecut.Training(
        global_batch=8 * processes.MICRO_BATCH, micro_batches=8, optimizer_bytes_per_parameter=0
    )
    problem = pipecut.build(pipecut.trace(*processes.deep(), "deep"), cluster, training)
    simulation = simulate(problem, equal_plan(processes.DEEP, (1, 1)))
    predicted = [stage.memory_bytes for stage in simulation.evaluation.stages]
    errors = [peak_bytes / one - 1 for (_, peak_bytes), one in zip(found, predicted, strict=False)]
    assert all(abs(one) < 0.05 for one in errors), errors
