from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipecut.commands.parser.options import parse
from pipecut.solvers.catalogue import all_names
from tests.command_line import Command

REAL = "cpsat,line_dp,pipepar,pipepar_listed,one_stage,brute_force"


def by_name(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["solver"]: row for row in found["solvers"]}


def test_all_real_solvers_side_by_side(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("compare", scenario, "--json", "--solvers", REAL)
    rows = by_name(ran.json)
    assert ran.code == 0 and list(rows) == REAL.split(",")
    assert ran.json["optimum"] == ran.json["bound"] == 866_400
    assert all(rows[name]["gap"] == 0 and rows[name]["proof"] == "optimal" for name in ("cpsat", "brute_force"))
    assert rows["one_stage"]["gap"] > 0.8 and rows["one_stage"]["feasible"] is True


def test_the_default_is_every_solver() -> None:
    assert parse(["compare", "x"]).solvers == all_names()


def test_the_table_has_a_row_each_and_says_what_the_gap_is(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("compare", scenario, "--solvers", "line_dp,one_stage")
    assert ran.code == 0 and "866.4 us" in ran.out and "84.1 %" in ran.out
    assert "gap        to the proved optimum, 866.4 us (866,400 ns), as a share of the objective" in ran.out


def test_a_solver_that_fails_is_a_row_and_not_the_end(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("compare", scenario, "--json", "--solvers", "broken,picky,empty_handed,line_dp")
    rows = by_name(ran.json)
    assert "broke down: ZeroDivisionError: a slip" in rows["broken"]["reason"] and rows["broken"]["proof"] is None
    assert rows["picky"]["reason"] == "skipped: more layers than this solver takes"
    assert rows["empty_handed"]["proof"] == "unknown" and rows["empty_handed"]["feasible"] is None
    assert rows["line_dp"]["proof"] == "optimal"
    assert ran.code == 70


def test_a_solver_that_refuses_the_instance_is_no_failure(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("compare", scenario, "--solvers", "picky,line_dp")
    assert ran.code == 0 and "picky: skipped: more layers" in ran.out


def test_brute_force_is_skipped_with_a_reason_when_there_are_too_many_plans(
    pipecut: Command, scenario: Path
) -> None:
    row = by_name(
        pipecut(
            "compare", scenario, "--json", "--solvers", "brute_force", "--set", "cluster.servers.0.count=20"
        ).json
    )["brute_force"]
    assert row["reason"].startswith("skipped: ") and "plans" in row["reason"]


def test_false_claims_are_marked_and_fail_the_comparison(pipecut: Command, scenario: Path) -> None:
    names = "wrong_proof,line_dp,wrong_price,wrong_excluded,hopeless"
    ran = pipecut("compare", scenario, "--json", "--solvers", names)
    rows = by_name(ran.json)
    assert ran.code == 4 and ran.json["optimum"] == 866_400
    assert rows["line_dp"]["reason"] == ""
    assert all("defect in pipecut" in rows[name]["reason"] for name in names.split(",") if name != "line_dp")
    assert "line_dp has a plan of 866.4 us (866,400 ns)" in rows["wrong_proof"]["reason"]
    assert rows["hopeless"]["violations"] == ["devices"] and rows["hopeless"]["feasible"] is False
    assert len(list(Path().glob("pipecut-false-claim-*.json"))) == 4
    assert pipecut("compare", scenario, "--solvers", names).out.count("false claim") == 4


def test_without_a_proof_the_gap_is_to_the_best_bound(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("compare", scenario, "--solvers", "slow,one_stage", "--time-limit", "0.05")
    assert ran.code == 3 and "no optimum was proved" in ran.out
    ran = pipecut("compare", scenario, "--json", "--solvers", "one_stage")
    assert ran.code == 3 and ran.json["optimum"] is None and ran.json["solvers"][0]["gap"] is None


def test_plans_are_shown_best_first_with_a_line_a_stage(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("compare", scenario, "--solvers", "one_stage,line_dp,cpsat")
    found = pipecut(*arguments, "--json").json["plans"]
    assert [one["objective"] for one in found] == sorted(one["objective"] for one in found)
    assert sorted(name for one in found for name in one["solvers"]) == ["cpsat", "line_dp", "one_stage"]
    assert found[0]["gap"] == 0 and found[-1]["solvers"] == ["one_stage"] and found[-1]["gap"] > 0
    again = Path("again.json")
    for one in found:
        again.write_text(json.dumps({"stages": one["stages"]}), encoding="utf-8")
        assert pipecut("evaluate", again, scenario, "--json", "--no-optimum").json["objective"] == one["objective"]
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line for line in pipecut(*arguments).out.splitlines() if line.startswith("  ")]
    assert max(map(len, lines)) <= 80 and len([line for line in lines if line.startswith("  0 ")]) == len(found)


def test_an_infeasible_scenario(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("compare", scenario, "--solvers", "wrong_excluded,empty_handed")
    assert ran.code == 1 and "no plan exists (wrong_excluded)" in ran.out


def test_a_plan_that_breaks_a_rule_names_it_and_has_no_gap(pipecut: Command, scenario: Path) -> None:
    arguments = ("compare", scenario, "--solvers", "cpsat,one_stage")
    small = ("--set", "cluster.devices.card.memory=5 MB")
    rows = by_name(pipecut(*arguments, *small, "--json").json)
    assert rows["one_stage"]["violations"] == ["memory"] and rows["one_stage"]["feasible"] is False
    assert rows["one_stage"]["gap"] is None and rows["cpsat"]["feasible"] is True
    ran = pipecut(*arguments, *small)
    assert ran.code == 0 and "breaks memory" in ran.out
