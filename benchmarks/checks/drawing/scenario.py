"""A scenario drawn with its files, read as a user's is: text, loader, instance."""

from __future__ import annotations

import copy
import functools
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import yaml

from benchmarks.checks.drawing.graphs import SIZES, drawn_graph, profile_of
from benchmarks.checks.drawing.keys import CHUNKED, CLASSES, GRAPH, IN_GRIDS, PROFILE, RULES
from benchmarks.checks.drawing.models import write_model
from benchmarks.checks.drawing.schema import Drawing, Json
from pipecut.formulation.costs.goals import goal_value
from pipecut.formulation.costs.memory import MemoryParts
from pipecut.formulation.costs.prices import stage_costs
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.problem.units import ceil_fraction
from pipecut.ingest.scenario.load import Scenario, load_scenario
from pipecut.ingest.scenario.schema import ScenarioFile
from tests.enumerator import closed_choices, every_plan

SOURCES = {"graph": 0.98, "build": 0.007, "exported": 0.007, "transformers": 0.006}
"""How often a model comes from where: to trace one takes longer than to price all plans of a graph."""
OFTEN = (0.04, 0.1, 0.2, 0.35)
"""How often keys are written that may be left out: few at once leave plans, many meet one another."""
WITHOUT_CHOICE = 0.2
"""How often a scenario may be one that has no plan, or no more than two."""
FITTING = 0.3
"""How often devices have room for just one plan that is drawn, or a byte less."""
MOST_FITTED = 100
"""So many plans are looked at for one that just fits."""
MOST_TRIES = 2_000


@dataclass(frozen=True, slots=True)
class Drawn:
    """A scenario that was drawn: what is written, what was read of it, and the problem."""

    document: Mapping[str, Any]
    graph: Mapping[str, Any]
    scenario: Scenario
    instance: Instance

    @property
    def choices(self) -> list[Instance]:
        """An instance for everything that is left open."""
        return closed_choices(self.instance)

    @property
    def alone(self) -> list[Instance]:
        """The same as single methods are asked: where a stage keeps by how many there are, for each number."""
        return [part for one in self.choices for part in _by_stages(one)]


@functools.cache
def schema() -> Json:
    """Return the schema of scenario files, keys in their order."""
    return ScenarioFile.model_json_schema()


def drawn(
    seed: int,
    folder: Path,
    most_plans: int,
    wanted: Callable[[Instance], bool] = lambda _: True,
    theme: str = "",
) -> Drawn:
    """Return the scenario of a seed, its files in a folder: the first that is read, wanted, and has few plans.

    ``theme``: what it is about (``benchmarks.checks.drawing.keys``). Raises RuntimeError where none is found.
    """
    choice = numbered(seed)
    any_, fits = choice.random() < WITHOUT_CHOICE, choice.random() < FITTING
    for _ in range(MOST_TRIES):
        document, graph = _written(choice, folder, theme)
        limits = document["constraints"].pop("at_most", {})
        found = _read(document, graph, folder, most_plans)
        if found is None or not any(map(wanted, found.alone)):
            continue
        narrowed = [partial(_with_room, choice)] * fits + [partial(_with_limits, choice, limits)] * bool(limits)
        for narrow in narrowed:
            narrow(document, found)
            less = _read(document, graph, folder, most_plans)
            found = less if less is not None and any(map(wanted, less.alone)) else found
        if any_ or any(_has_plans(one, 0 if fits else 2) for one in found.alone if wanted(one)):
            return found
    raise RuntimeError(f"seed {seed}: no scenario in {MOST_TRIES} tries")


def _by_stages(instance: Instance) -> list[Instance]:
    demands, constraints = instance.demands, instance.constraints
    if instance.training.schedule is not Schedule.ZERO_BUBBLE_H1:
        return [instance]
    most = min(instance.devices, len(instance.layers))
    numbers = range(demands.stages_at_least or 1, min(most, demands.stages_at_most or most) + 1)
    fixed = [replace(constraints, stages_at_least=number, stages_at_most=number) for number in numbers]
    return [replace(instance, constraints=one) for one in fixed] or [instance]


def _has_plans(instance: Instance, few: int) -> bool:
    """Tell whether more than a few plans keep all rules."""
    kept = (True for plan in every_plan(instance) if evaluate(instance, plan).feasible)
    return next(itertools.islice(kept, few, None), False)


def numbered(seed: int) -> Random:
    """Return the choices of a seed."""
    return Random(seed)  # noqa: S311 (no secret)


