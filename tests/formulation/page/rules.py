"""docs/formulation.md, "Constraints": which of them a plan breaks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from pipecut.formulation.constraints.layers.pin import Pin
from pipecut.formulation.problem.constraints import OnHost, Placement, Recompute, Sharded
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Axis, Layer, Split
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Schedule
from tests.formulation.page.blocks import runs_may_be, told_once
from tests.formulation.page.chunks import dealt, groups
from tests.formulation.page.goals import peaks, priced, value
from tests.formulation.page.layouts import FORMS, PAIRS
from tests.formulation.page.memory import capacity_bytes, warm_up
from tests.formulation.page.numbers import Numbers
from tests.formulation.page.stages import PricedStage


def covers(numbers: Numbers, plan: Plan) -> bool:
    """(1) Every layer in one stage, in order, and one form for each."""
    ends = [0, *(stage.span.stop for stage in plan.stages)]
    starts = [*(stage.span.first for stage in plan.stages), len(numbers.layers)]
    return (
        starts == ends
        and all(stage.span.first < stage.span.stop for stage in plan.stages)
        and all(len(stage.forms) == stage.span.stop - stage.span.first for stage in plan.stages)
    )


def works(numbers: Numbers, plan: Plan) -> bool:
    """Stages have devices of known servers, no more than all, equal replicas, forms 0 to 33, grids, groups."""
    for stage in plan.stages:
        counts = [count for _, count in stage.group.counts]
        known = all(0 <= server < len(numbers.servers) for server, _ in stage.group.counts)
        if not known or not counts or min(counts) < 1 or not set(stage.forms) <= {*FORMS}:
            return False
        if sum(counts) > sum(server.devices for server in numbers.servers):
            return False
        ends = [stage.span.first, *(end for run in stage.again for end in (run.first, run.stop)), stage.span.stop]
        if sorted(ends) != ends or any(run.first == run.stop for run in stage.again):
            return False
        if not 1 <= stage.group.replicas <= sum(counts) or sum(counts) % stage.group.replicas:
            return False
        grid, degree = stage.group.mode.grid, sum(counts) // stage.group.replicas
        if grid == 1 and not PAIRS.keys().isdisjoint(stage.forms):
            return False
        if grid != 1 and (not 1 < grid < degree or degree % grid):
            return False
    return dealt(numbers, plan) and _in_some_order(numbers, plan)


def _in_some_order(numbers: Numbers, plan: Plan) -> bool:
    """omega_s is said of all stages or of none, under 1F1B alone, 1 or more and no more than before."""
    own = [stage.warm_up for stage in plan.stages if stage.warm_up is not None]
    if len(own) not in (0, len(plan.stages)) or (own and _other_order(numbers)):
        return False
    return own == sorted(own, reverse=True) and min(own, default=1) >= 1


def _other_order(numbers: Numbers) -> bool:
    return numbers.training.schedule is not Schedule.ONE_F_ONE_B or numbers.training.chunks > 1


def broken(numbers: Numbers, instance: Instance, plan: Plan) -> set[str]:
    """The names of the rules that a plan with a price breaks; the instance is for the user's own rules only."""
    found = {name for name, keeps in KEPT.items() if not keeps(numbers, plan)}
    for own in numbers.constraints.own:
        if any(own.check(instance, plan)):
            found.add(f"own:{own.name}")
    return found


def _devices(numbers: Numbers, plan: Plan) -> bool:
    limits, taken = numbers.constraints, [0] * len(numbers.servers)
    runs = all(runs_may_be(numbers, stage) for stage in priced(numbers, plan))
    if not runs or not _alike(numbers, plan) or not _grids(numbers, plan):
        return False
    for stage in _one_a_group(numbers, plan):
        for server in stage.servers:
            taken[server] += 1
        if limits.max_servers is not None and len(set(stage.servers)) > limits.max_servers:
            return False
        if stage.degree not in (limits.tensor_parallel_degrees or (len(stage.servers),)):
            return False
        if (
            stage.recompute
            not in {
                Recompute.NEVER: (False,),
                Recompute.ALLOWED: (False, True, *["layers"][: len(limits.recompute_layers)]),
                Recompute.BLOCKS: (False,) if limits.recompute_layers else (False, True),
                Recompute.EVERY_BLOCK: (False,),
                Recompute.ALWAYS: (True,),
            }[limits.recompute]
        ):
            return False
        own, behind = plan.stages[stage.index].warm_up, len(plan.stages) - stage.index
        least = warm_up(numbers.training, behind, None)
        most = numbers.training.micro_batches if numbers.training.warm_up == "choose" else least
        if own is not None and not least <= own <= most:
            return False
        if limits.optimizer_on_host is (OnHost.NEVER if stage.on_host else OnHost.ALWAYS):
            return False
        mode = stage.plan.stages[stage.index].group.mode
        sharing = mode.replicas if limits.one_mode else len(stage.servers)
        if mode.sharded not in (limits.sharded if sharing > 1 else (Sharded.NONE,)):
            return False
    return all(count <= server.devices for count, server in zip(taken, numbers.servers, strict=True))


