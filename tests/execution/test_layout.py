"""Which process runs what, and what cannot be run."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from pipecut.execution.errors import StagesError
from pipecut.execution.running.layout import Shipment, layout_of
from pipecut.execution.running.passes import StageRunner
from pipecut.execution.running.pipeline import Pipeline
from pipecut.execution.splitting.stages import ModelProgram
from pipecut.formulation.problem.constraints import Sharded
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.schedules.async_one_f_one_b import async_one_f_one_b
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from tests.execution import models
from tests.execution.cases import equal_plan, mean_square
from tests.execution.split.own_loop import plan_of
from tests.execution.threads import Network, ThreadChannel
from tests.ingest.torch.tiny_models import Calls


def test_samples_and_pieces_of_uneven_widths() -> None:
    layout = layout_of(equal_plan(6, (3, 2)), one_f_one_b(2, 1), 7)
    assert layout.processes == ((0, 1, 2), (3, 4)) and layout.rank_of == (0, 0, 0, 1, 1) and layout.size == 5
    assert [layout.samples(0, one) for one in range(3)] == [range(0, 2), range(2, 4), range(4, 7)]
    assert [layout.samples(1, one) for one in (3, 4)] == [range(0, 3), range(3, 7)]
    pieces = {(0, 3, 0, 2), (1, 3, 2, 3), (1, 4, 3, 4), (2, 4, 4, 7)}
    assert set(layout.pieces(0)) == {Shipment(*one) for one in pieces}


def test_chunks_of_a_rank_are_on_its_processes() -> None:
    layout = layout_of(equal_plan(8, (2, 1, 2, 1)), interleaved(2, 2, 2), 4)
    assert layout.processes == ((0, 1), (2,), (0, 1), (2,))
    assert layout.stages_of(1) == (0, 2) and layout.stages_of(2) == (1, 3)


@pytest.mark.parametrize(
    ("widths", "schedule", "micro_batch", "words"),
    [
        ((1, 1), one_f_one_b(3, 2), 4, "one_f_one_b has 3 stages, the plan 2"),
        ((1, 1), async_one_f_one_b(2, 2), 4, "has no flush: it changes weights between the micro-batches"),
        ((1, 1, 2, 1), interleaved(2, 2, 2), 4, "stage 2 has 2 devices, and another stage of its rank 1"),
    ],
)
def test_what_cannot_be_run(widths: tuple[int, ...], schedule: object, micro_batch: int, words: str) -> None:
    with pytest.raises(StagesError, match=re.escape(words)):
        layout_of(equal_plan(8, widths), schedule, micro_batch)  # type: ignore[arg-type]


def test_a_device_without_samples_rests() -> None:
    layout = layout_of(equal_plan(8, (5, 1)), one_f_one_b(2, 2), 4)
    assert [layout.rests(0, process) for process in range(5)] == [True, False, False, False, False]
    assert [len(layout.rows(0, process)) for process in range(5)] == [0, 1, 1, 1, 1]
    assert {one.sender for one in layout.pieces(0)} == {1, 2, 3, 4}


def test_nothing_that_devices_hold_alike_is_divided() -> None:
    stage = Stage(Span(0, 2), Group(((0, 2),), Mode(2, sharded=Sharded.OPTIMIZER)), (0, 0))
    with pytest.raises(StagesError, match="stage 0 has sharded 'optimizer', and only copies"):
        layout_of(Plan((stage,)), one_f_one_b(1, 1), 4)
    stage = Stage(Span(0, 2), Group(((0, 2),), Mode(2, optimizer_on_host=True)), (0, 0))
    with pytest.raises(StagesError, match="stage 0 keeps the optimiser on its host, and only"):
        layout_of(Plan((stage,)), one_f_one_b(1, 1), 4)
    stage = Stage(Span(0, 2), Group(((0, 2),), Mode(2, recompute="layers")), (0, 0))
    with pytest.raises(StagesError, match="stage 0 computes some of its layers again, and no problem says which"):
        layout_of(Plan((stage,)), one_f_one_b(1, 1), 4)


def test_rings_experts_and_parts_of_a_vocabulary_cannot_be_run() -> None:
    stage = Stage(Span(0, 2), Group(((0, 2),)), (0, 5))
    with pytest.raises(
        StagesError, match=r"stage 0: layer 1 has form 5 \(parts of .*\), and only forms 0 to 4 can"
    ):
        layout_of(Plan((stage,)), one_f_one_b(1, 1), 4)


def test_pairs_of_forms_cannot_be_run_and_their_layer_is_named_in_words() -> None:
    stage = Stage(Span(0, 2), Group(((0, 8),), Mode(grid=4)), (2, 28))
    with pytest.raises(
        StagesError, match=r"layer 1 has form 28 \(output features 4 x context 2\), and only forms"
    ):
        layout_of(Plan((stage,)), one_f_one_b(1, 1), 4)


def test_layers_are_split_by_samples_where_every_device_has_one() -> None:
    stage = Stage(Span(0, 2), Group(((0, 2),)), (4, 3))
    assert not layout_of(Plan((stage,)), one_f_one_b(1, 1), 4).stages[0].together
    assert layout_of(Plan((stage,)), one_f_one_b(1, 1), 1).stages[0].together


def test_uneven_widths_need_the_samples_first() -> None:
    model = Calls(lambda m, x: m.b(m.a(x).transpose(0, 1)), a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    inputs = (torch.randn(3, 5, 4),)
    plan = plan_of([2], len(ModelProgram.of(model, inputs).layers))
    wide = equal_plan(2, (2, 1)).stages[0].group
    plan = type(plan)((type(plan.stages[0])(plan.stages[0].span, wide, plan.stages[0].forms), plan.stages[1]))
    layout = layout_of(plan, one_f_one_b(2, 1), 4)
    words = "the cut before stage 1: transpose of shape [5, 2, 4] does not have the samples as its first dimension"
    with pytest.raises(StagesError, match=re.escape(words)):
        Pipeline(model, inputs, plan, layout, mean_square, 0, lambda _: ThreadChannel(Network(3), 0))


def test_dropout_is_drawn_again_as_the_first_time_and_by_its_seed() -> None:
    model = nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5))
    x = torch.randn(4, 6)
    (stage,) = ModelProgram.of(model, (x,)).split(plan_of([], 2))
    found = []
    for recompute, number, seed in ((False, 0, 1), (True, 0, 1), (True, 1, 1), (True, 0, 2)):
        runner = StageRunner(stage, recompute=recompute, loss=lambda given, _: given[0].sum(), seed=(seed,))
        model.zero_grad()
        state = torch.get_rng_state()
        runner.forward(number, [], [x])
        runner.backward(number, [])
        assert torch.equal(state, torch.get_rng_state())
        found.append((runner.total, model.get_parameter("0.weight").grad))
    (first, one), (second, other), *others = found
    assert first is not None and second is not None and one is not None and other is not None
    assert torch.equal(first, second) and torch.equal(one, other)
    assert all(total is not None and not torch.equal(total, first) for total, _ in others)


def test_a_stage_keeps_no_output_that_its_graph_does_not_need() -> None:
    model, inputs = models.batch_norm()
    program = ModelProgram.of(model, inputs)
    stage = program.split(plan_of([4], len(program.layers)))[0]
    assert program.layers[3] == "3"  # the output of a linear layer, which nothing in the stage needs again
    runner = StageRunner(stage)
    (given,) = runner.forward(0, [], list(inputs))
    assert given.grad_fn is None and runner.in_flight == 1
    memory = StorageWeakRef(given.untyped_storage())
    del given
    assert memory.expired()
