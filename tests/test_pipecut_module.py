from __future__ import annotations

import ast
import contextlib
import os
import re
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import pipecut
from pipecut.commands.main import main
from pipecut.solvers import catalogue
from pipecut.solvers.catalogue import SolverEntry
from tests.commands.fakes import ROOT, entries

FACE = (ROOT / "face" / "__init__.py").read_text(encoding="utf-8")
SECONDS = re.compile(r" +\d+\.\d\d s$", re.MULTILINE)


def test_every_name_is_there_and_no_other() -> None:
    assert all(getattr(pipecut, name) is not None for name in pipecut.__all__)
    assert dir(pipecut) == sorted(pipecut.__all__)
    with pytest.raises(AttributeError, match="module 'pipecut' has no attribute 'train'"):
        _ = pipecut.train  # pyright: ignore


def test_the_document_lists_every_name_once() -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| .+ \|$", text, re.MULTILINE)
    assert sorted(name.strip("` ") for row in rows for name in row.split(",")) == sorted(pipecut.__all__)


def test_the_names_that_type_checkers_see_are_those_that_are_imported() -> None:
    """The imports for type checkers say the same homes as the table that imports at the first use."""
    (block,) = [node for node in ast.parse(FACE).body if isinstance(node, ast.If)]
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("pipecut.")
        for alias in node.names
    }
    assert seen.pop("listing") == "pipecut.commands.results"
    homes = {name: home for home, names in pipecut._HOMES.items() for name in names.split()}  # pyright: ignore
    assert homes == seen


def test_the_ways_of_solving(scenario: Path) -> None:
    problem = pipecut.load(scenario)
    read = pipecut.read_scenario(str(scenario), ["solver.name=line_dp"])
    outcomes = [
        pipecut.plan(problem),
        pipecut.plan(read.load(), solver=read.solver.name, limits=read.solver.limits()),
        pipecut.plan(problem, solver="brute_force", limits=pipecut.Limits(time_limit_s=60)),
    ]
    assert {outcome.objective for outcome in outcomes} == {866_400}
    assert [outcome.solver for outcome in outcomes][1:] == ["line_dp", "brute_force"]
    assert all(outcome.proof is pipecut.Proof.OPTIMAL for outcome in outcomes)


def test_a_solver_is_no_part_of_a_problem(scenario: Path) -> None:
    with pytest.raises(ValueError, match=r"solver\.name=line_dp: no part of the problem"):
        pipecut.load(scenario, ["solver.name=line_dp"])


def test_overrides_reach_the_problem(scenario: Path) -> None:
    assert pipecut.load(scenario, ["training.micro_batches=4"]).training.micro_batches == 4