def _grids(numbers: Numbers, plan: Plan) -> bool:
    return "pairs" in numbers.constraints.splits or all(stage.group.mode.grid == 1 for stage in plan.stages)


def _one_a_group(numbers: Numbers, plan: Plan) -> list[PricedStage]:
    return priced(numbers, plan)[: groups(numbers, len(plan.stages))]


def _alike(numbers: Numbers, plan: Plan) -> bool:
    """Groups that hold several stages have equally many devices, all of one class, in the same mode."""
    if numbers.training.chunks == 1:
        return True
    found = {
        (numbers.servers[server].device_class, numbers.memory[server], len(stage.servers), mode)
        for stage in _one_a_group(numbers, plan)
        for mode in (plan.stages[stage.index].group.mode,)
        for server in stage.servers
    }
    return len(found) == 1


def _line(numbers: Numbers, plan: Plan) -> bool:
    if numbers.constraints.placement is Placement.FREE:
        return True
    line = [server for server, row in enumerate(numbers.servers) for _ in range(row.devices)]
    taken = [server for stage in _one_a_group(numbers, plan) for server in stage.servers]
    return taken == line[: len(taken)]


def _forms(numbers: Numbers, plan: Plan) -> bool:
    for stage in priced(numbers, plan):
        if not all(_has_form(numbers, layer, stage) for layer in range(len(numbers.layers))):
            return False
        for layer, form in stage.forms.items():
            row, allowed = numbers.layers[layer], _allowed(numbers, layer)
            if stage.degree == 1 or row.split is Split.FOLLOW:
                allowed = {0}
            if form not in allowed or not _divides(numbers, row, form, stage):
                return False
    return True


def _allowed(numbers: Numbers, layer: int) -> set[int]:
    """F_l with the axes that are asked for and less what limits leave out."""
    row = numbers.layers[layer]
    allowed = set(row.allowed_forms)
    allowed |= _along(numbers, row, allowed)
    for limit in numbers.constraints.forms:
        if layer in numbers.matching(limit.layers) and row.split is not Split.FOLLOW:
            allowed &= set(limit.allowed)
    return allowed


def _has_form(numbers: Numbers, layer: int, stage: PricedStage) -> bool:
    allowed = _allowed(numbers, layer) if stage.degree > 1 else {0}
    known = (form for form in allowed if stage.grid > 1 or form not in PAIRS)
    return any(_divides(numbers, numbers.layers[layer], form, stage) for form in known)


def _along(numbers: Numbers, row: Layer, allowed: set[int]) -> set[int]:
    """Forms along the axes that constraints.splits names."""
    axes, found = numbers.constraints.splits, set[int]()
    if Axis.SEQUENCE in axes and row.split is Split.MATRIX:
        found |= {form + 2 for form in allowed & {1, 2}}
    if row.across is not None and row.across.axis in axes:
        form, beside = {Axis.CONTEXT: (5, 0), Axis.EXPERTS: (6, 0), Axis.VOCABULARY: (7, 1)}[row.across.axis]
        found |= {form} if beside in allowed else set()
    if Axis.PAIRS in axes and row.split is not Split.FOLLOW:
        found |= {number for number, pair in PAIRS.items() if set(pair) <= allowed | found}
    return found


def _divides(numbers: Numbers, row: Layer, form: int, stage: PricedStage) -> bool:
    """Whether the devices divide heads or experts, and replicas have samples, in form 0 all devices as many."""
    if form not in PAIRS:
        return _divided(numbers, row, form, stage.degree, stage.replicas)
    sizes = stage.grid, stage.degree // stage.grid
    return all(_divided(numbers, row, *one, stage.replicas) for one in zip(PAIRS[form], sizes, strict=True))


