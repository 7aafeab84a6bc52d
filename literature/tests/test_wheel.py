"""The wheel of the literature, built and installed beside that of pipecut: one package, which is found."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from tests.test_wheel import built, installed, ran

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="programs lie in another folder there")]


def test_both_wheels_together(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    wheels = [built(project, tmp_path_factory) for project in (".", "literature")]
    names = zipfile.ZipFile(wheels[1]).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"pipecut_literature"}
    data = ("py.typed", "recipes/published.yaml", "hetpipe/published.yaml", "sailor/words.yaml")
    assert {f"pipecut_literature/{name}" for name in data} <= set(names)
    programs = installed(tmp_path_factory.mktemp("environment"), *wheels)
    assert "hetpipe" in ran(programs / "pipecut", "plan", "--help", cwd=tmp_path)
    assert "pipedream" in ran(programs / "pipecut", "study", "--help", cwd=tmp_path)
    assert "--all" in ran(programs / "pipecut", "compare", "--help", cwd=tmp_path)
    code = "from pipecut_literature.recipes.recipe import FILE; print(FILE.exists())"
    assert ran(programs / "python", "-c", code, cwd=tmp_path).strip() == "True"
