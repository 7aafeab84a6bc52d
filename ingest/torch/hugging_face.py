"""Models of Hugging Face's transformers from their configuration: no weights, no network, only the library's code.

A configuration is the ``config.json`` of a model, or the folder that holds it. The model class is the one that it
names (``architectures``), or the library's own for a task. Example inputs follow from what its forward takes.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipecut.ingest.errors import ModelError, first_line
from pipecut.ingest.files import parse_json, read_limited
from pipecut.ingest.torch.export import depends_on_values

if TYPE_CHECKING:
    import torch
    from torch import nn

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
_PARTS = ("vision_config", "encoder", "backbone_config")
"""Where the configuration of a model has that of its part for pictures."""
_PLACEHOLDERS = frozenset({"image_token_id", "image_token_index", "video_token_id", "audio_token_id"})
"""Keys of the token that stands where a picture, a film or a sound goes."""
_OFTEN = re.compile(
    r"labels|use_cache|return_dict|past_.*|output_.*|.*_embeds|cache_position|logits_to_keep|kwargs|args"
)
"""Arguments of forward that are no inputs of a step, or stand for others."""
_FURTHER_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
"""Keys of how many layers predict the tokens after the next one; the library builds none of them."""
_CHECKING = ("configuration_utils.py", "dataclasses.py")
"""Files of the library that look at every key of a configuration, and use none of them."""
_SILENT = re.compile(
    r"^(architectures|auto_map|model_type|transformers_version|torch_dtype|dtype|quantization_config|use_cache|"
    r"(tokenizer|processor)_class|problem_type|finetuning_task|task_specific_params|id2label|label2id|"
    r"gradient_checkpointing|do_sample|temperature|top_[kp]|(max|min)_length|num_beams|early_stopping|prefix|"
    r"bad_words_ids|num_return_sequences|num_nextn_predict_layers|mtp_num_hidden_layers|num_mtp_layers)$|"
    r"^(_|output_|forced_|suppress|begin_suppress)|_token_ids?$|drop|init|loss|_penalty$|no_repeat"
)
"""Keys that say nothing of a plan, or are told of already: names, tokens, generation, values."""
_HUB = "huggingface_hub.constants"
_NO_CHECKS = "TRANSFORMERS_DISABLE_TORCH_CHECK"
"""The variable of the environment that switches off the library's checks of values."""
_MODULES = (
    "transformers",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.configuration_auto",
)
"""Imported by name, as type checkers need not know a library that few have."""


@dataclass(frozen=True, slots=True)
class Configured:
    """What to make of a configuration.

    ``task``: what its model is for (None: the class that it names); ``sequence``: tokens of a sample; ``inputs``:
    shapes of a sample's inputs by their names, in place of those that are made.
    """

    task: str | None = None
    sequence: int | None = None
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()


def config_file(path: Path) -> Path:
    """Return the configuration at a path: the file itself, or ``config.json`` in the folder."""
    return path / "config.json" if path.is_dir() else path


