"""Published configurations as plans: what the file says, that they are plans, and how near their times come."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.proof import recipes
from benchmarks.proof.found import of_plan, read_plan, searched
from benchmarks.proof.recipes import document, shape
from benchmarks.size.llama import Shape, llama, two_servers
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits
from pipecut.formulation.problem.constraints import Sharded
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.layers import layers_of
from pipecut.formulation.problem.modes import Mode
from pipecut.solvers.auto.solve import plan
from pipecut_literature.megatron.layers import transformer_layers
from pipecut_literature.megatron.llama import LlamaShape, llama_layers
from pipecut_literature.megatron.transformer import TransformerShape
from pipecut_literature.megatron.transformer_memory import ActivationLayout, layer_activation_bytes
from pipecut_literature.recipes.plans import RecipePlans
from pipecut_literature.recipes.recipe import FILE, Published, Recipe
from tests.one_stage import one_stage

PUBLISHED = Published.read()
LLAMA_70B = LlamaShape(80, 8192, 64, 8, 28672, 8192, 128256)
NEAR = {"175B, 64 A100, full": 0.03, "175B, 64 A100, selective": 0.04, "175B, 384 A100, PTD": 0.05}
"""How far predictions of runs with published times may be off; nothing was fitted to any of them."""


QUICK = tuple(one for one in PUBLISHED.recipes if one.name in ("175B, 64 A100, full", "70B, 256 H100, torchtitan"))
SLOW = [pytest.param(one, marks=pytest.mark.slow) for one in PUBLISHED.recipes if one not in QUICK]
EACH = pytest.mark.parametrize("recipe", [*QUICK, *SLOW], ids=lambda recipe: recipe.name)


@cache
def written(recipe: Recipe) -> RecipePlans:
    return RecipePlans.of(recipe, PUBLISHED.alike(recipe))


@pytest.mark.slow
@pytest.mark.few("70B")
@EACH
def test_a_published_run_is_a_plan_that_breaks_no_rule_but_memory(recipe: Recipe) -> None:
    found = written(recipe)
    assert {one.rule for one in evaluate(found.instance, found.plan).violations} <= {"memory"}
    assert len(found.plan) == recipe.pipeline * recipe.chunks
    assert found.instance.devices == recipe.devices
    assert found.instance.training.micro_batches == recipe.micro_batches
    first, last = found.plan.stages[0], found.plan.stages[-1]
    assert first.group.replicas == recipe.data and first.group.tensor_parallel_degree == recipe.tensor
    assert (first.span.first, last.span.stop) == (0, len(found.instance.layers))


@pytest.mark.few("70B")
@EACH
def test_what_a_planner_is_given_allows_the_published_degrees(recipe: Recipe) -> None:
    if recipe.sharded == "weights" and len(PUBLISHED.alike(recipe)) > 1:
        return  # planners are given what the run with a pipeline has
    free = written(recipe).free
    constraints = free.constraints
    assert recipe.micro_batches in (free.training.micro_batch_choices or (free.training.micro_batches,))
    assert recipe.tensor in constraints.tensor_parallel_degrees and Sharded(recipe.sharded) in constraints.sharded
    assert recipe.tensor * recipe.data in constraints.devices_per_stage
    mode = Mode(recipe.data, sharded=Sharded(recipe.sharded))
    Group.on_line(free, 0, recipe.tensor * recipe.data, mode)


@pytest.mark.slow
@pytest.mark.parametrize("name", NEAR)
def test_published_times_are_predicted(name: str) -> None:
    (recipe,) = (one for one in PUBLISHED.recipes if one.name == name)
    found = written(recipe)
    seconds = of_plan(found.instance, found.plan)["executed_ns"] / 10**9
    assert recipe.seconds is not None
    assert abs(seconds / float(recipe.seconds) - 1) < NEAR[name]


@pytest.mark.slow
def test_126_blocks_on_16_stages_leave_the_ends_one_less() -> None:
    (recipe,) = (one for one in PUBLISHED.recipes if one.name.startswith("405B, 8,192"))
    names = [layer.name for layer in written(recipe).instance.layers]
    stages = written(recipe).plan.stages
    blocks = [
        len({names[at].split(".")[1] for at in one.span.layers if names[at].startswith("block")}) for one in stages
    ]
    assert blocks == [7, *[8] * 14, 7]


def test_blocks_keep_what_the_paper_says() -> None:
    shape = TransformerShape(4, 12288, 96, 2048, 51200)
    rows = layers_of(transformer_layers(shape))
    kept = sum(layer.stash_bytes for layer in rows if layer.name.startswith("block.2."))
    assert kept == layer_activation_bytes(shape, 1, ActivationLayout())


def test_llama_70b_has_the_weights_of_its_model_card() -> None:
    total = sum(layer.parameter_bytes for layer in layers_of(llama_layers(LLAMA_70B))) // 2
    assert total == 70_553_706_496


def test_flops_of_a_step_are_those_of_the_products() -> None:
    macs = sum(layer.macs for layer in layers_of(llama_layers(LLAMA_70B)))
    assert LLAMA_70B.step_flops(1) == 3 * 2 * macs


@pytest.mark.slow
def test_the_document_says_who_wins_and_why() -> None:
    recipe = PUBLISHED.recipes[0]
    found = written(recipe)
    own: dict[str, Any] = of_plan(found.instance, found.plan) | {"micro_batches": recipe.micro_batches}
    faster = own | {"objective": 9, "bound": 9, "proof": "optimal", "executed_ns": own["executed_ns"] // 2}
    text = document(PUBLISHED, [{"recipe": recipe, "own": own, "found": {"everything": faster}}], "command", 60)
    assert "the planner wins" in text and "50.0%" in text and "proved" in text and recipe.page in text
    assert sum(own["shares"].values()) == pytest.approx(1)


@pytest.mark.slow
def test_a_killed_command_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run searches nothing, and writes the same document."""
    asked: list[str] = []

    def found(instance: object, solver: str, *_: object) -> dict[str, Any]:
        asked.append(solver)
        return {"proof": "infeasible", "objective": None, "bound": None}

    monkeypatch.setattr(recipes, "searched", found)
    only = Published(QUICK[:1], PUBLISHED.sources)
    monkeypatch.setattr(Published, "read", staticmethod(lambda: only))
    paths = [str(tmp_path / name) for name in ("known.jsonl", "out.md")]
    monkeypatch.setattr("sys.argv", ["recipes", "--results", paths[0], "--out", paths[1]])
    assert recipes.main() == 0
    first, searches = Path(paths[1]).read_text("utf-8"), len(asked)
    assert recipes.main() == 0
    assert searches == len(asked) == 2 and Path(paths[1]).read_text("utf-8") == first
    assert "no plan / no plan" in first


