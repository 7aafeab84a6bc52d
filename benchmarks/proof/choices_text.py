"""The document of ``benchmarks.proof.choices``: a table a cluster, and a sentence for each row that surprises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import date
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.proof.choices import Cell

    Known = tuple[Cell, dict[str, Any]]

WORTH = 0.03
"""From what share of the step on a choice is said to be worth something."""
NS = 10**9
DIVIDED = {"none": "", "optimizer": "ZeRO 1", "gradients": "ZeRO 2", "weights": "ZeRO 3"}
AGAIN = {False: "", True: "recomputing all", "layers": "recomputing attention cores"}
INTRODUCTION = """\
The time of a training step of the best plan with everything allowed, and with each choice forbidden in turn. A
cell says the time of a step by the formula (latency + (M - 1) bottleneck, [formulation](formulation.md#goals)),
which is what was minimised; by how much it is above that of *everything allowed*; and in brackets the time of the
same plan as executed on the timeline. Every search had at most {limit:g} s, on two cores that others used too.

- **proved**: no plan of the scope is better. *gap*: what the search left between its plan and its bound.
- *no plan*: it is proved that none exists; *none found*: the search ended without a plan and without a proof.
- *everything allowed* is the best plan of all rows but the last ones, as each of them is allowed there; where a
  narrower search found it, its gap is to the bound of the widest one.
- *also*: what the formula does not know or what makes the search much wider, allowed on top, one at a time. These
  cells say the executed time, and its share of that of everything allowed. Two stages a group (virtual stages) and
  a warm-up of each stage's own are searched for the executed step, the former with one form for each layer.
""".splitlines()


def document(written: dict[str, Any], rows: list[Known], command: str, limit_s: float) -> str:
    """Return the document of what is known."""
    lines = ["# What each choice is worth", "", f"Written by `{command}` on {date.today().isoformat()}.", ""]
    lines += [line.format(limit=limit_s) for line in INTRODUCTION]
    lines += ["", *_scope(written, rows)]
    for cluster in written["clusters"]:
        found = [one for one in rows if one[0].cluster == cluster]
        if found:
            lines += ["", f"## {cluster}", "", *_table(found), "", *_sentences(found)]
    return "\n".join(lines) + "\n"


def _scope(written: dict[str, Any], rows: list[Known]) -> Iterator[str]:
    yield "**Everything** is:"
    yield ""
    yield from (f"- `{path}`: {_value(value)}" for path, value in written["everything"].items())
    yield ""
    for model, of_model in written["models"].items():
        parts = ", ".join(f"`{path}` {_value(value)}" for path, value in of_model.items())
        yield f"- {model}: {parts}"
    missing = [one for one in written["clusters"] if one not in {cell.cluster for cell, _ in rows}]
    if missing:
        yield ""
        yield f"Not measured yet: {', '.join(missing)}."


def _value(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _table(found: list[Known]) -> Iterator[str]:
    models = list(dict.fromkeys(cell.model for cell, _ in found))
    best = {model: best_of(found, model) for model in models}
    known = {(cell.row, cell.model): (cell, one) for cell, one in found}
    yield "| forbidden | " + " | ".join(models) + " |"
    yield "|---|" + "---:|" * len(models)
    for row in dict.fromkeys(cell.row for cell, _ in found):
        cells = [_cell(known.get((row, model)), best[model]) for model in models]
        added = any(cell.added for cell, _ in found if cell.row == row)
        yield f"| {'*also* ' * added}{row} | " + " | ".join(cells) + " |"


def best_of(found: list[Known], model: str) -> dict[str, Any] | None:
    """Return the best plan of a model among the rows that everything allows, with the bound of the widest."""
    allowed = [(cell, one) for cell, one in found if cell.model == model and not cell.added]
    with_plan = [one for _, one in allowed if one.get("objective") is not None]
    if not with_plan:
        return None
    widest = allowed[0][1]
    best = min(with_plan, key=lambda one: one["objective"])
    return best | {"bound": widest.get("bound"), "widest": widest}


def _cell(known: Known | None, best: dict[str, Any] | None) -> str:
    if known is None:
        return "-"
    cell, one = known
    if cell.row == "everything allowed" and best is not None:
        one = one | {key: best[key] for key in ("objective", "executed_ns")}
    if one.get("objective") is None:
        return {"infeasible": "no plan, proved", "refused": "refused"}.get(one["proof"], "none found")
    measure = "executed_ns" if cell.added else "objective"
    words = _seconds(one[measure])
    if best is not None:
        share = one[measure] / best[measure] - 1
        words += f" {share:+.1%}" if abs(share) >= 0.0005 else ""
    if not cell.added:
        words += f" ({_seconds(one['executed_ns'])})"
    return f"{words}, {_proof(one)}"


def _proof(one: dict[str, Any]) -> str:
    if one["bound"] is None:
        return "a plan"
    gap = 1 - one["bound"] / one["objective"]
    return "**proved**" if gap <= 0 else f"gap {gap:.1%}"


def _seconds(time_ns: int | None) -> str:
    return "-" if time_ns is None else f"{time_ns / NS:.3f} s"


def _sentences(found: list[Known]) -> Iterator[str]:
    """Yield what surprises: choices that cost much or leave no plan, and the plan of everything."""
    for model in dict.fromkeys(cell.model for cell, _ in found):
        best = best_of(found, model)
        if best is None:
            yield f"- **{model}**: no plan is known, whatever is allowed. {_why(found, model)}"
            continue
        yield f"- **{model}**: the best plan has {shape(best)}."
        for cell, one in found:
            if cell.model == model and cell.row != "everything allowed" and not cell.added:
                yield from _surprise(cell, one, best)
        needless = [cell.row for cell, one in found if cell.model == model and _costs_nothing(cell, one, best)]
        if needless:
            yield f"  Nothing is lost, to the last nanosecond, without: {'; '.join(needless)}."


def _why(found: list[Known], model: str) -> str:
    proofs = {one["proof"] for cell, one in found if cell.model == model and cell.row == "everything allowed"}
    return "That there is none is proved." if proofs == {"infeasible"} else ""


def _costs_nothing(cell: Cell, one: dict[str, Any], best: dict[str, Any]) -> bool:
    asked = cell.row != "everything allowed" and not cell.added
    return asked and one.get("objective") is not None and one["objective"] == best["objective"]


def _surprise(cell: Cell, one: dict[str, Any], best: dict[str, Any]) -> Iterator[str]:
    if one["proof"] == "infeasible":
        yield f"  Without {cell.row} no plan keeps within memory, which is proved."
    elif one.get("objective") is not None and one["objective"] / best["objective"] - 1 >= WORTH:
        more = one["objective"] / best["objective"] - 1
        said = "longer" if _proof(one) == "**proved**" else "longer in the best plan that was found"
        yield f"  Without {cell.row} the step is {more:.0%} {said}: {shape(one)}."


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
