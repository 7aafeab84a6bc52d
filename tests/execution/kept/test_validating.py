"""Defects seeded into the runtime, one at a time: the comparison with the unsplit model finds and names each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional

from pipecut.execution.errors import StagesError
from pipecut.execution.processes.local import Voice
from pipecut.execution.running import passes
from pipecut.execution.running import pipeline as pipelines
from pipecut.execution.running.exchange import Exchange
from pipecut.execution.running.job import RunJob
from pipecut.execution.running.layout import layout_of
from pipecut.execution.running.passes import StageRunner
from pipecut.execution.running.pipeline import Pipeline
from pipecut.execution.running.precision import Formats
from pipecut.execution.running.validating import StepsCompared, validate
from pipecut.execution.splitting.flat import draw_by
from pipecut.execution.splitting.stages import ModelProgram, StageModule
from pipecut.formulation.problem.precision import Precision
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from tests.execution.cases import divided_plan, equal_plan
from tests.execution.threads import Network, ThreadChannel, ThreadPeers, in_threads
from tests.ingest.torch.tiny_models import Calls

MANY, MICRO_BATCH = 3, 4


def tied(m: Any, x: torch.Tensor) -> torch.Tensor:
    """Compute with a weight at both ends, dropout, and buffers in each stage."""
    x = functional.linear(x, m.a).tanh()
    with torch.no_grad():
        m.steps.add_(1)
    x = m.drop(m.b(x)).tanh()
    x = m.c(x)
    with torch.no_grad():
        m.mean.mul_(0.9).add_(x.mean(0))
    return functional.linear(x, m.a)


def made() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    parts = {"a": nn.Parameter(torch.randn(6, 6)), "b": nn.Linear(6, 6), "c": nn.Linear(6, 6)}
    model = Calls(tied, **parts, drop=nn.Dropout(0.5))
    model.register_buffer("steps", torch.zeros(6))
    model.register_buffer("mean", torch.zeros(6))
    return model, (torch.randn(2, 6),)


def mean_of_squares(outputs: torch.Tensor, inputs: Any) -> torch.Tensor:
    return (outputs - inputs[0]).square().mean()


def contrasted(outputs: torch.Tensor, inputs: Any) -> torch.Tensor:
    """Tell each sample from all others (InfoNCE): the others are those of the micro-batch."""
    return functional.cross_entropy(outputs @ inputs[0].to(outputs.dtype).t(), torch.arange(len(outputs)))


def squared(outputs: torch.Tensor, inputs: Any) -> torch.Tensor:
    return (outputs - inputs[0]).square().mean().sqrt()


def summed(outputs: torch.Tensor, inputs: Any) -> torch.Tensor:
    return (outputs - inputs[0]).square().sum()


@dataclass(frozen=True, slots=True)
class ThreadJob(RunJob):
    """A job whose processes are threads."""

    network: Network | None = None
    own_loss: Callable[..., torch.Tensor] | None = None

    def built(self) -> Any:
        torch.manual_seed(self.seed)
        return made()

    def loss_function(self) -> Any:
        return self.own_loss or RunJob.loss_function(self)

    def connection(self, process: int) -> Any:
        assert self.network is not None
        return lambda *_, **__: ThreadChannel(self.network, process)  # type: ignore[arg-type]


def job_of(kind: str = "", own_loss: Any = None) -> ThreadJob:
    """Return a job of two stages: two devices that share samples, and one; or otherwise, as ``kind`` says."""
    program = ModelProgram.of(*made())
    again = (0, 1) if kind == "recomputed" else ()
    plan = equal_plan(len(program.layers), (2, 1), again)
    if kind == "divided":
        plan = divided_plan(program, [(2, 1), (1, 1)], seed=0, form=2)
    layout = layout_of(plan, one_f_one_b(2, MANY), MICRO_BATCH)
    return ThreadJob(
        model="",
        configured=None,
        folder=Path(),
        plan=plan,
        layers=program.layers,
        layout=layout,
        precision=Precision.presets()["amp"] if kind == "amp" else None,
        loss=None if own_loss is None else "mine:loss",
        own_loss=own_loss,
        network=Network(layout.size),
    )


def compared(job: ThreadJob) -> list[str]:
    """Return what differs, in words."""
    assert job.network is not None
    silent = Voice(lambda news: None)
    works = [partial(validate, one, silent, job, ThreadPeers(job.network, one)) for one in range(job.layout.size)]
    found: list[StepsCompared] = in_threads(job.network, works)
    unlike = [one for each in found for one in each.differences if not one.equal]
    told = [f"stage {one.stage}: {one.parameter} {one.found} {one.expected} in step {one.step}" for one in unlike]
    assert all(each.differences for each in found) and not any(each.faults for each in found[1:])
    return [*told, *found[0].faults]


@pytest.mark.slow
@pytest.mark.few("square-recompu", "own-divided")
@pytest.mark.parametrize("kind", ["", "amp", "recomputed", "divided"])
@pytest.mark.parametrize("own_loss", [None, mean_of_squares], ids=["square", "own"])
def test_without_a_defect_nothing_differs(kind: str, own_loss: Any) -> None:
    assert compared(job_of(kind, own_loss)) == []


Patch = pytest.MonkeyPatch


def behind(patch: Patch, owner: type, name: str, then: Callable[..., Any]) -> None:
    """Let something happen behind a method: ``then`` gets what it returned, and its arguments."""
    method = getattr(owner, name)

    def seeded(self: Any, *args: Any, **keywords: Any) -> Any:
        return then(method(self, *args, **keywords), self, *args, **keywords)

    patch.setattr(owner, name, seeded)


def before(patch: Patch, owner: type, name: str, first: Callable[..., tuple[Any, ...]]) -> None:
    """Change the arguments of a method."""
    method = getattr(owner, name)
    patch.setattr(owner, name, lambda self, *args, **keywords: method(self, *first(self, *args), **keywords))


def weights(runner: StageRunner) -> list[nn.Parameter]:
    return [one for one in runner.module.parameters() if one.grad is not None]


def no_number(patch: Patch) -> None:
    def spoil(found: Any, runner: StageRunner, *_: Any) -> Any:
        for one in weights(runner):
            one.grad.view(-1)[0] = torch.nan  # type: ignore[union-attr]
        return found

    behind(patch, StageRunner, "backward", spoil)


def wrong_loss(patch: Patch) -> None:
    behind(patch, Pipeline, "_total", lambda found, *_: None if found is None else found * 1.5)


def no_loss(patch: Patch) -> None:
    behind(patch, Pipeline, "_total", lambda found, *_: None if found is None else float("nan"))


def zeroed_buffers(patch: Patch) -> None:
    def zero(found: Any, mine: Pipeline) -> Any:
        for stage in mine.stages:
            for one in stage.module.buffers():
                one.zero_()
        return found

    behind(patch, Pipeline, "_ended", zero)


def stale_weights(patch: Patch) -> None:
    def restore(mine: Pipeline, *args: Any) -> tuple[Any, ...]:
        kept = mine.__dict__.setdefault(
            "stale", {name: one.detach().clone() for name, one in mine.parameters.items()}
        )
        with torch.no_grad():
            for name, one in mine.parameters.items():
                one.copy_(kept[name])
        return args

    before(patch, Pipeline, "_begun", restore)


def gradients_left_over(patch: Patch) -> None:
    def add(found: Any, mine: Pipeline) -> Any:
        kept = mine.__dict__.setdefault("left", {})
        for name, one in mine.parameters.items():
            fresh = one.grad.clone()  # type: ignore[union-attr]
            one.grad += kept.get(name, 0.0)
            kept[name] = fresh
        return found

    behind(patch, Pipeline, "_ended", add)


def one_mask(patch: Patch) -> None:
    patch.setattr(passes, "draw_by", lambda *_: draw_by(7))


def masks_of_the_first_step(patch: Patch) -> None:
    def begin(found: Any, mine: Pipeline, *_: Any) -> Any:
        for one in mine._runners.values():
            one.seed = (one.seed[0], 0, one.seed[2])
        return found

    behind(patch, Pipeline, "_begun", begin)


def other_targets(patch: Patch) -> None:
    before(patch, Pipeline, "_part_of_loss", lambda _, given, number: (given, (number + 1) % MANY))


def other_inputs(patch: Patch) -> None:
    cut = Pipeline._cut
    patch.setattr(
        Pipeline,
        "_cut",
        lambda self, batch, number, rows: cut(self, batch, number if isinstance(batch, tuple) else 0, rows),
    )


def untold_parameter(patch: Patch) -> None:
    def forget(_: None, mine: Pipeline, *args: Any, **keywords: Any) -> None:
        mine.parameters.pop("c.weight", None)

    behind(patch, Pipeline, "__init__", forget)


def no_autocast(patch: Patch) -> None:
    patch.setattr(Formats, "prepare", lambda *_: None)


def no_sum(patch: Patch) -> None:
    patch.setattr(pipelines, "sum_gradients", lambda *_: None)


def tied_part_dropped(patch: Patch) -> None:
    def forget(_: None, mine: Pipeline, *args: Any, **keywords: Any) -> None:
        mine._holders["a"] = (mine._process,)

    behind(patch, Pipeline, "__init__", forget)


def summed_not_averaged(patch: Patch) -> None:
    def grow(found: Any, mine: Pipeline) -> Any:
        for one in mine.parameters.values():
            one.grad *= MANY  # type: ignore[operator]
        return found

    behind(patch, Pipeline, "_ended", grow)


def skipped_micro_batch(patch: Patch) -> None:
    backward = StageRunner.backward

    def skip(self: StageRunner, number: int, gradients: Any) -> Any:
        kept = [(one, None if one.grad is None else one.grad.clone()) for one in self.module.parameters()]
        found = backward(self, number, gradients)
        for one, grad in kept if number == 1 else ():
            one.grad = grad
        return found

    patch.setattr(StageRunner, "backward", skip)


def rounded_on_the_wire(patch: Patch) -> None:
    def rounded(_: Any, direction: int, cut: int, number: int, tensors: Any) -> tuple[Any, ...]:
        return direction, cut, number, [None if one is None else one.float().double() for one in tensors]

    before(patch, Exchange, "send", rounded)


def samples_swapped(patch: Patch) -> None:
    behind(patch, Exchange, "arrived", lambda found, *_: [None if one is None else one.flip(0) for one in found])


def counted_twice(patch: Patch) -> None:
    patch.setattr(StageModule, "buffers_as", lambda self, _: torch.enable_grad())


def parts_swapped(patch: Patch) -> None:
    swap = ThreadChannel.swap

    def mixed(self: ThreadChannel, sent: Any, received: Any, *args: Any) -> None:
        swap(self, sent, received, *args)
        received.copy_(received.flip(0))

    patch.setattr(ThreadChannel, "swap", mixed)


DEFECTS: dict[str, tuple[Callable[[Patch], None], str, str]] = {
    "a gradient is no number": (no_number, "", "nan"),
    "the loss is wrong": (wrong_loss, "", "stage 1: loss"),
    "the loss is no number": (no_loss, "", "stage 1: loss nan"),
    "buffers are zeroed": (zeroed_buffers, "", "buffer steps 0.0 3.0"),
    "the second step has the weights of the first": (stale_weights, "", "in step 2"),
    "gradients of the first step are left over": (gradients_left_over, "", "in step 2"),
    "one mask for all": (one_mask, "", "its 3 micro-batches draw random numbers from 1 states"),
    "masks of the first step again": (masks_of_the_first_step, "", "draws in step 2"),
    "targets of another micro-batch": (other_targets, "", "stage 1: loss"),
    "inputs of another micro-batch": (other_inputs, "", "stage 0: a "),
    "a parameter of which no stage tells": (untold_parameter, "", "parameter c.weight: no stage trains it"),
    "autocast is left out": (
        no_autocast,
        "amp",
        "are computed in torch.float32, the unsplit model's in torch.bfloat16",
    ),
    "replicas do not sum gradients": (no_sum, "", "stage 0: b.weight"),
    "a tied weight has the gradient of one stage": (tied_part_dropped, "", "stage 0: a "),
    "gradients are summed, not averaged": (summed_not_averaged, "", "stage 1: "),
    "a micro-batch is skipped": (skipped_micro_batch, "", "stage 0: "),
    "numbers are rounded on the wire": (rounded_on_the_wire, "", "stage 1: "),
    "samples are swapped on the wire": (samples_swapped, "", "stage 1: "),
    "buffers are changed again when computed again": (counted_twice, "recomputed", "buffer steps 6.0 3.0"),
    "parts of a divided tensor are swapped": (parts_swapped, "divided", "stage 0: "),
}


OF_A_LOSS = ("the loss", "targets", "one mask", "gradients are summed", "a micro-batch")
"""How defects begin that a loss of one's own may hide: it takes samples by another way."""
SEEDED = [
    *((defect, None) for defect in DEFECTS),
    *((defect, mean_of_squares) for defect in DEFECTS if defect.startswith(OF_A_LOSS)),
]


