"""Layer graphs from what a user writes down: ``module:function`` or the path of a traced graph.

``module:function`` imports the module and calls the function: that runs the user's own Python, by design. Modules
are looked for in the scenario's folder, in the current folder and among the installed packages. The function takes
nothing and returns a torch module and its example inputs; it is called under ``torch.device("meta")``, so weights
are not allocated. The JSON file of a traced graph executes nothing. PyTorch is imported only when a model has to
be traced.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import networkx as nx

from pipecut.ingest.errors import ModelError, TraceError, place, with_causes
from pipecut.ingest.graphs.graph_file import read_graph
from pipecut.ingest.torch.cache import find_module, importable, load_trace, store_trace, user_modules
from pipecut.ingest.torch.export import built_on_meta, uncollected
from pipecut.ingest.torch.hugging_face import Configured, build, config_file, noting_reads, unread

if TYPE_CHECKING:
    from torch import nn

    from pipecut.ingest.torch.export import Inputs

_FUNCTION = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")
_FILE = re.compile(r"(.+)\.py:([^\W\d]\w*)")
_RESULT = "a torch.nn.Module and a tuple (or mapping) of example inputs"


def load_model_graph(
    spec: str, folder: Path | None = None, use_cache: bool = True, operators: Mapping[str, str] | None = None
) -> nx.DiGraph:
    """Return the layer graph of a model.

    ``spec`` is ``module:function``, or the path of a layer graph (ending in ``.json``) or of an exported model
    (``.pt2``), which is taken relative to ``folder``, the scenario's folder (the current one if None). With
    ``use_cache`` a model that has been traced before, and has not changed, is read from the cache without
    importing torch or the model. ``operators`` names for operators without a formula known ones that count the
    same. Raises ModelError, in one readable sentence.
    """
    folders = [(folder or Path()).resolve(), Path.cwd()]
    if spec.endswith(".json"):
        return read_graph(folders[0] / spec)
    if spec.endswith(".pt2"):
        return _exported(folders[0] / spec, operators or {})
    match = _FUNCTION.fullmatch(spec)
    if file := _FILE.fullmatch(spec):
        name = ".".join(Path(file[1]).parts)
        raise ModelError(f"model {spec}: name the module, not its file: {name}:{file[2]}")
    if match is None:
        raise ModelError(f"model {spec!r}: expected 'module:function' or the path of a .json or .pt2 file")
    module, function = match.groups()
    importlib.invalidate_caches()
    origin = find_module(module, folders)
    key = _key(spec, operators)
    cached = load_trace(key, origin) if use_cache and origin is not None else None
    if cached is not None:
        return cached
    loaded_before = frozenset(sys.modules)
    try:
        _refuse_namesake(module, origin, spec)
        with uncollected():
            graph = _traced(module, function, folders, operators)
        if use_cache and origin is not None:
            store_trace(key, origin, graph, loaded_before)
    finally:
        _forget(loaded_before)
    return graph


def _exported(path: Path, operators: Mapping[str, str]) -> nx.DiGraph:
    """Return the layer graph of a file of ``torch.export.save``; neither torch nor anything in it is run."""
    from pipecut.ingest.torch.exported_file import read_exported
    from pipecut.ingest.torch.trace import graph_of

    recording, notes = read_exported(path, operators)
    graph = graph_of(recording, path.stem)
    if notes:
        graph.graph["notes"] = (*graph.graph.get("notes", ()), *notes)
    return graph


def load_configured_graph(
    path: str,
    asked: Configured,
    folder: Path | None = None,
    use_cache: bool = True,
    operators: Mapping[str, str] | None = None,
    *,
    follow: bool = True,
) -> nx.DiGraph:
    """Return the layer graph of a model of Hugging Face's transformers from its configuration, without weights.

    ``path`` is a ``config.json`` or its folder, relative to ``folder``. Nothing is downloaded, and no code but the
    library's runs. Cached as in :func:`load_model_graph`. Without ``follow`` the model is exported even where that
    need not be, for comparisons. Raises ModelError, in one readable sentence.
    """
    file = config_file((folder or Path()).resolve() / path)
    spec = _key(f"transformers {path} {asked}", operators)
    cached = load_trace(spec, file) if use_cache else None
    if cached is not None:
        return cached
    loaded_before = frozenset(sys.modules)
    with uncollected():
        _torch(path)
        graph = _configured(file, asked, operators, follow)
    if use_cache:
        store_trace(spec, file, graph, loaded_before)
    return graph


def _configured(file: Path, asked: Configured, operators: Mapping[str, str] | None, follow: bool) -> nx.DiGraph:
    import torch

    from pipecut.ingest.torch.export import quiet
    from pipecut.ingest.torch.trace import trace

    name = file.parent.name if file.stem == "config" else file.stem
    with noting_reads() as read:
        with quiet(), torch.device("meta"):
            built = build(file, asked)
        try:
            graph = trace(built.module, built.inputs, name, operators, follow=follow)
        except TraceError as error:
            raise built.refusal(error) from error
    if notes := (*built.notes, *unread(built, read)):
        graph.graph["notes"] = (*graph.graph.get("notes", ()), *notes)
    return graph


def load_model(spec: str, asked: Configured | None = None, folder: Path | None = None) -> tuple[nn.Module, Inputs]:
    """Return a model with its weights, as its function makes them, and its example inputs.

    ``spec`` is ``module:function`` or, with what is ``asked`` of it, a configuration of Hugging Face's
    transformers; ``folder`` is that of the scenario. Raises ModelError, in one readable sentence.
    """
    if asked is not None:
        _torch(spec)
        built = build(config_file((folder or Path()).resolve() / spec), asked)
        return built.module, built.inputs
    if _FUNCTION.fullmatch(spec) is None:
        raise ModelError(f"model {spec}: only a model has weights; a graph can be planned and not run")
    _torch(spec)
    return _built(load_function(spec, folder), spec)


def load_function(spec: str, folder: Path | None = None) -> Callable[..., Any]:
    """Return the function ``module:function``, looked for in a scenario's folder, too. Raises ModelError."""
    folders = [(folder or Path()).resolve(), Path.cwd()]
    match = _FUNCTION.fullmatch(spec)
    if match is None:
        raise ModelError(f"{spec!r}: expected 'module:function'")
    module, function = match.groups()
    importlib.invalidate_caches()
    _refuse_namesake(module, find_module(module, folders), spec)
    with _importable(folders):
        return _function(_imported(module, spec, folders), function, spec)