@dataclass(frozen=True, slots=True)
class Built:
    """A model as its configuration says, and the inputs that were made for it.

    ``notes`` say what of them nobody said; ``written`` is what the file says.
    """

    path: Path
    module: nn.Module
    inputs: dict[str, torch.Tensor]
    config: Any
    written: Mapping[str, Any]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The class of the model."""
        return type(self.module).__name__

    def refusal(self, error: ModelError) -> ModelError:
        """Return the error of a trace, told of inputs that no user made."""
        made = " and ".join(f"{name} of {_times(tensor.shape)}" for name, tensor in self.inputs.items())
        if error.__cause__ is None or depends_on_values(error.__cause__):
            return ModelError(f"{self.path}: {self.name} on {made}, which were made for it: {error}")
        takes = inspect.signature(self.module.forward).parameters
        more = ", ".join(key for key in takes if _OFTEN.fullmatch(key) is None and key not in self.inputs)
        return ModelError(
            f"{self.path}: {self.name} does not run on the inputs that were made for it, {made}:"
            f" {first_line(error.__cause__)}; give model.inputs the shapes of a sample, or model.build a function"
            f" with inputs of your own{f' (it also takes {more})' if more else ''}"
        )


def build(path: Path, asked: Configured) -> Built:
    """Return a model and example inputs, on the device that is set. Raises ModelError in one readable sentence."""
    written = _written(path)
    library, tables, known = _library(path)
    made, notes = _class(path, written, asked.task, library, tables)
    kind = known.get(written["model_type"], made.config_class)
    try:
        with _offline():
            config = kind.from_dict(dict(written))
            module = getattr(made, "_from_config")(config, dtype=config.dtype)  # noqa: B009
    except Exception as error:
        raise ModelError(f"{path}: {made.__name__} cannot be built from it: {first_line(error)}") from error
    inputs, guessed = _Inputs(path, module, config, asked, written).made()
    for token in (key for key in written if key in _PLACEHOLDERS and "input_ids" in inputs):
        guessed.append(f"model.sequence counts the places of pictures and sounds too ({token})")
    return Built(path, module, inputs, config, written, (*notes, *_left_out(written, config), *guessed))


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


def _class(
    path: Path,
    written: Mapping[str, Any],
    task: str | None,
    library: Any,  # noqa: ANN401
    tables: Any,  # noqa: ANN401
) -> tuple[Any, list[str]]:
    """Return the library's class for a configuration, and notes on a class that is called otherwise there."""
    kind, version = written["model_type"], f"transformers {library.__version__}"
    known = kind in importlib.import_module(_MODULES[2]).CONFIG_MAPPING
    code = "the code that comes with the model is not run" if "auto_map" in written else ""
    name = _class_name(path, written, task, tables, known=known)
    found = _spelt(library, name) or (_for_task(name, kind, tables, library) if task is None and known else None)
    if found is None and not known:
        raise ModelError(f"{path}: {version} knows no model_type '{kind}'{f'; {code}' if code else ''}")
    if found is None:
        able = ", ".join(one for one in TASKS if kind in getattr(tables, TASKS[one]))
        raise ModelError(f"{path}: {version} has no model '{name}'; give model.task, one of {able or 'none'}")
    said = [f"model_type '{kind}' is none of {version}"] if not known else []
    said += [f"it has no '{name}'"] if known and found.__name__ != name else []
    read = f"{path.name}: read as {found.__name__} of {version}"
    return found, ["; ".join([read, *said, *([code] if code else [])])] * bool(said or code)


def _spelt(library: Any, name: str) -> Any:  # noqa: ANN401
    """Return the library's model class of a name, however upper and lower case are spelt; None if it has none."""
    names = [name, *(one for one in dir(library) if one.casefold() == name.casefold())]
    found = (getattr(library, one, None) for one in names)
    return next((one for one in found if isinstance(one, type) and issubclass(one, library.PreTrainedModel)), None)


def _for_task(name: str, kind: str, tables: Any, library: Any) -> Any:  # noqa: ANN401
    """Return the library's class of a ``model_type`` for what a class name ends in, like ForCausalLM."""
    ending = name[name.rfind("For") :] if "For" in name else name[-len("Model") :]
    for table in TASKS.values():
        other = getattr(tables, table).get(kind)
        other = other if isinstance(other, str) or other is None else other[0]
        if other is not None and other.endswith(ending):
            return _spelt(library, other)
    return None


def _class_name(
    path: Path,
    written: Mapping[str, Any],
    task: str | None,
    tables: Any,  # noqa: ANN401
    *,
    known: bool,
) -> str:
    """Return the class for a task, or the one that a configuration names."""
    if task is None or not known:
        named = written.get("architectures")
        if isinstance(named, list) and named and isinstance(named[0], str):
            return named[0]
        if not known:
            return ""
        raise ModelError(f"{path}: names no class ('architectures'); give model.task, one of {', '.join(TASKS)}")
    found = getattr(tables, TASKS[task]).get(written["model_type"])
    if found is None:
        able = [one for one in TASKS if written["model_type"] in getattr(tables, TASKS[one])]
        raise ModelError(
            f"{path}: transformers has no {written['model_type']} for {task}, only for {', '.join(able)}"
        )
    return found if isinstance(found, str) else found[0]


