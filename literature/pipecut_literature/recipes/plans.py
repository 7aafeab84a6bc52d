"""A published configuration as an instance and a plan, and the same instance with everything left to a planner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import networkx as nx

from pipecut.formulation.constraints.layers.forms import FormLimit
from pipecut.formulation.costs.megatron_forms import megatron_forms
from pipecut.formulation.predictor.roofline import Roofline
from pipecut.formulation.problem.cluster import cluster_graph
from pipecut.formulation.problem.constraints import Constraints, Goal, Recompute, Sharded
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.layers import Axis, Split
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.options import Compute, CostModel, Synchronisation
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.training import Training
from pipecut.formulation.problem.units import Link
from pipecut_literature.fidelity import runs
from pipecut_literature.megatron.layers import BLOCK, ELEMENT_BYTES, transformer_layers
from pipecut_literature.megatron.llama import llama_layers
from pipecut_literature.megatron.transformer import LayerRecompute, TransformerShape
from pipecut_literature.recipes.recipe import Recipe

CORES = runs.AGAIN[LayerRecompute.SELECTIVE]
SPLITS = (Axis.SEQUENCE, Axis.VOCABULARY)
SUMS_BESIDE = 2022
"""From when on Megatron-LM sums beside products; up to then its optimiser is that of
``pipecut_literature.fidelity``."""
NODES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
"""How many nodes a stage may have."""
DEGREES, SHARDED = (2, 4, 8), (Sharded.NONE, Sharded.OPTIMIZER)
FLAT = (1, 4, 16)
"""What a planner is given; the last where no run has a pipeline."""


@dataclass(frozen=True, slots=True)
class RecipePlans:
    """A recipe as an instance with its plan, and the instance in which all is to be chosen.

    ``tools`` is that instance with the tools of the recipe's time alone; None where it names none. ``starts`` are
    plans with the published degrees and one stage a rank, one for each way to recompute, which a search may begin
    with as far as they keep the rules.
    """

    instance: Instance
    plan: Plan
    free: Instance
    tools: Instance | None
    starts: tuple[Plan, ...]

    @staticmethod
    def of(recipe: Recipe, alike: tuple[Recipe, ...]) -> RecipePlans:
        """Return all. ``alike`` are the recipes for the same model, batch and devices, this one among them.

        The plan keeps the instance's rules but for memory, which its price says. A planner has the largest number
        of micro-batches of all alike and half of it. Where none of them has a pipeline it may have one device a
        replica, divided weights, and 1, 4 or 16 micro-batches.
        """
        instance = _instance(recipe, _as_published(recipe), (recipe.micro_batches,), recipe.chunks)
        free = _with_pairs(_instance(recipe, _free(alike), _micro_batches(alike), 1))
        then = replace(free.constraints, splits=SPLITS[1:], sharded=(Sharded.NONE,), recompute_layers=())
        tools = None if recipe.tools is None else replace(free, constraints=then)
        starts = tuple(_plan(replace(recipe, chunks=1, recompute=one), free, whole=True) for one in LayerRecompute)
        return RecipePlans(instance, _plan(recipe, instance), free, tools, starts)


def _instance(recipe: Recipe, constraints: Constraints, micro_batches: tuple[int, ...], chunks: int) -> Instance:
    facts, _ = runs.node(recipe.machine)
    near = facts.inside.each_pair.value if recipe.inside is None else int(recipe.inside * runs.GIGABYTE)
    far = facts.adapters.bandwidth.value if recipe.between is None else int(recipe.between * runs.GIGABYTE)
    servers = runs.servers_for(recipe.machine, recipe.devices, near)
    training = Training(
        recipe.global_batch,
        micro_batches[0],
        bytes_per_element=ELEMENT_BYTES,
        optimizer_bytes_per_parameter=runs.ADAM_BYTES,
        micro_batch_choices=micro_batches if len(micro_batches) > 1 else (),
        chunks=chunks,
    )
    cluster = cluster_graph(recipe.machine, servers, (), mesh=Link(far))
    cost = CostModel(
        compute=Compute.ROOFLINE,
        roofline=Roofline(update=runs.UPDATE) if recipe.year <= SUMS_BESIDE else Roofline(),
        inside=Synchronisation.OVERLAPPED if recipe.year >= SUMS_BESIDE else Synchronisation.CHARGED,
    )
    return build_instance(_graph(recipe), cluster, training, cost, constraints, (_goal(chunks),))


def _goal(chunks: int) -> Goal:
    return Goal.STEP_TIME if chunks > 1 else Goal.ITERATION_TIME


@lru_cache(maxsize=8)
def _graph(recipe: Recipe) -> nx.DiGraph:
    shape = recipe.shape
    gpt = isinstance(shape, TransformerShape)
    graph = transformer_layers(shape) if gpt else llama_layers(shape)
    graph.graph["cuts"] = (*(f"block.{at}.norm1" for at in range(shape.layers)), "norm")
    return graph


def _as_published(recipe: Recipe) -> Constraints:
    selective = recipe.recompute is LayerRecompute.SELECTIVE
    return Constraints(
        memory=True,
        recompute=Recompute.BLOCKS if recipe.recompute is LayerRecompute.FULL else Recompute.ALLOWED,
        recompute_layers=CORES if selective else (),
        sharded=tuple(Sharded),
        splits=SPLITS,
        tensor_parallel_degrees=(recipe.tensor,),
    )


def _free(alike: tuple[Recipe, ...]) -> Constraints:
    facts, _ = runs.node(alike[0].machine)
    nodes = alike[0].devices // facts.devices.value
    flat = max(one.micro_batches for one in alike) == 1
    return Constraints(
        memory=True,
        recompute=Recompute.ALLOWED,
        recompute_layers=CORES,
        sharded=(*SHARDED, Sharded.WEIGHTS) if flat else SHARDED,
        splits=SPLITS,
        tensor_parallel_degrees=(1, *DEGREES) if flat else DEGREES,
        devices_per_stage=tuple(8 * count for count in NODES if count <= nodes),
    )


def _micro_batches(alike: tuple[Recipe, ...]) -> tuple[int, ...]:
    most = max(one.micro_batches for one in alike)
    return (most // 2, most) if most > 1 else FLAT


def _with_pairs(instance: Instance) -> Instance:
    """Return the instance with the forms of Megatron-LM's pairs, each with and without sequence parallelism."""
    found = megatron_forms(instance, Span(0, len(instance.layers)))
    limits = tuple(
        FormLimit(row.name, tuple(dict.fromkeys((form, runs.WITH_ROWS.get((row.split, form), form)))))
        for row, form in zip(instance.layers, found, strict=True)
        if row.split is not Split.FOLLOW
    )
    return replace(instance, constraints=replace(instance.constraints, forms=limits))


