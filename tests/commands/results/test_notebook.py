"""Results in a notebook: pictures that stand alone, words that are escaped, tables of pandas."""

from __future__ import annotations

import base64
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pipecut
from pipecut.commands.results.planned import layer_table, tell_notebook
from tests.report.runs import EVIL, case

IMAGE = re.compile(r'<img alt="[^"]*" style="max-width: 100%" src="data:image/svg\+xml;base64,([^"]+)">')


def images(html: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(base64.b64decode(one)) for one in IMAGE.findall(html)]  # noqa: S314 (our own)


def test_an_outcome_shows_its_plan_and_its_words(scenario: Path) -> None:
    outcome = pipecut.plan(pipecut.load(scenario))
    html = outcome._repr_html_()
    assert len(images(html)) == 1 and "optimal, proved" in html and "<script" not in html
    nothing = replace(outcome, plan=None, objective=None, bound=None, proof=pipecut.Proof.UNKNOWN)
    assert images(nothing._repr_html_()) == [] and nothing._repr_html_().startswith("<pre")


def test_a_run_shows_timeline_and_memory(scenario: Path) -> None:
    problem = pipecut.load(scenario)
    plan = pipecut.plan(problem).needed_plan()
    ran = pipecut.simulate(problem, plan)
    assert len(images(ran._repr_html_())) == 2 and "makespan of one step" in str(ran)
    table = pytest.importorskip("pandas").DataFrame
    assert isinstance(pipecut.plan(problem).layer_table(), table)
    compared = pipecut.compare(problem, ["cpsat"])
    assert "cpsat" in compared._repr_html_()


def test_a_notebook_that_runs_is_told_how_to_show_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[type, Any] = {}
    html = SimpleNamespace(for_type=known.__setitem__)
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/html": html}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    tell_notebook()
    plan = case(2, 4)[1]
    mode = pipecut.Mode(replicas=2, sharded=pipecut.Sharded.OPTIMIZER, optimizer_on_host=True)
    first = replace(plan.stages[0], group=pipecut.Group(((0, 2),), mode))
    shown = known[pipecut.Plan](replace(plan, stages=(first, *plan.stages[1:])))
    assert shown.count("<tr>") == 1 + len(plan)
    assert "2 x server 0" in shown and "2 replicas" in shown and "host" in shown
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    known.clear()
    tell_notebook()
    assert not known


def test_names_of_users_make_no_elements() -> None:
    instance, plan = case(name=EVIL)
    html = pipecut.simulate(instance, plan, name=EVIL)._repr_html_()
    assert set(re.findall(r"<(\w+)", html)) <= {"img", "br", "pre"} and "\u202e" not in html
    assert all("script" not in {one.tag.rpartition("}")[2] for one in image.iter()} for image in images(html))


def test_the_layers_are_a_table() -> None:
    pytest.importorskip("pandas")
    instance, plan = case(3, 6)
    table: Any = layer_table(instance, plan)
    assert list(table["name"]) == [layer.name for layer in instance.layers]
    assert list(table["stage"]) == [0, 0, 1, 1, 2, 2]
    stages = [stage.compute_ns for stage in pipecut.evaluate(instance, plan).stages]
    assert [int(table["compute_ns"][table["stage"] == at].sum()) for at in range(3)] == stages
    assert "stage" not in layer_table(instance)


def test_without_pandas_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    instance, _ = case()
    with pytest.raises(ImportError, match=r"pip install 'pipecut\[notebook\]'"):
        layer_table(instance)
