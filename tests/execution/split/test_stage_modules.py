"""What the modules of stages hold, take and give, and what is refused."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import pipecut
from pipecut.execution.errors import StagesError
from pipecut.execution.splitting.stages import ModelProgram, StageModule, stages
from pipecut.ingest.models.gpt import gpt
from tests.execution import models
from tests.execution.split.own_loop import called, loss_of, plan_of, split, unlike, unsplit
from tests.ingest.torch.tiny_models import Calls


def test_the_parameters_are_the_models_own_under_their_names() -> None:
    model, inputs = models.tied_gpt()
    program = ModelProgram.of(model, inputs)
    parts = program.split(plan_of([2, 6], len(program.layers)))
    whole = model.state_dict()
    for part in parts:
        held = part.state_dict()
        assert held.keys() <= whole.keys()
        assert all(held[name].data_ptr() == whole[name].data_ptr() for name in held)
        assert (
            part.load_state_dict({name: one + 1 for name, one in whole.items()}, strict=False).missing_keys == []
        )
    assert set(whole) - {"head.weight"} == {name for part in parts for name in part.state_dict()}
    assert [stage.index for stage in parts if "tokens.weight" in stage.state_dict()] == [0, 2]
    assert (
        parts[0].get_parameter("tokens.weight")
        is parts[2].get_parameter("tokens.weight")
        is model.get_parameter("tokens.weight")
    )


def everything_of_a_stage() -> list[str]:
    """Return all names that a stage's module has for itself, its class's and torch's among them."""
    return sorted({*dir(StageModule(0, ())), "keys", "items", "values", "self", "module", "training", "inputs"})


def test_parts_of_a_model_may_be_called_as_the_attributes_of_a_stage() -> None:
    called = everything_of_a_stage()
    model = nn.Module()
    for name in called:
        child = nn.Module()
        child._modules[name] = nn.Linear(1, 1, bias=False)
        child._parameters[f"{name}_"], child._parameters["type"] = (nn.Parameter(torch.randn(1)) for _ in range(2))
        child._buffers["float"] = torch.randn(1)
        model._modules[name] = child
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    stage = StageModule(7, ("one", "two"))
    example = stage_of_linear().program_for([torch.zeros(3, 4)])
    stage.learn(replace(example, attributes=tuple(tensors)), tensors)
    assert (stage.index, stage.layers, stage.gives) == (7, ("one", "two"), example.gives)
    assert stage.state_dict().keys() == model.state_dict().keys()
    assert dict(stage.named_parameters()) == dict(model.named_parameters())
    for name, one in tensors.items():
        assert one is (stage.get_buffer(name) if name.endswith(".float") else stage.get_parameter(name))
    again = {name: one + 1 for name, one in model.state_dict().items()}
    assert not any(stage.load_state_dict(again)) and all(torch.equal(tensors[name], again[name]) for name in again)
    stage.eval()
    stage.learn(replace(example, attributes=tuple(tensors)), tensors)
    assert stage.get_submodule("forward.forward") is dict(stage.named_modules())["forward.forward"]
    with pytest.raises(AttributeError, match="the stage has no part absent"):
        stage.get_submodule("absent")


def stage_of_linear() -> StageModule:
    model, inputs = nn.Sequential(nn.Linear(4, 4)), (torch.zeros(3, 4),)
    return ModelProgram.of(model, inputs).split(plan_of([], 1))[0]


@pytest.mark.parametrize("nested", [False, True], ids=["on top", "below"])
def test_a_model_whose_parts_are_called_so_is_split_as_any_other(*, nested: bool) -> None:
    """All names that torch lets a user give, which are all but those of torch's own module."""
    free = [name for name in everything_of_a_stage() if not hasattr(nn.Module(), name)]
    assert {"layers", "index", "inputs", "takes", "gives", "learn", "keys"} <= set(free)

    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        for name in free:
            x = getattr(m.inner if nested else m, name)(x).tanh()
        return x

    model = Calls(run, inner=Calls(run))
    for name in free:
        (model.inner if nested else model).add_module(name, nn.Linear(4, 4))
    inputs = (torch.randn(3, 4),)
    program, expected = ModelProgram.of(model, inputs), unsplit(model, inputs)
    stages_of_it = program.split(plan_of([len(free)], len(program.layers)))
    assert unlike(expected, split(stages_of_it, model, inputs)) == []


