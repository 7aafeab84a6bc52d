"""What a sweep found, for people: how far it came, and the plans that none beats in price and throughput."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commands.sweep.outcome import SweepOutcome, SweepRow, shown_value
from commands.tables.key_lines import GOOD, OPEN, WRONG, KeyLines, Row
from commands.terminal import human

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

MOST_ROWS = 20
"""How many plans are shown; the data has all."""
MOST_REASONS = 5


def sweep_parts(outcome: SweepOutcome) -> tuple[RenderableType, ...]:
    """Return how far the sweep came, the table of the front, and what went wrong."""
    wrong = _reasons(outcome)
    return (KeyLines(_head(outcome)), "", _table(outcome), *(("", KeyLines(wrong)) if wrong else ()))


def _head(outcome: SweepOutcome) -> list[Row]:
    from rich.text import Text

    rows, total = outcome.rows, len(outcome.rows)
    counts = {
        "proved best": sum(row.proved and row.found["proof"] == "optimal" for row in rows if row.found),
        "proved to have no plan": sum(row.found["proof"] == "infeasible" for row in rows if row.found),
        "not proved": sum(row.found["proof"] in ("feasible", "unknown") for row in rows if row.found),
        "failed": sum(row.found["proof"] is None for row in rows if row.found),
        "not planned yet": sum(row.found is None for row in rows),
    }
    said = ", ".join(f"{number} {words}" for words, number in counts.items() if number)
    style = WRONG if counts["failed"] else GOOD if all(row.proved for row in rows) else OPEN
    shown: list[Row] = [("points", f"{total}, {outcome.kept} known before, {outcome.searched} planned now")]
    shown.append(("claims", Text(said, style=style)))
    what = "price of the cluster for an hour" if outcome.priced() else "devices (no prices are known)"
    many = min(len(outcome.front()), MOST_ROWS)
    shown.append(("shown", f"{many} plans that none beats, {what} against samples per second"))
    return shown


def _table(outcome: SweepOutcome) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    front = _thinned(outcome.front())
    varied = _varied(outcome)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in varied.values():
        table.add_column(human.printable(title), overflow="fold")
    for title in ("price/h" if outcome.priced() else "devices", "samples/s", "stages"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("claim", no_wrap=True)
    for row in front:
        found, given = row.found or {}, dict(row.settings)
        cells = [human.printable(shown_value(given[path])) if path in given else "" for path in varied]
        claim = (
            "proved"
            if row.proved
            else f"gap {human.gap(found['gap'])}"
            if found["gap"] is not None
            else "no proof"
        )
        price = f"{outcome.price(found):,.2f}" if outcome.priced() else f"{found['devices']}"
        amounts = (price, f"{found['throughput']:,.4g}", str(len(found["stages"])))
        table.add_row(*cells, *amounts, Text(claim, style=GOOD if row.proved else OPEN))
    return table


def _thinned(front: list[SweepRow]) -> list[SweepRow]:
    """Return as many rows of a front as are shown, evenly from the cheapest to the fastest."""
    if len(front) <= MOST_ROWS:
        return front
    return [front[round(at * (len(front) - 1) / (MOST_ROWS - 1))] for at in range(MOST_ROWS)]


def _varied(outcome: SweepOutcome) -> dict[str, str]:
    """Return the paths that have several values, each with a short name: its end, where no other has the same."""
    values: dict[str, set[str]] = {}
    for row in outcome.rows:
        for path, value in row.settings:
            values.setdefault(path, set()).add(shown_value(value))
    found = [path for path, some in values.items() if len(some) > 1] or list(values)
    ends = {path: path.rpartition(".")[2] for path in found}
    return {path: end if list(ends.values()).count(end) == 1 else path for path, end in ends.items()}


def _reasons(outcome: SweepOutcome) -> list[Row]:
    failed = [row for row in outcome.rows if row.found is not None and row.found["proof"] is None]
    lines = [f"{row.name()}: {row.found['reason']}" for row in failed[:MOST_REASONS] if row.found is not None]
    if len(failed) > MOST_REASONS:
        lines.append(f"and {len(failed) - MOST_REASONS} more, in the results")
    return [("failed" if not at else "", human.printable(line)) for at, line in enumerate(lines)]