@pytest.mark.few(2)
@pytest.mark.parametrize(("defect", "own_loss"), SEEDED)
def test_a_defect_is_found_and_named(defect: str, own_loss: Any, monkeypatch: Patch) -> None:
    seed, kind, words = DEFECTS[defect]
    job = job_of(kind, own_loss)
    seed(monkeypatch)
    found = compared(job)
    assert any(words in one for one in found), found


@pytest.mark.slow
@pytest.mark.parametrize("loss", [contrasted, squared, summed])
def test_a_loss_over_all_samples_is_no_mean_of_those_of_micro_batches(loss: Any) -> None:
    found = compared(job_of(own_loss=loss))
    assert any("the loss of all 12 samples at once is" in one and "mixes samples" in one for one in found), found


@pytest.mark.parametrize("loss", [contrasted, summed])
@pytest.mark.parametrize("micro_batch", [1, 4])
def test_a_run_refuses_such_a_loss_in_its_first_step(loss: Any, micro_batch: int) -> None:
    model, inputs = made()
    plan, network = equal_plan(len(ModelProgram.of(model, inputs).layers), (1,)), Network(1)
    layout = layout_of(plan, one_f_one_b(1, 2), micro_batch)
    mine = Pipeline(model, inputs, plan, layout, loss, 0, lambda _: ThreadChannel(network, 0))
    batch = (torch.randn(2 * micro_batch, 6),)
    with pytest.raises(
        StagesError, match=r"the loss of \d samples is .*: it mixes samples, or is no mean over them"
    ):
        mine.step(batch, batch)


def test_a_model_that_mixes_samples_is_a_mixture(monkeypatch: Patch) -> None:
    inner = made

    def mixing() -> Any:
        model, inputs = inner()
        parts = dict(model.named_children())
        run = Calls(lambda m, x: (y := tied(m, x)) - y.mean(0), a=model.get_parameter("a"), **parts)
        for name, one in model.named_buffers():
            run.register_buffer(name, one)
        return run, inputs

    monkeypatch.setattr(f"{__name__}.made", mixing)
    found = compared(replace(job_of(), network=Network(3)))
    assert any("mixes samples" in one for one in found), found
