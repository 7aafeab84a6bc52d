"""``pipecut.plan``: an outcome that knows its problem and prints as the table of the command line.

``pipecut.compare``: several solvers on one problem; it prints as the table of the command line.

Plans in a notebook. The formulation, whose value a plan is, knows no HTML; so the notebook is told of plans.

What results look like in a notebook: pictures as images, which no style of the notebook changes, and words.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from html import escape
from typing import TYPE_CHECKING, Any

from pipecut.commands.parts.answered import answered, decided_alone
from pipecut.commands.parts.comparison import KEEPS_RULES, ComparisonRow, broken_rules, strongest
from pipecut.commands.terminal.terminal import WIDTH
from pipecut.formulation.costs import times
from pipecut.formulation.costs.prices import form_of
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.outcome import FalseClaimError, Limits, Outcome
from pipecut.formulation.problem.groups import GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.schedules.table import ScheduleError
from pipecut.report.content import content_of
from pipecut.report.page import pictures, standalone
from pipecut.report.simulation import simulate
from pipecut.report.wording import printable
from pipecut.solvers.auto import solve as auto
from pipecut.solvers.catalogue import AUTO, find_any
from pipecut.solvers.choices.standing import Standing
from pipecut.solvers.choices.trainings import without_grids
from pipecut.solvers.crosscheck import contradiction, solve_checked

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True)
class Compared:
    """What each solver found, in the order in which they were asked, or why it found nothing.

    As text it is the table that ``pipecut compare`` prints.
    """

    instance: Instance = field(repr=False, compare=False)
    rows: tuple[ComparisonRow, ...]

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """The outcomes by solver, without those that could not take the problem."""
        return {row.solver: row.outcome for row in self.rows if row.outcome is not None}

    @property
    def refused(self) -> dict[str, str]:
        """Why each of the other solvers could not take the problem."""
        return {row.solver: row.reason for row in self.rows if row.outcome is None}

    @property
    def strongest(self) -> Outcome | None:
        """The outcome that says most: a proof, else the largest bound; gaps are measured to it."""
        return strongest(list(self.outcomes.values()))

    def __str__(self) -> str:
        """Return a row for each solver, without colours and 80 columns wide."""
        from pipecut.commands.parts.comparison import comparison_parts
        from pipecut.commands.terminal.terminal import drawn

        parts = comparison_parts(self.instance, list(self.rows), self.strongest)
        return drawn(*parts, width=WIDTH).rstrip("\n")

    def _repr_html_(self) -> str:
        """Return the text, for notebooks."""
        return words_in_html(str(self))


def compare(instance: Instance, solvers: Sequence[str], limits: Limits) -> Compared:
    """Ask solvers one after another, each within the limits; ``pipecut.compare`` says what is raised.

    Each is asked alone, so nothing is said of interleaved grids.
    """
    instance = without_grids(instance)
    rows = [_row(instance, name, limits) for name in solvers]
    kept = [row.outcome for row in rows if row.outcome is not None and row.outcome.proof in KEEPS_RULES]
    best = min(kept, key=lambda one: one.objective or 0, default=None)
    for row in rows:
        problem = None if row.outcome is None or best is None else contradiction(row.outcome, best)
        if problem:
            raise FalseClaimError(problem)
    return Compared(instance, tuple(rows))


def _row(instance: Instance, solver: str, limits: Limits) -> ComparisonRow:
    method, standing = find_any(solver), Standing(instance, alone=True)
    try:
        _, outcome = answered(
            lambda within: (instance, solve_checked(instance, method, within)), limits, standing, solver
        )
    except ValueError as error:
        return ComparisonRow(solver, reason=f"skipped: {error}")
    return ComparisonRow(solver, outcome, broken_rules(instance, outcome))


def tell_notebook() -> None:
    """Let the notebook that runs, if one does, show every plan by :func:`stages_in_html`."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        shell.display_formatter.formatters["text/html"].for_type(Plan, stages_in_html)


def stages_in_html(plan: Plan) -> str:
    """Return a table with a row a stage; a plan knows layers and servers by their numbers only."""
    rows = ["<tr><th>stage<th>layers<th>devices of servers<th>how they share it"]
    for at, stage in enumerate(plan.stages):
        devices = ", ".join(f"{count} x server {server}" for server, count in stage.group.counts)
        shared = stage.shared_in_words or "one copy"
        layers = f"{stage.span.first} to {stage.span.stop - 1}"
        rows.append("<tr><td>" + "<td>".join(map(escape, (str(at), layers, devices, shared))))
    return f"<table>{''.join(rows)}</table>"


