"""Orders that are proved best, or read from a file, run like any other; and what torch's runtime does not run."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from pipecut.execution.errors import StagesError
from pipecut.execution.running.by_torch import TorchPipeline
from pipecut.execution.running.layout import layout_of
from pipecut.execution.splitting.stages import ModelProgram
from pipecut.formulation.outcome import Limits, Proof
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.timeline.durations import Durations, Execution
from pipecut.ingest.plans.schedule_file import read_schedule, write_schedule
from pipecut_literature.orders.problem import OrderProblem
from pipecut_literature.orders.solve import solve
from tests.execution import models
from tests.execution.cases import divided_plan, equal_plan, mean_square
from tests.execution.test_pipeline import run
from tests.execution.threads import Network, ThreadChannel

DURATIONS = Durations(forward_ns=(3, 5, 2), backward_ns=(6, 4, 7), activation_ns=(2, 1), gradient_ns=(2, 1))


@pytest.mark.parametrize("split", [False, True], ids=["whole", "halves"])
def test_the_proved_best_order_and_its_file(split: bool, tmp_path: Path) -> None:
    outcome = solve(OrderProblem(DURATIONS, Execution(), 3, (0, 1, 2), split=split), Limits(workers=2))
    assert outcome.proof is Proof.OPTIMAL and outcome.schedule is not None
    write_schedule(tmp_path / "best.csv", outcome.schedule)
    read = read_schedule(tmp_path / "best.csv")
    assert [list(read.actions(rank)) for rank in range(3)] == [
        list(outcome.schedule.actions(rank)) for rank in range(3)
    ]
    run(models.called_twice, read, (1, 1, 1), micro_batch=2)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (equal_plan(2, (2, 1)), "stage 1 has 1 device, stage 0 2: torch's own runtime does not run that"),
        (equal_plan(2, (1, 1), recompute=(0,)), "stage 0 computes its forward pass again"),
        (None, "stage 0 has layers that are divided over devices"),
    ],
    ids=["uneven", "recomputed", "divided"],
)
def test_torchs_runtime_refuses_what_it_does_not_run(plan: Plan | None, words: str) -> None:
    model, inputs = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), (torch.randn(4, 4),)
    if plan is None:
        plan = divided_plan(ModelProgram.of(model, inputs), [(2, 1), (2, 1)], seed=0, form=2)
    layout = layout_of(plan, one_f_one_b(2, 1), 4)
    pipeline = TorchPipeline(
        model, inputs, plan, layout, mean_square, 0, lambda _: ThreadChannel(Network(layout.size), 0)
    )
    with pytest.raises(StagesError, match=words):
        pipeline.step((torch.randn(4, 4),), torch.randn(4))
