"""Three models profiled, planned and run on this machine: how far the predicted step is from the measured one.

``python -m benchmarks.running.closed_loop [--only TEXT] [--steps N] [--out FILE] [--json]``

Each processor core stands for a device, and each model is cut into two stages. The commands are those that a user
gives: ``pipecut profile``, ``plan`` with the profile, and ``validate``, which compares every gradient with the
unsplit model's. Of the error of the step two parts are shown apart: that of the *layers*, by times of passes as
profiled and as they are in the run, and that of the *schedule*, whose timeline is given the measured times. Of the
layers' again two: how much slower the *machine* was in the run than in the profile, and what is *left*.

A profile that is refused as unsteady is measured again, a few times, and so is the whole loop where the machine's
speed moved by more than ``STEADY``; the steadiest try counts, whatever its errors are. Run this where nothing else
does. ``--out`` writes the table as a document.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.table import print_rows
from pipecut.ingest.graphs.layer_profile import machine_name

MODELS = {
    "VGG13, images of 224": ("ingest.models.vgg:vgg13", 1),
    "ResNet-50, images of 224": ("ingest.models.resnet:resnet50", 2),
    "GPT-2 small, 256 tokens": ("benchmarks.instances.small:gpt2_256", 1),
}
"""What builds each model, and the samples of a micro-batch."""
MICRO_BATCHES = 4
STAGES = 2
"""As many as cores; they share a memory, so as many processes profile at once."""
TRIES = 3
"""How often a profile is measured before it is given up, and at most a whole loop."""
STEADY = 0.05
"""By how much of its speed in the profile the machine may differ in the run, before all is measured again."""
HEADS = ("model", "predicted", "measured", "step", "layers", "schedule", "machine", "left", "tries")
SCENARIO = """\
name: closed-loop
model: {{build: "{build}"}}
cluster:
  devices: {{core: {{memory: 16 GiB, peak: 50 GFLOP/s}}}}
  servers: [{{name: core, count: 2, device: core, devices: 1}}]
  between_servers: {{bandwidth: 10 Gbit/s}}
training: {{global_batch: {batch}, micro_batches: {steps}, schedule: one_f_one_b}}
objective: step_time
search: paper
constraints: {{stages: {{at_least: 2, at_most: 2}}, placement: line}}
"""
ABOUT = """\
# The closed loop

Written by `python -m benchmarks.running.closed_loop --out {out}`, on {machine}, alone on the machine.

Each model was profiled on two cores at once (`--at-once 2`: they share a memory), planned with the profile, and
run by two processes on two cores in {steps} measured steps; gradients are compared with the unsplit model's on the
way.

- *Predicted*, *Measured*: the step by the timeline with the times of the profile, and the median step of the run.
- *Step*: predicted against measured; below zero, the run took longer than predicted. The next two make it up.
- *Layers*: the predicted step against a timeline that is given the measured times of passes and transfers.
- *Schedule*: that timeline against the measured step.
- *Machine*: how much slower the machine was in the run than in the profile (below zero: faster), which
  makes *layers* lower by about as much. The same small matrix product was timed around every turn of the profile
  and around every step.
- *Left*: the error of layers without the machine's part, as if it had kept its speed: what the prediction itself
  gets wrong.
- *Tries*: what *machine* was each time that the loop was measured, in order.

