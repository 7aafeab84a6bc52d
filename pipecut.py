"""pipecut in Python: scenarios, plans, and the functions of the PipePar paper's Listing 1.

    import pipecut

    outcome = pipecut.plan("scenarios/pipepar/vgg16.yaml")
    print(outcome.proof, outcome.objective)

Importing this module is cheap: everything behind the names is imported at its first use.
"""

from __future__ import annotations

import importlib
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx as nx

    from commands.simulation.simulated import Simulated
    from formulation.evaluate import Evaluation
    from formulation.outcome import FalseClaimError, Limits, Outcome, Progress, Proof
    from formulation.problem.groups import Group
    from formulation.problem.instance import Instance
    from formulation.problem.plan import Plan, Span, Stage
    from formulation.schedules.table import PipelineSchedule
    from ingest.scenario.load import Scenario, load_scenario
    from planners.pipepar.listing import Strategy, init, load_model, load_running_envs, profile_model, trial_run

__all__ = [
    "Evaluation",
    "FalseClaimError",
    "Group",
    "Instance",
    "Limits",
    "Outcome",
    "Plan",
    "Progress",
    "Proof",
    "Scenario",
    "Simulated",
    "Span",
    "Stage",
    "evaluate",
    "init",
    "load_model",
    "load_running_envs",
    "load_scenario",
    "plan",
    "profile_model",
    "simulate",
    "trial_run",
]

_HOMES = {
    "formulation.evaluate": ("Evaluation",),
    "formulation.problem.groups": ("Group",),
    "formulation.problem.instance": ("Instance",),
    "formulation.outcome": ("FalseClaimError", "Limits", "Outcome", "Progress", "Proof"),
    "formulation.problem.plan": ("Plan", "Span", "Stage"),
    "ingest.scenario.load": ("Scenario", "load_scenario"),
    "planners.pipepar.listing": ("init", "load_model", "load_running_envs", "profile_model", "trial_run"),
    "commands.simulation.simulated": ("Simulated",),
}
"""Where each name that is not defined here comes from."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 (a module attribute can be anything)
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'pipecut' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def plan(
    problem: Scenario | Instance | str | Path,
    *,
    solver: str | None = None,
    limits: Limits | None = None,
    cross_check: bool = True,
) -> Outcome:
    """Find the best plan of a scenario (or of a scenario file, or of an instance) and prove it.

    ``solver`` and ``limits`` default to those of the scenario (of an instance: cpsat, no limits). The outcome has
    passed the evaluator's check, and a proof by cpsat agrees with a second exact method, unless ``cross_check``
    is false. Ctrl-C stops the search and raises KeyboardInterrupt; to have the best plan so far instead, stop it
    through ``limits``. Raises FalseClaimError if a check fails, and ValueError for wrong input.
    """
    from commands.terminal.interrupt import run_stoppable
    from formulation.outcome import Limits
    from formulation.problem.instance import Instance
    from ingest.scenario.load import load_scenario
    from solvers.crosscheck.checked_solve import MAIN_SOLVER, solve_or_ask_another

    began_s = time.monotonic()
    if isinstance(problem, Instance):
        instance, chosen, given = problem, solver or MAIN_SOLVER, limits or Limits()
    else:
        scenario = load_scenario(problem) if isinstance(problem, str | Path) else problem
        instance, chosen, given = (
            scenario.load(),
            solver or scenario.solver.name,
            limits or scenario.solver.limits(),
        )
    interrupted = threading.Event()
    stoppable = replace(given.begun(began_s), stopped=lambda: interrupted.is_set() or given.stopped())
    outcome = run_stoppable(
        lambda: solve_or_ask_another(instance, chosen, stoppable, cross_check=cross_check), interrupted
    )
    if interrupted.is_set():
        raise KeyboardInterrupt
    return outcome


_best = plan
"""The function, where an argument has its name."""


def evaluate(instance: Instance, plan: Plan | str | Path) -> Evaluation:
    """Price any plan, or plan file, and list the rules that it breaks. Raises ValueError for a wrong plan file."""
    from formulation.evaluate import evaluate as price
    from ingest.plans.plan_file import read_plan

    return price(instance, read_plan(plan, instance) if isinstance(plan, str | Path) else plan)


def simulate(
    problem: Scenario | Instance | str | Path,
    plan: Plan | Outcome | nx.DiGraph | str | Path | None = None,
    strategy: Strategy | None = None,
    *,
    schedule: str | Path | PipelineSchedule | None = None,
    chunks: int | None = None,
) -> Simulated:
    """Run a plan step by step, and return its timeline and measures, which can be written as a page.

    ``problem`` is as in :func:`plan`. ``plan`` is a plan, a plan file, or an outcome; without it the best plan
    is searched for first. ``simulate(inputs, model, strategy)`` is the last call of the paper's Listing 1: it runs
    what ``trial_run`` found for a model. ``schedule`` (with ``chunks``) runs one step in another order of actions
    than the training's: ``interleaved``, ``zero_bubble_h1``, ``best`` (the shortest, searched for and proved), a
    schedule file, or a table. Raises ValueError for wrong input, for a plan without a price, and where there is no
    plan to run, or no order of it that fits into memory.
    """
    import networkx as nx

    from commands.simulation.simulated import simulate_plan
    from formulation.problem.instance import Instance
    from ingest.scenario.load import Scenario, load_scenario
    from planners.pipepar.listing import simulate as run_strategy

    if strategy is not None or isinstance(plan, nx.DiGraph):
        if not (isinstance(problem, Scenario) and isinstance(plan, nx.DiGraph) and strategy is not None):
            raise ValueError("expected a problem with a plan, or the inputs, model and strategy of Listing 1")
        return run_strategy(problem, plan, strategy, schedule=schedule, chunks=chunks)
    scenario = load_scenario(problem) if isinstance(problem, str | Path) else problem
    instance = scenario if isinstance(scenario, Instance) else scenario.load()
    if plan is None:
        plan = _best(instance, **({} if isinstance(scenario, Instance) else _choice(scenario)))
    limits = None if isinstance(scenario, Instance) else scenario.solver.limits()
    return simulate_plan(instance, plan, name=scenario.name, schedule=schedule, chunks=chunks, limits=limits)


def _choice(scenario: Scenario) -> dict[str, Any]:
    """Return the solver and its limits that a scenario asks for."""
    return {"solver": scenario.solver.name, "limits": scenario.solver.limits()}
