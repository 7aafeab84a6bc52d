"""A cache of traced models: the second look at ``module:function`` imports neither torch nor the user's module.

Entries are JSON files in ``$PIPECUT_CACHE``, else ``$XDG_CACHE_HOME/pipecut``, else ``~/.cache/pipecut``; deleting
them is always safe. An entry records what the trace was made from: a digest of every loaded source file outside
the standard library and the installed packages, size and time of the installed packages, pipecut's own tracing
code, and the versions of torch and pipecut. If anything differs, there is no entry. It ends in a checksum of all
of that and of the graph: an entry that is damaged is none either, and a warning of this module's logger says so.
Not noticed: data files that a model reads, and environment variables.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import networkx as nx

from pipecut.ingest.files import atomic_write
from pipecut.ingest.graphs.graph_file import SIZE_LIMIT, graph_document, graph_from_document, parse_graph

_VERSION = 2
_FORMER_VERSIONS = (1,)
"""Of entries that had no checksum; they are replaced without a word."""
_CHECKSUM = "sha256"
_ROOT = Path(__file__).resolve().parents[2]
_PACKAGE = "pipecut"
_OWN_PACKAGES = frozenset(
    {"commands", "exchange", "execution", "face", "formulation", "ingest", "report", "solvers"}
)
_LIBRARY = Path(sysconfig.get_path("stdlib"))
_STANDARD = (f"{_LIBRARY}{os.sep}", f"{_LIBRARY.resolve()}{os.sep}")
_STARTED = time.time()
_LOGGER = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Return the folder of the cache, which may not exist."""
    chosen = os.environ.get("PIPECUT_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pipecut"


def find_module(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the source file of a module without executing anything, or None where that takes an import.

    ``folders`` come before ``sys.path``, as they do when the module is imported. Models that come with pipecut go
    by the names that scenarios give them (:func:`importable`).
    """
    name = importable(name)
    if name.startswith(f"{_PACKAGE}."):  # an editable package, which no search of paths finds
        try:
            return _source(importlib.util.find_spec(name))
        except ModuleNotFoundError:
            return None
    path: Iterable[str] = [*(str(folder) for folder in folders), *sys.path]
    spec, full = None, ""
    for part in name.split("."):
        full = f"{full}.{part}".lstrip(".")
        try:
            spec = PathFinder.find_spec(full, list(path))
        except (ImportError, KeyError, ValueError):
            return None
        if spec is None:
            return None
        path = spec.submodule_search_locations or ()
    return _source(spec)


def _source(spec: ModuleSpec | None) -> Path | None:
    origin = Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None
    return origin.resolve() if origin is not None and origin.is_file() else None


def importable(name: str) -> str:
    """Return the name that a module is imported by: scenarios say ``ingest.models.vgg`` of one of our own.

    A user's own folders may have such names too.
    """
    ours = name.startswith("ingest.models.") and _ROOT.joinpath(*name.split(".")).with_suffix(".py").is_file()
    return f"{_PACKAGE}.{name}" if ours else name


def load_trace(model: str, origin: Path) -> nx.DiGraph | None:
    """Return the layer graph that was stored for a model, or None if there is none that still holds.

    ``model`` is the ``module:function`` specification, ``origin`` the file of the module.
    """
    document = _stored(_entry(model, origin), model)
    if document is None:
        return None
    try:
        stamp = document["made_from"]
        known = str(origin) in stamp["sources"]
        fresh = known and stamp["versions"] == _versions() and stamp["own"] == _own_digest()
        if not fresh or any(_digest(Path(path)) != digest for path, digest in stamp["sources"].items()):
            return None
        if any(_signature(Path(path)) != signature for path, signature in stamp["packages"].items()):
            return None
        return graph_from_document(document["graph"], "cache")
    except (OSError, RuntimeError, KeyError, TypeError, AttributeError, ValueError):
        return None


def store_trace(model: str, origin: Path, graph: nx.DiGraph, loaded_before: frozenset[str]) -> bool:
    """Store a layer graph with what it was made from; return False if that is not possible.

    ``loaded_before`` names the modules that were loaded before the model was: a source file among them that
    changed since this program started may not be what was executed, so then nothing is stored.
    """
    try:
        sources = {str(origin): _digest(origin)}
        for name, path in user_modules():
            if name in loaded_before and path.stat().st_mtime > _STARTED:
                return False
            sources[str(path)] = _digest(path)
        packages = {str(path): _signature(path) for path in _package_files()}
        stamp = {"versions": _versions(), "own": _own_digest(), "sources": sources, "packages": packages}
        document: dict[str, Any] = {"version": _VERSION, "model": model, "made_from": stamp}
        document["graph"] = graph_document(graph)
        text = json.dumps(document | {_CHECKSUM: _checksum(document)})
        entry = _entry(model, origin)
        entry.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(entry, text)
    except (OSError, RuntimeError, ValueError):
        return False
    return True


def _stored(entry: Path, model: str) -> dict[str, Any] | None:
    """Return what an entry of this version says, or None, with a warning where it is not what was stored."""
    try:
        with entry.open("rb") as file:
            document: Any = parse_graph(file.read(2 * SIZE_LIMIT), "cache")
        former = isinstance(document, dict) and document.get("version") in _FORMER_VERSIONS
        if former and _CHECKSUM not in document:
            return None
        checksum = document.pop(_CHECKSUM)
        if checksum == _checksum(document) and document["version"] == _VERSION:
            return document
    except OSError:
        return None
    except (RuntimeError, KeyError, TypeError, AttributeError, ValueError):
        pass
    _LOGGER.warning("%s: this trace of %s is damaged, so the model is traced again", entry, model)
    return None


def _checksum(document: dict[str, Any]) -> str:
    """Digest a document by what it says, not by how its JSON is laid out."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def user_modules() -> Iterator[tuple[str, Path]]:
    """Yield name and file of every loaded module that is not Python's, an installed package's or pipecut's."""
    for name, file in _loaded_files():
        if not file.startswith(_STANDARD) and not _is_installed(file):
            path = Path(file).resolve()
            if path.is_file() and not _is_own(path):
                yield name, path


def _package_files() -> Iterator[Path]:
    """Yield one file of every loaded installed package: its top-level module."""
    for name, file in _loaded_files():
        if "." not in name and _is_installed(file):
            path = Path(file).resolve()
            if path.is_file():
                yield path


def _loaded_files() -> Iterator[tuple[str, str]]:
    """Yield name and file of every loaded module; thousands, so nothing is asked of the disk here."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name != "__main__" and isinstance(file, str) and "\0" not in file:
            yield name, file


def _is_installed(file: str) -> bool:
    return any(f"{os.sep}{folder}{os.sep}" in file for folder in ("site-packages", "dist-packages"))


def _is_own(path: Path) -> bool:
    """Tell whether a file belongs to pipecut itself."""
    if not path.is_relative_to(_ROOT):
        return False
    return path.relative_to(_ROOT).parts[0].removesuffix(".py") in _OWN_PACKAGES


def _entry(model: str, origin: Path) -> Path:
    key = hashlib.sha256(f"{model}\0{origin}".encode()).hexdigest()
    return cache_folder() / "traces" / f"{key}.json"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _signature(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def _own_digest() -> str:
    """Digest pipecut's own tracing code: everything in ingest, and the layers it makes."""
    digest = hashlib.sha256()
    for path in [*sorted((_ROOT / "ingest").rglob("*.py")), _ROOT / "formulation" / "problem" / "layers.py"]:
        digest.update(path.relative_to(_ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    found = {"python": sysconfig.get_python_version()}
    for package in ("pipecut", "torch"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