def _left_out(written: Mapping[str, Any], config: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield notes on what a configuration says of a model that the library builds without it."""
    quantised = written.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
        kind = str(config.dtype or "float32").removeprefix("torch.")
        yield (
            f"quantization_config{f' ({method})' if method else ''} is not counted: weights are {kind};"
            " training.precision says in how many bytes they are held, frozen ones apart"
        )
    for key in _FURTHER_LAYERS:
        if isinstance(written.get(key), int) and written[key] > 0:
            yield f"{key}: {written[key]} is left out: the layers that predict further tokens are not in the plan"


@contextlib.contextmanager
def noting_reads() -> Iterator[set[tuple[type, str]]]:
    """Note while a model is built and run which keys of configurations are read, by the configuration's class.

    Not what the library's base class reads: it checks all keys alike. Meanwhile the library does not hold values
    of inputs against each other, such as how many tokens stand for pictures: shapes have none.
    """
    read = set[tuple[type, str]]()
    try:
        base: Any = importlib.import_module("transformers").PreTrainedConfig
    except ImportError:  # whoever builds the model says so
        yield read
        return
    plain = base.__getattribute__

    def noting(self: Any, key: str) -> Any:  # noqa: ANN401
        if not key.startswith("_") and not sys._getframe(1).f_code.co_filename.endswith(_CHECKING):
            read.add((type(self), key))
        return plain(self, key)

    base.__getattribute__ = noting
    before = os.environ.get(_NO_CHECKS)
    os.environ[_NO_CHECKS] = "1"
    try:
        yield read
    finally:
        base.__getattribute__ = plain
        del os.environ[_NO_CHECKS]
        if before is not None:
            os.environ[_NO_CHECKS] = before


def unread(built: Built, read: Collection[tuple[type, str]]) -> tuple[str, ...]:
    """Return a note on the keys of a file that nothing read while its model was built and run, if there are any.

    Not those that say nothing of a plan (:data:`_SILENT`), are empty, or are told of already; nor those that are
    read when the configuration is made, as they change another key of it.
    """
    keys = sorted(_unread(built.written, built.config, {(kind.__name__, key) for kind, key in read}))
    if not keys:
        return ()
    return (f"not used, as {built.name} does not read it: {', '.join(keys)} of {config_file(built.path).name}",)


def _unread(written: Mapping[str, Any], config: Any, read: Collection[tuple[str, str]]) -> Iterator[str]:  # noqa: ANN401
    kind = type(config)
    names = {key for name, key in read if name == kind.__name__}
    names |= {kind.attribute_map.get(key, key) for key in names}
    for key, value in written.items():
        inner = getattr(config, key, None)
        if isinstance(value, Mapping) and hasattr(inner, "attribute_map"):
            yield from (f"{key}.{one}" for one in _unread(value, inner, read))
        elif not value or _SILENT.search(key) or kind.attribute_map.get(key, key) in names:
            continue
        elif not _changes_another(kind, written, key):
            yield key


def _changes_another(kind: Any, written: Mapping[str, Any], key: str) -> bool:  # noqa: ANN401
    """Tell whether a configuration says something else where a key is left out, beside the key."""
    less = {one: value for one, value in written.items() if one != key}
    try:
        whole, without = (kind.from_dict(dict(one)).to_dict() for one in (written, less))
    except Exception:
        return True
    return any(whole.get(one) != without.get(one) for one in whole.keys() | without.keys() if one != key)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Makes the inputs that the processor of a model makes: for what its forward needs, one after the other."""

    path: Path
    module: Any
    config: Any
    asked: Configured
    written: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def made(self) -> tuple[dict[str, torch.Tensor], list[str]]:
        """Return inputs by name, and notes on what was guessed. Raises ModelError for a key without use."""
        import torch

        given, found = dict(self.asked.inputs), dict[str, torch.Tensor]()
        takes = inspect.signature(self.module.forward).parameters
        name = type(self.module).__name__
        for key in given:
            if key not in takes:
                raise ModelError(f"{self.path}: model.inputs.{key}: {name} takes {', '.join(takes)}")
        for key in self._needed(takes) | dict.fromkeys(given):
            shape = given.get(key) or self._shape(key)
            whole = key.endswith(("ids", "mask", "labels", "bbox", "thw"))
            kind = torch.long if whole else self.config.dtype or torch.get_default_dtype()
            found[key] = torch.zeros((SAMPLES, *shape), dtype=kind)
        if self.asked.sequence is not None and "sequence" not in self.used:
            raise ModelError(
                f"{self.path}: model.sequence has no effect: {name} is given {', '.join(found)}; leave it out"
            )
        return found, self.notes

    def _needed(self, takes: Mapping[str, inspect.Parameter]) -> dict[str, None]:
        """Return the names of what forward needs: its main input, what has no default, what belongs to these."""
        main, config = self.module.main_input_name, self.config
        text, vision = (getattr(config, f"{part}_config", None) for part in ("text", "vision"))
        plain = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        found = [key for key, one in takes.items() if one.default is one.empty and one.kind not in plain]
        found = [main, *(key for key in found if key != main)]
        found += ["input_ids"] if text is not None and "input_ids" in takes else []
        found += ["pixel_values"] if vision is not None and "pixel_values" in takes else []
        found += ["decoder_input_ids"] if config.is_encoder_decoder and "decoder_input_ids" in takes else []
        return dict.fromkeys(found)

    def _shape(self, key: str) -> tuple[int, ...]:
        """Return the shape of a sample of an input. Raises ModelError, which names it, where there is no rule."""
        if key == "input_ids":
            return (self._tokens(),)
        if key == "decoder_input_ids":
            return self._decoder()
        if key in ("pixel_values", "pixel_values_videos"):
            return self._pictures(key)
        if key == "input_values":
            return self._sound()
        if key == "input_features":
            return self._features()
        if key == "flattened_patches":
            return self._guess(key, (2048, self.config.vision_config.patch_embed_hidden_size + 2))
        raise ModelError(
            f"{self.path}: no example input is known for '{key}' of {type(self.module).__name__}; give"
            f" model.inputs.{key}, the shape of a sample, or model.build a function"
        )

    def _guess(self, key: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Keep a shape that neither the file nor the model says, and say so."""
        self.notes.append(f"{key} of {_times(shape)} a sample, as nothing says otherwise: model.inputs.{key}")
        return shape

    def _decoder(self) -> tuple[int, ...]:
        if self.asked.sequence is not None and self.module.main_input_name in ("input_ids", "input_values"):
            tokens = self._tokens()
            self.notes.append(
                f"decoder_input_ids of {tokens}, as many as model.sequence: model.inputs.decoder_input_ids"
            )
            return (tokens,)
        return (self._tokens(),)

    def _tokens(self) -> int:
        """Return how many tokens a sample has. Raises ModelError for none, and for more than there can be."""
        inner = self.config.get_text_config()
        sizes = ("max_position_embeddings", "n_positions", "max_target_positions")
        said = (getattr(inner, one, None) for one in sizes)
        most = next((size for size in said if isinstance(size, int) and size > 0), None)
        asked = self.asked.sequence
        self.used.add("sequence")
        if asked is None:
            limit = "" if most is None else f", at most {most}"
            raise ModelError(
                f"{self.path}: give model.sequence, how many tokens (of raw sound: values) a sample has{limit}"
            )
        if most is not None and asked > most and not getattr(inner, "rope_parameters", None):
            raise ModelError(f"{self.path}: model.sequence {asked}, but positions of the model are {most}")
        return asked

    def _pictures(self, key: str) -> tuple[int, ...]:
        """Return the shape of a sample's pictures, in a film the frames first."""
        parts = [getattr(self.config, part, None) for part in _PARTS]
        size, said = _first([*parts, self.config], "image_size", "crop_size")
        height, width = size if isinstance(size, (list, tuple)) else (size or _PIXELS,) * 2
        channels, _ = _first([*parts, self.config], "num_channels", "in_channels", "in_chans")
        frames, _ = _first([*parts, self.config], "num_frames", "frames_per_clip")
        shape = (*((frames,) if frames else ()), channels or 3, height, width)
        written = said in self.written or any(said in self.written.get(part, {}) for part in _PARTS)
        if size is None or not (written or _fixed(self.module, height)):
            self.notes.append(f"pictures of {_times(shape[-3:])}, as nothing says otherwise: model.inputs.{key}")
        return shape

    def _sound(self) -> tuple[int, ...]:
        """Return the shape of a sample's sound: a spectrogram where its size is fixed, else values."""
        config = self.config
        if getattr(config, "num_mel_bins", None) and getattr(config, "max_length", None):
            return config.max_length, config.num_mel_bins
        channels = getattr(config, "audio_channels", None)
        return (*((channels,) if channels else ()), self._tokens())

    def _features(self) -> tuple[int, ...]:
        """Return the shape of a sample's spectrogram: frames and bands, of Whisper the other way round."""
        config, decodes = self.config, self.config.is_encoder_decoder
        if getattr(config, "num_mel_bins", None) and getattr(config, "max_source_positions", None):
            return config.num_mel_bins, 2 * config.max_source_positions
        names = ("input_feat_per_channel", "feature_projection_input_dim", "num_mel_bins", "input_dim")
        bands, _ = _first([config], *names)
        if bands is None:
            raise ModelError(
                f"{self.path}: nothing says how many bands the input_features of its model have; give"
                " model.inputs.input_features, frames and bands"
            )
        if not decodes:
            return self._tokens(), bands
        return self._guess("input_features", (getattr(config, "max_source_positions", 1024), bands))


def _first(configs: Sequence[Any], *names: str) -> tuple[Any, str]:
    """Return the first of these keys that a configuration says, and which one it is."""
    for config in configs:
        for name in names:
            if (found := getattr(config, name, None)) is not None:
                return found, name
    return None, ""


def _fixed(module: Any, pixels: int) -> bool:  # noqa: ANN401
    """Tell whether a model takes pictures of one size only: a part of it holds on to how many pixels they have."""
    held = (getattr(part, "image_size", None) for part in module.modules())
    return any(pixels in (one if isinstance(one, (list, tuple)) else (one,)) for one in held)


def _times(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


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