def test_what_is_not_saved_by_the_model_is_not_saved_by_a_stage() -> None:
    model, inputs = models.counting()
    program = ModelProgram.of(model, inputs)
    parts = program.split(plan_of([1], len(program.layers)))
    assert {name for part in parts for name in part.state_dict()} == set(model.state_dict())


def test_the_layers_of_a_real_model_are_those_that_are_planned() -> None:
    with torch.device("meta"):
        planned = pipecut.trace(*gpt(layers=2, hidden=8, heads=2, vocabulary=13, sequence=5), "gpt")
    program = ModelProgram.of(*models.gpt())
    assert list(program.layers) == [layer.name for layer in planned.layers]
    (part,) = program.split(plan_of([], len(program.layers)))
    assert part.layers == program.layers


def test_a_value_that_is_needed_later_is_handed_on_from_stage_to_stage() -> None:
    model, inputs = models.unet()
    program = ModelProgram.of(model, inputs)
    parts = program.split(plan_of(range(1, len(program.layers)), len(program.layers)))
    (place,) = [at for at, name in enumerate(program.layers) if name == "relu"]
    last = len(parts) - 1
    name = parts[place].gives[0].name
    through = [at for at, part in enumerate(parts) if name in [one.name for one in part.takes]]
    assert through == list(range(place + 1, last))
    for before, after in itertools.pairwise(parts):
        assert before.gives == after.takes
    assert parts[place].gives[0].shape == (3, 4, 8, 8) and parts[place].gives[0].bytes == 4 * 3 * 4 * 8 * 8
    assert all(one.differentiable for part in parts for one in part.takes)


def test_no_gradient_comes_back_for_numbers_and_truth_values() -> None:
    model, inputs = models.chosen()
    program = ModelProgram.of(model, inputs)
    parts = program.split(plan_of(range(1, len(program.layers)), len(program.layers)))
    handed = {one for part in parts for one in part.takes}
    assert {one.dtype for one in handed if not one.differentiable} >= {torch.bool, torch.int64}
    assert {one.dtype for one in handed if one.differentiable} == {torch.float32}


def test_random_values_are_the_same_in_all_stages() -> None:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(4) + 1
        return m.b(m.a(x) + noise) * 0 + noise

    model, x = Calls(run, a=nn.Linear(4, 4), b=nn.Linear(4, 4)), torch.zeros(3, 4)
    program = ModelProgram.of(model, (x,))
    parts = program.split(plan_of(range(1, len(program.layers)), len(program.layers)))
    assert program.layers == ("a", "add", "b", "mul")
    for part in parts[2:]:
        assert [one.name for one in part.takes if not one.differentiable] == ["rand"]
    assert [one.name for one in parts[1].takes] == ["linear"]


def test_weights_made_from_parameters_are_made_in_every_stage() -> None:
    model, inputs = models.derived_weights()
    model, inputs = model.double(), tuple(one.double() for one in inputs if isinstance(one, torch.Tensor))
    expected = unsplit(model, inputs)
    program = ModelProgram.of(model, inputs)
    parts = program.split(plan_of([1], len(program.layers)))
    assert all("raw" in part.state_dict() for part in parts)
    found = split(parts, model, inputs)
    for name, one in expected.items():
        torch.testing.assert_close(found[name], one, rtol=1e-14, atol=1e-14, msg=name)


def test_a_stage_learns_another_size_of_batch() -> None:
    model, inputs = models.cnn()
    x = inputs[0]
    whole = ModelProgram.of(model, (x,))
    plan = plan_of([3], len(whole.layers))
    parts = whole.split(plan)
    with pytest.raises(StagesError, match=re.escape("stage 0: it takes tensors of shapes [[4, 3, 8, 8]]")):
        parts(x[:1])
    ModelProgram.of(model, (x[:1],)).split(plan, into=parts)
    for batch in (x, x[:1]):
        assert torch.equal(parts(batch), model(batch))


