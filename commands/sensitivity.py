"""Answers to what-if questions as plain data for JSON.

Devices of the library as device classes, for a cluster that might have them.

Answers to what-if questions as lines and a table for people: what helps most first.

``pipecut sensitivity``: the best plan if one thing were otherwise, for many things; each told as it comes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipecut.commands.parts.tables import GOOD, OPEN, WRONG, KeyLines, Row, objective_text, proof_text, scope_rows
from pipecut.commands.parts.task import EXIT_CODES, Task, announced, open_task
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import ExitCode, InputError
from pipecut.commands.terminal.interrupt import run_stoppable
from pipecut.formulation.costs.amounts import goal_text
from pipecut.formulation.outcome import Limits, Outcome, Proof
from pipecut.formulation.problem.cluster import DeviceClass
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.ingest.mistakes import ScenarioError
from pipecut.ingest.plans.plan_file import stage_to_dict
from pipecut.ingest.scenario.fields import NumberFormat
from pipecut.ingest.scenario.library import Library, near_names
from pipecut.ingest.scenario.load import Scenario
from pipecut.ingest.text.overrides import apply_overrides
from pipecut.ingest.text.yaml_source import Document
from pipecut.report.claims import goals_to_list, scope_to_dict
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.choices.trainings import decide
from pipecut.solvers.whatif.answers import ChangedAnswer, answers
from pipecut.solvers.whatif.variants import ChangedInstance, ChangeKind

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def other_devices(
    scenario: Scenario, overrides: Sequence[str], instance: Instance, names: Sequence[str] | None
) -> list[DeviceClass]:
    """Return the devices of the library that could replace those of an instance, the slowest first.

    ``names`` are those that are asked for; None: all that have a peak for the numbers of the training, one of
    those that are alike in what counts: peak, bandwidth, memory where it is limited, price where it is a goal.
    With a price as goal, only those that have one. Raises InputError for a name that the library does not have, or
    has no such peak of.
    """
    library = Library.read()
    for name in names or ():
        if name not in library.devices:
            hint = near_names(name, library.devices)
            raise InputError(f"no device '{name}' in the library{hint}")
    arithmetic = _arithmetic(scenario, overrides)
    size, found = instance.training.elements.activations, dict[tuple[int, ...], DeviceClass]()
    for name in names or library.devices:
        device = library.devices[name]
        try:
            peak = device.peak(name, size, arithmetic)
        except LookupError as error:
            if names is not None:
                raise InputError(str(error)) from error
            continue
        price = _price(library, name)
        if Goal.COST in instance.goals and not price:
            continue
        moved = device.memory_bandwidth.value // 8  # bits
        one = DeviceClass(name, device.usable, peak, price, memory_bytes_per_second=moved)
        memory = one.memory_bytes if instance.constraints.memory or Goal.MEMORY in instance.goals else 0
        found.setdefault((peak, moved, memory, price if Goal.COST in instance.goals else 0), one)
    return [found[key] for key in sorted(found)]


def _price(library: Library, name: str) -> int:
    """Return what a device costs for an hour, in millionths, in the cheapest machine that has a price; 0: none."""
    prices = [machine.device_price for machine in library.machines.values() if machine.device == name]
    return min((price for price in prices if price), default=0)


def _arithmetic(scenario: Scenario, overrides: Sequence[str]) -> NumberFormat | None:
    """Return the number format that a scenario file asks peaks for; None where it leaves that to the elements."""
    try:
        data = apply_overrides(Document.read(scenario.path), overrides).data
    except ScenarioError:
        return None
    cluster = data.get("cluster") if isinstance(data, dict) else None
    named = cluster.get("arithmetic") if isinstance(cluster, dict) else None
    return NumberFormat(named) if named in list(NumberFormat) else None


NOTHING = "-"


def effect(base: ChangedAnswer, answer: ChangedAnswer) -> float | None:
    """Return how much larger the first goal is for a whole step, as a share of that of the scenario as it is."""
    before, after = base.of_a_step, answer.of_a_step
    if before is None or after is None:
        return None
    return (after - before) / before if before else float(after > 0)


def effect_text(base: ChangedAnswer, answer: ChangedAnswer) -> str:
    """Say how much better or worse a variant is: ``12.3 % less``; of what is not proved, at least or at most."""
    share = effect(base, answer)
    if share is None:
        return NOTHING
    if base.of_a_step == answer.of_a_step:
        return "as good" if answer.proved or answer is base else "no better so far"
    words = f"{output.gap(abs(share))} {'more' if share > 0 else 'less'}"
    return words if answer.proved else f"{words} so far"


def claim_text(answer: ChangedAnswer) -> str:
    """Say how strongly an answer is held."""
    outcome = answer.outcome
    if outcome is None:
        return "not asked"
    if outcome.proof is Proof.OPTIMAL:
        return "proved"
    if outcome.proof is Proof.INFEASIBLE:
        return "no plan, proved"
    if outcome.objective is None or outcome.gap is None:
        return "no plan found" if outcome.objective is None else "no proof"
    return f"gap {output.gap(outcome.gap)}"


def answer_line(base: ChangedAnswer, answer: ChangedAnswer) -> str:
    """Return an answer as one line: what is changed, the best plan, how it compares, and how it is held."""
    if answer.outcome is None:
        return output.printable(f"{answer.variant.what}: not asked: {answer.reason.removeprefix('not asked: ')}")
    said = [claim_text(answer)]
    if answer.outcome.objective is not None and answer.instance is not None:
        amount = goal_text(answer.instance.goals[0], answer.outcome.objective)
        said = [amount, *([] if answer is base else [effect_text(base, answer)]), *said]
    return output.printable(f"{answer.variant.what}: {', '.join(said)}")


def ordered(found: Sequence[ChangedAnswer]) -> list[ChangedAnswer]:
    """Return the answers about changes: what helps most first; those without a plan or an answer last."""
    base = found[0]

    def place(answer: ChangedAnswer) -> tuple[int, float]:
        share = effect(base, answer)
        if share is not None:
            return 0, share
        return (2 if answer.outcome is None else 1), 0.0

    return sorted(found[1:], key=place)


def sensitivity_parts(found: Sequence[ChangedAnswer]) -> tuple[RenderableType, ...]:
    """Return the best plan as it is, the table of changes, and what there is to know of them."""
    base, rows = found[0], ordered(found)
    return (_head(base), "", _table(base, rows), "", KeyLines(_notes(base, rows)))


def _head(base: ChangedAnswer) -> KeyLines:
    from rich.text import Text

    outcome, rows = base.outcome, list[Row]()
    if outcome is None or base.instance is None:
        return KeyLines([("as it is", base.reason)])
    if outcome.objective is not None:
        rows.append(("as it is", objective_text(base.instance, outcome.objective)))
    style = {Proof.OPTIMAL: GOOD, Proof.INFEASIBLE: WRONG}.get(outcome.proof, OPEN)
    rows.append(("proof", Text(proof_text(base.instance, outcome), style=style)))
    return KeyLines(rows)


def _table(base: ChangedAnswer, rows: Sequence[ChangedAnswer]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("if there were", overflow="fold")
    for title in ("best plan", "for a step"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("claim", no_wrap=True)
    for answer in rows:
        outcome = answer.outcome
        if outcome is None and answer.late:
            continue
        amount = NOTHING
        if outcome is not None and outcome.objective is not None and answer.instance is not None:
            amount = goal_text(answer.instance.goals[0], outcome.objective)
        claim = Text(claim_text(answer), style=GOOD if answer.proved else OPEN if outcome else "dim")
        table.add_row(output.printable(answer.variant.what), amount, effect_text(base, answer), claim)
    return table


def _notes(base: ChangedAnswer, rows: Sequence[ChangedAnswer]) -> list[Row]:
    """Say what the numbers are, what was not asked and why, and among which plans the claims hold."""
    said: list[Row] = []
    goal = None if base.instance is None else base.instance.goals[0]
    if goal in (Goal.BOTTLENECK, Goal.PERIOD):
        said.append(("for a step", "the time of a micro-batch times their number, against the plan as it is"))
    late = [answer for answer in rows if answer.late]
    if late:
        held = sum(answer.outcome is not None for answer in late)
        of_others = f"; {held} of them show the plan of another line, which keeps their rules" if held else ""
        many = output.count(len(late), "change")
        said.append(("not asked", f"{many}, as no time was left{of_others} (--time-limit, --only)"))
    for answer in rows:
        if answer.outcome is None and not answer.late:
            said.append(("not asked", output.printable(f"{answer.variant.what}: {answer.reason}")))
    return said + ([] if base.instance is None else scope_rows(base.instance))


def answers_to_dict(task: Task, found: Sequence[ChangedAnswer]) -> dict[str, Any]:
    """Return the answers: the scenario as it is, and the changes, what helps most first."""
    base = found[0]
    goal = task.instance.goals[0]
    return {
        "scenario": task.scenario.name,
        "scope": scope_to_dict(task.instance if base.instance is None else base.instance),
        "goal": str(goal),
        "unit": goal.unit,
        "base": _row(base, base),
        "changes": [_row(base, one) for one in ordered(found)],
    }


def _row(base: ChangedAnswer, answer: ChangedAnswer) -> dict[str, Any]:
    outcome, instance = answer.outcome, answer.instance
    stages = []
    if outcome is not None and outcome.plan is not None and instance is not None:
        stages = [stage_to_dict(instance, stage) for stage in outcome.plan.stages]
    return {
        "what": answer.variant.what,
        "kind": None if answer.variant.kind is None else str(answer.variant.kind),
        "solver": None if outcome is None else outcome.solver,
        "proof": None if outcome is None else str(outcome.proof),
        "objective": None if outcome is None else outcome.objective,
        "bound": None if outcome is None else outcome.bound,
        "gap": None if outcome is None else outcome.gap,
        "of_a_step": answer.of_a_step,
        "effect": effect(base, answer),
        "micro_batches": None if instance is None else instance.training.micro_batches,
        "goals": [] if outcome is None else goals_to_list(outcome),
        "seconds": None if outcome is None else outcome.seconds,
        "notes": [] if outcome is None else [*outcome.notes, *outcome.checks],
        "reason": answer.reason,
        "stages": stages,
    }


def run(arguments: argparse.Namespace) -> int:
    """Ask about every variant, show the answers, and return the exit code."""
    task = open_task(arguments, timed=True)
    changed = _variants(task, arguments)
    found = _answered(task, changed, cross_check=arguments.cross_check)
    if arguments.json:
        arguments.reply.put(answers_to_dict(task, found))
    else:
        output.show(*sensitivity_parts(found))
    base = found[0].outcome
    if base is None or base.proof is not Proof.OPTIMAL:
        return ExitCode.NOT_PROVED if base is None else EXIT_CODES[base.proof]
    asked = [one for one in found if one.outcome is not None or one.variant.instance is not None]
    return ExitCode.DONE if all(one.proved for one in asked) else ExitCode.NOT_PROVED


def _variants(task: Task, arguments: argparse.Namespace) -> list[ChangedInstance]:
    kinds = arguments.only or tuple(ChangeKind)
    classes = []
    if ChangeKind.DEVICES in kinds:
        classes = other_devices(task.scenario, task.overrides, task.instance, arguments.devices)
    return [one for one in ChangedInstance.variants(task.instance, classes) if one.kind in kinds]


def _answered(task: Task, changed: list[ChangedInstance], *, cross_check: bool) -> list[ChangedAnswer]:
    """Ask about all of them with a progress line, stoppable by Ctrl-C; return the latest answer about each.

    Raises InputError where no solver takes the scenario itself.
    """
    method = find_any(task.solver)
    latest: dict[str, ChangedAnswer] = {}

    def ask(instance: Instance, within: Limits) -> tuple[Instance, Outcome]:
        def alone(one: Instance, left: Limits) -> Outcome:
            return plan(one, left, method, cross_check=False)

        return decide(instance, alone, within, method.name, cross_check=cross_check)

    total = len(changed) + 1
    with task.followed(f"what if, on {task.scenario.name}", task.limits) as (line, limits):
        limits = replace(limits, progress=lambda _: None)

        def work() -> None:
            for answer in _heard(answers(task.instance, changed, ask, limits)):
                again = answer.variant.what in latest
                latest[answer.variant.what] = answer
                line.title = f"what if, {len(latest)} of {total}, on {task.scenario.name}"
                if not task.quiet:
                    base = next(iter(latest.values()))
                    line.tell(f"{'again' if again else f'{len(latest)} of {total}'}: {answer_line(base, answer)}")

        stopping = announced(line, "with the answers so far")
        run_stoppable(work, task.stop, stopping, deadline=limits.deadline, instead=lambda: None)
    if not latest:
        task.out_of_time("nothing is known of the scenario as it is")()
    return list(latest.values())


def _heard(found: Iterator[ChangedAnswer]) -> Iterator[ChangedAnswer]:
    """Yield answers, none where the scenario itself had no time; raise InputError where nobody takes it."""
    for at, answer in enumerate(found):
        if not at and answer.late:
            return
        if not at and answer.outcome is None:
            raise InputError(f"the scenario as it is: {answer.reason}")
        yield answer
