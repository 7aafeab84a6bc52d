"""The worked example of docs/formulation.md: its program runs, and both evaluators say every line below it."""

from __future__ import annotations

import ast
import importlib
import operator
import re
from contextlib import suppress
from fractions import Fraction
from functools import reduce
from math import ceil
from pathlib import Path

import pytest

from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance, build_instance
from pipecut.formulation.problem.plan import Plan
from tests.formulation.page.evaluator import evaluate_page

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "formulation.md").read_text(encoding="utf-8")
ROOMS = ("formulation", "ingest", "report", "solvers")
MODULES = sorted(path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*.py"))
EXAMPLE = PAGE.split("\n## A worked example\n")[1].split("\n## ")[0]
(PROGRAM,) = re.findall(r"```python\n(.+?)```", EXAMPLE, re.DOTALL)
(WORKED,) = re.findall(r"```text\n(.+?)```", EXAMPLE, re.DOTALL)
LINES = re.findall(r"^  (\w+) += (.+) = (\d+)$", WORKED, re.MULTILINE)
GOALS = tuple(goal for goal in Goal if goal is not Goal.PERIOD)
FIELDS = {"compute": "compute_ns", "inside": "inside_ns", "between": "between_ns", "total": "total_ns"} | {
    "boundary": "boundary_ns",
    "peak": "memory_bytes",
}
FUNCTIONS = {"ceil": ceil, "max": max, "min": min}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


@pytest.fixture(scope="module")
def example() -> tuple[Instance, Plan]:
    """The instance and plan of the program, judged by every goal."""
    made: dict[str, object] = {}
    exec(compile(PROGRAM, "docs/formulation.md", "exec"), made)  # noqa: S102 - the page is ours
    instance, plan = made["instance"], made["plan"]
    assert isinstance(instance, Instance) and isinstance(plan, Plan)
    graphs = instance.layer_graph, instance.cluster_graph
    return build_instance(*graphs, instance.training, instance.cost, instance.constraints, GOALS), plan


def worked_out() -> dict[str, int]:
    """Every line of the example, with the names before it, in exact arithmetic."""
    known: dict[str, Fraction] = {}
    for name, formula, _ in LINES:
        known[name] = exact(ast.parse(formula, mode="eval").body, known)
    return {name: int(value) for name, value in known.items() if value.denominator == 1}


def exact(node: ast.expr, known: dict[str, Fraction]) -> Fraction:
    """The value of an expression of whole numbers, names, and four functions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return Fraction(node.value)
    if isinstance(node, ast.Name):
        return known[node.id]
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](exact(node.left, known), exact(node.right, known))
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return Fraction(FUNCTIONS[node.func.id](*(exact(argument, known) for argument in node.args)))


def test_every_line_works_out() -> None:
    assert len(LINES) == len(re.findall(r"^  \S", WORKED, re.MULTILINE)) > 20
    assert worked_out() == {name: int(value) for name, _, value in LINES}


def test_the_example_is_what_is_computed(example: tuple[Instance, Plan]) -> None:
    found, lines = evaluate(*example), worked_out()
    assert found.feasible and found.objective is not None
    values = dict(zip(GOALS, (found.objective, *found.further), strict=True))
    for goal in (Goal.BOTTLENECK, Goal.ITERATION_TIME, Goal.COST, Goal.MEMORY):
        assert values[goal] == lines[goal]
    compared = [(name, *name.split("_")) for name in lines if name.split("_")[0] in FIELDS]
    assert len(compared) == 10
    for name, what, at in compared:
        assert getattr(found.stages[int(at)], FIELDS[what]) == lines[name], name


def test_the_example_is_what_the_page_says(example: tuple[Instance, Plan]) -> None:
    found, page = evaluate(*example), evaluate_page(*example)
    assert page.goals == (found.objective, *found.further) and not page.broken
    assert [one.memory_bytes for one in page.stages] == [one.memory_bytes for one in found.stages]


def named(text: str) -> list[str]:
    """Return what stands in brackets as code: a module, perhaps with rooms before it, and a name in it."""
    found = [one for part in re.findall(r"\[(`[^\]]+`)\](?!\()", text) for one in re.findall(r"`([^`]+)`", part)]
    return [one for one in found if re.fullmatch(r"[a-z_]+(\.\w+)+", one)]


def is_there(name: str) -> bool:
    """Tell whether some module of formulation, solvers, ingest or report that is called so has the name."""
    words = name.split(".")
    for cut in range(len(words), 0, -1):
        ending, rest = "/".join(words[:cut]) + ".py", words[cut:]
        for path in MODULES:
            if f"/{path}".endswith(f"/{ending}"):
                thing: object = importlib.import_module("pipecut." + path.removesuffix(".py").replace("/", "."))
                with suppress(AttributeError):
                    return reduce(getattr, rest, thing) is not None
    folder = name.replace(".", "/")
    return any(f"/{path}".rpartition("/")[0].endswith(f"/{folder}") for path in MODULES)


def test_every_name_in_brackets_is_one_of_the_product() -> None:
    names = named(PAGE)
    assert len(names) > 50 and [name for name in names if not is_there(name)] == []
    assert not is_there("times.no_such_function") and not is_there("no_such_module.at_all")