def _key(spec: str, operators: Mapping[str, str] | None) -> str:
    """Return what a trace is cached under: the model, and what counts as what in it."""
    return " ".join([spec, *(f"{name}={known}" for name, known in sorted((operators or {}).items()))])


def _torch(spec: str) -> ModuleType:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        message = f"model {spec}: tracing needs PyTorch, which is not installed; pip install 'pipecut[torch]'"
        raise ModelError(message) from error


def _traced(
    module: str, function: str, folders: Sequence[Path], operators: Mapping[str, str] | None
) -> nx.DiGraph:
    spec = f"{module}:{function}"
    with _importable(folders):
        torch = _torch(spec)
        builder = _function(_imported(module, spec, folders), function, spec)
        with torch.device("meta"):
            network, inputs = _built(builder, spec)
        from pipecut.ingest.torch.trace import trace

        return trace(network, inputs, function, operators)


def _refuse_namesake(module: str, origin: Path | None, spec: str) -> None:
    """Raise ModelError when a module of this name is loaded from elsewhere, as an import would return that one."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if origin is not None and file is not None and Path(file).resolve() != origin:
        raise ModelError(
            f"model {spec}: another module {module!r} is loaded already, from {file}; rename one of them"
        )


@contextlib.contextmanager
def _importable(folders: Sequence[Path]) -> Iterator[None]:
    """Put folders in front of the import path for a while."""
    added = [str(folder) for folder in dict.fromkeys(folders)]
    sys.path[:0] = added
    try:
        yield
    finally:
        for entry in added:
            with contextlib.suppress(ValueError):
                sys.path.remove(entry)


def _forget(loaded_before: frozenset[str]) -> None:
    """Unload the user's modules that a trace loaded, so that the next trace sees them as they are by then."""
    for name in {name for name, _ in user_modules()} - loaded_before:
        sys.modules.pop(name, None)


def _imported(module: str, spec: str, folders: Sequence[Path]) -> ModuleType:
    try:
        return importlib.import_module(importable(module))
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            places = " or ".join(dict.fromkeys(str(folder) for folder in folders))
            message = f"model {spec}: no module {module!r} in {places} or among the installed packages"
        else:
            message = f"model {spec}: importing {module} failed: {error}{place(error)}"
        raise ModelError(message) from error
    except (Exception, SystemExit) as error:
        raise ModelError(f"model {spec}: importing {module} failed: {with_causes(error)}{place(error)}") from error


def _function(module: ModuleType, name: str, spec: str) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if callable(function):
        return function
    if function is not None:
        raise ModelError(f"model {spec}: {name} is a {type(function).__name__}, expected a function")
    own = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
    offered = ", ".join(
        sorted(key for key in own if getattr(vars(module)[key], "__module__", "") == module.__name__)
    )
    raise ModelError(f"model {spec}: {module.__name__} has no function {name!r}; it has {offered or 'none'}")


def _built(builder: Callable[[], object], spec: str) -> tuple[nn.Module, tuple[Any, ...] | Mapping[str, Any]]:
    from torch import nn

    try:
        result = builder()
    except (Exception, SystemExit) as error:
        told = f"{with_causes(error)}{place(error)}{built_on_meta(error)}"
        raise ModelError(f"model {spec}: the function raised {told}") from error
    if isinstance(result, (tuple, list)) and len(result) == 2:
        network, inputs = result
        if isinstance(network, nn.Module) and isinstance(inputs, (tuple, list, Mapping)):
            return network, tuple(inputs) if isinstance(inputs, list) else inputs
        got = f"({type(network).__name__}, {type(inputs).__name__})"
    else:
        got = type(result).__name__
    raise ModelError(f"model {spec}: the function returned {got}, expected {_RESULT}")
