"""Models of Hugging Face's transformers from their configuration: no weights, no network, only the library's code.

A configuration is the ``config.json`` of a model, or the folder that holds it. The model class is the one that it
names (``architectures``), or the library's own for a task. Example inputs follow from what its forward takes.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest.errors import ModelError, first_line
from ingest.files import read_limited
from ingest.strict_json import parse_json

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Configured"]

TASKS = {
    "text-generation": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "fill-mask": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "text2text-generation": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "text-classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "token-classification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "question-answering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "image-classification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "speech-recognition": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "features": "MODEL_MAPPING_NAMES",
}
"""The library's table of classes for every task."""
LARGEST_FILE = 2**20
SAMPLES = 2
"""Samples of the example inputs: two, so that mixing of samples is noticed."""
_PIXELS = 224
_HUB = "huggingface_hub.constants"
_MODULES = (
    "transformers",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.configuration_auto",
)
"""Imported by name, as type checkers need not know a library that few have."""


@dataclass(frozen=True, slots=True)
class Configured:
    """What to make of a configuration: a ``task`` (None: the class that it names) and tokens of a sample."""

    task: str | None = None
    sequence: int | None = None


def config_file(path: Path) -> Path:
    """Return the configuration at a path: the file itself, or ``config.json`` in the folder."""
    return path / "config.json" if path.is_dir() else path


def build(path: Path, asked: Configured) -> tuple[nn.Module, Mapping[str, torch.Tensor]]:
    """Return a model and example inputs, on the device that is set. Raises ModelError in one readable sentence."""
    written = _written(path)
    library, classes, known = _library(path)
    kind, version = written["model_type"], library.__version__
    if kind not in known:
        code = "; the code that comes with the model is not run" if "auto_map" in written else ""
        raise ModelError(f"{path}: transformers {version} knows no model_type '{kind}'{code}")
    name = _class_name(path, written, asked.task, classes)
    made = getattr(library, name, None)
    if not isinstance(made, type) or not issubclass(made, library.PreTrainedModel):
        raise ModelError(f"{path}: transformers {version} has no model '{name}'")
    try:
        with _offline():
            config = known[kind].from_dict(written)
            module = getattr(made, "_from_config")(config, dtype=config.dtype)  # noqa: B009
    except Exception as error:
        raise ModelError(f"{path}: {name} cannot be built from it: {first_line(error)}") from error
    return module, _inputs(path, module, config, asked)


def _library(path: Path) -> tuple[Any, Any, Mapping[str, Any]]:
    """Return transformers, its tables of classes for tasks, and the configurations that it knows."""
    try:
        with _offline():
            library, classes, known = (importlib.import_module(name) for name in _MODULES)
    except ImportError as error:
        message = f"{path}: needs the library transformers, which is not installed; pip install 'pipecut[hf]'"
        raise ModelError(message) from error
    return library, classes, known.CONFIG_MAPPING


def _written(path: Path) -> dict[str, Any]:
    """Return what a configuration says."""
    try:
        written = parse_json(read_limited(config_file(path), LARGEST_FILE))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: no configuration can be read: {first_line(error)}") from error
    if not isinstance(written, dict) or not isinstance(written.get("model_type"), str):
        raise ModelError(f"{path}: expected the config.json of a model, with its 'model_type'")
    return written


def _class_name(path: Path, written: Mapping[str, Any], task: str | None, tables: Any) -> str:  # noqa: ANN401
    """Return the class for a task, or the one that a configuration names."""
    if task is None:
        named = written.get("architectures")
        if isinstance(named, list) and named and isinstance(named[0], str):
            return named[0]
        raise ModelError(f"{path}: names no class ('architectures'); give model.task, one of {', '.join(TASKS)}")
    found = getattr(tables, TASKS[task]).get(written["model_type"])
    if found is None:
        able = [one for one in TASKS if written["model_type"] in getattr(tables, TASKS[one])]
        raise ModelError(
            f"{path}: transformers has no {written['model_type']} for {task}, only for {', '.join(able)}"
        )
    return found if isinstance(found, str) else found[0]


def _inputs(path: Path, module: Any, config: Any, asked: Configured) -> dict[str, torch.Tensor]:  # noqa: ANN401
    """Return example inputs for what the forward of a model takes."""
    import torch

    takes = inspect.signature(module.forward).parameters
    text, vision = (getattr(config, f"{part}_config", None) for part in ("text", "vision"))
    given: dict[str, torch.Tensor] = {}
    main = module.main_input_name
    if main == "input_ids" or (text is not None and "input_ids" in takes):
        given["input_ids"] = torch.zeros((SAMPLES, _tokens(path, config, asked)), dtype=torch.long)
    if main == "pixel_values" or (vision is not None and "pixel_values" in takes):
        given["pixel_values"] = torch.zeros((SAMPLES, *_image(vision or config)), dtype=config.dtype)
    if main == "input_features":
        frames = (config.num_mel_bins, 2 * config.max_source_positions)
        given["input_features"] = torch.zeros((SAMPLES, *frames), dtype=config.dtype)
    if main == "input_values":
        given["input_values"] = torch.zeros((SAMPLES, _tokens(path, config, asked)), dtype=config.dtype)
    if "decoder_input_ids" in takes and config.is_encoder_decoder:
        given["decoder_input_ids"] = torch.zeros((SAMPLES, _tokens(path, config, asked)), dtype=torch.long)
    if not given:
        raise ModelError(f"{path}: no example inputs are known for {type(module).__name__}; give model.build")
    return given


def _tokens(path: Path, config: Any, asked: Configured) -> int:  # noqa: ANN401
    """Return how many tokens a sample has. Raises ModelError where that is not said, or more than there can be."""
    inner = config.get_text_config()
    most = getattr(inner, "max_position_embeddings", None) or getattr(inner, "n_positions", None)
    limit = f", at most {most}" if isinstance(most, int) else ""
    if asked.sequence is None:
        raise ModelError(
            f"{path}: give model.sequence, how many tokens (of raw sound: values) a sample has{limit}"
        )
    if isinstance(most, int) and asked.sequence > most > 0 and not getattr(inner, "rope_parameters", None):
        raise ModelError(f"{path}: model.sequence {asked.sequence}, but the model has only {most} positions")
    return asked.sequence


def _image(config: Any) -> tuple[int, int, int]:  # noqa: ANN401
    size = getattr(config, "image_size", None) or _PIXELS
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return getattr(config, "num_channels", 3), height, width


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Keep the library from the network, whether it is loaded already or not."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    hub: Any = sys.modules.get(_HUB)  # else it reads the environment when it is loaded
    flag = hub.HF_HUB_OFFLINE if hub else (before or "").upper() in {"1", "ON", "YES", "TRUE"}
    if hub:
        hub.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        if hub := sys.modules.get(_HUB):
            hub.HF_HUB_OFFLINE = flag
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before
