"""Where ``pipecut plan`` finds no plan it says why; where a demand names nothing it says so at once."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pipecut as pipecut_module
from pipecut.commands.parts.tables import left_out_rows
from pipecut.formulation.constraints.constraint import Violation
from pipecut.formulation.constraints.plans.own import Own
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import Deadline
from pipecut.formulation.outcome import FalseClaimError, Outcome, Proof
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Layer, Split, layer_graph
from pipecut.formulation.problem.plan import Plan
from pipecut.ingest.graphs.graph_file import write_graph
from pipecut.ingest.scenario.load import load_scenario
from pipecut.solvers.explain import Opening, opened
from pipecut.solvers.explain import chosen as every_choice
from pipecut.solvers.reference import line_dp
from tests.command_line import Command
from tests.commands.fakes import saying_nothing_of
from tests.examples import chain, instance_of, matrix, mesh

DOCS = Path(__file__).parents[2] / "docs" / "constraints.md"

DEMANDS = """\
constraints:
  pin:
    - {layers: "conv*", server: node0}
    - {layers: "conv2", stage: -1}
    - {layers: "fc[3]", server: node1}
  together: [["relu*"]]
"""


@pytest.fixture
def demanding(scenario: Path) -> Path:
    path = scenario.with_name("demanding.yaml")
    path.write_text(scenario.read_text(encoding="utf-8") + DEMANDS, encoding="utf-8")
    return path


def test_a_plan_keeps_the_demands(pipecut: Command, demanding: Path) -> None:
    ran = pipecut("plan", demanding, "--json", "--set", "constraints.pin[1].stage=0")
    assert ran.code == 0 and "explanation" not in ran.json
    first, last = ran.json["stages"][0], ran.json["stages"][-1]
    assert set(first["devices"]) == {"node0"} and set(last["devices"]) == {"node1"}
    assert "fc[3]" in last["layers"] and "conv2" in first["layers"]


@pytest.mark.slow
def test_the_limits_that_clash_are_told_with_a_way_out(pipecut: Command, demanding: Path) -> None:
    ran = pipecut("plan", demanding, "--json")
    assert ran.code == 1 and ran.json["proof"] == "infeasible"
    why = ran.json["explanation"]
    (clash,) = why["clashes"]
    assert why["complete"] and clash["minimal"] and clash["limits"] == [
        {"path": "constraints.pin[0]", "words": "'conv*' (2 layers, conv1 to conv2) on devices of node0 only"},
        {"path": "constraints.pin[1]", "words": "conv2 in stage -1, counted from the end"},
        {"path": "constraints.pin[2]", "words": "fc[3] on devices of node1 only"},
    ]  # fmt: skip
    assert [way["words"] for way in clash["ways_out"]] == [
        "leave out constraints.pin[0]",
        "leave out constraints.pin[1]",
        "leave out constraints.pin[2]",
    ]
    text = pipecut("plan", demanding).out
    assert "because    cannot hold together:" in text and "way out    leave out constraints.pin[1]" in text


@pytest.mark.slow
def test_memory_that_lacks_is_told_to_the_byte(pipecut: Command, scenario: Path) -> None:
    small = "cluster.devices.card.memory={} B".format
    why = pipecut("plan", scenario, "--json", "--set", small(1000000)).json["explanation"]
    ((clash,), (way,)) = why["clashes"], why["clashes"][0]["ways_out"]
    assert clash["limits"][0]["path"] == "cluster.devices.card.memory" and way["unit"] == "bytes"
    assert way["amount"] == way["least"]
    enough = 1000000 + way["amount"]
    assert pipecut("plan", scenario, "--set", small(enough)).code == 0
    assert pipecut("plan", scenario, "--set", small(enough - 1)).code == 1


@pytest.mark.slow
def test_a_claim_that_no_plan_exists_is_refuted_by_its_own_explanation(pipecut: Command, scenario: Path) -> None:
    ran = pipecut("plan", scenario, "--solver", "wrong_excluded", "--json")
    assert ran.code == 4 and set(ran.json) == {"error"} and "a search for what clashes finds one" in ran.err


def test_no_time_is_left_to_explain(pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipecut.commands.explain.UNLIMITED_S", 0.0)
    ran = pipecut("plan", scenario, "--set", "cluster.devices.card.memory=1 KiB")
    assert ran.code == 1 and "stopped early" in ran.out


def test_a_glob_that_matches_nothing_is_bad_input(pipecut: Command, demanding: Path) -> None:
    ran = pipecut("plan", demanding, "--set", "constraints.pin[0].layers=cnov*")
    assert ran.code == 2 and ran.out == ""
    assert f"{demanding}: constraints.pin[0].layers: no layer matches 'cnov*'; the closest is 'conv2'" in ran.err


def test_a_reserve_lowers_the_capacity(pipecut: Command, scenario: Path) -> None:
    path = scenario.with_name("reserve.yaml")
    text = scenario.read_text(encoding="utf-8") + "constraints: {reserve: {node: 1000 MiB}}\n"
    path.write_text(text, encoding="utf-8")
    found = pipecut("plan", path, "--json").json
    assert [stage["capacity_bytes"] for stage in found["stages"]] == [24 * 2**20] * len(found["stages"])


EXAMPLE = re.compile(r"<!-- run: (\d)(.*) -->\n```yaml\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL | re.ASCII)
EXAMPLES = [
    match.groups()
    for part in DOCS.read_text(encoding="utf-8").split("<!-- run")[1:]
    if (match := EXAMPLE.match("<!-- run" + part))
]


@pytest.mark.few(3)
@pytest.mark.parametrize(("code", "options", "fragment", "printed"), EXAMPLES)
def test_every_example_in_the_docs_is_run_and_prints_what_it_says(
    pipecut: Command, scenario: Path, code: str, options: str, fragment: str, printed: str | None
) -> None:
    path = scenario.with_name("example.yaml")
    text = saying_nothing_of("objective", scenario.read_text(encoding="utf-8"))
    path.write_text(text + fragment, encoding="utf-8")
    price = ("--set", "cluster.devices.card.price_per_hour=1.20")
    ran = pipecut("plan", path, *price, *shlex.split(options))
    assert ran.code == int(code) and ran.err == ""
    if printed is not None:
        assert printed in ran.out


def test_no_example_in_the_docs_is_left_out() -> None:
    first, *rest = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert rest == [fragment for _, _, fragment, _ in EXAMPLES] and DEMANDS in rest
    assert "TITAN V" in first, "the one of the next test"


def test_the_first_example_of_the_docs_names_what_there_is(scenario: Path) -> None:
    fragment = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)[0]
    names = ("features.0", "features.1.relu", "encoder.0.attn", "encoder.0.norm", "decoder.0", "classifier.0")
    layers = [Layer(name, "linear", Split.MATRIX, 4, 4, 4, 4, 9) for name in names]
    edges = [(one, other, 4) for one, other in itertools.pairwise(names)]
    write_graph(layer_graph("named", layers, edges), scenario.with_name("tiny.json"))
    text = scenario.read_text(encoding="utf-8").replace("card", "TITAN V").replace("1 GiB", "4 GiB")
    scenario.write_text(text + fragment, encoding="utf-8")
    loaded = load_scenario(scenario)
    demands = loaded.load().demands
    assert (demands.stages_at_least, demands.stages_at_most, demands.devices_per_stage) == (2, 4, (1, 2, 4))
    assert [len(pin.layers) for pin in demands.pins] == [2, 1, 1]
    assert len(demands.together[0]) == 2 and len(demands.apart[0]) == 2 and len(demands.no_cut) == 1
    assert loaded.constraints.reserve[0].memory_bytes == 2 * 2**30


def test_the_tables_of_the_docs_name_every_goal() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert all(re.search(rf"^\| .*`{goal}`", text, re.MULTILINE) for goal in Goal)
    assert all(f"`at_most.{goal}`" in text for goal in Goal)


@pytest.mark.slow
def test_the_constraint_of_one_s_own_in_the_docs_works(scenario: Path) -> None:
    free = pipecut_module.plan(pipecut_module.load(scenario))
    scenario.rename(scenario.with_name("scenario.yaml"))
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec("\n".join(blocks), names)  # noqa: S102 (our own document)
    outcome, instance = names["outcome"], names["problem"]
    assert outcome.proof is Proof.OPTIMAL and outcome.objective > free.objective
    assert sum(stage.group.devices for stage in outcome.plan.stages) == names["MOST"] == 3
    assert free.plan is not None and outcome.plan is not None
    (broken,) = evaluate(instance, free.plan).violations
    assert (broken.rule, broken.found, broken.limit) == ("own:fuse", 4, 3)
    assert "own:fuse" in line_dp.solve(instance).blind_to


def test_a_family_that_lets_through_what_its_rule_forbids_is_caught(scenario: Path) -> None:
    def check(instance: Instance, plan: Plan) -> Iterator[Violation]:
        yield Violation("never", "plan", 1, 0, "plans", "no plan is good enough")

    loaded = load_scenario(scenario).load()
    own = (Own("never", check, lambda v: iter(())),)
    with pytest.raises(FalseClaimError, match="no plan is good enough"):
        pipecut_module.plan(replace(loaded, constraints=replace(loaded.constraints, own=own)))


def test_choices_that_are_off_are_said_as_they_are_written_where_nothing_was_found() -> None:
    instance = instance_of(chain([matrix(name, 9, 9) for name in "abc"], [9, 9]), mesh(2, 2))
    unknown = Outcome("auto", Proof.UNKNOWN, notes=("stopped early",))
    (_, words), *lines = left_out_rows(instance, unknown)
    assert words.startswith("which leaves out recomputation")
    keys = dict(line.split(": ", 1) for _, line in lines)
    assert keys["constraints.sharded"] == "[none, optimizer, gradients, weights]"
    assert keys["constraints.tensor_parallel_degrees"] == "[1, 2, 3, 4]" and {name for name, _ in lines} == {
        "to try"
    }
    found = Outcome("auto", Proof.FEASIBLE, Plan(()), 9)
    assert left_out_rows(instance, found) == []


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_choices_that_are_off_are_opened_once_each(
    pipecut: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """To open one takes long of a large model: what the search makes of it, its words and its plan all share."""
    made, chosen = list[tuple[str, ...]](), list[tuple[int, ...]]()

    def opening(instance: Instance, some: Iterable[Opening]) -> Instance | None:
        some = tuple(some)
        made.append(tuple(one.line for one in some))
        return opened(instance, some)

    def choosing(instance: Instance, deadline: Deadline) -> list[Instance]:
        chosen.append(tuple(one.micro_batches for one in instance.training.choices))
        return every_choice(instance, deadline)

    monkeypatch.setattr("pipecut.solvers.explain.opened", opening)
    monkeypatch.setattr("pipecut.solvers.explain.chosen", choosing)
    ran = pipecut(command, scenario, "--set", "cluster.devices.card.memory=1 KiB")
    assert ran.code == 1 and "which leaves out" in ran.out
    assert made and len(made) == len(set(made))
    assert len([one for one in chosen if len(one) > 1]) <= 2  # other micro-batches alone, and with all others