def test_outputs_come_in_the_form_of_the_model() -> None:
    model, inputs = models.keywords()
    parts = stages(model, inputs, plan_of([1], len(ModelProgram.of(model, inputs).layers)))
    found, expected = called(parts, inputs), called(model, inputs)
    assert list(found) == list(expected) and found["none"] is None and found["used"] is True
    assert torch.equal(loss_of(found), loss_of(expected))
    with pytest.raises(StagesError, match="the model was split for arguments"):
        parts(torch.randn(3, 4))


def test_a_plan_of_another_model_is_refused() -> None:
    model, inputs = models.cnn()
    total = len(ModelProgram.of(model, inputs).layers)
    for cuts, layers in (([2], total + 1), ([1], total - 1)):
        with pytest.raises(StagesError, match=f"the model's layers are {total}, and each must be in one stage"):
            stages(model, inputs, plan_of(cuts, layers))


def test_a_buffer_that_changes_in_two_stages_is_refused() -> None:
    model = Calls(lambda m, x: m.n(m.a(m.n(x))), a=nn.Linear(4, 4), n=nn.BatchNorm1d(4))
    program = ModelProgram.of(model, (torch.randn(3, 4),))
    with pytest.raises(StagesError, match=r"stages 0, 1 use buffer n\.\w+, which the model changes in every pass"):
        program.split(plan_of([1], len(program.layers)))


class StraightThrough(torch.autograd.Function):
    """Rounds, with the gradient of what does nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


def test_a_gradient_of_its_own_is_refused_with_the_layer() -> None:
    model = Calls(lambda m, x: m.b(StraightThrough.apply(m.a(x))), a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    with pytest.raises(StagesError, match=r"layer round: a torch\.autograd\.Function has a gradient of its own"):
        ModelProgram.of(model, (torch.randn(3, 4),))


def test_a_write_into_one_of_two_received_views_is_refused() -> None:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        x = m.a(x)
        first = x[:, :2]
        y = m.b(x.clone())
        first.mul_(y[:, :2])
        return x * y

    program = ModelProgram.of(Calls(run, a=nn.Linear(4, 4), b=nn.Linear(4, 4)), (torch.randn(3, 4),))
    plans = [plan_of([cut], len(program.layers)) for cut in range(1, len(program.layers))]
    refused = []
    for plan in plans:
        try:
            program.split(plan)
        except StagesError as error:
            refused.append(str(error))
    assert refused and len(refused) < len(plans)
    assert all("stage 1 writes into" in one and "shares its memory with" in one for one in refused)


def test_a_plan_may_have_the_layers_in_another_order() -> None:
    branches = {name: nn.Linear(4, 4) for name in "abcd"}
    model = Calls(lambda m, x: m.c(m.a(x)) + m.d(m.b(x)), **branches)
    inputs = (torch.randn(3, 4),)
    program, expected = ModelProgram.of(model, inputs), unsplit(model, inputs)
    assert program.layers == ("a", "c", "b", "d", "add")
    for order in (["b", "a", "d", "c", "add"], ["b", "d", "a", "c", "add"]):
        for cut in range(1, 5):
            parts = program.split(plan_of([cut], 5), layers=order)
            assert [name for part in parts for name in part.layers] == order
            assert unlike(expected, split(parts, model, inputs)) == []
    with pytest.raises(StagesError, match="layer d is not in the plan"):
        program.split(plan_of([1], 5), layers=["a", "c", "b", "e", "add"])
    with pytest.raises(StagesError, match="stage 0: linear_1 has to run after what stage 1 does"):
        program.split(plan_of([1], 5), layers=["c", "a", "b", "d", "add"])


def test_another_order_does_not_write_before_a_later_stage_reads() -> None:
    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.a(x)
        z = m.b(y)
        return z + m.c(y.mul_(2))

    model = Calls(run, **{name: nn.Linear(4, 4) for name in "abc"})
    program = ModelProgram.of(model, (torch.randn(3, 4),))
    assert program.layers == ("a", "b", "mul", "c", "add")
    with pytest.raises(StagesError, match="stage 0: mul_ has to run after what stage 1 does"):
        program.split(plan_of([2], 5), layers=["a", "mul", "b", "c", "add"])