def _divided(numbers: Numbers, row: Layer, form: int, devices: int, replicas: int) -> bool:
    """The same for one form, over so many devices of each replica."""
    if row.across is None:
        return True
    axis, axes, training = row.across.axis, numbers.constraints.splits, numbers.training
    if axis is Axis.CONTEXT and {Axis.SEQUENCE, Axis.CONTEXT} & set(axes):
        samples = training.global_batch // training.micro_batches
        if replicas > samples or (form == 0 and devices > 1 and samples % (devices * replicas)):
            return False
    if (axis, form) in ((Axis.CONTEXT, 2), (Axis.EXPERTS, 6)):
        return row.across.pieces % devices == 0
    return True


def _memory(numbers: Numbers, plan: Plan) -> bool:
    stages = priced(numbers, plan)
    fits = (peak <= capacity_bytes(stage) for peak, stage in zip(peaks(stages), stages, strict=True))
    return not numbers.constraints.memory or all(fits)


def _stages(numbers: Numbers, plan: Plan) -> bool:
    least, most = numbers.constraints.stages_at_least, numbers.constraints.stages_at_most
    return (least is None or len(plan.stages) >= least) and (most is None or len(plan.stages) <= most)


def _pin(numbers: Numbers, plan: Plan) -> bool:
    return all(_keeps_pin(numbers, plan, pin) for pin in numbers.constraints.pins)


def _keeps_pin(numbers: Numbers, plan: Plan, pin: Pin) -> bool:
    layers = numbers.matching(pin.layers)
    for stage in priced(numbers, plan):
        if not layers & set(stage.layers):
            continue
        if pin.stage is not None:
            wanted = pin.stage if pin.stage >= 0 else len(plan.stages) + pin.stage
            if stage.index != wanted:
                return False
            continue
        for server in (numbers.servers[at] for at in stage.servers):
            if pin.device is not None and server.device_class.name != pin.device:
                return False
            if pin.device is None and server.name not in pin.servers:
                return False
    return True


def _together(numbers: Numbers, plan: Plan) -> bool:
    return all(
        any(numbers.matching(*globs) <= set(stage.span.layers) for stage in plan.stages)
        for globs in numbers.constraints.together
    )


def _apart(numbers: Numbers, plan: Plan) -> bool:
    return not any(
        numbers.matching(one) & set(stage.span.layers) and numbers.matching(two) & set(stage.span.layers)
        for globs in numbers.constraints.apart
        for one, two in combinations(globs, 2)
        for stage in plan.stages
    )


def _no_cut(numbers: Numbers, plan: Plan) -> bool:
    whole = numbers.matching(*numbers.constraints.no_cut)
    starts = {stage.span.first for stage in plan.stages[1:]}
    return not starts & whole and (numbers.cuts is None or starts <= numbers.cuts)


def _devices_per_stage(numbers: Numbers, plan: Plan) -> bool:
    allowed = numbers.constraints.devices_per_stage
    return not allowed or all(len(stage.servers) in allowed for stage in priced(numbers, plan))


def _at_most(numbers: Numbers, plan: Plan) -> bool:
    stages = priced(numbers, plan)
    return all(value(limit.goal, numbers, stages) <= limit.at_most for limit in numbers.constraints.at_most)


def _stages_per_server(numbers: Numbers, plan: Plan) -> bool:
    most, held = numbers.constraints.stages_per_server, [set(row.servers) for row in priced(numbers, plan)]
    touching = (sum(server in row for row in held) for server in range(len(numbers.servers)))
    return most is None or max(touching) <= most


def _equal_stages(numbers: Numbers, plan: Plan) -> bool:
    sizes, asked = {(stage.group.devices, stage.group.replicas) for stage in plan.stages}, numbers.constraints
    if asked.one_mode and not told_once(numbers, plan):
        return False
    return len(sizes) == 1 or not asked.equal_stages


KEPT: dict[str, Callable[[Numbers, Plan], bool]] = {
    "devices": _devices,
    "line": _line,
    "forms": _forms,
    "memory": _memory,
    "stages": _stages,
    "pin": _pin,
    "together": _together,
    "apart": _apart,
    "no_cut": _no_cut,
    "devices_per_stage": _devices_per_stage,
    "at_most": _at_most,
    "stages_per_server": _stages_per_server,
    "equal_stages": _equal_stages,
}
