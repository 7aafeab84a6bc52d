"""``pipecut evaluate``: the price of any plan, the rules it breaks, and how far it is from the optimum."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipecut.commands.parts.comparison import gap_to
from pipecut.commands.parts.tables import goal_name
from pipecut.commands.parts.task import Task, open_task
from pipecut.commands.terminal import terminal as output
from pipecut.commands.terminal.failures import ExitCode, InputError
from pipecut.formulation.costs.amounts import goal_amount
from pipecut.formulation.evaluate import Evaluation, evaluate
from pipecut.formulation.outcome import Outcome, Proof
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.schedules.table import ScheduleError
from pipecut.ingest.plans.plan_file import plan_to_dict
from pipecut.report.claims import goals_to_list, scope_to_dict
from pipecut.report.content import summary_of
from pipecut.report.simulation import simulate
from pipecut.solvers.catalogue import AUTO

if TYPE_CHECKING:
    from pipecut.commands.parts.tables import Row

OPTIMUM_S = 60.0
"""How long the optimum is looked for where no limit is given: nobody waits for a price without end."""


def run(arguments: argparse.Namespace) -> int:
    """Price the plan, compare it with the optimum unless told not to, and return the exit code."""
    task, plan = open_task(arguments).with_plan(arguments.plan)  # a price is told however little time there is
    limits = replace(task.limits, time_limit_s=OPTIMUM_S) if task.limits.time_limit_s is None else task.limits
    task = replace(task, limits=limits.begun(arguments.began_s))
    evaluation = evaluate(task.instance, plan)
    ran, notes = _run(task, plan, evaluation)
    best = _optimum(task, plan, evaluation) if arguments.optimum else None
    if arguments.json:
        content = plan_to_dict(task.instance, plan, evaluation) | _to_dict(task, evaluation, best)
        arguments.reply.put(content | {"plan": arguments.plan, "timeline": ran})
    else:
        _show(task, plan, evaluation, best, ran, notes)
    return _exit_code(evaluation, best)


def _run(task: Task, plan: Plan, evaluation: Evaluation) -> tuple[dict[str, Any] | None, list[str]]:
    """Run a plan with a price on the timeline; None, and a note why, where its passes are too many."""
    if evaluation.objective is None:
        return None, []
    try:
        return summary_of(simulate(task.instance, plan)), []
    except ScheduleError as error:
        return None, [f"not run on the timeline: {error}"]


def gap_of(evaluation: Evaluation, best: Outcome | None) -> float | None:
    """Return the gap to the proved bound; None for a plan that breaks rules, which no bound speaks of."""
    if best is None or evaluation.objective is None or not evaluation.feasible:
        return None
    return gap_to(best, Outcome("", Proof.FEASIBLE, objective=evaluation.objective))


def _optimum(task: Task, plan: Plan, evaluation: Evaluation) -> Outcome:
    """Search for the optimum. A plan that keeps the rules and beats what was proved refutes the proof.

    What a micro-batch takes is held against others of its size alone.
    """
    asked = task.instance
    if asked.goals[0] in (Goal.BOTTLENECK, Goal.PERIOD):
        asked = replace(asked, training=replace(asked.training, micro_batch_choices=()))
    try:
        _, best = replace(task, instance=asked, solver=AUTO.name).decide(cross_check=True)
    except ValueError as error:
        raise InputError(f"{task.scenario.path}: no solver can take this instance: {error}") from error
    task.hold_to(best, plan, evaluation)
    return best


def _exit_code(evaluation: Evaluation, best: Outcome | None) -> ExitCode:
    if not evaluation.feasible:
        return ExitCode.NO_PLAN
    return ExitCode.DONE if best is None or best.proof is Proof.OPTIMAL else ExitCode.NOT_PROVED


def _show(
    task: Task,
    plan: Plan,
    evaluation: Evaluation,
    best: Outcome | None,
    ran: dict[str, Any] | None,
    notes: list[str],
) -> None:
    from pipecut.commands.parts.tables import KeyLines, StageLines, measure_lines, rank_table, run_name

    found, done = _rows(task, evaluation, best, notes)
    parts = [KeyLines(found), "", StageLines(task.instance, plan, evaluation)]
    if ran is not None:
        parts += ["", f"formula and timeline: {run_name(ran)}", "", *measure_lines(ran), "", rank_table(ran)]
    if done:
        parts += ["", KeyLines(done)]
    output.show(*parts)


def _rows(
    task: Task, evaluation: Evaluation, best: Outcome | None, notes: list[str]
) -> tuple[list[Row], list[Row]]:
    """Return what was found of the plan, and what was done for it."""
    from pipecut.commands.parts.tables import objective_text, rules_rows, scope_rows

    found: list[Row] = []
    if evaluation.objective is not None:
        found.append(("objective", objective_text(task.instance, evaluation.objective)))
    further = zip(task.instance.goals[1:], evaluation.further, strict=False)
    found += [
        ("and then", f"{goal_amount(goal, value)}, {goal_name(task.instance, goal)}") for goal, value in further
    ]
    found += rules_rows(evaluation)
    done: list[Row] = []
    if best is not None:
        found.append(("optimum", _optimum_text(task.instance.goals[0], best.of_first_goal())))
        done += [
            *scope_rows(task.instance),
            *(("note", output.printable(note)) for note in (*best.notes, *best.checks)),
        ]
    if best is not None and (gap := gap_of(evaluation, best)) is not None:
        proved = "" if best.of_first_goal().proof is Proof.OPTIMAL else " at most"
        found.append(("gap", f"{output.gap(gap)}{proved}"))
    return found, [*done, *(("note", note) for note in notes)]


def _optimum_text(goal: Goal, best: Outcome) -> str:
    bound = "no bound" if best.bound is None else f"not below {goal_amount(goal, best.bound)}"
    amount = goal_amount(goal, best.objective or 0)
    proved = {Proof.INFEASIBLE: "no plan exists in this scope", Proof.OPTIMAL: amount}
    found = f"{proved[best.proof]}, proved" if best.proof in proved else f"not proved: {bound}"
    return f"{found} ({best.solver}, {best.seconds:.2f} s)"


def _to_dict(task: Task, evaluation: Evaluation, best: Outcome | None) -> dict[str, Any]:
    content: dict[str, Any] = {
        "scenario": task.scenario.name,
        "feasible": evaluation.feasible,
        "scope": scope_to_dict(task.instance),
        "broken_rules": [
            {
                "rule": found.rule,
                "where": found.where,
                "found": found.found,
                "limit": found.limit,
                "unit": found.unit,
                "message": found.message,
            }
            for found in evaluation.violations
        ],
        "gap": gap_of(evaluation, best),
        "optimum": None,
    }
    if best is not None:
        content["optimum"] = {
            "solver": best.solver,
            "proof": str(best.proof),
            "objective": best.objective,
            "bound": best.bound,
            "goals": goals_to_list(best),
            "seconds": best.seconds,
            "notes": [*best.notes, *best.checks],
        }
    return content
