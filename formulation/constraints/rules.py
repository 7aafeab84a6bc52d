"""The rules that a plan must keep: the specification side of every constraint.

Each constraint has a number and five faces: a formula (docs/formulation.md), a family that posts it to the
CP-SAT model (``solvers.cpsat.variables``), the rule here, a witness instance, and the message of the
violation. A test compares the sets of names, so nothing is posted and never checked, or checked and never posted.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipecut.formulation.constraints.constraint import Constraint, Rule, Violation, every_constraint, layers_of
from pipecut.formulation.costs.amounts import counted
from pipecut.formulation.problem.constraints import Recompute
from pipecut.formulation.problem.cuts import CutSpace, single_blocks
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import EVERY_FORM, PAIRS, SINGLE_FORMS
from pipecut.formulation.problem.plan import Plan, Stage
from pipecut.formulation.problem.training import Schedule


def check_cover(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """(1) Every layer belongs to exactly one stage; stages follow one another and none is empty."""
    expected, total = 0, len(instance.layers)
    for index, stage in enumerate(plan.stages):
        first, stop = stage.span.first, stage.span.stop
        if first != expected:
            message = f"stage {index} starts at layer {first}, expected layer {expected}"
            yield Violation("cover", f"stage {index}", first, expected, "layer", message)
        if not first < stop <= total:
            message = f"stage {index} holds layers {first} to {stop}, expected 1 or more of {total} layers"
            yield Violation("cover", f"stage {index}", stop, total, "layer", message)
        if len(stage.forms) != len(stage.span):
            message = f"stage {index} has {len(stage.forms)} forms for {len(stage.span)} layers"
            yield Violation("cover", f"stage {index}", len(stage.forms), len(stage.span), "forms", message)
        expected = stop
    if expected != total:
        message = f"the last stage ends before layer {expected}, expected the end, {total}"
        yield Violation(
            "cover", f"stage {len(plan) - 1}" if len(plan) else "plan", expected, total, "layer", message
        )


def check_devices(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """(2) Every stage has devices and shares its work in an allowed way; no server gives more than it has.

    No stage works in a way that a constraint forbids, nor warms up otherwise than the training lets it. Groups
    that hold several stages are alike: equally many devices, all of one class, which share their work in the same
    way.
    """
    used, groups = [0] * len(instance.servers), plan.stages[: instance.training.ranks(len(plan))]
    for index, stage in enumerate(plan.stages):
        yield from _runs(instance, index, stage)
    for index, stage in enumerate(groups):
        if stage.group.devices < 1 or any(count < 1 for _, count in stage.group.counts):
            message = f"stage {index} takes {stage.group.devices} devices, expected 1 or more"
            yield Violation("devices", f"stage {index}", stage.group.devices, 1, "devices", message)
        yield from check_mode(instance, index, stage.group)
        for server, count in stage.group.counts:
            used[server] += count
        if instance.training.chunks > 1:
            yield from _unlike(instance, index, stage.group, groups[0].group)
        elif stage.warm_up is not None:
            yield from _not_chosen(instance, plan, index, stage.warm_up)
    for server, count in zip(instance.servers, used, strict=True):
        if count > server.devices:
            message = f"stages take {count} devices of server {server.name}, which has {server.devices}"
            yield Violation("devices", server.name, count, server.devices, "devices", message)


def _runs(instance: Instance, index: int, stage: Stage) -> Iterator[Violation]:
    """Yield runs of a stage that may not be computed again alone: only blocks may, and where asked for."""
    where, runs, told = f"stage {index}", len(stage.again), counted(len(stage.again), "run")
    asked, may = instance.constraints.recompute, single_blocks(instance, stage.span, stage.group.mode)
    if asked is Recompute.EVERY_BLOCK and set(may) - {*stage.again}:
        message = f"{where} computes {told} of layers again, constraints.recompute is '{asked}'"
        yield Violation("devices", where, runs, len(may), "runs", f"{message}: expected its {len(may)} blocks")
    if not stage.again:
        return
    if not asked.by_blocks:
        message = f"{where} computes {told} of layers again, constraints.recompute is '{asked}'"
        yield Violation("devices", where, runs, 0, "runs", f"{message}, expected 'blocks'")
    if stage.group.mode.recompute is not False:
        message = f"{where} recomputes as a whole, and {told} of its layers by themselves; expected one"
        yield Violation("devices", where, runs, 0, "runs", message)
    alone = asked.by_blocks and not stage.group.mode.recompute
    blocks = may if alone else CutSpace.of(instance).blocks(stage.span)
    for run in (one for one in stage.again if one not in blocks):
        what = f"{where} computes {layers_of(instance, run.layers)} again, no block"
        message = f"{what}: expected all layers from one place to cut to the next, all named where some are"
        yield Violation("devices", where, run.first, run.stop, "layer", message)


def _unlike(instance: Instance, index: int, group: Group, first: Group) -> Iterator[Violation]:
    """Yield that a group is not as the first one, or mixes device classes, where groups hold several stages."""
    of_class = instance.class_index(first.counts[0][0])
    same = all(instance.class_index(server) == of_class for server, _ in group.counts)
    if group.devices != first.devices or group.mode != first.mode or not same:
        message = (
            f"stage {index} has {group.devices} devices, stage 0 {first.devices}: with training.chunks"
            f" {instance.training.chunks} all stages have equally many devices, all of one class, in the same mode"
        )
        yield Violation("devices", f"stage {index}", group.devices, first.devices, "devices", message)


def _not_chosen(instance: Instance, plan: Plan, index: int, many: int) -> Iterator[Violation]:
    """Yield that a stage runs more or fewer forward passes before its first backward pass than it may choose."""
    training, where = instance.training, f"stage {index}"
    least = training.warm_up_in(len(plan) - 1 - index)
    most = training.micro_batches if training.chooses_warm_ups else least
    if not least <= many <= most:
        message = (
            f"{where} runs {many} forward passes before its first backward pass, expected {least}"
            f"{f' to {most}' if most > least else ''} of {training.micro_batches} micro-batches with"
            f" training.warm_up {training.warm_up}"
        )
        yield Violation("devices", where, many, least if many < least else most, "forward passes", message)


def check_mode(instance: Instance, index: int, group: Group) -> Iterator[Violation]:
    """Yield what constraints forbid of the devices of one stage: so many servers, such replicas, and so on."""
    for kind in OF_STAGES:
        yield from instance.demands.of(kind).check_stage(instance, index, group)


OF_STAGES = tuple(kind for kind in every_constraint() if kind.check_stage is not Constraint.check_stage)
"""Constraints that are parts of rule 2."""


def _rule(kind: type[Constraint]) -> Rule:
    return Rule(kind.number, kind.rule, lambda instance, plan: instance.demands.of(kind).check(instance, plan))


RULES: tuple[Rule, ...] = (
    Rule(1, "cover", check_cover),
    Rule(2, "devices", check_devices),
    *(_rule(kind) for kind in every_constraint() if kind.number),
)
"""What every plan keeps, and then the rules of constraints, by number."""


def structure_violations(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """Yield what makes a plan no plan at all, so that it has no price: layers missing, groups that cannot be."""
    yield from check_cover(instance, plan)
    for index, stage in enumerate(plan.stages):
        group, where = stage.group, f"stage {index}"
        known = all(0 <= server < len(instance.servers) and count > 0 for server, count in group.counts)
        if not known or group.devices < 1 or any(form not in EVERY_FORM for form in stage.forms):
            message = f"{where}: unknown server, no device, or a form other than 0 to {EVERY_FORM[-1]}"
            yield Violation("devices", where, group.devices, 1, "devices", message)
        elif group.devices > instance.devices:
            # A price would write all of them out, however many a plan file or a program asks for.
            message = f"{where} takes {group.devices} devices, the whole cluster has {instance.devices}"
            yield Violation("devices", where, group.devices, instance.devices, "devices", message)
        elif group.replicas < 1 or group.devices % group.replicas:
            message = f"{where}: {group.devices} devices cannot hold {group.replicas} equal replicas"
            yield Violation("devices", where, group.replicas, group.devices, "replicas", message)
        else:
            yield from _grid(instance, index, stage)
        ends = [stage.span.first, *(end for run in stage.again for end in (run.first, run.stop)), stage.span.stop]
        if sorted(ends) != ends or not all(map(len, stage.again)):
            message = f"{where}: runs computed again follow one another inside the stage, none of them empty"
            yield Violation("devices", where, len(stage.again), 0, "runs", message)
    yield from _chunks(instance, plan)
    yield from _warm_ups(instance, plan)


def _warm_ups(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """Yield a number of forward passes before the first backward pass with which no order can be executed."""
    training, found = instance.training, plan.warm_ups(instance.training)
    for index, (stage, many) in enumerate(zip(plan.stages, found, strict=True)):
        where, before = f"stage {index}", found[index - 1] if index else many
        if (stage.warm_up is None) != (plan.stages[0].warm_up is None):
            message = f"stage 0 and {where}: one has a warm_up and the other none, say it of all stages or of none"
            yield Violation("devices", where, many, found[0], "forward passes", message)
        elif stage.warm_up is not None and not training.warms_up:
            message = f"{where} has a warm_up, which is for {Schedule.ONE_F_ONE_B} with training.chunks 1"
            yield Violation("devices", where, many, 1, "forward passes", message)
        elif many > before or many < 1:
            message = (
                f"{where} runs {many} forward passes before its first backward pass, and would wait for ever:"
                f" expected 1 to {before}, as many as the stage before it"
            )
            yield Violation("devices", where, many, before if many > before else 1, "forward passes", message)


def _grid(instance: Instance, index: int, stage: Stage) -> Iterator[Violation]:
    """Yield a grid that a replica cannot lie in, or the first layer in a pair of forms without one."""
    degree, grid, where = stage.group.tensor_parallel_degree, stage.group.mode.grid, f"stage {index}"
    if grid != 1 and not (1 < grid < degree and degree % grid == 0):
        message = f"{where}: the {degree} devices of a replica cannot lie in a grid, in rows of {grid}"
        yield Violation("devices", where, grid, degree, "devices", message)
    pairs = (layer for layer, form in zip(stage.span.layers, stage.forms, strict=False) if form in PAIRS)
    if grid == 1 and (layer := next(pairs, None)) is not None:
        message = (
            f"{where}, layer {instance.layers[layer].name}: form {stage.form(layer)} is a pair of forms, and the"
            " devices of the stage lie in no grid: give the stage a grid, or the layer a form of its own"
        )
        yield Violation("devices", where, stage.form(layer), len(SINGLE_FORMS) - 1, "form", message)


def _chunks(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """Yield what keeps stages from being dealt out to groups, and interleaved passes from going in rounds of M."""
    training, micro_batches = instance.training, instance.training.micro_batches
    chunks = training.chunks
    if chunks == 1:
        return
    ranks = training.ranks(len(plan))
    if ranks < 2 or len(plan) % chunks:
        message = (
            f"the plan has {len(plan)} stages, expected a multiple of training.chunks {chunks}, and at least"
            f" {2 * chunks}: so many for each of two or more groups"
        )
        yield Violation("devices", "plan", len(plan), max(2 * chunks, ranks * chunks), "stages", message)
        return
    if not training.dealt_to(ranks):
        message = (
            f"{micro_batches} micro-batches on {ranks} groups: with training.chunks {chunks} they go in rounds"
            f" of as many as there are groups; take a multiple of {ranks}"
        )
        yield Violation("devices", "plan", micro_batches, ranks, "micro-batches", message)
    for index, stage in enumerate(plan.stages):
        first = training.rank_of(index, len(plan))
        if stage.group != plan.stages[first].group:
            message = (
                f"stage {index} and stage {first} are chunks of one group (training.chunks {chunks},"
                f" {ranks} groups), but have different devices"
            )
            yield Violation("devices", f"stage {index}", index, first, "group", message)
