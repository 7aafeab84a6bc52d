"""Reasons of a plan, and differences of two, as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commands.reasons.words import (
    BREAKS,
    change_text,
    cost_text,
    layers_text,
    link_text,
    value_text,
)
from commands.tables.key_lines import Row
from commands.terminal import human
from formulation.constraints.violation import devices_of, told
from formulation.costs.amounts import goal_text
from formulation.costs.prices import stage_costs
from formulation.outcome import Outcome, Proof
from formulation.problem.constraints import Goal
from solvers.reasons.bounds import PlanTerm, TermOf
from solvers.reasons.choices import Neighbour, Neighbours
from solvers.reasons.cuts import CutReason
from solvers.reasons.devices import StageReason
from solvers.reasons.differences import PlanDifference
from solvers.reasons.idle import IdleReason, IdleServer
from solvers.reasons.reasons import Reasons

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
        *((f"cut {cut.stage - 1}|{cut.stage}", _cut(found, cut)) for cut in found.cuts),
        *((f"stage {stage.stage}", _stage(found, stage)) for stage in found.stages),
        ("idle", [] if found.idle is None else _idle(found, found.idle)),
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
        yield _memory(found)


def _memory(found: Reasons) -> str:
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


def _cut(found: Reasons, cut: CutReason) -> Iterator[str]:
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


def _idle(found: Reasons, idle: IdleReason) -> Iterator[str]:
    total = found.instance.devices
    yield f"{total - idle.used} of {total} devices have nothing to do"
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
