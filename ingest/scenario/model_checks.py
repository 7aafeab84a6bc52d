"""What the keys of a scenario's model must mean together: one source, and only what that source understands."""

from __future__ import annotations

from collections.abc import Iterator

from ingest.mistakes import Where, did_you_mean
from ingest.operators.costs import OPERATORS
from ingest.scenario.model_section import ModelSection
from ingest.torch.hugging_face import TASKS

SOURCES = {
    "build": "a Python function",
    "graph": "a layer graph",
    "exported": "a .pt2 file",
    "transformers": "a configuration of Hugging Face",
}
"""Where a model may come from."""


def model_problems(model: ModelSection) -> Iterator[tuple[Where, str]]:
    """Yield the path of every mistake, and what is wrong."""
    given = [key for key in SOURCES if getattr(model, key) is not None]
    if len(given) != 1:
        listed = ", ".join(f"'{key}' ({what})" for key, what in SOURCES.items())
        yield ("model",), f"expected one of {listed}, got {' and '.join(given) or 'none'}"
    elif given != ["transformers"]:
        for key in ("task", "sequence", "inputs"):
            if getattr(model, key):
                yield ("model", key), f"has no effect on '{given[0]}', only on 'transformers'"
    yield from _runtime_problems(model)
    for name, known in model.operators.items():
        if known not in OPERATORS:
            hint = did_you_mean(known, OPERATORS)
            yield ("model", "operators", name), f"no operator '{known}' has a formula{hint}"
    if model.task is not None and model.task not in TASKS:
        hint = did_you_mean(model.task, TASKS)
        yield ("model", "task"), f"no task '{model.task}', expected one of {', '.join(TASKS)}{hint}"


def _runtime_problems(model: ModelSection) -> Iterator[tuple[Where, str]]:
    if model.runtime is not None:
        reason = f"model.runtime: {model.runtime} says"
        if model.cuts is not None:
            yield ("model", "cuts"), f"{reason} where stages may start; leave one of the two out"
        if "order" in model.model_fields_set and model.order == "any":
            yield ("model", "order"), f"{reason} that layers run as they were traced; leave one of the two out"