def _plan(recipe: Recipe, instance: Instance, *, whole: bool = False) -> Plan:
    """Return the plan of a recipe; full recomputation is that of every block by itself, or of ``whole`` stages."""
    full = recipe.recompute is LayerRecompute.FULL
    again = "layers" if recipe.recompute is LayerRecompute.SELECTIVE else full and whole
    devices = recipe.tensor * recipe.data
    mode = Mode(recipe.data, again, Sharded(recipe.sharded))
    space, stages = CutSpace.of(instance), list[Stage]()
    for at, span in enumerate(_spans(recipe, len(instance.layers))):
        forms = runs.forms_of(instance, span, recipe.tensor, recipe.sequence_parallel)
        group = Group.on_line(instance, at % recipe.pipeline * devices, devices, mode)
        blocks = (one for one in space.blocks(span) if instance.layers[one.first].name.startswith("block."))
        stages.append(Stage(span, group, forms, again=tuple(blocks) if full and not whole else ()))
    return Plan(tuple(stages))


def _spans(recipe: Recipe, layers: int) -> Iterator[Span]:
    """Yield the layers of stages with equally many blocks; where they do not divide, the ends have one less."""
    stages, blocks = recipe.pipeline * recipe.chunks, recipe.shape.layers
    most = -(-blocks // stages)
    fewer = {0, stages - 1} if blocks == most * stages - 2 else set(range(most * stages - blocks))
    first = done = 0
    for at in range(stages):
        done += most - (at in fewer)
        stop = layers if at == stages - 1 else 1 + BLOCK * done
        yield Span(first, stop)
        first = stop
