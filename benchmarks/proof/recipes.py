"""Published configurations of large runs beside the best plans for the same model, batch and devices.

``python -m benchmarks.proof.recipes [--out FILE] [--results FILE] [--limit S] [--only TEXT] [--known]``

The configurations are data: ``literature/pipecut_literature/recipes/published.yaml``. Each is written as a plan,
priced and executed, and set beside the best plan that ``auto`` finds within ``--limit`` seconds when degrees,
replicas, stages, recomputation, division of state, sequence parallelism and micro-batches are left to it. Searches
are appended to ``--results`` as they come, and a command that was killed goes on from there; ``--out`` writes the
document.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.proof.found import of_plan, read_plan, searched
from pipecut.commands.sweep.sweep import ResultsFile, key_of
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut_literature.recipes.plans import RecipePlans
from pipecut_literature.recipes.recipe import Published, Recipe

SOLVER = "auto"
GIB, NS = 2**30, 10**9
DIVIDED = {"none": "", "optimizer": "ZeRO 1", "gradients": "ZeRO 2", "weights": "ZeRO 3"}
AGAIN = {False: "", True: "recomputing all", "layers": "recomputing attention cores"}
EVEN = 0.01
"""Plans whose steps differ by less than this share are called even."""
INTRODUCTION = """\
Configurations that were tuned by hand and published are written as plans, priced by the predictor that prices
every plan (a roofline, links of the library, the step executed on the timeline, interleaved where the run was),
and set beside the best plan for the same model, batch and devices. Whoever plans chooses replicas, degrees of
2, 4 and 8, stages, recomputation (none, attention cores, all), whether replicas divide the state of the
optimiser, sequence parallelism for each layer, and the published number of micro-batches or half of it; layers
keep the forms of Megatron-LM's pairs, stages start at blocks and have whole nodes, and each group has one stage
(no interleaving). Beside a run without a pipeline also one device a replica, divided weights, and 1, 4 or 16
micro-batches. What is minimised, and proved or not, is the time of a step by the formula; the plan is then
executed like the published one. A search begins with plans of the published degrees. Every search had {limit:g}
s, on two cores that others used too.

