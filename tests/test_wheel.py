"""The wheel, built and installed apart: it brings one package, and names of a user's own do not get in its way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMES_OF_THE_USER = ("report.py", "commands.py", "formulation.py", "solvers/__init__.py", "scenarios/__init__.py")


def ran(*words: str | Path, cwd: Path) -> str:
    """Run a program without what this process adds to its path, and return its output."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([*map(str, words)], cwd=cwd, env=kept, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def built(project: str, copies: pytest.TempPathFactory) -> Path:
    """Build the wheel of a project of this tree (a folder), from a copy without what was built before."""
    copy, made = copies.mktemp("copy") / "pipecut", copies.mktemp("wheel")
    listed = ran("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    for name in listed:
        source, target = ROOT / name, copy / name
        if source.is_file() and not name.startswith(("tests/", "docs/", "benchmarks/", "literature/tests/")):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q")
    ran(*pip, "--no-deps", "--no-build-isolation", "-w", made, copy / project, cwd=made)
    (found,) = made.glob("*.whl")
    return found


def installed(place: Path, *wheels: Path) -> Path:
    """Return the programs of an environment with these wheels; what they depend on is borrowed from this one."""
    ran(sys.executable, "-m", "venv", "--without-pip", place, cwd=place)
    python = place / "bin" / "python"
    packages = Path(ran(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).strip())
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "-q")
    ran(*pip, "--no-deps", *wheels, cwd=place)
    for folder in (Path(path) for path in sys.path if path.endswith("site-packages")):
        for one in folder.iterdir():
            ours = "pipecut" in one.name or one.suffix == ".pth"
            if not ours and not (packages / one.name).exists():
                (packages / one.name).symlink_to(one)
    return place / "bin"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    return built(".", tmp_path_factory)


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel and nothing beside it."""
    return installed(tmp_path_factory.mktemp("environment"), wheel)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose own files have the names of our folders, and end the program where they are imported."""
    for name in NAMES_OF_THE_USER:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('a file of the user was imported')\n", encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_the_wheel_holds_one_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"pipecut"}
    wanted = {"py.typed", "__main__.py", "report/templates/", "scenarios/llama/llama7b.yaml", "scenarios/library/"}
    assert [one for one in sorted(wanted) if not any(name.startswith(f"pipecut/{one}") for name in names)] == []


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="programs lie in another folder there")
def test_it_plans_beside_files_of_the_same_names(programs: Path, project: Path) -> None:
    listed = json.loads(ran(programs / "pipecut", "scenarios", "--json", cwd=project))
    assert "llama7b" in json.dumps(listed)
    for program in ([programs / "pipecut"], [programs / "python", "-m", "pipecut"]):
        found = json.loads(ran(*program, "plan", "witness/line", "--json", cwd=project))
        assert (found["proof"], found["objective"]) == ("optimal", 60_000_000)
    code = "import pipecut; print(pipecut.__file__)"
    assert str(ROOT) not in ran(programs / "python", "-c", code, cwd=project)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="programs lie in another folder there")
def test_it_says_what_to_install(programs: Path, tmp_path: Path) -> None:
    """Alone it plans and compares, with the paper's own programme; what papers add to it is told by its name."""
    compared = ("compare", "witness/line", "--solvers", "line_dp,pipepar", "--json")
    found = json.loads(ran(programs / "pipecut", *compared, cwd=tmp_path))
    assert [row["solver"] for row in found["solvers"]] == ["line_dp", "pipepar"]
    for words in (("study", "pipepar"), ("compare", "--all"), ("plan", "witness/line", "--solver", "hetpipe")):
        done = subprocess.run([programs / "pipecut", *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2 and "pip install pipecut-literature" in done.stderr, done.stderr