def sketched(choice: Random, from_: Json | None = None) -> dict[str, Any]:
    """Return what a scenario file says, drawn from its schema or from another one; it may mean nothing."""
    source = choice.choice([*SOURCES])
    return _sketched(choice, from_ or schema(), source, choice.choice(["", "", CHUNKED, IN_GRIDS]))[0]


def _sketched(
    choice: Random, from_: Json, source: str, theme: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return what a scenario, its graph and its profile say."""
    classes: list[str] = list(CLASSES[: 1 if theme == CHUNKED else choice.choice([1, 1, 2, 3])])
    measured = choice.random() < 0.2
    sizes = {CHUNKED: (4, 4, 5, 6), IN_GRIDS: (1, 2, 2)}.get(theme, SIZES)
    graph = drawn_graph(choice, classes, measured=measured, sizes=sizes, plain=theme == CHUNKED)
    unnamed = [{"name": "*", "split": "matrix", "allowed_forms": [0, 1, 2]}]  # known when it has been traced
    rows = graph["layers"] if source == "graph" else unnamed
    names = [row["name"] for row in rows]
    at = Drawing(from_, RULES, choice, choice.choice(OFTEN))
    at.known["source"] = source
    at.known |= {"classes": classes, "layers": names, "rows": rows, "measured": measured, "theme": theme}
    return at.whole(), graph, profile_of(choice, names, classes)


def _written(choice: Random, folder: Path, theme: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write the files of a scenario, and return what is in them and what its graph says."""
    (source,) = ["graph"] if theme else choice.choices([*SOURCES], [*SOURCES.values()])
    document, graph, profile = _sketched(choice, schema(), source, theme)
    write_model(source, folder)
    (folder / GRAPH).write_text(json.dumps(graph), encoding="utf-8")
    (folder / PROFILE).write_text(json.dumps(profile), encoding="utf-8")
    return document, graph


def _read(document: dict[str, Any], graph: dict[str, Any], folder: Path, most_plans: int) -> Drawn | None:
    """Read what is written; None where the format refuses it, or there are more plans than this."""
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    try:
        scenario = load_scenario(path)
        instance = scenario.load()
        plans = (plan for one in closed_choices(instance) for plan in every_plan(one))
        many = next(itertools.islice(plans, most_plans, None), None) is not None
    except ValueError:
        return None
    return None if many else Drawn(copy.deepcopy(document), graph, scenario, instance)


def _with_room(choice: Random, document: dict[str, Any], found: Drawn) -> None:
    """Write how much memory devices have: what a plan fills that is drawn, now and then a byte less."""
    instance = choice.choice(found.choices)
    rows = itertools.islice(every_plan(instance), MOST_FITTED)
    plans = [plan for plan in rows if {one.rule for one in evaluate(instance, plan).violations} <= {"memory"}]
    if not instance.constraints.memory or not plans:
        return
    plan, more = choice.choice(plans), dict[str, int]()
    for at, stage in enumerate(plan.stages):
        held, servers = MemoryParts.of_stage(instance, plan, at).total, [one for one, _ in stage.group.counts]
        least = min((instance.servers[one].device_class for one in servers), key=lambda one: one.memory_bytes)
        more[least.name] = max(more.get(least.name, -held), held - least.memory_bytes)
    short = choice.choice([0, 0, 0, 1])
    for name, number in more.items():
        if (row := document["cluster"]["devices"].get(name)) is not None:
            kept = int(row["memory"].split()[0]) + ceil_fraction(number * (1 + instance.demands.memory_margin))
            row["memory"] = f"{max(1, kept - short)} B"


def _with_limits(choice: Random, asked: Mapping[str, Any], document: dict[str, Any], found: Drawn) -> None:
    """Write limits on the goals that are asked about: what some plan has, or a little less."""
    instance = choice.choice(found.choices)
    some = itertools.islice(every_plan(instance), choice.randrange(20), None)
    plan = next((plan for plan in some if evaluate(instance, plan).objective is not None), None)
    limits = dict(asked)
    for name in (one for one in asked if one in [*Goal]):
        if plan is None:
            break
        try:
            value = goal_value(Goal(name), instance, plan, stage_costs(instance, plan)) - choice.choice([0, 0, 1])
        except ValueError:
            continue
        limits[name] = _text(Goal(name), max(1, value))
    document["constraints"]["at_most"] = limits


def _text(goal: Goal, value: int) -> object:
    """Return a value of a goal as a scenario has it."""
    if goal.timed:
        return f"{value} ns"
    if goal is Goal.COST:
        return f"{value // 10**6}.{value % 10**6:06}"
    return f"{value} B" if goal is Goal.MEMORY else value