def test_a_batch_that_does_not_divide_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(
        FILE.read_text(encoding="utf-8").replace("global_batch: 64,", "global_batch: 63,\n    "), "utf-8"
    )
    assert Published.read(wrong).recipes[0].micro_batches == 63
    wrong.write_text(FILE.read_text(encoding="utf-8").replace("global_batch: 1536", "global_batch: 1535"), "utf-8")
    with pytest.raises(ValueError, match="a batch of 1535 does not divide"):
        Published.read(wrong)


def test_a_search_begins_with_the_better_of_the_known_plans_and_says_it_in_words() -> None:
    instance = two_servers(llama(Shape(blocks=2)), 80 * 10**9, degrees=(1, 2, 4))
    best, poor = plan(instance, Limits(workers=1)), one_stage(instance)
    assert best.plan is not None and poor.plan is not None
    many = instance.training.micro_batches
    found = searched(instance, "auto", 1e-6, [(many, poor.plan), (many, best.plan)])
    assert found["objective"] == best.objective and read_plan(found["plan"]) == best.plan
    assert found["words"] and set(found["shares"]) == {"computing", "communicating", "idle"}
    devices = sum(stage.group.devices for stage in best.plan.stages)
    assert shape(found).endswith(f", with {many} micro-batches") and devices == instance.devices
