"""Which exact method is asked first.

``python -m benchmarks.proof.methods [--limit S] [--only TEXT] [--out FILE]``

Every exact method that takes an instance searches it alone, within the limit, for its first goal: the shipped
scenarios as they are, and some of them on a fast network, under free placement, within memory, for the time of a
step, or with rules that no dynamic programme sees. ``model`` is the size of the declarative model by its own
estimate. A cell has the seconds to the proof, or the gap that was left (in brackets), or "-" where the method does
not take the instance. Then the plan of the first programme that proves is given to who may check it: ``cpsat``,
asked for a better plan within five seconds, and a certificate, made and verified. Last what ``auto`` makes of the
instance: who proved, the seconds with the check, and the gap if there is one. ``--out`` writes the document.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.proof.proofs import BINDING, FAST
from pipecut.formulation.limits import StoppedError
from pipecut.formulation.outcome import Limits, Outcome, Proof, checked
from pipecut.formulation.problem.instance import Instance
from pipecut.ingest.scenario.load import load_scenario
from pipecut.ingest.scenario.shipped import scenario_files
from pipecut.solvers.auto.solve import plan
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.crosscheck import Verdict, ask_certificate, claims_of

ROOT = Path(__file__).parents[2]
FREE = ("constraints.placement=free", "constraints.max_servers=2", "cost.boundary_charge=link")
STEP = ("objective=iteration_time", "training.micro_batches=8", "training.schedule=one_f_one_b")
RECEIVER = ("cost.boundary_charge=receiver",)
LARGE = ("cluster.servers[0].count=16",)
REDUCING = ("cpsat_types", "reduced_dp")
"""Methods that may end without a proof where they see everything."""
METHODS = ("cpsat", "cpsat_types", "line_dp", "state_dp", "step_dp", "reduced_dp")
PROVED = (Proof.OPTIMAL, Proof.INFEASIBLE)
CHECK_S = 5.0
CONCLUSIONS = """\
What `auto` takes from it (`solvers/auto/solve.py`, `solvers/crosscheck.py`):

- Wherever a programme sees the instance it is the fastest: `line_dp` before `state_dp` where both do. That is the
  order of the catalogue.
- `step_dp` comes behind both: where they see the instance it takes as long or longer. It alone sees receivers that
  pay within memory, and it has the step by the formula.
- `cpsat` proves within a few seconds whatever has a model of at most 1 MB. There it is asked first, and a
  programme checks it.
- Given the plan, `cpsat` proves again within five seconds up to about 7 MB; above 10 MB never. So it is the check
  up to there, and a certificate where it does not end or is not asked.
- `reduced_dp`, which sees steps alone, is asked before all of these where a stage may be held in many ways and few
  places to cut differ: the model repeats itself, or is cut at its blocks.
- `cpsat_types` states deep models on a line by types of stages ([its mathematics](types.md)), on the tables of
  `reduced_dp`. It is asked where programmes do not see a demand, and by name; `--show-model` of `pipecut plan`
  shows it.
