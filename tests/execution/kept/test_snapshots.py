"""Runs that are written down and gone on with, by the same plan or another one."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils import _pytree as pytree

from pipecut.execution.errors import StagesError
from pipecut.execution.running.layout import layout_of
from pipecut.execution.running.pipeline import Pipeline
from pipecut.execution.splitting.stages import ModelProgram
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from tests.execution import models
from tests.execution.cases import batch_of, divided_plan, equal_plan, mean_square
from tests.execution.threads import Network, ThreadChannel, in_threads

MICRO_BATCH, MANY = 4, 2
Started = list[tuple[Pipeline, torch.optim.Optimizer]]


def started(model: nn.Module, inputs: Any, plan: Plan) -> Started:
    layout = layout_of(plan, one_f_one_b(len(plan), MANY), MICRO_BATCH)
    network = Network(layout.size)
    pipelines = [
        Pipeline(
            copy.deepcopy(model),
            inputs,
            plan,
            layout,
            mean_square,
            process,
            lambda _, process=process: ThreadChannel(network, process),
        )
        for process in range(layout.size)
    ]
    # The gradient of a bias of keys is zero but for rounding, which Adam's own eps would blow up to 1e-10.
    return [(one, torch.optim.Adam(one.parameters.values(), lr=0.1, eps=1e-4)) for one in pipelines]


def steps(run: Started, inputs: Any, numbers: range) -> None:
    def mine(pipeline: Pipeline, optimizer: torch.optim.Optimizer) -> None:
        for number in numbers:
            pipeline.step(*data[number])
            optimizer.step()
            optimizer.zero_grad()

    data = {}
    for number in numbers:
        torch.manual_seed(number)
        batch = batch_of(inputs, MICRO_BATCH * MANY)
        data[number] = (batch, torch.randn(MICRO_BATCH * MANY, dtype=torch.double))
    in_threads(Network(len(run)), [partial(mine, *one) for one in run])


def saved(run: Started, folder: Path) -> Path:
    found = in_threads(Network(len(run)), [partial(one.save, folder, optimizer) for one, optimizer in run])
    assert len(set(found)) == 1
    return found[0]


def weights_of(run: Started) -> dict[str, torch.Tensor]:
    """Return the whole weights and buffers, put together from all processes."""
    found: dict[str, torch.Tensor] = {}
    for pipeline, _ in run:
        named = [*pipeline.parameters.items(), *pipeline._buffers()]
        for name, one in named:
            if name not in pipeline.held:
                found[name] = one.detach()
                continue
            dimension, indices = pipeline.held[name]
            shape = list(one.shape)
            shape[dimension] = 1 + max(max(other.held[name][1]) for other, _ in run if name in other.held)
            whole = found.setdefault(name, torch.full(shape, torch.nan, dtype=one.dtype))
            whole.index_copy_(dimension, torch.tensor(list(indices)), one.detach())
    return found


def both_plans(make: Any) -> tuple[nn.Module, Any, Plan, Plan]:
    torch.manual_seed(3)
    model, inputs = make()
    model = model.double()
    inputs = pytree.tree_map(lambda one: one.double() if one.is_floating_point() else one, inputs)
    program = ModelProgram.of(model, inputs)
    first = equal_plan(len(program.layers), (1, 2))
    return model, inputs, first, divided_plan(program, [(2, 1), (1, 1)], seed=1, form=2)


@pytest.mark.slow
@pytest.mark.parametrize("make", [models.cnn, models.tied_gpt])
def test_another_plan_goes_on_where_a_run_was(make: Any, tmp_path: Path) -> None:
    model, inputs, first, other = both_plans(make)
    through = started(model, inputs, first)
    steps(through, inputs, range(4))
    expected = weights_of(through)
    for one, next_one in ((first, other), (other, first), (other, other)):
        folder = tmp_path / f"{id(one)}-{id(next_one)}"
        begun = started(model, inputs, one)
        steps(begun, inputs, range(2))
        assert saved(begun, folder).name == "step-00000002" and not list(folder.glob(".*"))
        resumed = started(model, inputs, next_one)
        for pipeline, optimizer in resumed:
            pipeline.load(folder, optimizer)
            assert pipeline.steps == 2
        steps(resumed, inputs, range(2, 4))
        for name, found in weights_of(resumed).items():
            torch.testing.assert_close(found, expected[name], rtol=1e-10, atol=1e-10, msg=name)
        with pytest.raises(StagesError, match="is there already, of another run"):
            begun[0][0].save(folder)


def grouped(run: Started, *, lr: float) -> Started:
    """Return the same with two groups, biases in one of their own."""

    def groups(pipeline: Pipeline) -> torch.optim.Optimizer:
        biases = [one for name, one in pipeline.parameters.items() if name.endswith("bias")]
        others = [one for name, one in pipeline.parameters.items() if not name.endswith("bias")]
        return torch.optim.AdamW(
            [{"params": others}, {"params": biases, "lr": 3 * lr, "weight_decay": 0.0}], lr=lr
        )

    return [(one, groups(one)) for one, _ in run]


@pytest.mark.slow
def test_settings_of_every_group_come_back(tmp_path: Path) -> None:
    """As they were, changed by a scheduler; into the groups of another plan, which hold other parameters."""
    model, inputs, first, other = both_plans(models.cnn)
    run = grouped(started(model, inputs, first), lr=0.1)
    for _, optimizer in run:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        optimizer.param_groups[0]["betas"] = (0.5, 0.75)
        optimizer.step()
        scheduler.step()
    saved(run, tmp_path)
    for pipeline, optimizer in grouped(started(model, inputs, other), lr=0.7):
        pipeline.load(tmp_path, optimizer)
        weights, biases = optimizer.param_groups
        for name, one in pipeline.parameters.items():
            group = biases if name.endswith("bias") else weights
            assert any(one is held for held in group["params"])
        assert weights["lr"] == 0.05 and weights["betas"] == (0.5, 0.75) and weights["initial_lr"] == 0.1
        assert biases["lr"] == pytest.approx(0.15) and biases["weight_decay"] == 0.0
    pipeline, _ = started(model, inputs, other)[0]
    with pytest.raises(StagesError, match=r"group 0 of the optimiser holds .* with .* make the groups that"):
        pipeline.load(tmp_path, torch.optim.AdamW(pipeline.parameters.values()))
    with pytest.raises(StagesError, match="have no dampening: the snapshot is of another kind of optimiser"):
        pipeline.load(tmp_path, torch.optim.SGD(pipeline.parameters.values(), lr=1.0))


def test_what_is_no_snapshot_is_refused_and_not_run(tmp_path: Path) -> None:
    model, inputs, first, _ = both_plans(models.cnn)
    run = started(model, inputs, first)
    with pytest.raises(StagesError, match="no snapshot there"):
        run[0][0].load(tmp_path / "none")
    folder = saved(run, tmp_path)
    (unlike, unlike_inputs), _ = models.batch_norm(), None
    other = started(unlike.double(), (unlike_inputs[0].double(),), equal_plan(6, (1, 1)))
    with pytest.raises(StagesError, match=r"has shape .* is of another model"):
        other[0][0].load(tmp_path)
    (folder / "process-2.pt").unlink()
    with pytest.raises(StagesError, match="processes whose files are there: 2, expected"):
        run[0][0].load(tmp_path)

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "run",))

    with (folder / "process-0.pt").open("wb") as file:
        pickle.dump({"format": 1, "weights": Evil()}, file)
    with pytest.raises(StagesError, match=r"process-0\.pt: no part of a snapshot"):
        run[0][0].load(tmp_path)
    assert not (tmp_path / "run").exists()
