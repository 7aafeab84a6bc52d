"""What is wrong with a scenario or an override, told in words that help: place, expectation, finding, guess.

The folder ``mistakes`` holds scenario files with mistakes and, beside each, the very text of its error.
"""

from __future__ import annotations

import pickle
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipecut.ingest.mistakes import ScenarioError
from pipecut.ingest.scenario.load import load_scenario
from pipecut.ingest.scenario.machines import by_hand
from pipecut.ingest.text import yaml_source
from pipecut.ingest.text.yaml_source import parse_document

ROOT = Path(__file__).parents[3]
MISTAKES = sorted((Path(__file__).parent / "mistakes").glob("*.yaml"))
VGG16 = ROOT / "scenarios/pipepar/vgg16.yaml"


def error_of(path: Path, *overrides: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, overrides)
    return str(caught.value)


@pytest.mark.parametrize("path", MISTAKES, ids=lambda path: path.stem)
def test_mistakes_are_told_in_these_words(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    expected = path.with_suffix(".txt").read_text(encoding="utf-8").rstrip("\n")
    if "not valid YAML" in expected and not yaml.__with_libyaml__:
        pytest.skip("the words of a syntax error are libyaml's")
    assert error_of(Path(path.name)) == expected


@pytest.mark.parametrize("path", MISTAKES, ids=lambda path: path.stem)
def test_mistakes_are_the_same_without_libyaml(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    monkeypatch.setattr(yaml_source, "_Loader", yaml.SafeLoader)
    expected = path.with_suffix(".txt").read_text(encoding="utf-8").rstrip("\n")
    if "not valid YAML" in expected:
        assert "not valid YAML" in error_of(Path(path.name))
    else:
        assert error_of(Path(path.name)) == expected


def test_yaml_words_of_1_1_are_text_and_decimals_are_exact() -> None:
    text = "{a: on, b: 1e9, c: 010, d: 1:30, e: 2024-01-01, f: 1.10, g: true, h: null, i: 0x10, j: 'x', k: -3}"
    data = parse_document(text, "text").data
    assert isinstance(data, dict)
    assert list(data.values())[:5] == ["on", "1e9", "010", "1:30", "2024-01-01"]
    assert Fraction(data["f"]) == Fraction(11, 10)
    assert [data[key] for key in "ghijk"] == [True, None, "0x10", "x", -3]


def test_lines_are_those_of_the_keys() -> None:
    document = parse_document("a:\n  b:\n    - c: 1\n    -\n      d: 2\n", "file")
    lines = {where: place.line for where, place in document.places.items()}
    assert lines[("a", "b", 0, "c")] == 3
    assert lines[("a", "b", 1, "d")] == 5
    assert document.place(("a", "b", 1, "missing", "key")).line == lines[("a", "b", 1)]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    assert error_of(missing) == f"{missing}: cannot read the file: No such file or directory"
    assert error_of(tmp_path).endswith("cannot read the file: Is a directory")
    large = tmp_path / "large.yaml"
    large.write_text("#" * (2**20 + 1), encoding="utf-8")
    assert error_of(large) == f"{large}: the file is larger than 1048576 bytes, too large for a scenario"


SET: tuple[tuple[str, str], ...] = (
    ("training.global_batc=128", "unknown key; did you mean 'global_batch'?"),
    ("trainin.global_batch=128", "unknown key; did you mean 'training'?"),
    ("training.sequence_length=4096", "unknown key; did you mean model.sequence?"),
    ("cluster.bandwidth=1 Gbit/s", "unknown key; did you mean cluster.between_servers.bandwidth?"),
    ("training.memory=true", "unknown key; did you mean constraints.memory?"),
    ("training.global_batch=x", "expected a whole number, got 'x'"),
    ("training.global_batch=1e3", "expected a whole number, got '1e3' (text; write 1000)"),
    ("training.global_batch=", "expected a whole number, got nothing"),
    ("training.micro_batches=5", "global_batch 64 is not a multiple of micro_batches 5"),
    (
        "training.warm_up=ager",
        "expected classic, eager, choose, or a list of whole numbers by stage, got 'ager'; did you mean 'eager'?",
    ),
    ("training.warm_up=3", "expected classic, eager, choose, or a list of whole numbers by stage, got 3"),
    ("training.global_batch", "expected path=value, like training.global_batch=128"),
    ("=1", "expected path=value, like training.global_batch=128"),
    ("training.global_batch=[1]", "expected a whole number, got a list"),
    ("training.global_batch=[]", "expected a whole number, got an empty list"),
    ("training.global_batch=[[1]]", "expected one value or a list of values, got a list"),
    (
        "constraints.splits=[sequence,contxt]",
        "expected 'sequence', 'context', 'experts', 'vocabulary' or 'pairs', got 'contxt';"
        " did you mean 'context'?",
    ),
    ("training.global_batch=*a", "alias *a: aliases are not allowed; write the value out"),
    (
        "cluster.servers[7].devices=1",
        "cluster.servers has 1 entry, counted from 0; there is no cluster.servers[7]",
    ),
    ("cluster.servers.x.devices=1", "cluster.servers is a list; write an index, like cluster.servers[0]"),
    (
        "cluster.servers.0.device=RTX 2080",
        f"no device class 'RTX 2080' in cluster.devices or the library{by_hand('RTX 2080')}",
    ),
    ("name.x=1", "name is no section that could hold 'x'; it is 'pipepar-vgg16'"),
    (
        "cluster.between_servers.bandwidth=10 GB",
        "expected a bandwidth like '10 Gbit/s', got '10 GB' (an amount of data)",
    ),
    ("model.graph=vgg16.pt", "expected the path of a traced layer graph, ending in .json"),
    ("cluster.servers=5", "expected a list, got 5"),
)


@pytest.mark.parametrize(("override", "message"), SET, ids=[override for override, _ in SET])
def test_override_mistakes_name_the_override(override: str, message: str) -> None:
    assert error_of(VGG16, override) == f"--set {override}: {message}"


def test_keys_with_dots_are_quoted_as_overrides_write_them() -> None:
    override = 'cluster.devices."GTX 1.0".memory=4 GiB'
    path = 'cluster.devices."GTX 1.0".peak'
    assert error_of(VGG16, override).startswith(f"--set {override}: {path}: missing")


def test_errors_survive_pickling() -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(MISTAKES[0])
    copied = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 (our own error)
    assert (str(copied), copied.mistakes) == (str(caught.value), caught.value.mistakes)


def test_mistakes_of_file_and_overrides_come_together(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    text = VGG16.read_text(encoding="utf-8")
    path.write_text(text.replace("  schedule:", "  shedule: gpipe\n  schedule:"), encoding="utf-8")
    assert error_of(path, "solver.seed=-1", "training.micro_batches=3").splitlines() == [
        f"{path}:29: training.shedule: unknown key; did you mean 'schedule'?",
        "--set solver.seed=-1: expected 0 or more, got -1",
        "--set training.micro_batches=3: global_batch 64 is not a multiple of micro_batches 3",
    ]


YAMLISH = st.text(st.sampled_from("ab01.:-[]{}&*!|>?#'\"\n \t%@,~=e"), max_size=40)


@given(YAMLISH | st.text(max_size=40))
def test_any_text_is_data_or_a_scenario_error(text: str) -> None:
    for loader in (yaml_source._Loader, yaml.SafeLoader):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(yaml_source, "_Loader", loader)
            try:
                parse_document(text, "text")
            except ScenarioError as error:
                assert str(error).startswith("text:")


@given(YAMLISH | st.text(max_size=40), st.sampled_from(("", "training.", "cluster.servers[0].", "cost.count=")))
def test_any_override_is_taken_or_a_scenario_error(text: str, start: str) -> None:
    try:
        load_scenario(VGG16, (start + text,))
    except ScenarioError as error:
        assert all(line.startswith("--set ") for line in str(error).splitlines())