""".splitlines()


@dataclass(frozen=True, slots=True)
class MethodsRow:
    """An instance: its name, its file, and what is overridden there."""

    name: str
    scenario: str
    overrides: tuple[str, ...] = ()


def rows() -> Iterator[MethodsRow]:
    """Yield the shipped scenarios, and variations of them."""
    for path in scenario_files(ROOT / "scenarios"):
        yield MethodsRow(f"{path.parent.name}/{path.stem}", path.relative_to(ROOT).as_posix())
    paper = "scenarios/pipepar/{}.yaml".format
    for model in ("vgg16", "resnet50", "resnet152"):
        yield MethodsRow(f"{model}, fast", paper(model), FAST)
        yield MethodsRow(f"{model}, fast, memory", paper(model), (*FAST, *BINDING))
        yield MethodsRow(f"{model}, fast, step", paper(model), (*FAST, *STEP))
        yield MethodsRow(f"{model}, fast, receiver, memory", paper(model), (*FAST, *BINDING, *RECEIVER))
        yield MethodsRow(f"{model}, fast, free", paper(model), (*FAST, *FREE))
    yield MethodsRow("resnet152, fast, 32 devices", paper("resnet152"), (*FAST, *LARGE))
    yield MethodsRow("resnet152, fast, 32 devices, memory", paper("resnet152"), (*FAST, *LARGE, *BINDING))
    for model in ("vgg19", "resnet152"):
        yield MethodsRow(f"hetpipe {model}, free", f"scenarios/hetpipe/{model}.yaml", FREE)
        yield MethodsRow(f"hetpipe {model}, receiver", f"scenarios/hetpipe/{model}.yaml", RECEIVER)
    yield MethodsRow("gpt2, step", "scenarios/gpt/gpt2.yaml", ("objective=iteration_time",))
    yield MethodsRow("gpt3, 128 devices", "benchmarks/instances/gpt3.yaml")


def measured(row: MethodsRow, limit_s: float) -> dict[str, Any]:
    """Let every method search an instance for its first goal, then check the first proof of a programme."""
    instance = load_scenario(ROOT / row.scenario, row.overrides).load()
    instance = replace(instance, goals=instance.goals[:1])
    needed = find_any("cpsat").accepts(instance).bytes_needed or 0
    found: dict[str, Any] = {
        "instance": row.name,
        "layers": len(instance.layers),
        "devices": instance.devices,
        "model": f"{needed / 1e6:.1f} MB",
    }
    outcomes = {name: asked(instance, name, Limits(time_limit_s=limit_s)) for name in METHODS}
    found |= {name: cell(one) for name, one in outcomes.items()}
    programmes = [one for name, one in outcomes.items() if one is not None and not name.startswith("cpsat")]
    proved = next((one for one in programmes if one.proof in PROVED), None)
    again, certified = "-", "-"
    if proved is not None:
        again = cell(asked(instance, "cpsat", Limits(time_limit_s=CHECK_S, start=proved.plan)))
        certified = certificate_cell(instance, proved, limit_s)
    began = time.perf_counter()
    auto = plan(instance, Limits(time_limit_s=limit_s))
    seconds = time.perf_counter() - began
    by = f"{auto.solver}, {seconds:.2f}" + ("" if auto.proof in PROVED else f" {cell(auto)}")
    return found | {"cpsat again": again, "certificate": certified, "auto": by}


def asked(instance: Instance, name: str, limits: Limits) -> Outcome | None:
    """Return the outcome of a method; None where it does not take or not see the instance."""
    entry = find_any(name)
    support = entry.accepts(instance)
    if not support.takes or not (support.proves or (name in REDUCING and not support.unseen)):
        return None
    began = time.perf_counter()
    try:
        outcome = checked(instance, entry.load()(instance, limits))
    except ValueError:
        return None
    return replace(outcome, seconds=time.perf_counter() - began)


def cell(outcome: Outcome | None) -> str:
    """Say what a method made of an instance."""
    if outcome is None:
        return "-"
    if outcome.proof in PROVED:
        return f"{outcome.seconds:.2f}"
    return "(no plan)" if outcome.gap is None else f"({outcome.gap:.1%})"


def certificate_cell(instance: Instance, outcome: Outcome, limit_s: float) -> str:
    """Say how long it takes to make and verify a certificate; "-" where there is none."""
    (claim,), began = claims_of(instance, outcome), time.perf_counter()
    try:
        answer = ask_certificate(claim, Limits(time_limit_s=limit_s).begun())
    except StoppedError:
        return "-"
    return f"{time.perf_counter() - began:.2f}" if answer.verdict is Verdict.AGREED else "-"


def write(rows: list[dict[str, Any]], path: Path, limit_s: float) -> None:
    """Write the document."""
    lines = [
        "# Who is asked",
        "",
        f"Written by `python -m benchmarks.proof.methods --limit {limit_s:g} --out {path}`, on two shared cores.",
        "",
        *(line for line in (__doc__ or "").split("\n\n", 1)[1].strip().splitlines()),
        "",
        "| " + " | ".join(rows[0]) + " |",
        "|" + "---|" * len(rows[0]),
        *("| " + " | ".join(str(one) for one in row.values()) + " |" for row in rows),
        "",
        *CONCLUSIONS,
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="also write the table as a document")
    parser.add_argument("--only", default="", help="only instances whose name contains this text")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds for each search")
    arguments = parser.parse_args()
    table: list[dict[str, Any]] = []
    for row in rows():
        if arguments.only in row.name:
            table.append(measured(row, arguments.limit))
            print(" | ".join(str(one) for one in table[-1].values()), flush=True)
    if arguments.out is not None:
        write(table, arguments.out, arguments.limit)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