*Predicted* is the published plan executed here, and *error* its distance from the published time. What is
gained is measured between two predictions, never against a published time. Published runs that recompute
everything do so block by block; a planner has whole stages or attention cores, which the searches see, and so
never less memory. The scores of attention of GPT-3 are kept, as kernels of 2021 did; where a memory is above
that of the card, the published plan does not fit by the formulas.
""".splitlines()


def wanted(recipe: Recipe, written: RecipePlans) -> Iterator[tuple[str, Instance]]:
    """Yield what is searched for a recipe: with the tools of its time, if it names them, and with everything."""
    if written.tools is not None:
        yield f"tools of {recipe.tools}", written.tools
    yield "everything", written.free


def document(published: Published, rows: list[dict[str, Any]], command: str, limit_s: float) -> str:
    """Return the document."""
    lines = ["# Published configurations beside the best plans", "", f"Written by `{command}`.", ""]
    lines += [line.format(limit=limit_s) for line in INTRODUCTION]
    for model in dict.fromkeys(recipe.model for recipe in published.recipes):
        some = [row for row in rows if row["recipe"].model == model]
        if some:
            lines += [
                "",
                f"## {model}",
                "",
                *_table(some),
                "",
                *(one for row in some for one in _told(row, published)),
            ]
    lines += ["", "## Sources", "", *(f"- {title}, <{url}>" for title, url in published.sources.values())]
    return "\n".join(lines) + "\n"


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    heads = (
        "run",
        "t, p, d, v",
        "micro-batches",
        "published",
        "predicted",
        "error",
        "memory",
        "best plan",
        "takes less",
    )
    yield "| " + " | ".join(heads) + " |"
    yield "|---|---|" + "---:|" * (len(heads) - 2)
    for row in rows:
        recipe, own = row["recipe"], row["own"]
        seconds, memory = own["executed_ns"] / NS, max(one["memory_bytes"] for one in own["stages"]) / GIB
        known = recipe.seconds is not None
        cells = [recipe.name, recipe.degrees, str(recipe.micro_batches)]
        cells += [f"{float(recipe.seconds):.2f} s" if known else "-", f"{seconds:.2f} s"]
        cells += [f"{seconds / float(recipe.seconds) - 1:+.1%}" if known else "-", f"{memory:.0f} GiB"]
        cells += [" / ".join(_best(one) for one in row["found"].values()) or "-"]
        cells += [" / ".join(_less(own, one) for one in row["found"].values()) or "-"]
        yield "| " + " | ".join(cells) + " |"
    yield ""
    yield "Where there are two best plans, the first has the tools of the time, the second everything."


def _best(one: dict[str, Any]) -> str:
    if one.get("objective") is None:
        return "no plan" if one["proof"] == "infeasible" else "none found"
    gap = 1 - one["bound"] / one["objective"] if one["bound"] is not None else 1
    return f"{one['executed_ns'] / NS:.2f} s, " + ("proved" if gap <= 0 else f"gap {max(gap, 0.001):.1%}")


def _less(own: dict[str, Any], one: dict[str, Any]) -> str:
    return "-" if one.get("objective") is None else f"{1 - one['executed_ns'] / own['executed_ns']:.1%}"


def _told(row: dict[str, Any], published: Published) -> Iterator[str]:
    """Yield who wins and why, and how the source was read."""
    recipe, own = row["recipe"], row["own"]
    yield f"- **{recipe.name}** ({published.sources[recipe.source][0]}, {recipe.page})."
    if recipe.reading:
        yield f"  Reading: {recipe.reading}."
    yield f"  Published: {shape(own)}; {_spent(own)}."
    for name, one in row["found"].items():
        if one.get("objective") is None:
            yield f"  With {name}: {_best(one)}."
            continue
        less = 1 - one["executed_ns"] / own["executed_ns"]
        verdict = "even" if abs(less) < EVEN else "the planner wins" if less > 0 else "the published plan wins"
        yield f"  With {name}, {verdict}: {shape(one)}; {_spent(one)}.{_why(recipe, own, one, less)}"


def _spent(one: dict[str, Any]) -> str:
    parts = one["shares"]
    return ", ".join(f"{share:.0%} {name}" for name, share in parts.items())


def _why(recipe: Recipe, own: dict[str, Any], one: dict[str, Any], less: float) -> str:
    """Say in a sentence what makes the difference: device-seconds by kind, and what the plans do otherwise."""
    if abs(less) < EVEN:
        return ""
    gained = {
        name: own["shares"][name] * own["executed_ns"] - one["shares"][name] * one["executed_ns"]
        for name in own["shares"]
    }
    most = max(gained, key=lambda name: gained[name] if less > 0 else -gained[name])
    reasons = [*_recomputing(own, one)] if less > 0 else []
    if less < 0 and recipe.chunks > 1:
        reasons.append(
            f"the published run interleaves {recipe.chunks} stages a rank, which the planner was not given"
        )
    if "memory" in own["broken"]:
        reasons.append("the published plan does not fit by our formulas, and the planner's has to")
    because = f" ({', '.join(reasons)})" if reasons else ""
    return f" Most of the difference is {most}: {abs(gained[most]) / NS:.1f} s of each device{because}."


def _recomputing(own: dict[str, Any], one: dict[str, Any]) -> Iterator[str]:
    """Yield that a plan computes less again than another one does."""
    then, now = ({stage["again"] or stage["recompute"] for stage in plan["stages"]} for plan in (own, one))
    if True in then and now == {False}:
        yield "nothing is computed again"
    elif True in then and True not in now:
        yield "at most attention cores are computed again, not whole stages"


def shape(one: dict[str, Any]) -> str:
    """Say in words what the stages of a plan are: alike ones once, and how many micro-batches there are."""
    several = len({tuple(stage["classes"]) for stage in one["stages"]}) > 1
    alike = Counter(_stage(stage, classes=several) for stage in one["stages"])
    stages = " and ".join(
        f"{count} {'stage' if count == 1 else 'stages'} of {words}" for words, count in alike.items()
    )
    many = one["micro_batches"]
    return f"{stages}, with {many} micro-{'batch' if many == 1 else 'batches'}"


def _stage(stage: dict[str, Any], *, classes: bool) -> str:
    devices, degree = stage["devices"], stage["degree"]
    words = f"{devices} {'device' if devices == 1 else 'devices'}"
    words += f" ({'+'.join(stage['classes'])})" if classes else ""
    if devices > 1:
        words += f" in {devices // degree} {'replica' if devices == degree else 'replicas'} of {degree}"
    extra = [
        DIVIDED[stage["sharded"]],
        "sequence parallel" * stage.get("by_rows", False),
        "recomputing blocks" if stage.get("again") else AGAIN[stage["recompute"]],
    ]
    return " ".join([words, *(f"({one})" for one in extra if one)])


def main() -> int:
    """Search what is not known yet, and write the document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, help="write the document")
    parser.add_argument(
        "--results", type=Path, default=Path("recipes.results.jsonl"), help="searches that are known"
    )
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each search")
    parser.add_argument("--only", default="", help="only runs whose name contains this text")
    parser.add_argument("--known", action="store_true", help="search nothing, write what is known")
    arguments = parser.parse_args()
    published, rows = Published.read(), list[dict[str, Any]]()
    with ResultsFile(arguments.results) as results:
        for recipe in published.recipes:
            written = RecipePlans.of(recipe, published.alike(recipe))
            row: dict[str, Any] = {"recipe": recipe, "own": _priced(written, recipe), "found": {}}
            plans = list[tuple[int, Plan]]()
            for name, instance in wanted(recipe, written):
                key = key_of(instance)
                if key not in results.known and arguments.only in recipe.name and not arguments.known:
                    found = searched(instance, SOLVER, arguments.limit, _first(recipe, written, instance, plans))
                    search = {"name": f"{recipe.name}; {name}", "limit_s": arguments.limit}
                    results.add({"key": key, "search": search} | found)
                    print(recipe.name, name, found["proof"], found.get("objective"), sep=" | ", flush=True)
                if key in results.known:
                    row["found"][name] = one = results.known[key]
                    plans += [(one["micro_batches"], read_plan(one["plan"]))] if one.get("plan") else []
            rows.append(row)
    if arguments.out is not None:
        command = f"python -m benchmarks.proof.recipes --limit {arguments.limit:g} --out {arguments.out}"
        arguments.out.write_text(document(published, rows, command, arguments.limit), encoding="utf-8")
    return 0


def _first(
    recipe: Recipe, written: RecipePlans, instance: Instance, found: list[tuple[int, Plan]]
) -> Iterator[tuple[int, Plan]]:
    """Yield the plans of published degrees, and those found before, that keep the rules, each with its number."""
    for many, one in (*((recipe.micro_batches, plan) for plan in written.starts), *found):
        judged = replace(instance, training=replace(instance.training, micro_batches=many))
        if evaluate(judged, one).feasible:
            yield many, one


def _priced(written: RecipePlans, recipe: Recipe) -> dict[str, Any]:
    return of_plan(written.instance, written.plan) | {"micro_batches": recipe.micro_batches}


if __name__ == "__main__":
    raise SystemExit(main())
