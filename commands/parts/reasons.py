"""Reasons and differences as plain data for JSON: every statement with the plan that it is about.

What a neighbour costs, what a change does, and names of layers and links: in few words.

Reasons of a plan, and differences of two, as lines for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from pipecut.commands.parts.tables import Row
from pipecut.commands.terminal import terminal as human
from pipecut.formulation.constraints.constraint import Violation, devices_of, told
from pipecut.formulation.costs.amounts import goal_text
from pipecut.formulation.costs.memory import capacity_bytes
from pipecut.formulation.costs.prices import stage_costs
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Outcome, Proof
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan, Span
from pipecut.formulation.problem.units import Link
from pipecut.ingest.plans.plan_file import stage_to_dict
from pipecut.report.claims import goals_to_list
from pipecut.solvers.reasons.cuts import CutReason
from pipecut.solvers.reasons.devices import IdleReason, IdleServer, StageReason
from pipecut.solvers.reasons.differences import PlanDifference
from pipecut.solvers.reasons.plan_neighbours import Neighbour, Neighbours
from pipecut.solvers.reasons.reasons import Reasons
from pipecut.solvers.reasons.terms import PlanTerm, TermOf


def claim_to_dict(outcome: Outcome) -> dict[str, Any]:
    """Return what a search claims, without its plan."""
    return {
        "solver": outcome.solver,
        "proof": str(outcome.proof),
        "objective": outcome.objective,
        "bound": outcome.bound,
        "goals": goals_to_list(outcome),
        "seconds": outcome.seconds,
        "notes": list(outcome.notes),
    }


def reasons_to_dict(found: Reasons) -> dict[str, Any]:
    """Return reasons as plain data: times in ns, sizes in bytes, values in the units of their goals."""
    instance = found.instance
    better = found.better
    return {
        "goals": [{"goal": str(goal), "unit": goal.unit} for goal in instance.goals],
        "values": list(found.priced.values),
        "memory_bytes": found.priced.memory_bytes,
        "stages": [stage_to_dict(instance, stage) for stage in found.priced.plan.stages],
        "broken_rules": rules_to_list(found.priced.violations),
        "terms": [
            {
                "of": str(term.of),
                "stage": term.stage,
                "value": term.value,
                "times": term.times,
                "binding": term.binding,
                "link": _link(term.link),
            }
            for term in found.terms
        ],
        "memory": _memory(instance, found.priced.plan),
        "cuts": [_cut(instance, cut) for cut in found.cuts],
        "choices": [
            {
                "stage": stage.stage,
                "devices": _sort(instance, stage.devices),
                "mode": _sort(instance, stage.mode),
                "form": _sort(instance, stage.form),
            }
            for stage in found.stages
        ],
        "idle": None if found.idle is None else _idle(instance, found.idle),
        "chain": [asdict(part) for part in found.chain],
        "better": None if better is None else neighbour_to_dict(instance, better),
        "notes": list(found.notes),
    }


def difference_to_dict(found: PlanDifference) -> dict[str, Any]:
    """Return the steps from one plan to another as plain data; values are in the order of the measures."""
    return {
        "measures": [{"goal": str(goal), "unit": goal.unit} for goal in found.measures],
        "before": list(found.before),
        "after": list(found.after),
        "changes": [
            {
                "of": change.of,
                "stage": change.stage,
                "what": change.what,
                "values": list(change.values),
                "effects": list(change.effects),
                "broken_rules": rules_to_list(change.violations),
                "stages": [stage_to_dict(found.instance, stage) for stage in change.plan.stages],
            }
            for change in found.changes
        ],
    }


def rules_to_list(violations: Iterable[Violation]) -> list[dict[str, Any]]:
    """Return broken rules as plain data."""
    return [asdict(one) for one in violations]


def neighbour_to_dict(instance: Instance, one: Neighbour) -> dict[str, Any]:
    """Return a plan one move away: its values, what it costs more, the rules that it breaks, and its stages."""
    return {
        "what": one.what,
        "values": list(one.priced.values),
        "costs": list(one.costs),
        "memory_bytes": one.priced.memory_bytes,
        "broken_rules": rules_to_list(one.priced.violations),
        "stages": [stage_to_dict(instance, stage) for stage in one.priced.plan.stages],
    }


def _maybe(instance: Instance, one: Neighbour | None) -> dict[str, Any] | None:
    return None if one is None else neighbour_to_dict(instance, one)


def _sort(instance: Instance, found: Neighbours) -> dict[str, Any]:
    return {
        "best": _maybe(instance, found.best),
        "looked_at": found.looked_at,
        "complete": found.complete,
    }


def _cut(instance: Instance, cut: CutReason) -> dict[str, Any]:
    return {
        "stage": cut.stage,
        "layer": instance.layers[cut.place].name,
        "left": _maybe(instance, cut.left),
        "right": _maybe(instance, cut.right),
        "nearest_left": _maybe(instance, cut.nearest_left),
        "nearest_right": _maybe(instance, cut.nearest_right),
        "elsewhere": _sort(instance, cut.elsewhere),
        "without": _sort(instance, cut.without),
    }


def _idle(instance: Instance, idle: IdleReason) -> dict[str, Any]:
    outcome = idle.outcome
    return {
        "used": idle.used,
        "servers": [
            {
                "server": instance.servers[one.server].name,
                "idle": one.idle,
                "link": _link(one.link),
                "moves": _sort(instance, one.moves),
                "joins": _sort(instance, one.joins),
            }
            for one in idle.servers
        ],
        "best": None
        if outcome is None
        else claim_to_dict(outcome)
        | {"stages": [stage_to_dict(instance, stage) for stage in outcome.plan.stages] if outcome.plan else []},
        "note": idle.note,
    }


def _memory(instance: Instance, plan: Plan) -> list[dict[str, int]]:
    costs = evaluate(instance, plan).stages
    return [
        {"needed_bytes": cost.memory_bytes, "capacity_bytes": capacity_bytes(instance, stage.group)}
        for stage, cost in zip(plan.stages, costs, strict=True)
    ]


def _link(link: Link | None) -> dict[str, int] | None:
    return None if link is None else {"bits_per_second": link.bits_per_second, "latency_ns": link.latency_ns}


BREAKS = "breaks"
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
NAMES = {
    Goal.BOTTLENECK: "slowest",
    Goal.ITERATION_TIME: "step",
    Goal.STEP_TIME: "executed step",
    Goal.PERIOD: "period",
    Goal.COST: "cost",
    Goal.MEMORY: "memory",
    Goal.DEVICES: "devices",
    Goal.STAGES: "stages",
}
"""A word for every goal where several stand in one line."""


def cost_text(found: Reasons, one: Neighbour) -> str:
    """Say what a neighbour costs: of the first goal in which it differs; or which rule it breaks."""
    goals = found.instance.goals
    said = "as good"
    for goal, cost, value in zip(goals, one.costs, found.priced.values, strict=True):
        if cost:
            share = f" ({human.gap(abs(cost) / value)})" if value else ""
            which = "" if goal is goals[0] else f"as good, and in {NAMES[goal]} "
            said = f"{which}{goal_text(goal, abs(cost))} {'more' if cost > 0 else 'less'}{share}"
            break
    if one.priced.violations:
        rule, message = told(one.priced.violations)[0]
        return f"{said}, but {BREAKS} {rule}: {message}"
    return said


def change_text(found: PlanDifference, effects: Sequence[int]) -> str:
    """Say what a change does to every measure: ``slowest +4.880 ms, memory -1.200 GiB``."""
    said = [
        f"{NAMES[goal]} {'-' if effect < 0 else '+'}{goal_text(goal, abs(effect))}"
        for goal, effect in zip(found.measures, effects, strict=True)
        if effect
    ]
    return ", ".join(said) or "no effect"


def value_text(found: PlanDifference, values: Sequence[int]) -> str:
    """Write the value of every measure."""
    return ", ".join(
        f"{NAMES[goal]} {goal_text(goal, value)}" for goal, value in zip(found.measures, values, strict=True)
    )


def layers_text(instance: Instance, span: Span) -> str:
    """Name the layers of a stage by the first and the last."""
    first, last = instance.layers[span.first].name, instance.layers[span.stop - 1].name
    return first if len(span) == 1 else f"{first} {ELLIPSIS} {last}"


def link_text(link: Link | None) -> str:
    """Write a link: ``10 Gbit/s``."""
    if link is None:
        return "no link"
    for unit, size in (("Gbit/s", 10**9), ("Mbit/s", 10**6)):
        if link.bits_per_second >= size:
            return f"{link.bits_per_second / size:g} {unit}"
    return f"{link.bits_per_second} bit/s"


INDENT = "  "
"""Before what belongs to the line above."""
MOST_TERMS = 3
MOST_PARTS = 6
"""How many terms of the objective and parts of the critical chain are listed; JSON has all."""
LATE = "not answered in time"


def reasons_rows(found: Reasons) -> list[Row]:
    """Return all reasons as pairs of key and line."""
    rows: list[Row] = []
    for key, lines in (
        ("bounds", _bounds(found)),
        *((f"cut {cut.stage - 1}|{cut.stage}", _cut_lines(found, cut)) for cut in found.cuts),
        *((f"stage {stage.stage}", _stage(found, stage)) for stage in found.stages),
        ("idle", [] if found.idle is None else _idle_lines(found, found.idle)),
        ("chain", _chain(found)),
        ("better", _better(found)),
        ("open", _open(found)),
        ("note", (*_places(found), *found.notes)),
    ):
        rows += [("" if at else key, human.printable(line)) for at, line in enumerate(lines)]
    return rows


def difference_rows(found: PlanDifference) -> list[Row]:
    """Return the steps from one plan to the other, with the effect of each on every measure."""
    rows: list[Row] = []
    steps = [
        ("from", value_text(found, found.before)),
        *((change.of, f"{change.what}: {change_text(found, change.effects)}") for change in found.changes),
        ("to", value_text(found, found.after)),
        ("sum", change_text(found, [b - a for a, b in zip(found.before, found.after, strict=True)])),
    ]
    broken = [[], *(told(change.violations) for change in found.changes), [], []]
    for (key, text), rules in zip(steps, broken, strict=True):
        lines = [text, *(f"{INDENT}{BREAKS} {rule}: {message}" for rule, message in rules[:1])]
        rows += [("" if at else key, human.printable(line)) for at, line in enumerate(lines)]
    return rows


def _bounds(found: Reasons) -> Iterator[str]:
    goal = found.instance.goals[0]
    if goal.executed:
        yield "what overlaps does not add up: the time is that of the chain below; busiest, by micro-batch:"
    terms = sorted(found.terms, key=lambda term: (-term.value, term.of, term.stage))
    largest = terms[0].value
    for term in terms[:MOST_TERMS]:
        times = f", {term.times} times" if term.times > 1 else ""
        less = "" if term.binding else f", {_amount(goal, largest - term.value)} less"
        yield f"{_term_name(found, term)}: {_amount(goal, term.value)}{times}{less}"
    if len(terms) > MOST_TERMS:
        yield f"and {len(terms) - MOST_TERMS} more, none larger"
    if found.instance.constraints.memory:
        yield _memory_lines(found)


def _memory_lines(found: Reasons) -> str:
    """Name the stage that has the least memory left, or needs the most that is not there."""
    costs = stage_costs(found.instance, found.priced.plan)
    at = min(range(len(costs)), key=lambda one: costs[one].capacity_bytes - costs[one].memory_bytes)
    left = costs[at].capacity_bytes - costs[at].memory_bytes
    words = f"{human.amount(abs(left))} {'left' if left >= 0 else 'too little'}"
    return f"memory of stage {at}: {words} of {human.amount(costs[at].capacity_bytes)}, the tightest"


def _term_name(found: Reasons, term: PlanTerm) -> str:
    plan = found.priced.plan
    stage = plan.stages[term.stage]
    if term.of is TermOf.BOUNDARY:
        return f"boundary {term.stage - 1}|{term.stage} over {link_text(term.link)}"
    layers = layers_text(found.instance, stage.span)
    return f"stage {term.stage} ({layers}) on {devices_of(found.instance, stage.group.counts)}"


def _cut_lines(found: Reasons, cut: CutReason) -> Iterator[str]:
    yield f"before {found.instance.layers[cut.place].name}"
    before, behind = found.priced.plan.stages[cut.stage - 1 : cut.stage + 1]
    for side, one, nearest, alone in (
        ("left", cut.left, cut.nearest_left, len(before.span) == 1),
        ("right", cut.right, cut.nearest_right, len(behind.span) == 1),
    ):
        if one is None:
            yield f"one layer {side}: {f'the stage on the {side} would be empty' if alone else LATE}"
        elif not _no_place(one):
            yield f"one layer {side}: {cost_text(found, one)}"
        if nearest is not None and (one is None or nearest.what != one.what):
            yield f"nearest place {side}, {nearest.what}: {cost_text(found, nearest)}"
    said = {one.what for one in (cut.left, cut.right, cut.nearest_left, cut.nearest_right) if one is not None}
    best = cut.elsewhere.best
    if best is not None and best.what not in said:
        yield _best(found, "another place", cut.elsewhere)
    yield _best(found, "no cut here", cut.without)


def _stage(found: Reasons, stage: StageReason) -> Iterator[str]:
    yield _best(found, "other devices", stage.devices)
    if stage.mode.looked_at:
        yield _best(found, "another mode", stage.mode)
    if stage.form.looked_at:
        yield _best(found, "another form of a layer", stage.form)


def _best(found: Reasons, title: str, sort: Neighbours) -> str:
    """Say which neighbour of a sort is the best, and of how many that were looked at."""
    if sort.best is None:
        return f"{title}: {'no plan one move away' if sort.complete else LATE}"
    seen = "" if sort.complete else ", others were not looked at in time"
    if not sort.best.priced.feasible:
        none = "it does not keep" if sort.looked_at == 1 else f"none of {sort.looked_at} keeps"
        return f"{title}: {none} the rules{seen}; {sort.best.what} {_breaks(sort.best)}"
    best = f", best of {sort.looked_at}" if sort.looked_at > 1 else ""
    return f"{title}{best}{seen}: {cost_text(found, sort.best)}, {sort.best.what}"


def _no_place(one: Neighbour) -> bool:
    """Tell whether nothing may be cut where a neighbour is."""
    return any(violation.rule == "no_cut" for violation in one.priced.violations)


def _places(found: Reasons) -> Iterator[str]:
    """Say once, of all cuts, that one layer beside them is no place to cut."""
    beside = [one for cut in found.cuts for one in (cut.left, cut.right) if one is not None]
    if any(_no_place(one) for one in beside):
        yield "where nothing may be cut one layer beside a cut (model.cuts, no_cut), the nearest place is priced"


def _open(found: Reasons) -> Iterator[str]:
    """Say how many questions were not answered in full."""
    sorts = found.sorts()
    late = sum(not sort.complete for sort in sorts)
    if late:
        many = f"{late} of {len(sorts)} questions have" if late > 1 else f"1 of {len(sorts)} questions has"
        yield f"{many} no answer, or one about some plans only, as the time was over; --time-limit gives more"


def _breaks(one: Neighbour) -> str:
    rule, message = told(one.priced.violations)[0]
    return f"{BREAKS} {rule}: {message}"


def _idle_lines(found: Reasons, idle: IdleReason) -> Iterator[str]:
    total = found.instance.devices
    yield f"{total - idle.used} of {total} devices {'has' if total - idle.used == 1 else 'have'} nothing to do"
    if idle.outcome is None:
        yield f"the best plan with {idle.used + 1} devices was not searched for: {idle.note}"
    else:
        best = "best plan" if idle.outcome.proof in (Proof.OPTIMAL, Proof.INFEASIBLE) else "best plan found"
        yield f"{best} with {idle.used + 1} devices or more: {_claim(found, idle.outcome)}"
    for server in idle.servers:
        yield from _server(found, server)


def _claim(found: Reasons, outcome: Outcome) -> str:
    goal = found.instance.goals[0]
    if outcome.proof is Proof.INFEASIBLE:
        return f"there is none that keeps the rules, proved ({outcome.solver})"
    bound = "" if outcome.bound is None else f", none below {_amount(goal, outcome.bound)}"
    if outcome.objective is None:
        return f"none in time{bound} ({outcome.solver})"
    more = outcome.objective - found.priced.values[0]
    beside = "as good" if not more else f"{_amount(goal, abs(more))} {'more' if more > 0 else 'less'}"
    proved = ", proved" if outcome.proof is Proof.OPTIMAL else f", not proved{bound}"
    return f"{_amount(goal, outcome.objective)}, {beside}{proved} ({outcome.solver})"


def _server(found: Reasons, server: IdleServer) -> Iterator[str]:
    name = found.instance.servers[server.server].name
    over = f", reached over {link_text(server.link)}" if server.link else ""
    yield f"{server.idle} on {name}{over}"
    if server.joins.best is not None or not server.joins.complete:
        yield f"{INDENT}{_best(found, 'used by what bounds the plan', server.joins)}"
    if server.moves.best is not None or not server.moves.complete:
        yield f"{INDENT}{_best(found, 'used by any stage', server.moves)}"


def _chain(found: Reasons) -> Iterator[str]:
    if not found.chain:
        return
    total = sum(part.time_ns for part in found.chain)
    parts: Sequence = found.chain
    yield f"{human.duration(total)} on the critical chain of the timeline, of which"
    for part in parts[:MOST_PARTS]:
        sent = f"{part.name}s sent by" if part.transfer else f"{part.name} at"
        share = human.gap(part.time_ns / total) if total else "0 %"
        yield f"{INDENT}{human.duration(part.time_ns)} ({share}): {sent} stage {part.stage}, {_often(part.events)}"
    if len(parts) > MOST_PARTS:
        rest = sum(part.time_ns for part in parts[MOST_PARTS:])
        yield f"{INDENT}{human.duration(rest)}: the rest"


def _often(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _better(found: Reasons) -> Iterator[str]:
    best = found.better
    if best is not None:
        yield f"one move away: {cost_text(found, best)}, {best.what}"


def _amount(goal: Goal, value: int) -> str:
    return goal_text(goal, value)
