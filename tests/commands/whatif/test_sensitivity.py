from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipecut.commands.sensitivity import other_devices
from pipecut.formulation.problem.cluster import DeviceClass
from pipecut.formulation.problem.instance import Instance
from pipecut.ingest.plans.plan_file import read_plan
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers.whatif.variants import ChangedInstance
from tests.command_line import Command
from tests.commands.fakes import ROOT

MEMORY = ("--set", "constraints.memory=true")


@pytest.mark.slow
def test_every_change_has_a_proved_plan(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("sensitivity", scenario, "--json", "--only", "servers,links,memory,micro_batches", *MEMORY)
    assert ran.code == 0
    rows = ran.json["changes"]
    assert {row["kind"] for row in rows} == {"servers", "links", "memory", "micro_batches"}
    assert all(row["proof"] == "optimal" and row["stages"] for row in rows)
    effects = [row["effect"] for row in rows]
    assert effects == sorted(effects)
    base = ran.json["base"]
    for row in rows:
        assert row["effect"] == (row["of_a_step"] - base["of_a_step"]) / base["of_a_step"]
        assert row["of_a_step"] == row["objective"] * row["micro_batches"]


@pytest.mark.slow
def test_the_plan_of_a_change_is_that_of_the_scenario_with_the_change(pipecut: Command, scenario: Path) -> None:
    rows = pipecut("sensitivity", scenario, "--json", "--only", "links").json["changes"]
    slower = next(row for row in rows if row["what"] == "links between servers / 2")
    set_ = ("--set", "cluster.between_servers.bandwidth=5 Gbit/s")
    found = pipecut("plan", scenario, "--json", *set_).json
    assert found["objective"] == slower["objective"]
    changed = load_scenario(scenario, set_[1:]).load()
    path = Path("again.json")
    path.write_text(json.dumps({"stages": slower["stages"]}), encoding="utf-8")
    assert read_plan(path, changed)


@pytest.mark.slow
def test_answers_are_told_as_they_come_and_then_in_order(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("sensitivity", scenario, "--only", "links")
    assert "1 of 5: as it is: " in ran.err and "5 of 5: links inside servers / 2" in ran.err
    assert ran.out.startswith("as it is ") and "links between servers x 2" in ran.out
    quiet = pipecut("sensitivity", scenario, "--only", "links", "--quiet")
    assert quiet.err == "" and quiet.out == ran.out


@pytest.mark.slow
def test_devices_of_the_library_take_the_place_of_the_clusters(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("sensitivity", scenario, "--json", "--only", "devices", "--devices", "h100-sxm,rtx-3090")
    assert {row["what"] for row in ran.json["changes"]} == {
        "h100-sxm in place of card",
        "rtx-3090 in place of card",
    }
    (device,) = other_devices(load_scenario(scenario), (), load_scenario(scenario).load(), ("h100-sxm",))
    assert device.memory_bytes_per_second == 3350 * 10**9
    wrong = pipecut("sensitivity", scenario, "--only", "devices", "--devices", "h100")
    assert wrong.code == 2 and "no device 'h100' in the library; did you mean" in wrong.err
    lacking = pipecut("sensitivity", scenario, "--only", "devices", "--devices", "tpu-v4")
    assert lacking.code == 2 and "no peak of 'tpu-v4' for fp32" in lacking.err


def test_a_word_that_nothing_varies_is_refused(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("sensitivity", scenario, "--only", "price")
    assert ran.code == 2 and "there is no 'price' to vary, only memory, servers" in ran.err


def test_a_scenario_without_a_plan_may_have_one_with_a_change(pipecut: Command, scenario: Path) -> None:
    ran = pipecut(
        "sensitivity", scenario, *MEMORY, "--only", "memory", "--set", "cluster.devices.card.memory=1 MiB"
    )
    assert ran.code == 1 and "no plan" in ran.out and "memory without limit" in ran.out


@pytest.mark.slow
def test_no_time_leaves_what_was_not_asked_with_its_reason(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("sensitivity", scenario, "--set", "solver.name=slow", "--time-limit", "1 s", "--only", "links")
    assert ran.code == 3 and ran.out.count("no time was left") == 1
    assert "4 changes, as no time was left; 4 of them show the plan of another line" in " ".join(ran.out.split())
    assert "no better so far" in ran.out


@pytest.mark.slow
def test_no_time_for_the_scenario_itself_is_no_mistake_of_the_input(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = ChangedInstance.variants

    def late(instance: Instance, classes: Sequence[DeviceClass] = ()) -> tuple[ChangedInstance, ...]:
        time.sleep(1)
        return variants(instance, classes)

    monkeypatch.setattr(ChangedInstance, "variants", late)
    ran = pipecut("sensitivity", scenario, "--time-limit", "0.9 s", "--only", "links")
    assert ran.code == 3 and "nothing is known of the scenario as it is" in ran.err


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_answered(scenario: Path) -> None:
    """The first answer is there; the search of the second one is stopped, and the others are not asked."""
    command = [sys.executable, "-m", "tests.commands.fakes", "sensitivity", str(scenario), "--only", "links"]
    words = [*command, "--set", "solver.name=slow", "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=scenario.parent
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "has begun" in line:
                break
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    found = json.loads(out)
    assert process.returncode == 3 and found["base"]["proof"] == "feasible"
    assert all(row["reason"] == "not asked: no time was left" for row in found["changes"])
