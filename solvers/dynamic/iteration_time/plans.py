"""What paths promise, made good: plans out of proposals, and stages that turn out to take longer than thought."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipecut.formulation.costs.tables import Times
from pipecut.formulation.outcome import FalseClaimError
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.problem.plan import Plan, Span
from pipecut.solvers.dynamic.iteration_time.blocks import StageSpans
from pipecut.solvers.dynamic.iteration_time.network import Network
from pipecut.solvers.dynamic.iteration_time.proposals import Correction, CutPath, groups_on, plan_of, potential_of
from pipecut.solvers.dynamic.iteration_time.sequence import Weights, best_cuts
from pipecut.solvers.dynamic.iteration_time.stages import TrueStages
from pipecut.solvers.dynamic.iteration_time.steps import FlatSteps

PROPOSING = 0.25
"""Share of the time that may go into plans for proposed devices, beside one second."""


class Plans:
    """The price of the best plan (``upper``) and the corrections that were found while plans were made.

    ``take`` prices a plan and returns the best price from then on.
    """

    def __init__(self, spans: StageSpans, weights: Weights, upper: int, take: Callable[[Plan], int]) -> None:
        self.spans, self.weights, self.upper = spans, weights, upper
        self.corrections: list[Correction] = []
        self._tables = spans.limits.times.tables
        self._kind_of = dict(zip(self._tables.groups, self._tables.kind_of, strict=True))
        self._true = TrueStages(spans)
        self._take = take
        self._tried: set[tuple[Group, ...]] = set()
        self._began, self._proposing_s = time.monotonic(), 0.0

    def propose(self, network: Network, path: list[int]) -> Plan | None:
        """Give the stages of a coarse path their best cuts and price the plan; None if it is none or no better.

        Devices are tried once, and only while proposals take a small part of the time.
        """
        groups = groups_on(network.layout.steps, network.stages.step[path].tolist(), self._tables)
        now = time.monotonic()
        if groups in self._tried or self._proposing_s > 1 + PROPOSING * (now - self._began):
            return None
        self._tried.add(groups)
        cutting = best_cuts(self.spans, groups, self.weights, self.upper)
        plan = None if cutting is None else self._true.filled(plan_of(groups, cutting.cuts))
        if plan is not None:
            self.upper = self._take(plan)
        self._proposing_s += time.monotonic() - now
        return plan

    def settle(self, steps: FlatSteps, path: CutPath, promised_ns: int) -> bool:
        """Make the plan of a path over single cuts; False if stages take longer than thought (``corrections``).

        Raises FalseClaimError if the plan costs more than was promised.
        """
        learnt = False
        for at, (step, thought_ns) in enumerate(zip(path.steps, path.times, strict=True)):
            kind = int(steps.kind[step])
            slot, span = len(path.steps) - 1 - at, Span(path.cuts[at], path.cuts[at + 1])
            true = self._true.least(slot, kind, span)
            least = FORBIDDEN if true is None else true[0]
            if least > thought_ns:
                learnt = True
                self.corrections.append(Correction(self.spans.rank(slot), kind, span.first, span.stop, least))
        if learnt:
            return False
        plan = self._true.filled(plan_of(groups_on(steps, path.steps, self._tables), path.cuts))
        if plan is not None:
            self.upper = self._take(plan)
        if self.upper > promised_ns:
            raise FalseClaimError(f"a path promises {promised_ns} ns, the best plan known takes {self.upper} ns")
        return True

    def potential(self, plan: Plan) -> Times:
        """Return what a plan costs before every cut, by the tables."""
        kinds = [self._kind_of[stage.group] for stage in plan.stages]
        spans = [self.spans.atoms.space.run(stage.span) for stage in plan.stages]
        times = [int(self.spans.time[kind, one.first, one.stop]) for kind, one in zip(kinds, spans, strict=True)]
        return potential_of(spans, times, self._tables, kinds)
