"""A search and what it found as plain data, for the documents of ``benchmarks.proof``: plans, times, and why."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from pipecut.commands.parts.tables import stage_in_words
from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.costs.goals import goal_value
from pipecut.formulation.evaluate import Evaluation, evaluate
from pipecut.formulation.outcome import Limits, Outcome, Proof
from pipecut.formulation.problem.constraints import Goal, Sharded
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.choices.trainings import decide


def searched(
    instance: Instance, solver: str, limit_s: float, known: Iterable[tuple[int, Plan]] = ()
) -> dict[str, Any]:
    """Search an instance for the time of a step and say what was found, or the best plan that is known if none is.

    ``known`` are plans that keep the rules, each with its number of micro-batches; the best is begun with.
    """
    method, began_s = find_any(solver), time.monotonic()
    priced = [(evaluate(one, found).objective or 0, one, found) for one, found in _with_numbers(instance, known)]
    best = min(priced, key=lambda row: row[0], default=None)

    def ask(one: Instance, within: Limits) -> Outcome:
        begins = best is not None and one.training.micro_batches == best[1].training.micro_batches
        start = best[2] if best is not None and begins else None
        return plan(one, replace(within, start=within.start or start), method, cross_check=False)

    try:
        chosen, outcome = decide(instance, ask, Limits(time_limit_s=limit_s))
    except ValueError as error:
        return {"proof": "refused", "notes": [str(error)], "seconds": time.monotonic() - began_s}
    if best is not None and (outcome.objective is None or best[0] < outcome.objective):
        outcome = replace(outcome, proof=Proof.FEASIBLE, objective=best[0], plan=best[2])
        chosen = best[1]
    found = {
        "proof": str(outcome.proof),
        "goal": str(instance.goals[0]),
        "solver": outcome.solver,
        "objective": outcome.objective,
        "bound": min(map(lower_bound, with_each_number(instance))) if outcome.bound is None else outcome.bound,
        "seconds": round(time.monotonic() - began_s, 1),
        "micro_batches": chosen.training.micro_batches,
        "notes": list(outcome.notes),
    }
    return found | ({} if outcome.plan is None else of_plan(chosen, outcome.plan))


def with_each_number(instance: Instance) -> Iterator[Instance]:
    """Yield the instance with each number of micro-batches that it may have."""
    for many in instance.training.micro_batch_choices or (instance.training.micro_batches,):
        yield replace(instance, training=replace(instance.training, micro_batches=many))


def _with_numbers(instance: Instance, known: Iterable[tuple[int, Plan]]) -> Iterator[tuple[Instance, Plan]]:
    for many, one in known:
        yield replace(instance, training=replace(instance.training, micro_batches=many)), one


def of_plan(instance: Instance, found: Plan) -> dict[str, Any]:
    """Return a plan as plain data: its stages, its step as executed, and what its devices do meanwhile."""
    priced = evaluate(instance, found)
    stages = [
        {
            "layers": len(stage.span),
            "devices": stage.group.devices,
            "degree": stage.group.tensor_parallel_degree,
            "again": bool(stage.again),
            "by_rows": not {3, 4}.isdisjoint(stage.forms),
            "classes": sorted({instance.servers[at].device_class.name for at, _ in stage.group.counts}),
            "memory_bytes": cost.memory_bytes,
            **stage.group.mode.fields(),
        }
        for stage, cost in zip(found.stages, priced.stages, strict=True)
    ]
    executed = goal_value(Goal.STEP_TIME, instance, found, priced.stages)
    return {
        "executed_ns": executed,
        "groups": instance.training.ranks(len(found)),
        "stages": stages,
        "words": [stage_in_words(instance, found, at) for at in range(len(found))],
        "shares": _shares(instance, found, priced, executed),
        "broken": sorted({one.rule for one in priced.violations}),
        "plan": [
            [
                *(stage.span.first, stage.span.stop, stage.group.counts, stage.group.mode.fields(), stage.forms),
                *(stage.warm_up, [(run.first, run.stop) for run in stage.again]),
            ]
            for stage in found.stages
        ],
    }


def read_plan(rows: Iterable[Any]) -> Plan:
    """Return a plan that was written as plain data."""
    return Plan(tuple(_stage(*row) for row in rows))


def _stage(
    first: int,
    stop: int,
    counts: list[list[int]],
    fields: dict[str, Any],
    forms: list[int],
    warm_up: int | None,
    again: list[list[int]],
) -> Stage:
    mode = Mode(**{**fields, "sharded": Sharded(fields["sharded"])})
    group = Group(tuple((server, count) for server, count in counts), mode)
    runs = tuple(Span(*run) for run in again)
    return Stage(Span(first, stop), group, tuple(forms), warm_up, runs)


def _shares(instance: Instance, found: Plan, priced: Evaluation, executed: int) -> dict[str, float]:
    """Return what devices do in a step, as shares of the time of all that the cluster has."""
    parts = dict.fromkeys(("computing", "communicating"), 0)
    for stage, cost in zip(found.stages, priced.stages, strict=True):
        parts["computing"] += stage.group.devices * cost.compute_ns
        parts["communicating"] += stage.group.devices * (cost.inside_ns + cost.between_ns + cost.received_ns)
    whole = instance.devices * executed
    shares = {name: instance.training.micro_batches * part / whole for name, part in parts.items()}
    return shares | {"idle": 1 - sum(shares.values())}
