"""What ``--help`` of each command shows as examples; every one can be typed in a clone of this repository."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

VGG, GPT = "scenarios/pipepar/vgg16.yaml", "scenarios/gpt/gpt2.yaml"

EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "plan": (
            (f"plan {VGG}", "the best plan, and its proof"),
            (f"plan {VGG} --out plan.json", "and write it to a file"),
            (f"plan {GPT} --time-limit '30 s'", "the best plan after 30 s at most"),
            (f"plan {VGG} --set training.global_batch=128", "what if the batch were larger?"),
        ),
        "compare": (
            (f"compare {VGG}", "every solver on one scenario"),
            (f"compare {VGG} --solvers cpsat,pipepar", "two of them"),
        ),
        "evaluate": (
            (f"evaluate plan.json {VGG}", "price, rules, and gap to the optimum"),
            (f"evaluate plan.json {VGG} --no-optimum", "without a search"),
        ),
        "explain": (
            (f"explain {VGG}", "what bounds the best plan, and what plans one move away would cost"),
            (f"explain plan.json {VGG}", "of any plan"),
        ),
        "diff": ((f"diff plan.json other.json {VGG}", "from one plan to the other, step by step"),),
        "sensitivity": (
            (f"sensitivity {VGG}", "the best plan under one change at a time"),
            (f"sensitivity {VGG} --only links,servers --time-limit '60 s'", "some changes, in a minute"),
        ),
        "sweep": (
            ("sweep scenarios/pipepar/budget.sweep.yaml", "every point of the file; the same again goes on"),
            ("sweep scenarios/pipepar/budget.sweep.yaml --svg budget.svg", "with a picture"),
        ),
        "simulate": (
            (f"simulate {VGG} --out page.html", "the best plan, drawn on a page"),
            (f"simulate {VGG} --against other.json --out page.html", "beside another plan"),
            (f"simulate {VGG} --plan plan.json --trace trace.json", "a given plan, for Perfetto"),
        ),
        "run": ((f"run plan.json {VGG} --steps 20", "train for 20 steps on this machine"),),
        "validate": ((f"validate plan.json {VGG}", "compare the gradients with those of the unsplit model"),),
        "profile": ((f"profile {VGG} --out profile.json", "times of the layers on this machine"),),
        "export": ((f"export plan.json {VGG} --to torchtitan", "as torchtitan takes it"),),
        "trace": (
            ("trace ingest.models.vgg:vgg16 --out vgg16.json", "the layers of a model"),
            (
                "trace graph.txt --samples 64 --device-class V100 --out graph.json",
                "a profile that PipeDream measured",
            ),
        ),
        "verify": (
            (f"plan {VGG} --certificate proof.json", "write a certificate"),
            (f"verify proof.json {VGG}", "and check it without a solver"),
        ),
        "study": (("study pipepar", "the tables of the PipePar paper"),),
        "scenarios": (("scenarios", "all of them"), ("plan llama7b", "one of them, planned")),
        "devices": (("devices", "all of them"), ("devices dgx-a100", "one, with its sources")),
    }
)
"""By command: what to type behind ``pipecut``, and what it does."""


def examples_of(command: str) -> str:
    """Return the examples of a command for the end of its help; nothing where it has none."""
    rows = EXAMPLES.get(command, ())
    lines = "\n".join(f"  pipecut {line}\n      {what}" for line, what in rows)
    return f"examples:\n{lines}\n\n" if rows else ""
