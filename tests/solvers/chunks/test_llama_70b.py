"""Llama-70B on eight groups of five chunks: proved, no worse than the layout of a public recipe, and exported."""

from __future__ import annotations

import itertools
import re

import pytest

from benchmarks.size.llama import NO_CUT, Shape, llama
from pipecut.exchange.exports import Source, exported_plan
from pipecut.formulation.constraints.layers.forms import FormLimit
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Progress, Proof, checked
from pipecut.formulation.problem.cluster import Cluster, DeviceClass, Server
from pipecut.formulation.problem.constraints import Constraints, Goal
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import CostModel
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut.solvers.chunks.cpsat_chunks import solve

SHAPE = Shape(80, 8192, 1024, 28672, 64, 128256, sequence=4096)
BY_COLUMNS = ("q_proj", "k_proj", "v_proj", "scaled_dot_product_attention", "gate_proj", "up_proj", "mul")
BY_ROWS = ("o_proj", "add", "add:1", "input_layernorm", "post_attention_layernorm", "down_proj")
RECIPE = "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL"
"""A layout of Megatron-LM for an 80-layer Llama 3 on PP 8 and VP 5."""


def llama_70b(goal: Goal = Goal.BOTTLENECK) -> Instance:
    """Megatron's forms on groups of eight cards each, a server a group, 32 micro-batches of a sequence."""
    card = DeviceClass("H100", memory_bytes=80 * 10**9, flops_per_second=989 * 10**12)
    servers = tuple(Server(f"node{at}", card, 8, Link(8 * 450 * 10**9, 2_000)) for at in range(8))
    columns = (*(f"*.{name}" for name in BY_COLUMNS), "lm_head")
    rows = (*(f"*.{name}" for name in BY_ROWS), "model.embed_tokens", "model.norm")
    return Instance(
        training=Training(32, 32, bytes_per_element=2, optimizer_bytes_per_parameter=12, chunks=5),
        cost=CostModel(),
        constraints=Constraints(
            no_cut=(*NO_CUT, "lm_head"),
            devices_per_stage=(8,),
            stages_at_least=40,
            stages_at_most=40,
            forms=(*(FormLimit(one, (2,)) for one in columns), *(FormLimit(one, (1,)) for one in rows)),
        ),
        goals=(goal,),
        model=llama(SHAPE),
        cluster=Cluster.mesh("eight servers", servers, Link(400 * 10**9, 5_000)),
    )


def counts(layout: str) -> list[int]:
    """Return the blocks of every stage of a layout, by the rules of Megatron-LM."""
    text = layout.replace(",", "")
    text = re.sub(r"\(([^()]*)\)\*(\d+)", lambda found: found[1] * int(found[2]), text)
    text = re.sub(r"t\*(\d+)", lambda found: "t" * int(found[1]), text)
    return [stage.count("t") for stage in text.split("|")]


def plan_of(instance: Instance, blocks: list[int], like: Plan) -> Plan:
    """Return the plan with so many blocks a stage, on the groups and in the forms of another plan."""
    names = [layer.name for layer in instance.layers]
    begins = [names.index(f"model.layers.{at}.input_layernorm") for at in range(SHAPE.blocks)]
    begins.append(names.index("model.norm"))
    inner = [begins[at] for at in itertools.accumulate(blocks[:-1])]
    ends = itertools.pairwise((0, *inner, len(names)))
    forms = tuple(form for stage in like.stages for form in stage.forms)
    groups = [Group.on_line(instance, 8 * (at % 8), 8) for at in range(len(blocks))]
    spans = [Span(*one) for one in ends]
    rows = zip(spans, groups, strict=True)
    return Plan(tuple(Stage(span, group, forms[span.first : span.stop]) for span, group in rows))


def test_the_layout_of_a_recipe_is_read_as_megatron_reads_it():
    assert counts(RECIPE) == [2] * 35 + [3, 2, 2, 2, 1]


@pytest.mark.slow
def test_the_best_plan_is_proved_and_no_worse_than_the_recipe():
    instance = llama_70b()
    found = checked(instance, solve(instance, Limits(workers=1)))
    assert found.proof is Proof.OPTIMAL and found.plan is not None and found.objective is not None
    recipe = plan_of(instance, counts(RECIPE), found.plan)
    of_recipe = evaluate(instance, recipe)
    assert of_recipe.feasible and of_recipe.objective is not None
    assert found.objective < of_recipe.objective
    text = exported_plan(instance, found.plan, "megatron", Source("plan.json", "net.yaml", None)).text
    assert "--pipeline-model-parallel-size 8\n--tensor-model-parallel-size 8\n--num-layers 80\n" in text
    (layout,) = re.findall(r'--pipeline-model-parallel-layout "(.*)"', text)
    assert layout.startswith("E") and layout.endswith("L") and len(layout.split("|")) == 40
    assert plan_of(instance, counts(layout), found.plan) == found.plan


def within_a_tenth(told: Progress) -> bool:
    return told.objective is not None and told.bound is not None and told.bound > 0.9 * told.objective


@pytest.mark.slow
def test_a_step_is_no_longer_than_that_of_the_recipe_and_its_gap_is_said():
    """However long it takes: a search is stopped as soon as its gap is below a tenth."""
    instance, told = llama_70b(Goal.STEP_TIME), list[Progress]()
    near = Limits(600, workers=1, progress=told.append, stopped=lambda: any(map(within_a_tenth, told)))
    found = checked(instance, solve(instance, near))
    assert found.plan is not None and found.objective is not None and found.bound is not None
    of_recipe = evaluate(instance, plan_of(instance, counts(RECIPE), found.plan))
    assert of_recipe.objective is not None
    assert found.objective < of_recipe.objective
    assert 0.9 * found.objective < found.bound <= found.objective
