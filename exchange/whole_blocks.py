"""What torchtitan, Megatron-LM and DeepSpeed are told of a plan, and the plan that they then run.

All three cut a model between whole modules and hand one tensor on (``ingest.graphs.cut_places``), give all
stages equally many devices in equally many replicas, divide layers in their own way or not at all, and do alike
in all stages whatever else a stage may do. :func:`runs_of` makes a plan into what they can be told, or says which
stage or layer is at fault; :func:`as_run` makes that into the plan that is run, priced like any other. Stages
whose layers all have form 0 are copies: replicas of one device each.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipecut.formulation.costs.amounts import counted
from pipecut.formulation.problem.constraints import Recompute, Sharded
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Axis, Split
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.options import Sharing
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.formulation.problem.precision import Precision
from pipecut.formulation.problem.training import Schedule, Training
from pipecut.ingest.graphs.cut_places import Chain, forms_of, with_vocabulary
from pipecut.ingest.graphs.runtimes import ComputedAgain, Runtime

OF_ROWS = (3, 4)
"""Forms that only sequence parallelism has."""
BY_SCRIPT = "pipecut run takes it, and so does export --to script where a function builds the model"


class TargetError(ValueError):
    """A plan is nothing that another program can run; ``str()`` says which layer or stage is at fault."""


@dataclass(frozen=True, slots=True)
class RuntimePlan:
    """What a program is told.

    ``starts`` are the first layers of the stages, ``servers`` those of all ranks in order. ``degree`` devices
    hold one of the ``replicas`` of a stage, with ``sequence`` parallelism or without. ``training`` has the
    schedule, the micro-batches and the formats.
    """

    starts: tuple[int, ...]
    degree: int
    replicas: int
    sharded: Sharded
    again: ComputedAgain
    sequence: bool
    servers: tuple[int, ...]
    training: Training

    def spans(self, instance: Instance) -> tuple[Span, ...]:
        """Return the layers of every stage."""
        return tuple(Span(*ends) for ends in itertools.pairwise((*self.starts, len(instance.layers))))

    def modules(self, instance: Instance) -> list[list[str]]:
        """Return the modules of every stage, in order."""
        blocks = Chain.of(instance.model).blocks
        return [list(dict.fromkeys(blocks[layer] for layer in span.layers)) for span in self.spans(instance)]

    def ranks(self, instance: Instance) -> list[tuple[str, int]]:
        """Return how many ranks that follow one another are on which server."""
        names = (instance.servers[one].name for one in self.servers)
        return [(name, len(list(rows))) for name, rows in itertools.groupby(names)]

    @property
    def samples(self) -> int:
        """Samples of a micro-batch that each replica gets."""
        return self.training.micro_batch // self.replicas


def runs_of(instance: Instance, plan: Plan, program: Runtime) -> tuple[RuntimePlan, ...]:
    """Return what a program may be told to run a plan, or what is nearest to it. Raises TargetError for the rest.

    Where stages divide layers, that is the degree of the plan; where they divide no more than half of them, copies
    too.
    """
    _check_order(instance, plan, program)
    _check_cuts(instance, plan, program)
    training, first, again = instance.training, plan.stages[0].group, _again(instance, plan, program)
    groups = plan.stages[: training.ranks(len(plan))]
    told = RuntimePlan(
        starts=tuple(stage.span.first for stage in plan.stages),
        degree=1,
        replicas=first.devices,
        sharded=first.mode.sharded,
        again=again,
        sequence=False,
        servers=tuple(server for one in groups for server, count in one.group.counts for _ in range(count)),
        training=_told(training, training.schedule, len(plan)),
    )
    rows = any(form in OF_ROWS for stage in plan.stages for form in stage.forms)
    if _check_degrees(instance, plan, program):
        found = [told]
    else:
        degree = first.tensor_parallel_degree
        found = [replace(told, degree=degree, replicas=first.replicas, sequence=rows and degree > 1)]
        found += [told] if _mostly_copies(instance, plan) else []
    for at, stage in enumerate(plan.stages):
        _check_sharded(at, stage.group, first, program)
    kept = [one for one in found if one.sharded is Sharded.NONE or one.replicas > 1]
    if not kept:
        raise TargetError(
            f"stage 0 has sharded '{first.mode.sharded}' in one replica: {program.name} divides among replicas"
            " only; plan with constraints.tensor_parallel_degrees: [1]"
        )
    whole = [one for one in kept if training.micro_batch % one.replicas == 0]
    if not whole:
        raise TargetError(
            f"stage 0: {kept[0].replicas} replicas share {counted(training.micro_batch, 'sample')} at a time, and"
            f" {program.name} gives each equally many: take micro-batches that they divide"
        )
    return tuple(whole)


def as_run(instance: Instance, run: RuntimePlan) -> tuple[Instance, Plan]:
    """Return the plan that a program runs when told so, and the instance in which that is a plan.

    There devices share equally, stages may have this degree, these layers may be computed again, and layers have
    the forms that such programs give them. All else is as the user asked.
    """
    spans, each = run.spans(instance), run.degree * run.replicas
    asked, by_blocks = instance.constraints, run.again is ComputedAgain.BLOCKS
    named = asked.recompute_layers if by_blocks and asked.recompute.by_blocks else ()
    constraints = replace(asked, tensor_parallel_degrees=(run.degree,), recompute_layers=named)
    alone = {ComputedAgain.NOTHING: Recompute.NEVER, ComputedAgain.BLOCKS: Recompute.BLOCKS}
    constraints = replace(constraints, recompute=alone.get(run.again, Recompute.ALWAYS))
    cost, model = replace(instance.cost, sharing=Sharing.EQUAL), instance.model
    chain = Chain.of(model)
    if by_blocks:
        starts = (one.first for one in chain.segments())
        model = replace(model, cuts=tuple(sorted({*starts, *run.starts} - {0})))
    found = replace(instance, constraints=constraints, cost=cost, model=model, training=run.training)
    forms: tuple[int, ...] = (0,) * len(instance.layers)
    if run.degree > 1:
        splits = (*instance.constraints.splits, *(Axis.SEQUENCE,) * run.sequence)
        found = replace(found, constraints=replace(constraints, splits=tuple(dict.fromkeys(splits))))
        found = with_vocabulary(found)
        forms = forms_of(found, sequence=run.sequence)
    mode = Mode(run.replicas, recompute=run.again is ComputedAgain.STAGES, sharded=run.sharded)
    stages = []
    for at, span in enumerate(spans):
        rank = run.training.rank_of(at, len(spans))
        counts = Counter(run.servers[rank * each : (rank + 1) * each])
        again = chain.of_blocks(span) if by_blocks else ()
        group = Group(tuple(sorted(counts.items())), mode)
        stages.append(Stage(span, group, forms[span.first : span.stop], again=again))
    return found, Plan(tuple(stages))


def read_run(
    instance: Instance,
    program: Runtime,
    *,
    starts: Sequence[int],
    degrees: tuple[int, int],
    sharded: Sharded,
    again: ComputedAgain,
    sequence: bool,
    ranks: Sequence[Sequence[Any]],
    batch: tuple[int, int],
    order: tuple[Schedule, int],
    formats: Mapping[str, Any],
) -> RuntimePlan:
    """Return what a program was told, as its reader found it.

    ``degrees``: devices a replica, and replicas; ``batch``: samples of a step, and of a micro-batch of one
    replica; ``order``: the schedule, and how many stages each group holds; ``formats``: one of
    ``Runtime.formats``.
    """
    names = {server.name: at for at, server in enumerate(instance.servers)}
    sizes = next(size for size, settings in program.formats.items() if settings == formats)
    precision = Precision(*sizes, optimizer=instance.training.elements.optimizer)
    training = replace(
        instance.training.closed(),
        global_batch=batch[0],
        micro_batches=batch[0] // (batch[1] * degrees[1]),
        schedule=order[0],
        chunks=order[1],
        precision=precision,
        warm_up="classic",
    )
    servers = tuple(names[name] for name, count in ranks for _ in range(count))
    return RuntimePlan(tuple(starts), *degrees, sharded, again, sequence, servers, training)


def starts_of(instance: Instance, modules: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """Return the first layer of every stage from the modules of the stages, in order."""
    blocks = Chain.of(instance.model).blocks
    return (0, *(blocks.index(stage[0]) for stage in modules[1:]))


def _told(training: Training, schedule: Schedule, stages: int) -> Training:
    """Return a training as a program is told it: of one stage all orders of passes with a flush are one."""
    order = Schedule.ONE_F_ONE_B if stages == 1 else schedule
    return replace(training.closed(), schedule=order, warm_up="classic")


def _check_order(instance: Instance, plan: Plan, program: Runtime) -> None:
    """Raise TargetError for an order of passes, or formats, that the program does not have."""
    training, name = instance.training, program.name
    alone = len(plan) == 1 and training.schedule is Schedule.NAIVE
    told = replace(training, schedule=Schedule.ONE_F_ONE_B) if alone else training
    if problem := program.problem(told):
        raise TargetError(f"{problem}; {BY_SCRIPT}" if training.schedule.flushes else problem)
    at = plan.unlike_classic(training)
    if at is not None:
        raise TargetError(
            f"stage {at} runs {counted(plan.warm_ups(training)[at], 'forward pass')} before its first backward,"
            f" and {name} {min(len(plan) - at, training.micro_batches)}, of the stages from it on: plan with"
            " training.warm_up: classic"
        )


def _check_cuts(instance: Instance, plan: Plan, program: Runtime) -> None:
    """Raise TargetError for a stage that does not begin with a module which gets one tensor."""
    chain = Chain.of(instance.model)
    for at, stage in enumerate(plan.stages[1:], start=1):
        if reason := chain.closed(stage.span.first, program):
            raise TargetError(
                f"stage {at} {reason}" if reason.startswith("starts") else f"stage {at}: {reason}; {BY_SCRIPT}"
            )
    problem = chain.problem(program) if len(plan) > 1 or program.again is ComputedAgain.STAGES else ""
    if problem:
        at = next((at for at, stage in enumerate(plan.stages) if chain.loose.intersection(stage.span.layers)), 0)
        raise TargetError(f"stage {at}: {problem}; {BY_SCRIPT}")
    for at, stage in enumerate(plan.stages):
        if chain.loose.issuperset(stage.span.layers):
            raise TargetError(f"stage {at} holds no module, and {program.name} needs one in every stage")


def _check_degrees(instance: Instance, plan: Plan, program: Runtime) -> bool:
    """Tell whether every device holds a copy of its stage.

    Raises TargetError where stages have other numbers of devices or replicas, or divide layers that a program
    does not.
    """
    copies = all(_copies(instance, stage) for stage in plan.stages)
    first = plan.stages[0].group
    for at, stage in enumerate(plan.stages):
        held = (stage.group.devices, stage.group.devices if copies else stage.group.replicas)
        if held != (first.devices, first.devices if copies else first.replicas):
            raise TargetError(
                f"stage {at} has {counted(held[0], 'device')} in {counted(held[1], 'replica')}, stage 0 "
                f"{first.devices} in {first.devices if copies else first.replicas}: {program.name} gives all alike"
            )
        _check_mode(at, stage.group, program.name)
        if not program.splits and not copies and not _copies(instance, stage):
            layer = next(one for one in stage.span.layers if _divided(instance, stage, one))
            raise TargetError(
                f"stage {at} divides its layers over {stage.group.tensor_parallel_degree} devices, first"
                f" {instance.layers[layer].name} by {stage.in_words(stage.form(layer))}, and {program.name}'s"
                " pipeline divides none: plan with constraints.tensor_parallel_degrees: [1]"
            )
    return copies


def _copies(instance: Instance, stage: Stage) -> bool:
    """Tell whether each device of a stage holds all of it."""
    return not any(_divided(instance, stage, layer) for layer in stage.span.layers)


def _mostly_copies(instance: Instance, plan: Plan) -> bool:
    """Tell whether no more than half of the layers that can be divided are."""
    layers = [(stage, layer) for stage in plan.stages for layer in stage.span.layers]
    own = sum(instance.layers[layer].split is not Split.FOLLOW for _, layer in layers)
    return 2 * sum(_divided(instance, *one) for one in layers) <= own


def _divided(instance: Instance, stage: Stage, layer: int) -> bool:
    own = instance.layers[layer].split is not Split.FOLLOW
    return own and stage.group.tensor_parallel_degree > 1 and stage.form(layer) != 0


def _check_mode(at: int, group: Group, target: str) -> None:
    """Raise TargetError for a stage with its optimiser on the host, or with its devices in a grid."""
    if group.mode.optimizer_on_host:
        raise TargetError(
            f"stage {at} keeps the optimiser on its host, and what is written for {target} says nothing of it "
            "yet: plan with constraints.optimizer_on_host: never"
        )
    if group.mode.grid > 1:
        rows, columns = group.grid
        raise TargetError(
            f"stage {at} splits layers by two forms at once, on a grid of {rows} x {columns} devices, and what is "
            f"written for {target} names one degree: plan without pairs in constraints.splits"
        )


def _again(instance: Instance, plan: Plan, program: Runtime) -> ComputedAgain:
    """Return what all stages compute again. Raises TargetError where they do not do alike."""
    chain = Chain.of(instance.model)
    blocks = [stage.again == chain.of_blocks(stage.span) for stage in plan.stages]
    if program.again is ComputedAgain.BLOCKS and all(blocks) and any(stage.again for stage in plan.stages):
        return ComputedAgain.BLOCKS
    first = plan.stages[0].group
    for at, stage in enumerate(plan.stages):
        _check_recompute(instance, at, stage, first, program.name)
    return program.again if first.mode.recompute is True else ComputedAgain.NOTHING


def _check_recompute(instance: Instance, at: int, stage: Stage, first: Group, target: str) -> None:
    """Raise TargetError for a stage that computes some layers again, or again what others keep."""
    again, wanted = stage.group.mode.recompute, first.mode.recompute
    if stage.again:
        names = [instance.layers[one].name for one in (stage.again[0].first, stage.again[0].stop - 1)]
        raise TargetError(
            f"stage {at} computes {counted(len(stage.again), 'block')} again, first {names[0]} to {names[1]}, and "
            f"what is written for {target} says nothing of single blocks: plan with constraints.recompute: never "
            "or always"
        )
    if again not in (False, True):
        raise TargetError(
            f"stage {at} computes named layers again, and what is written for {target} says nothing of single "
            "layers: plan with constraints.recompute: never or always"
        )
    if again != wanted:
        kept = "computes its activations again" if again else "keeps its activations"
        raise TargetError(
            f"stage {at} {kept}, stage 0 does not: {target} does the same in all; plan with "
            "constraints.recompute: never or always"
        )


def _check_sharded(at: int, group: Group, first: Group, program: Runtime) -> None:
    """Raise TargetError for a stage whose devices divide what the program, or the first stage, does not."""
    sharded, target = group.mode.sharded, program.name
    if sharded is not first.mode.sharded:
        raise TargetError(
            f"stage {at} has sharded '{sharded}', stage 0 '{first.mode.sharded}': {target} divides the same in all"
        )
    if sharded not in (Sharded.NONE, *program.divides):
        listed = ", ".join((Sharded.NONE, *program.divides))
        raise TargetError(
            f"stage {at} has sharded '{sharded}', which {target} does not run in a pipeline: plan with "
            f"constraints.sharded: [{listed}]"
        )
