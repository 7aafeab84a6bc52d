"""Blocks that are computed again by themselves: gradients of the unsplit model, and what is held as predicted."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch

import pipecut
from pipecut.execution.measuring import peak_bytes
from pipecut.execution.running.layout import RunLayout, layout_of
from pipecut.execution.running.pipeline import Pipeline
from pipecut.formulation.costs.memory import MemoryParts
from pipecut.formulation.problem.constraints import Recompute
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.schedules.gpipe import gpipe
from pipecut.formulation.schedules.table import PipelineSchedule
from pipecut.ingest.models.gpt import GPT
from tests.execution import models
from tests.execution.cases import mean_square
from tests.execution.divided.forms import run_divided
from tests.execution.threads import Network, ThreadChannel

SAMPLES, MICRO_BATCHES, VOCABULARY, SEQUENCE = 8, 8, 31, 64


def in_halves(plan: Plan, order: PipelineSchedule, micro_batch: int) -> RunLayout:
    """Lay a plan out so that each half of a stage is computed again by itself."""
    model, inputs = models.gpt()
    problem = problem_of(model, inputs)
    stages = []
    for stage in plan.stages:
        middle = (stage.span.first + stage.span.stop) // 2
        stages.append(replace(stage, again=(Span(stage.span.first, middle), Span(middle, stage.span.stop))))
    return layout_of(Plan(tuple(stages)), order, micro_batch, problem)


def problem_of(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Instance:
    server = pipecut.Server("one", pipecut.DeviceClass("gpu", 2**30, 10**12), 1)
    training = pipecut.Training(
        global_batch=SAMPLES * MICRO_BATCHES,
        micro_batches=MICRO_BATCHES,
        schedule=Schedule.GPIPE,
        optimizer_bytes_per_parameter=0,
    )
    return pipecut.build(
        pipecut.trace(model, inputs, "gpt"),
        pipecut.Cluster.mesh("one", [server], pipecut.Link(10**10)),
        training,
        constraints=pipecut.Constraints(recompute=Recompute.BLOCKS),
    )


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("groups", [[(1, 1)], [(2, 2), (1, 1)], [(2, 1)]], ids=str)
def test_gradients_are_those_of_the_unsplit_model(groups: list[tuple[int, int]]) -> None:
    run_divided(models.gpt, groups, laid_out=in_halves).check()


@pytest.mark.slow
def test_memory_is_that_of_the_formula_whichever_blocks_they_are() -> None:
    model = GPT(layers=8, hidden=32, heads=2, vocabulary=VOCABULARY, sequence=SEQUENCE)
    inputs = (torch.zeros(SAMPLES, SEQUENCE, dtype=torch.long),)
    problem = problem_of(model, inputs)
    layers = Span(0, len(problem.layers))
    blocks = [one for one in CutSpace.of(problem).blocks(layers) if len(one) > 2]
    assert len(blocks) == 8
    batch = torch.randint(0, VOCABULARY, (SAMPLES * MICRO_BATCHES, SEQUENCE))
    targets = torch.randn(len(batch), dtype=torch.double)
    ratios: list[float] = []
    for again in (blocks[:2], blocks[2:], blocks):
        plan = Plan((Stage(layers, Group(((0, 1),)), (0,) * len(layers), again=tuple(again)),))
        layout = layout_of(plan, gpipe(1, MICRO_BATCHES), SAMPLES, problem)
        pipeline = Pipeline(model, inputs, plan, layout, mean_square, 0, lambda _: ThreadChannel(Network(1), 0))
        pipeline.step((batch,), targets)
        measured, parts = peak_bytes(pipeline, (batch,), targets), MemoryParts.of_stage(problem, plan, 0)
        # The input and output of the layer that works are counted beside the activations that have them, too.
        assert 0 <= parts.total - measured <= parts.working_set, (len(again), measured, parts)
        ratios.append(measured / parts.total)
    assert all(abs(one - 1) < 0.05 for one in ratios[:2]), ratios