@pytest.mark.few("1 ")
@pytest.mark.parametrize(("memory", "because"), [("1 GiB", 0), ("4 MiB", 1), ("1 KiB", 1)])
def test_an_outcome_prints_as_the_command_line_does(
    scenario: Path, memory: str, because: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but the search for what clashes, which ``pipecut.explain`` is."""
    setting = f"cluster.devices.card.memory={memory}"
    monkeypatch.setenv("COLUMNS", "80")
    main(["plan", str(scenario), "--set", setting, "--quiet"])
    outcome = pipecut.plan(pipecut.load(scenario, [setting]))
    explained = re.compile(r"^way out .*?\n\n", re.DOTALL | re.MULTILINE)
    shown, found = explained.subn("\n", capsys.readouterr().out)
    said = SECONDS.sub(" s", shown)
    assert found == because == ("which leaves out" in said)
    assert SECONDS.sub(" s", str(outcome)).split() == said.split() and "\x1b" not in said
    assert all(len(line) <= 80 for line in str(outcome).splitlines())


def test_a_comparison_prints_as_the_command_line_does(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["line_dp", "pipepar", "cpsat_chunks"]
    monkeypatch.setenv("COLUMNS", "80")
    main(["compare", str(scenario), "--solvers", ",".join(asked), "--quiet"])
    compared = pipecut.compare(pipecut.load(scenario), asked)
    assert SECONDS.sub(" s", str(compared)).split() == SECONDS.sub(" s", capsys.readouterr().out).split()
    assert all(len(line) <= 80 for line in str(compared).splitlines())
    assert list(compared.outcomes) == asked[:2] and list(compared.refused) == asked[2:]
    assert compared.strongest is compared.outcomes["line_dp"]


def test_false_claims_end_a_comparison(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "SOLVERS", entries())
    with pytest.raises(pipecut.FalseClaimError, match="wrong_price"):
        pipecut.compare(pipecut.load(scenario), ["cpsat", "wrong_price"])
    with pytest.raises(pipecut.FalseClaimError, match="claims that no plan exists"):
        pipecut.compare(pipecut.load(scenario), ["wrong_excluded", "cpsat"])


def test_what_is_written_is_read_again(scenario: Path) -> None:
    problem = pipecut.load(scenario)
    found = pipecut.plan(problem).needed_plan()
    pipecut.write_plan("best.json", problem, found)
    assert pipecut.read_plan("best.json", problem) == found
    pipecut.write_layers("layers.json", problem.model)
    assert pipecut.read_layers("layers.json") == problem.model
    certificate = pipecut.certify(problem, found)
    pipecut.write_certificate("proof.json", problem, certificate)
    read = pipecut.read_certificate("proof.json", problem)
    pipecut.verify(problem, read)
    assert read.optimal and read.objective == 866_400
    with pytest.raises(pipecut.CertificateError):
        pipecut.verify(problem, replace(read, bound=read.bound + 1))
    ran = pipecut.simulate(problem, found, schedule="zero_bubble_h1")
    pipecut.write_schedule("order.csv", ran.timeline.schedule)
    assert pipecut.read_schedule("order.csv").name == "order.csv"


def test_a_problem_said_in_python_is_that_of_its_file(scenario: Path) -> None:
    read = pipecut.load(scenario)
    built = pipecut.build(
        read.model, read.cluster, read.training, cost=read.cost, constraints=read.constraints, goals=read.goals
    )
    assert built == read


def test_layers_in_a_chain_and_servers_in_a_mesh() -> None:
    layers = [pipecut.Layer(name, "linear", pipecut.Split.MATRIX, 4, 8, 8, 8, 10) for name in "abc"]
    graph = pipecut.LayerGraph.chain("abc", layers)
    assert graph.edges == ((0, 1, 8), (1, 2, 8)) and graph.layers == tuple(layers)
    card, link = pipecut.DeviceClass("card", 10**9, 10**9), pipecut.Link(10**9)
    cluster = pipecut.Cluster.mesh("lab", [pipecut.Server(name, card, 1) for name in "xyz"], link)
    assert cluster.wiring.mesh == link
    assert {one for row in cluster.links for one in row} == {link, None}
    problem = pipecut.build(graph, cluster, pipecut.Training(global_batch=1))
    assert problem.goals == (pipecut.Goal.STEP_TIME,) and problem.cost == pipecut.CostModel()
    assert pipecut.plan(problem).proof is pipecut.Proof.OPTIMAL
    with pytest.raises(ValueError, match="server x appears twice"):
        pipecut.Cluster.mesh("lab", [pipecut.Server("x", card, 1)] * 2, link)


def test_without_goals_the_executed_time_is_minimised(scenario: Path) -> None:
    read = pipecut.load(scenario)
    endless = replace(read.training, schedule=pipecut.Schedule.ASYNC_ONE_F_ONE_B)
    summed = pipecut.CostModel(combine=pipecut.Combine.SUM)
    said = [pipecut.Goal.MEMORY, pipecut.Goal.COST]
    problems = {
        pipecut.Goal.STEP_TIME: pipecut.build(read.model, read.cluster, read.training),
        pipecut.Goal.PERIOD: pipecut.build(read.model, read.cluster, endless),
        pipecut.Goal.BOTTLENECK: pipecut.build(read.model, read.cluster, read.training, cost=summed),
    }
    assert [problem.goals for problem in problems.values()] == [(goal,) for goal in problems]
    assert pipecut.build(read.model, read.cluster, endless, goals=said).goals == tuple(said)


def test_a_plan_is_evaluated(scenario: Path) -> None:
    instance = pipecut.load(scenario)
    Path("plan.json").write_text('{"stages": [{"layers": {"span": [0, 5]}, "devices": {"node0": 1}}]}')
    assert pipecut.evaluate(instance, pipecut.read_plan("plan.json", instance)).feasible
    with pytest.raises(ValueError, match=r"absent\.json"):
        pipecut.read_plan(Path("absent.json"), instance)


def test_why_there_is_no_plan(scenario: Path) -> None:
    explanation = pipecut.explain(pipecut.load(scenario, ["cluster.devices.card.memory=1 KiB"]))
    assert explanation.complete and explanation.clashes


def test_false_claims_are_raised(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "SOLVERS", entries())
    with pytest.raises(pipecut.FalseClaimError, match="wrong_price"):
        pipecut.plan(pipecut.load(scenario), solver="wrong_price")
    with pytest.raises(ValueError, match="no solver 'magic'"):
        pipecut.plan(pipecut.load(scenario), solver="magic")


def test_a_search_can_be_stopped_through_its_limits(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "SOLVERS", entries())
    wish = threading.Event()
    limits = pipecut.Limits(stopped=wish.is_set, progress=lambda _: wish.set())
    assert pipecut.plan(pipecut.load(scenario), solver="slow", limits=limits).proof is pipecut.Proof.FEASIBLE


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_stops_the_search_and_is_raised(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "SOLVERS", entries())
    monkeypatch.setattr(
        "pipecut.commands.terminal.interrupt.signal.getsignal", lambda _: signal.default_int_handler
    )
    sent = threading.Event()

    def interrupt(_: pipecut.Progress) -> None:
        if not sent.is_set():  # a second one would not wait for the search to stop
            sent.set()
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            pipecut.plan(pipecut.load(scenario), solver="slow", limits=pipecut.Limits(progress=interrupt))
    finally:
        signal.signal(signal.SIGINT, before)


def test_nobody_is_told_of_progress_by_a_search_that_was_left(
    scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a search goes on in its thread, and tells what it finds there."""
    told: list[pipecut.Progress] = []
    goes_on, ended = threading.Event(), threading.Event()

    def late(instance: pipecut.Instance, limits: pipecut.Limits) -> pipecut.Outcome:
        with contextlib.suppress(BaseException):  # that it is left
            goes_on.wait(30)
        limits.progress(pipecut.Progress(1, None))
        ended.set()
        raise ValueError("nobody hears it")

    monkeypatch.setattr(catalogue, "SOLVERS", (*catalogue.SOLVERS, SolverEntry("late", "a fake", lambda: late)))
    limits = pipecut.Limits(time_limit_s=0.1, progress=told.append)
    assert pipecut.plan(pipecut.load(scenario), solver="late", limits=limits).plan is not None
    before = list(told)
    goes_on.set()
    assert ended.wait(30) and told == before


def test_limits_are_kept_while_planning(scenario: Path) -> None:
    limits = replace(pipecut.Limits(), workers=1, seed=3)
    assert pipecut.plan(pipecut.load(scenario), limits=limits).objective == 866_400
