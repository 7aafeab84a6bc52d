"""Where the cache of traces lies, and how modules are found without executing them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipecut.ingest.errors import ModelError
from pipecut.ingest.torch.cache import cache_folder, find_module, importable
from pipecut.ingest.torch.hugging_face import Configured
from pipecut.ingest.torch.source import load_configured_graph


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("PIPECUT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_the_folder_of_the_cache(bare_environment: pytest.MonkeyPatch) -> None:
    bare_environment.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/pipecut")
    bare_environment.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/pipecut")
    bare_environment.setenv("PIPECUT_CACHE", "/mine")
    assert cache_folder() == Path("/mine")


def test_modules_are_found_without_executing_them(tmp_path: Path) -> None:
    package = tmp_path / "boom" / "inner"
    package.mkdir(parents=True)
    for path in (tmp_path / "boom" / "__init__.py", package / "__init__.py", package / "net.py"):
        path.write_text("raise SystemExit")
    assert find_module("boom.inner.net", [tmp_path]) == (package / "net.py").resolve()
    assert find_module("boom.inner", [tmp_path]) == (package / "__init__.py").resolve()
    assert find_module("boom.none", [tmp_path]) is None
    assert find_module("none.at.all", [tmp_path]) is None
    assert find_module("sys", [tmp_path]) is None


def test_a_configuration_without_its_library_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}', encoding="utf-8")
    with pytest.raises(ModelError, match=r"pip install 'pipecut\[hf\]'"):
        load_configured_graph(str(path), Configured(sequence=16), use_cache=False)


def test_models_of_a_user_may_lie_in_folders_that_are_called_like_ours() -> None:
    assert importable("ingest.models.vgg") == "pipecut.ingest.models.vgg"
    assert importable("ingest.models.mine") == "ingest.models.mine"
