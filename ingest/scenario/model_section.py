"""The section of a scenario file that says which model is cut."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ingest.scenario.fields import (
    Glob,
    InputShape,
    Name,
    Places,
    Section,
    Whole,
    builder,
    configuration,
    exported_file,
    graph_file,
    times_file,
)


class ModelSection(Section):
    """Where the layer graph comes from: exactly one of build, graph, exported and transformers."""

    build: Annotated[str, AfterValidator(builder)] | None = Field(
        default=None,
        description="a Python function 'module:function' that builds the model (importing runs its code)",
    )
    graph: Annotated[str, AfterValidator(graph_file)] | None = Field(
        default=None, description="a traced layer graph, a JSON file; the path is relative to the scenario file"
    )
    exported: Annotated[str, AfterValidator(exported_file)] | None = Field(
        default=None, description="a model that torch.export.save has written, a .pt2 file; nothing in it is run"
    )
    transformers: Annotated[str, AfterValidator(configuration)] | None = Field(
        default=None,
        description="the config.json of a Hugging Face model, or its folder; nothing is downloaded, no weights",
    )
    task: str | None = Field(
        default=None, description="what the Hugging Face model is for; without it the class that its config names"
    )
    sequence: Whole | None = Field(default=None, description="tokens of one sample of the Hugging Face model")
    inputs: dict[Name, InputShape] = Field(
        default={},
        description="shapes of one sample's inputs of the Hugging Face model, like {pixel_values: [3, 512, 512]},"
        " in place of those that are made",
    )
    operators: dict[Glob, Glob] = Field(
        default={}, description="operators without a formula, each with a known one that counts the same"
    )
    cuts: Places | None = Field(
        default=None,
        description="where stages may start: blocks (what the model repeats), modules, operators (any layer), or"
        " globs on layers and modules; without it the places that the graph names, else blocks",
    )
    profile: Annotated[str, AfterValidator(times_file)] | None = Field(
        default=None,
        description="times of layers: a JSON file that pipecut profile wrote, or a CSV table with the columns"
        " layer, forward_ms, backward_ms; relative to the scenario file",
    )
    runtime: Literal["torchtitan", "megatron", "deepspeed"] | None = Field(
        default=None,
        description="the program that shall run the plan: stages start where it can start them, in the traced"
        " order, and have equally many devices and replicas",
    )
    order: Literal["any", "traced"] = Field(
        default="any",
        description="any: the best order of layers with producers before consumers is searched; traced: as it ran",
    )
