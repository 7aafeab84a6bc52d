"""``pipecut.plan``: an outcome that knows its problem and prints as the table of the command line."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from commands.parts.answered import answered
from commands.results.displays import tell_notebook
from commands.terminal.human import WIDTH
from formulation.evaluate import evaluate
from formulation.outcome import Limits, Outcome
from formulation.problem.instance import Instance
from formulation.problem.plan import Plan
from planners.catalogue import find_any
from solvers.auto import solve as auto
from solvers.catalogue import AUTO
from solvers.choices.decide import decide
from solvers.choices.standing import Standing

if TYPE_CHECKING:
    from pandas import DataFrame

tell_notebook()


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Outcome):
    """An outcome with the instance that it is about. As text it is what ``pipecut plan`` prints."""

    instance: Instance = field(repr=False, compare=False)

    def __str__(self) -> str:
        """Return the stages and the claim, without colours and 80 columns wide."""
        from commands.tables.display import outcome_parts
        from commands.terminal.output import drawn

        evaluation = None if self.plan is None else evaluate(self.instance, self.plan)
        return drawn(*outcome_parts(self.instance, self, evaluation), width=WIDTH).rstrip("\n")

    def _repr_html_(self) -> str:
        """Return the picture of the plan and the text, for notebooks."""
        from commands.results.notebook import plan_in_html

        return plan_in_html(self.instance, self.plan, str(self))

    def layer_table(self) -> DataFrame:
        """Return the layers as a table of pandas, with what the plan makes of each; the order is that of the plan.

        Sizes are bytes for one sample, as in a layer graph; ``compute_ns`` is the time of one micro-batch on the
        devices of its stage, and ``form`` how the layer is split there (0: samples, 1: input features, 2: output
        features). Without a plan only the sizes. Raises ImportError without pandas
        (``pip install 'pipecut[notebook]'``). Cost: linear in layers.
        """
        from commands.results.notebook import layer_table

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
        return auto.plan(one, within, method, cross_check=cross_check)

    def chosen(within: Limits) -> tuple[Instance, Outcome]:
        return decide(instance, ask, within, cross_check=cross_check)

    return planned(*answered(chosen, limits, Standing(instance), method.name))
