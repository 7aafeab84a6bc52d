"""What fixed orders lose against the proved optimum of the same stages and devices, in the same memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from pipecut.formulation.outcome import Limits
from pipecut_literature.orders.fixed import Executed, fixed_orders
from pipecut_literature.orders.outcome import OrderOutcome
from pipecut_literature.orders.problem import OrderProblem
from pipecut_literature.orders.solve import solve


@dataclass(frozen=True, slots=True)
class Comparison:
    """The best order, and every fixed order by name as its authors have it: executed, whether it fits or not."""

    problem: OrderProblem
    outcome: OrderOutcome
    fixed: dict[str, Executed]

    def fits(self, name: str) -> bool:
        """Tell whether a fixed order keeps within the memory of every rank."""
        return self.fixed[name].fits(self.problem)

    def loss(self, name: str) -> Fraction | None:
        """Return by how much of the best order's makespan a fixed order is longer; None if it does not fit.

        A lower limit of the loss to the optimum unless the outcome is OPTIMAL.
        """
        best = self.outcome.makespan_ns
        if best is None or not self.fits(name):
            return None
        return Fraction(self.fixed[name].makespan_ns - best, best)


def compare(problem: OrderProblem, limits: Limits) -> Comparison:
    """Return the best order beside the fixed ones. Cost: that of ``best_order``.

    Naive, GPipe and 1F1B are executed with whole backward passes even where the problem has split ones: an order
    of split passes can always do at least as well, by doing ``W`` right after ``I``. (Where the weight gradient
    needs more bytes than the whole stash, it may need more memory.)
    """
    fixed = fixed_orders(replace(problem, split=False))
    if problem.split:
        fixed = fixed_orders(problem) | fixed
    return Comparison(problem, solve(problem, limits), fixed)
