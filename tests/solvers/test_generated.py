"""The generated comparison: that every key is drawn, what counts as wrong, and some hundred scenarios of it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.checks import generated
from benchmarks.checks.drawing.graphs import drawn_graph
from benchmarks.checks.drawing.keys import CLASSES, RULES
from benchmarks.checks.drawing.scenario import drawn, numbered, schema, sketched
from benchmarks.checks.drawing.schema import UndrawnError, paths, words, written
from benchmarks.checks.generated import (
    AUTO,
    CERTIFICATE,
    METHODS,
    Counts,
    compare,
    compare_on,
    drawn_of,
    judge,
)
from pipecut.formulation.outcome import GoalClaim, Limits, Outcome, Proof
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.ingest.graphs.graph_file import graph_schema
from tests.laws import so_many

SEED = 31_000
LEAST = 60
"""Of so many scenarios each method proves the optimum of one at least."""
SKETCHES = 3_000


@pytest.mark.slow
def test_every_key_and_every_word_of_the_schema_is_drawn() -> None:
    """A key that is added to the format is drawn, or makes this fail: nothing here lists the keys."""
    missing = {*paths(schema()), *words(schema())}
    for seed in range(SKETCHES):
        missing -= {*written(schema(), sketched(numbered(seed)))}
        if not missing:
            break
    assert not missing


@pytest.mark.slow
def test_every_key_of_a_layer_graph_is_drawn() -> None:
    rows = (
        drawn_graph(numbered(seed), list(CLASSES), measured=not seed % 3, plain=not seed % 5)
        for seed in range(300)
    )
    found = Counter(one for row in rows for one in written(graph_schema(), row))
    assert [path for path in paths(graph_schema()) if not found[path]] == []


def _with_a_key(key: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(dict(schema()))
    changed["$defs"]["CostSection"]["properties"]["unheard"] = key
    return changed


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ({"enum": ["one", "other"]}, {"one", "other"}),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, {True, False}),
        ({"type": "integer", "minimum": 7, "maximum": 8}, {7, 8}),
        ({"type": "string", "examples": ["5 us"]}, {"5 us"}),
    ],
)
def test_a_new_key_is_drawn_by_the_schema(key: dict[str, Any], values: set[object]) -> None:
    changed = _with_a_key(key)
    drawn_values = {sketched(numbered(seed), changed)["cost"].get("unheard") for seed in range(300)}
    assert drawn_values == values | {None}


def test_a_new_key_that_nobody_can_draw_is_told() -> None:
    changed = _with_a_key({"type": "string"})
    with pytest.raises(UndrawnError, match=r"cost\.unheard"):
        for seed in range(300):
            sketched(numbered(seed), changed)


def test_no_rule_is_for_a_key_that_is_gone() -> None:
    known = set(paths(schema()))
    stray = [path for path in RULES if not path.startswith("*.") and path.rstrip("[]") not in known]
    assert stray == []


@pytest.mark.slow
def test_no_method_is_refuted() -> None:
    number = so_many(250)
    counts = compare(SEED + 1_000, number)
    assert not counts.wrong, "\n".join(counts.wrong)
    assert counts.instances == number and counts.plans > min(100, 5 * number)
    for method in (AUTO, *METHODS, CERTIFICATE):
        assert counts.answers[method, "optima"] >= number // LEAST, method
    for method in (AUTO, "cpsat", "brute_force"):
        assert counts.answers[method, "infeasible"] >= number // LEAST, method


@pytest.mark.slow
def test_a_scenario_can_be_had_again(tmp_path: Path) -> None:
    assert drawn_of(SEED).instance == drawn_of(SEED).instance
    assert len({repr(drawn(SEED + number, tmp_path, 50).document) for number in range(5)}) == 5


@pytest.mark.parametrize(
    ("outcome", "values", "expected"),
    [
        (Outcome("s", Proof.OPTIMAL, None, 5, 5), (5,), "optima"),
        (Outcome("s", Proof.OPTIMAL, None, 5, 5), (5, 9), "optima"),
        (Outcome("s", Proof.OPTIMAL, None, 6, 6), (5,), "wrong"),
        (Outcome("s", Proof.OPTIMAL, None, 5, 5), None, "wrong"),
        (Outcome("s", Proof.OPTIMAL, None, 5, 5, further=(GoalClaim(Goal.STAGES, 2, 2),)), (5, 1), "wrong"),
        (Outcome("s", Proof.OPTIMAL, None, 5, 5, further=(GoalClaim(Goal.STAGES, 2, 1),)), (5, 1), "optima"),
        (Outcome("s", Proof.INFEASIBLE), None, "infeasible"),
        (Outcome("s", Proof.INFEASIBLE), (5,), "wrong"),
        (Outcome("s", Proof.FEASIBLE, None, 4, None), (5,), "wrong"),
        (Outcome("s", Proof.FEASIBLE, None, 6, 5), (5,), "bounds"),
        (Outcome("s", Proof.UNKNOWN, None, None, 6), (5,), "wrong"),
        (Outcome("s", Proof.UNKNOWN), (5,), "refused"),
    ],
)
def test_what_an_answer_counts_as(outcome: Outcome, values: tuple[int, ...] | None, expected: str) -> None:
    answer, problem = judge(outcome, values)
    assert answer == expected and bool(problem) is (expected == "wrong")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["lies", "crashes"])
def test_a_method_that_lies_or_crashes_is_wrong(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(instance: Instance, limits: Limits) -> Outcome:
        if how == "crashes":
            raise ZeroDivisionError("no reason")
        return Outcome("broken", Proof.INFEASIBLE)

    class Entry:
        load: Callable[[], object] = staticmethod(lambda: broken)

    scenarios = {seed: drawn_of(seed) for seed in range(SEED, SEED + 8, 2)}
    monkeypatch.setattr(generated, "METHODS", ("cpsat",))
    monkeypatch.setattr(generated, "find_any", lambda _: Entry)
    counts = Counts()
    for seed, found in scenarios.items():
        compare_on(found, seed, counts)
    assert counts.answers["cpsat", "wrong"] >= 1
    assert "--seed 3100" in counts.wrong[0] and "servers:" in counts.wrong[0]
