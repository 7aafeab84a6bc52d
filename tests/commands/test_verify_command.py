from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.command_line import Command


def write(pipecut: Command, scenario: Path) -> Path:
    path = scenario.parent / "c.json"
    ran = pipecut("plan", scenario, "--certificate", path)
    assert ran.code == 0 and "proves that the plan is optimal" in ran.err
    return path


def change(path: Path, **values: object) -> Path:
    content = json.loads(path.read_text(encoding="utf-8")) | values
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_certificate_of_plan_is_verified_without_a_solver(pipecut: Command, scenario: Path) -> None:
    path = write(pipecut, scenario)
    ran = pipecut("verify", path, scenario)
    assert ran.code == 0 and "the plan is optimal" in ran.out
    found = pipecut("verify", path, scenario, "--json").json
    assert found["holds"] and found["optimal"] and found["objective"] == found["bound"] == 866_400


def test_a_weaker_bound_holds_but_is_no_proof_of_optimality(pipecut: Command, scenario: Path) -> None:
    path = change(write(pipecut, scenario), bound=866_399)
    ran = pipecut("verify", path, scenario)
    assert ran.code == 3 and "no plan takes less than 866,399 ns" in ran.out


@pytest.mark.parametrize(
    "lie",
    [
        {"bound": 866_401, "objective": 866_401},
        {"objective": 866_399},
        {"labels": []},
        {"bound": 866_401},
    ],
)
def test_a_lie_is_refused(pipecut: Command, scenario: Path, lie: dict[str, object]) -> None:
    ran = pipecut("verify", change(write(pipecut, scenario), **lie), scenario)
    assert ran.code == 4 and "does not hold" in ran.out


def test_another_scenario_is_another_instance(pipecut: Command, scenario: Path) -> None:
    path = write(pipecut, scenario)
    ran = pipecut("verify", path, scenario, "--set", "training.global_batch=16")
    assert ran.code == 4 and "fingerprint" in ran.out


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"format": "pipecut plan"}', '{"format": 1, "format": 2}', "NaN"]
)
def test_a_file_that_is_no_certificate_is_bad_input(pipecut: Command, scenario: Path, text: str) -> None:
    path = scenario.parent / "c.json"
    path.write_text(text, encoding="utf-8")
    ran = pipecut("verify", path, scenario)
    assert ran.code == 2 and str(path) in ran.err and "Traceback" not in ran.err


def test_free_placement_under_a_memory_limit_is_certified(pipecut: Command, scenario: Path) -> None:
    path = scenario.parent / "c.json"
    free = ("--set", "constraints.placement=free", "--set", "constraints.memory=true")
    ran = pipecut("plan", scenario, "--certificate", path, *free)
    assert ran.code == 0 and "proves that the plan is optimal" in ran.err
    assert pipecut("verify", path, scenario, *free, "--json").json["optimal"]
    assert pipecut("verify", path, scenario).code == 4


@pytest.mark.parametrize("broken", [{"slot": -1}, {"state": "none"}, {"starts": [[1]]}, {"starts": [["a", 2]]}])
def test_labels_of_another_shape_are_bad_input(
    pipecut: Command, scenario: Path, broken: dict[str, object]
) -> None:
    path = write(pipecut, scenario)
    labels = json.loads(path.read_text(encoding="utf-8"))["labels"]
    ran = pipecut("verify", change(path, labels=[labels[0] | broken, *labels[1:]]), scenario)
    assert ran.code == 2 and "labels[0]" in ran.err and "Traceback" not in ran.err


def test_devices_that_nobody_has_are_refused_before_they_are_written_out(pipecut: Command, scenario: Path) -> None:
    path = write(pipecut, scenario)
    plan = json.loads(path.read_text(encoding="utf-8"))["plan"]
    plan["stages"][0]["devices"] = {"node0": 2**31 - 1}
    ran = pipecut("verify", change(path, plan=plan), scenario)
    assert ran.code == 2 and "devices.node0: expected 1 to 4 devices" in ran.err and "2147483647" in ran.err


def test_a_label_stands_in_the_file_once(pipecut: Command, scenario: Path) -> None:
    path = write(pipecut, scenario)
    labels = json.loads(path.read_text(encoding="utf-8"))["labels"]
    ran = pipecut("verify", change(path, labels=[*labels, labels[0]]), scenario)
    assert ran.code == 2 and "repeated" in ran.err


@pytest.mark.parametrize(
    "broken", [{"state": [7]}, {"state": [0, 0, 0, 0]}, {"servers": [9]}, {"starts": [[5, 0]]}, {"slot": 99}]
)
def test_labels_of_no_devices_or_layers_do_not_hold(
    pipecut: Command, scenario: Path, broken: dict[str, object]
) -> None:
    path = write(pipecut, scenario)
    labels = json.loads(path.read_text(encoding="utf-8"))["labels"]
    ran = pipecut("verify", change(path, labels=[labels[0] | broken, *labels[1:]]), scenario)
    assert ran.code == 4 and "does not hold" in ran.out


def test_what_cannot_be_certified_is_refused_before_the_search(pipecut: Command, scenario: Path) -> None:
    path = scenario.parent / "c.json"
    ran = pipecut("plan", scenario, "--certificate", path, "--set", "cost.combine=sum")
    assert ran.code == 2 and "combine is 'sum'" in ran.err and not path.exists()


@pytest.mark.slow
def test_numbers_of_any_size_are_refused_or_prove_nothing(pipecut: Command, scenario: Path) -> None:
    """A bound of 0 needs no proof, and the weight beside it was multiplied by 0 before its size was looked at."""
    executed = ("--set", "objective=step_time")
    path = scenario.parent / "c.json"
    assert pipecut("plan", scenario, *executed, "--certificate", path).code == 0
    written = path.read_text(encoding="utf-8")
    for number, bound in itertools.product([2**62 - 1, 2**62, 10**30], [0, 1, None]):
        for place in ("weight", "stages", "mean", "micro_batch", "slot", "state", "bound"):
            content = json.loads(written)
            content["bound"] = content["bound"] if bound is None else bound
            row = {"stages": 1, "mean": 0, "weight": 1, "passes": [[0, "F", 0], [0, "B", 0]]}
            label = {"slot": 0, "state": [0], "servers": [0], "starts": [[0, 0]]}
            places = {
                "micro_batch": (row["passes"][1], 2),
                "slot": (label, "slot"),
                "state": (label["state"], 0),
                "bound": (content, "bound"),
            }
            holder, key = places.get(place, (row, place))
            holder[key] = number
            labels = [label] if place in ("slot", "state") else content["labels"]
            path.write_text(json.dumps(content | {"paths": [row], "labels": labels}), encoding="utf-8")
            ran = pipecut("verify", path, scenario, *executed)
            assert ran.code in (0, 2, 3, 4) and "Traceback" not in ran.err, (place, number, bound)
