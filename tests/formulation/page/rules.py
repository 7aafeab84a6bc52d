"""docs/formulation.md, "Constraints": which of them a plan breaks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from formulation.constraints.layers.pin import Pin
from formulation.problem.instance import Instance
from formulation.problem.layers import Split
from formulation.problem.options import Placement, Recompute
from formulation.problem.plan import Plan
from tests.formulation.page.goals import peaks, priced, value
from tests.formulation.page.memory import capacity_bytes
from tests.formulation.page.numbers import Numbers


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
    """Every stage has devices of known servers, no more than all, replicas that divide them, and forms 0 to 2."""
    for stage in plan.stages:
        counts = [count for _, count in stage.group.counts]
        known = all(0 <= server < len(numbers.servers) for server, _ in stage.group.counts)
        if not known or not counts or min(counts) < 1 or not set(stage.forms) <= {0, 1, 2}:
            return False
        if sum(counts) > sum(server.devices for server in numbers.servers):
            return False
        if not 1 <= stage.group.replicas <= sum(counts) or sum(counts) % stage.group.replicas:
            return False
    return True


def broken(numbers: Numbers, instance: Instance, plan: Plan) -> set[str]:
    """The names of the rules that a plan with a price breaks; the instance is for the user's own rules only."""
    found = {name for name, keeps in KEPT.items() if not keeps(numbers, plan)}
    for own in numbers.constraints.own:
        if any(own.check(instance, plan)):
            found.add(f"own:{own.name}")
    return found


def _devices(numbers: Numbers, plan: Plan) -> bool:
    limits, taken = numbers.constraints, [0] * len(numbers.servers)
    for stage in priced(numbers, plan):
        for server in stage.servers:
            taken[server] += 1
        if limits.max_servers is not None and len(set(stage.servers)) > limits.max_servers:
            return False
        if stage.degree not in (limits.tensor_parallel_degrees or (len(stage.servers),)):
            return False
        if (limits.recompute is Recompute.NEVER and stage.again) or (
            limits.recompute is Recompute.ALWAYS and not stage.again
        ):
            return False
    return all(count <= server.devices for count, server in zip(taken, numbers.servers, strict=True))


def _line(numbers: Numbers, plan: Plan) -> bool:
    if numbers.constraints.placement is Placement.FREE:
        return True
    line = [server for server, row in enumerate(numbers.servers) for _ in range(row.devices)]
    taken = [server for stage in priced(numbers, plan) for server in stage.servers]
    return taken == line[: len(taken)]


def _forms(numbers: Numbers, plan: Plan) -> bool:
    for stage in priced(numbers, plan):
        for layer, form in stage.forms.items():
            row = numbers.layers[layer]
            allowed = set(row.allowed_forms)
            for limit in numbers.constraints.forms:
                if layer in numbers.matching(limit.layers):
                    allowed &= set(limit.allowed)
            if stage.degree == 1 or row.split is Split.FOLLOW:
                allowed = {0}
            if form not in allowed:
                return False
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
}
