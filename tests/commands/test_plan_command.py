from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipecut.commands.parts.task import Task
from pipecut.commands.plan import NOTHING_PROVED
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import Limits, Outcome, Proof
from pipecut.formulation.problem.instance import Instance
from pipecut.ingest.plans.plan_file import read_plan
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers import catalogue
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.crosscheck import ROUTES, SAME_OPTIMUM
from tests.command_line import Command
from tests.commands.fakes import broken, instead_of, wrong_excluded, wrong_price, wrong_proof

SAME = SAME_OPTIMUM.format(find_any("state_dp").summary)
OPTIMUM_NS = 866_400


def test_json_holds_the_claim_and_the_plan(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("plan", scenario, "--json")
    assert ran.code == 0 and ran.err == ""
    found = ran.json
    assert found["proof"] == "optimal" and found["solver"] == "cpsat" and found["scenario"] == "tiny"
    assert found["objective"] == found["bound"] == OPTIMUM_NS and found["gap"] == 0
    assert isinstance(found["seconds"], float) and SAME in found["notes"]
    (stage,) = found["stages"]
    assert stage["layers"] == ["conv1", "relu1", "conv2", "relu2", "fc[3]"]
    assert stage["devices"] == {"node0": 2, "node1": 2} and len(stage["forms"]) == 5
    assert stage["compute_ns"] + stage["communication_ns"] == OPTIMUM_NS
    assert 0 < stage["memory_bytes"] < stage["capacity_bytes"] == 2**30


def test_the_json_prices_are_those_of_the_evaluator(pipecut: Command, scenario: Path) -> None:
    out = scenario.parent / "plan.json"
    found = pipecut("plan", scenario, "--json", "--out", out, "--set", "training.micro_batches=2").json
    instance = load_scenario(scenario, ["training.micro_batches=2"]).load()
    evaluation = evaluate(instance, read_plan(out, instance))
    assert evaluation.objective == found["objective"]
    assert [cost.compute_ns for cost in evaluation.stages] == [row["compute_ns"] for row in found["stages"]]


def test_the_table_names_layers_and_devices_and_the_proof(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("plan", scenario)
    assert ran.code == 0 and ran.err == ""
    assert "2 x node0 + 2 x node1, split by " in ran.out and ": conv1 to fc[3] (5 layers)" in ran.out
    assert "866.4 us (866,400 ns)" in ran.out and "optimal, proved" in ran.out and SAME in ran.out


def test_only_notes_of_use_are_shown_and_few_of_them(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(instance: Instance, limits: Limits) -> Outcome:
        few = [
            "asked 3 times whether",
            "7 suffixes of plans were",
            *(f"note {at}" for at in range(5)),
            "to try: less",
        ]
        return Outcome("cpsat", Proof.UNKNOWN, notes=tuple(few))

    def notes(*more: str) -> list[str]:
        lines = pipecut("plan", scenario, "--solver", "cpsat", *more).out.splitlines()
        return [line[11:] for line in lines if line.startswith("note ")]

    monkeypatch.setattr(catalogue, "SOLVERS", instead_of("cpsat", told))
    shown, every = notes(), notes("--verbose")
    assert shown[0] == "to try: less" and {*shown[:3]} < {*every} and len(shown) == 4
    assert shown[-1] == f"{len(every) - 2 - 3} more with --verbose"
    at = every.index("asked 3 times whether")
    assert every[at : at + 3] == ["asked 3 times whether", "7 suffixes of plans were", "note 0"]


def test_lines_of_text_are_never_wrapped(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert f"check      {SAME}\n" in pipecut("plan", scenario).out


@pytest.mark.slow
def test_every_real_solver_shows_an_outcome(pipecut: Command, scenario: Path) -> None:
    expected = {
        "cpsat": 0,
        "auto": 0,
        "line_dp": 0,
        "pipepar": 3,
        "pipepar_listed": 3,
        "one_stage": 3,
        "brute_force": 0,
    }
    assert {name: pipecut("plan", scenario, "--solver", name).code for name in expected} == expected


def test_a_time_limit_ends_the_search_with_an_honest_gap(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("plan", scenario, "--solver", "slow", "--time-limit", "50 ms", "--json")
    assert ran.code == 3 and ran.json["proof"] == "feasible" and 0.9 < ran.json["gap"] < 1
    assert ran.json["seconds"] < 10


def test_the_options_override_the_scenario(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def spy(instance: object, limits: object) -> object:
        seen.append(limits)
        raise ValueError("enough")

    monkeypatch.setattr(catalogue, "SOLVERS", instead_of("cpsat", spy))  # pyright: ignore[reportArgumentType]
    pipecut("plan", scenario, "--no-cross-check", "--set", "solver.time_limit=9 s", "--set", "solver.seed=3")
    pipecut(
        "plan",
        scenario,
        "--no-cross-check",
        "--time-limit",
        "2 min",
        "--workers",
        "1",
        "--seed",
        "7",
        "--set",
        "solver.seed=3",
    )
    first, second = seen
    assert (first.time_limit_s, first.workers, first.seed) == (9, 2, 3)
    assert (second.time_limit_s, second.workers, second.seed) == (120, 1, 7)


def test_the_scenario_may_choose_the_solver(pipecut: Command, scenario: Path) -> None:
    assert pipecut("plan", scenario, "--json", "--set", "solver.name=line_dp").json["solver"] == "line_dp"


def test_no_plan_and_no_proof_have_codes_of_their_own(pipecut: Command, scenario: Path) -> None:
    small = ("--set", "cluster.devices.card.memory=1 KiB")
    excluded = pipecut("plan", scenario, *small, "--json")
    assert excluded.code == 1 and excluded.json["proof"] == "infeasible" and excluded.json["stages"] == []
    assert excluded.json["objective"] is None and excluded.json["gap"] is None
    assert "no plan exists" in pipecut("plan", scenario, *small).out
    unknown = pipecut("plan", scenario, "--solver", "empty_handed", "--out", "plan.json")
    assert unknown.code == 3 and "unknown" in unknown.out and "not written" in unknown.err
    assert not Path("plan.json").exists()


@pytest.mark.parametrize("fake", [wrong_price, wrong_proof, wrong_excluded])
def test_a_false_claim_is_never_shown_as_a_result(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch, fake: catalogue.Solve
) -> None:
    monkeypatch.setattr(catalogue, "SOLVERS", instead_of("cpsat", fake))
    ran = pipecut(
        "plan", scenario, "--json", "--seed", "5", "--set", "training.micro_batches=2", "--out", "p.json"
    )
    assert (
        ran.code == 4
        and set(ran.json) == {"error"}
        and "defect in pipecut" in ran.err
        and "Traceback" not in ran.err
    )
    assert not Path("p.json").exists()
    (reproducer,) = Path().glob("pipecut-false-claim-*.json")
    assert reproducer.name in ran.err
    content = json.loads(reproducer.read_text(encoding="utf-8"))
    assert content["scenario"] == str(scenario) and content["overrides"] == ["training.micro_batches=2"]
    assert content["solver"] == "auto" and content["seed"] == 5 and content["versions"]["ortools"]


def test_the_cross_check_can_be_left_out(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SAME not in pipecut("plan", scenario, "--no-cross-check", "--json").json["notes"]
    monkeypatch.setattr(catalogue, "SOLVERS", instead_of("cpsat", wrong_proof))
    assert pipecut("plan", scenario, "--no-cross-check").code == 0  # only the second method could have told


def test_a_terminal_shows_a_proof_before_it_is_checked(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe, and whoever reads JSON, gets it once and whole."""
    told: list[str] = []
    honest = Task.checked
    monkeypatch.setattr(Task, "checked", lambda *one: told.append("checking") or honest(*one))
    for name in ("_show", "_show_checks"):
        monkeypatch.setattr(f"pipecut.commands.plan.{name}", lambda *_, name=name, **__: told.append(name))
    assert pipecut("plan", scenario).code == 0 and told == ["checking", "_show"]
    told.clear()
    assert SAME in pipecut("plan", scenario, "--json").json["notes"] and told == ["checking"]
    told.clear()
    monkeypatch.setattr("pipecut.commands.plan.output.stdout", lambda: SimpleNamespace(isatty=lambda: True))
    assert pipecut("plan", scenario).code == 0 and told == ["_show", "checking", "_show_checks"]
    told.clear()
    assert pipecut("plan", scenario, "--no-cross-check").code == 0 and told == ["_show", "_show_checks"]


def test_a_solver_that_breaks_down_is_a_defect_with_a_traceback(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "SOLVERS", instead_of("cpsat", broken))
    ran = pipecut("plan", scenario, "--json")
    assert (
        ran.code == 70
        and set(ran.json) == {"error"}
        and "ZeroDivisionError" in ran.err
        and "defect in pipecut" in ran.err
    )


def test_memory_over_the_capacity_is_marked(pipecut: Command, scenario: Path) -> None:
    small = ("--set", "cluster.devices.card.memory=2 MiB")
    ran = pipecut("plan", scenario, *small, "--set", "constraints.memory=false")
    assert ran.code == 0 and "4.215 MiB of 2 MiB !" in ran.out
    assert "but memory is not limited (constraints.memory), and the plan does not fit:" in ran.out
    assert "stage 0 needs 4.215 MiB on a device of 2 MiB\n" in ran.out


def test_a_plan_that_breaks_a_rule_is_shown_as_such(pipecut: Command, scenario: Path) -> None:
    """Solvers that are blind to memory claim nothing where it is limited."""
    small = (
        "--set",
        "cluster.devices.card.memory=5 MB",
        "--set",
        "cost.compute=peak",
        "--solver",
        "one_stage",
    )
    ran = pipecut("plan", scenario, *small)
    assert ran.code == 3 and ran.out.count("breaks     memory: ") == 1 and "does not fit" not in ran.out
    assert "note" not in ran.out and "gap" not in ran.out
    found = pipecut("plan", scenario, *small, "--json").json
    assert found["proof"] == "unknown" and found["gap"] is None and len(found["violations"]) == 1


def test_no_plan_fits(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("plan", scenario, "--json", "--set", "cluster.devices.card.memory=1 KiB")
    assert ran.code == 1 and ran.json["proof"] == "infeasible"


def test_out_replaces_an_old_file_whole_and_leaves_nothing_beside_it(pipecut: Command, scenario: Path) -> None:
    Path("plan.json").write_text("old", encoding="utf-8")
    before = set(scenario.parent.iterdir())
    assert pipecut("plan", scenario, "--out", "plan.json").code == 0
    assert set(scenario.parent.iterdir()) == before
    assert json.loads(Path("plan.json").read_text(encoding="utf-8"))["format"] == "pipecut plan"


def test_a_plan_that_cannot_be_saved_is_shown_all_the_same(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pipecut.commands.plan.write_plan", full)
    ran = pipecut("plan", scenario, "--json", "--out", "plan.json")
    assert ran.code == 2 and ran.json["proof"] == "optimal" and "No space left" in ran.err


def test_progress_is_silent_where_stderr_is_no_terminal(pipecut: Command, scenario: Path) -> None:
    assert pipecut("plan", scenario).err == ""
    assert pipecut("plan", scenario, "--quiet").err == ""


@pytest.mark.slow
def test_a_double_check_says_what_every_route_answered(pipecut: Command, scenario: Path) -> None:
    found = pipecut("plan", scenario, "--double-check", "--json").json
    answers = {row["route"]: row["verdict"] for row in found["double_check"]}
    assert set(answers) == {route.name for route in ROUTES}
    assert all(answers[name] == "agreed" for name in ("line_dp", "state_dp", "certificate"))
    assert all(row["seconds"] >= 0 and row["goal"] == "bottleneck" for row in found["double_check"])
    assert any(note.startswith("double-checked: a certificate agrees (") for note in found["notes"])
    shares = {row["route"]: row["shares"] for row in found["double_check"]}
    assert "the declarative model" in shares["cpsat"] and shares["line_dp"] == shares["certificate"] == []
    assert all(row["independent"] is (not row["shares"]) for row in found["double_check"])
    assert "double_check" not in pipecut("plan", scenario, "--json").json
    text = pipecut("plan", scenario, "--double-check").out
    assert "check      double-checked: a certificate agrees (" in text
    assert "the claim is its own" in text and "no route that is independent" not in text


@pytest.mark.slow
def test_a_route_that_rests_on_the_same_states_is_no_second_one(pipecut: Command, scenario: Path) -> None:
    ran = pipecut(
        "plan", scenario, "--solver", "line_dp", "--set", "constraints.memory=false", "--double-check", "--json"
    )
    rows = {row["route"]: row for row in ran.json["double_check"]}
    assert rows["state_dp"]["verdict"] == "agreed" and not rows["state_dp"]["independent"]
    assert "stage tables over forms" in rows["state_dp"]["shares"]
    assert rows["cpsat"]["independent"] and rows["cpsat"]["verdict"] == "agreed"
    assert not any(note.startswith("double-checked: the dynamic programme") for note in ran.json["notes"])
    assert rows["certificate"]["independent"] and rows["certificate"]["verdict"] == "agreed"


@pytest.mark.slow
def test_a_double_check_of_an_infeasible_scenario(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("plan", scenario, "--set", "cluster.devices.card.memory=1 KiB", "--double-check", "--json")
    answers = {row["route"]: row["verdict"] for row in ran.json["double_check"]}
    assert ran.code == 1 and answers["state_dp"] == "agreed"


def test_a_double_check_of_nothing_says_so(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("plan", scenario, "--solver", "empty_handed", "--double-check", "--json")
    assert ran.code == 3 and ran.json["double_check"] == [] and NOTHING_PROVED in ran.json["notes"]


@pytest.mark.parametrize(
    ("fake", "words"), [(wrong_proof, ("line_dp", "disagrees")), (wrong_excluded, ("a plan keeps every rule",))]
)
def test_a_disagreement_is_an_error_with_a_reproducer(
    pipecut: Command,
    scenario: Path,
    monkeypatch: pytest.MonkeyPatch,
    fake: catalogue.Solve,
    words: tuple[str, ...],
) -> None:
    monkeypatch.setattr(catalogue, "SOLVERS", instead_of("cpsat", fake))
    ran = pipecut("plan", scenario, "--no-cross-check", "--double-check", "--json", "--seed", "5")
    assert ran.code == 4 and set(ran.json) == {"error"} and all(one in ran.err for one in words)
    (reproducer,) = Path().glob("pipecut-false-claim-*.json")
    assert reproducer.name in ran.err
    content = json.loads(reproducer.read_text(encoding="utf-8"))
    if fake is wrong_excluded:  # a plan had been told, so nobody else is asked
        return
    assert (content["route"], content["goal"], content["seed"]) == ("line_dp", "bottleneck", 5)
    assert content["claimed"]["proof"] == "optimal" and content["claimed"]["plan"] is not None
    assert content["counter_plan"]["objective"] == OPTIMUM_NS and not content["counter_plan"]["violations"]
    Path("counter.json").write_text(json.dumps(content["counter_plan"]), encoding="utf-8")
    instance = load_scenario(scenario).load()
    assert evaluate(instance, read_plan("counter.json", instance)).objective == OPTIMUM_NS


def test_a_double_check_keeps_to_the_time_limit(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("plan", scenario, "--double-check", "--time-limit", "2 s", "--json")
    assert ran.code == 0 and sum(row["seconds"] for row in ran.json["double_check"]) < 4


def test_a_file_without_a_name_is_refused_before_any_search(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("plan", scenario, "--out", " ")
    assert ran.code == 2 and ran.err == "expected the name of a file to write, got nothing\n"