On machines that are shared with others, as virtual ones are, the speed moves between profile and run, though
nothing else runs on what one sees of them. So a loop in which *machine* is further than {steady:.0%} from zero is
measured again, {tries} times in all at most, and the one with *machine* nearest to zero is the row; its errors are
not asked. No measured time is scaled. What the product does not see is in *left*: programs that take the processor
away, and neighbours that keep the memory busy.
"""


class Failed(Exception):  # noqa: N818 (a row says it)
    """A command ended with another code than 0 or 3; the message is its last line."""


def pipecut(folder: Path, *arguments: str) -> Any:  # noqa: ANN401 (JSON)
    """Return what a command replies. Raises Failed with its complaint."""
    command = [sys.executable, "-m", "pipecut.commands.entry", *arguments, "--json", "--quiet"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise Failed((done.stderr.strip() or done.stdout.strip()).splitlines()[-1])
    (folder / "reply.json").write_text(done.stdout, encoding="utf-8")
    return json.loads(done.stdout)


def profiled(folder: Path, scenario: Path) -> Path:
    """Measure a profile, again where it was unsteady. Raises Failed with the last complaint."""
    found, complaint = folder / "profile.json", Failed("not tried")
    for _ in range(TRIES):
        try:
            pipecut(folder, "profile", str(scenario), "--at-once", str(STAGES), "--out", str(found))
        except Failed as error:
            complaint = error
        else:
            return found
    raise complaint


def measured(name: str, steps: int) -> dict[str, Any]:
    """Take one model round: profile, plan, validate; return what was measured. Raises Failed."""
    build, samples = MODELS[name]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        scenario, plan = folder / "loop.yaml", folder / "plan.json"
        text = SCENARIO.format(build=build, batch=samples * MICRO_BATCHES, steps=MICRO_BATCHES)
        scenario.write_text(text, encoding="utf-8")
        named = ("--set", f"model.profile={profiled(folder, scenario)}")
        pipecut(folder, "plan", str(scenario), *named, "--out", str(plan))
        reply = pipecut(folder, "validate", str(plan), str(scenario), *named, "--steps", str(steps))
    return reply["measured"]


def moved(found: dict[str, Any]) -> float:
    """Return by how much the machine's speed differed between profile and run."""
    return abs(found["machine"])


def measure(name: str, steps: int) -> dict[str, Any]:
    """Return the row of a model: that of the first steady try, else of the steadiest of ``TRIES``."""
    tried: list[dict[str, Any]] = []
    said: list[str] = []
    while len(said) < TRIES and not (tried and moved(tried[-1]) <= STEADY):
        try:
            tried.append(measured(name, steps))
            said.append(f"{tried[-1]['machine']:+.1%}")
        except Failed as error:
            if not tried:
                return {"model": name, "predicted": f"refused: {error}"}
            said.append("refused")
    return row(name, min(tried, key=moved), said)


def row(name: str, found: dict[str, Any], tries: list[str]) -> dict[str, Any]:
    """Return what was measured in a try as the cells of a row, beside what the machine did in each."""
    predicted, step = found["predicted_step_ns"], found["measured_step_ns"]
    return {
        "model": name,
        "predicted": f"{predicted / 1e6:,.0f} ms",
        "measured": f"{step / 1e6:,.0f} ms",
        "step": f"{predicted / step - 1:+.1%}",
        "layers": f"{found['layers_error']:+.1%}",
        "schedule": f"{found['schedule_error']:+.1%}",
        "machine": f"{found['machine']:+.1%}",
        "left": f"{found['layers_error_left']:+.1%}",
        "tries": ", ".join(tries),
    }


def rows(only: str, steps: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each model whose name has this text."""
    for name in MODELS:
        if only in name:
            yield measure(name, steps)


def document(found: list[dict[str, Any]], out: Path, steps: int) -> str:
    """Return the rows as a document."""
    lines = [ABOUT.format(out=out, machine=machine_name(), steps=steps, steady=STEADY, tries=TRIES)]
    lines += ["| " + " | ".join(HEADS) + " |", "|---|" + "---:|" * (len(HEADS) - 1)]
    lines += ["| " + " | ".join(one.get(head, "") for head in HEADS) + " |" for one in found]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table, and write it where asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path, help="write the table as a document")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found: list[dict[str, Any]] = []

    def kept() -> Iterator[dict[str, Any]]:
        for one in rows(arguments.only, arguments.steps):
            found.append(one)
            yield one

    print_rows(kept(), as_json=arguments.json)
    if arguments.out is not None:
        arguments.out.write_text(document(found, arguments.out, arguments.steps), encoding="utf-8")


if __name__ == "__main__":
    main()