def words_in_html(text: str) -> str:
    """Return a text of the terminal as HTML, in letters of one width."""
    shown = "\n".join(map(printable, text.split("\n")))
    return f'<pre style="line-height: 1.3">{escape(shown)}</pre>'


def plan_in_html(instance: Instance, plan: Plan | None, text: str) -> str:
    """Return the picture of a plan with words below it; only words of a plan that cannot be run."""
    if plan is None or evaluate(instance, plan).objective is None:
        return words_in_html(text)
    try:
        content = content_of(simulate(instance, plan), scenario=instance.name)
    except ScheduleError:
        return words_in_html(text)
    return drawn_in_html(content, ("plan",)) + words_in_html(text)


def drawn_in_html(content: dict[str, Any], names: tuple[str, ...]) -> str:
    """Return pictures of a run, by their names, as images that hold all that they need."""
    images = []
    for picture in pictures(content):
        if picture.name in names:
            data = base64.b64encode(standalone(picture).encode()).decode()
            words = escape(printable(picture.title), quote=True)
            source = f"data:image/svg+xml;base64,{data}"
            images.append(f'<img alt="{words}" style="max-width: 100%" src="{source}">')
    return "<br>".join(images)


def layer_table(instance: Instance, plan: Plan | None = None) -> DataFrame:
    """Return what ``Planned.layer_table`` says. Raises ImportError without pandas."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("tables need pandas: pip install 'pipecut[notebook]'") from error
    keys = ("name", "operator", "parameter_bytes", "input_bytes", "output_bytes", "stash_bytes", "macs")
    rows = [{key: getattr(layer, key) for key in keys} for layer in instance.layers]
    for index, stage in enumerate(plan.stages if plan else ()):
        kind = GroupKind.of(instance, stage.group)
        for layer in stage.span.layers:
            time_ns = times.compute_ns(instance, layer, form_of(instance, stage, layer), kind)
            devices = stage.group.devices
            rows[layer] |= {"stage": index, "devices": devices, "form": stage.form(layer), "compute_ns": time_ns}
    return pandas.DataFrame(rows)


tell_notebook()


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Outcome):
    """An outcome with the instance that it is about. As text it is what ``pipecut plan`` prints."""

    instance: Instance = field(repr=False, compare=False)

    def __str__(self) -> str:
        """Return the stages and the claim, without colours and 80 columns wide."""
        from pipecut.commands.parts.tables import outcome_parts
        from pipecut.commands.terminal.terminal import drawn

        evaluation = None if self.plan is None else evaluate(self.instance, self.plan)
        return drawn(*outcome_parts(self.instance, self, evaluation), width=WIDTH).rstrip("\n")

    def _repr_html_(self) -> str:
        """Return the picture of the plan and the text, for notebooks."""
        return plan_in_html(self.instance, self.plan, str(self))

    def layer_table(self) -> DataFrame:
        """Return the layers as a table of pandas, with what the plan makes of each; the order is that of the plan.

        Sizes are bytes for one sample, as in a layer graph; ``compute_ns`` is the time of one micro-batch on the
        devices of its stage, and ``form`` how the layer is split there (0: samples, 1: input features, 2: output
        features). Without a plan only the sizes. Raises ImportError without pandas
        (``pip install 'pipecut[notebook]'``). Cost: linear in layers.
        """
        return layer_table(self.instance, self.plan)

    def needed_plan(self) -> Plan:
        """Return the plan. Raises ValueError where there is none, and says why."""
        if self.plan is None:
            raise ValueError("; ".join((f"there is no plan: {self.proof}", *self.notes)))
        return self.plan


def planned(instance: Instance, outcome: Outcome) -> Planned:
    """Return an outcome with its instance."""
    return Planned(**{row.name: getattr(outcome, row.name) for row in fields(Outcome)}, instance=instance)


def plan(instance: Instance, solver: str | None, limits: Limits, *, cross_check: bool) -> Planned:
    """Solve, check and cross-check; ``pipecut.plan`` says what is raised."""
    method = AUTO if solver is None else find_any(solver)

    def ask(one: Instance, within: Limits) -> Outcome:
        return auto.plan(one, within, method, cross_check=False)

    return planned(*decided_alone(instance, ask, limits, method.name, cross_check=cross_check))
