"""Whether a plan keeps to a period T as executed: the least excess of all suffixes of plans, stage by stage.

A run of neighbouring stages keeps to T if its passes, and the transfers between them, take at most T for each
stage (``formulation.executed``). Of all runs that begin with the first stage of a suffix the largest
excess over that is

    z = pace - T + max(0, z of the suffix behind + boundary between),

and a plan keeps to T if, and only if, no z is above 0. Stages before a suffix see nothing else of it, so the least
z of each slot, node and place decides. A synchronisation in every micro-batch that is charged keeps its device
from the next pass, so it counts for the first stage of a run alone. One that is overlapped takes at most T for
each micro-batch between two updates. One that is charged once in several micro-batches is seen as far as its own
stage waits for it, which no plan undercuts: then the answer "no plan" holds, and "some plan" may be wrong.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipecut.formulation.certificates.executed.best_passes import BestStages, PassFronts, Within
from pipecut.formulation.certificates.executed.ways import NodeMoves
from pipecut.formulation.limits import NEVER, Deadline
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.options import Synchronisation
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.formulation.suffixes import End, State, rules_by_slot

NEVER_NS = 1 << 60
"""The excess of no suffix at all."""
Excess = NDArray[np.int64]


def keeps_to_period(instance: Instance, period_ns: int, deadline: Deadline = NEVER) -> bool:
    """Tell whether a plan may keep to a period; False is a proof that none does.

    Raises ValueError and TooLargeError as ``NodeMoves`` and ``PassFronts``, and StoppedError after the deadline.
    Cost: for each slot, moves of all states times the stages of their kinds.
    """
    return _Slots(instance, period_ns, deadline).reach_whole()


class _Slots:
    def __init__(self, instance: Instance, period_ns: int, deadline: Deadline) -> None:
        training, charged = instance.training, instance.cost.synchronisation is Synchronisation.CHARGED
        self._ways, self._period_ns, self._deadline = NodeMoves(instance, deadline), period_ns, deadline
        within = Within.period(training.micro_batches, period_ns, charged=charged)
        self._stages = PassFronts(instance, self._ways.kinds, within, deadline)
        self._at_once = charged and training.micro_batches == 1
        self._total = len(self._ways.places) - 1
        self._rules = rules_by_slot(instance, min(self._total, instance.devices))

    def reach_whole(self) -> bool:
        """Go on from slot to slot; tell whether a whole plan was reached."""
        excess: Excess | None = None
        for rule in self._rules:
            excess = self._before(rule, excess)
            if (excess[self._ways.whole, 0] < NEVER_NS).any():
                return True
            if (excess == NEVER_NS).all():
                break
        return False

    def _before(self, rule: Keeps | None, behind: Excess | None) -> Excess:
        """Return the least excesses with one stage more (None: of last stages), by node and place."""
        found: Excess = np.full((len(self._ways.whole), self._total + 1), NEVER_NS, dtype=np.int64)
        for state, end, moves in self._ways:
            self._deadline.check()
            added = self._added(state, end, behind)
            if (added == NEVER_NS).all():
                continue
            of_kind = {kind: self._put(rule, kind, added) for kind in {one for way in moves for one in way.kinds}}
            for way in moves:
                for kind in way.kinds:
                    np.minimum(found[way.node], of_kind[kind], out=found[way.node])
        return found

    def _added(self, state: State, end: End, behind: Excess | None) -> Excess:
        """Return what suffixes in a state add to the run of a stage with this end, by the place where it stops."""
        found: Excess = np.full(self._total + 1, NEVER_NS, dtype=np.int64)
        if behind is None:
            found[-1] = 0 if state in self._ways.empty else NEVER_NS
            return found
        for node, first in self._ways.nodes.get(state, ()):
            added = np.maximum(behind[node] + self._ways.boundary(end, first).sum(axis=0), 0)
            np.minimum(found, np.where(behind[node] < NEVER_NS, added, NEVER_NS), out=found)
        return found

    def _put(self, rule: Keeps | None, kind: int, added: Excess) -> Excess:
        """Return the least excess of a stage of a kind before suffixes that add so much, by its first place."""
        found: Excess = np.full(self._total + 1, NEVER_NS, dtype=np.int64)
        rows: BestStages = self._stages.rows(kind, rule)
        excess = rows.passes[:, 0] + rows.passes[:, 1] - self._period_ns + added[rows.stop]
        some = excess + self._at_once * rows.passes[:, 2] <= 0
        np.minimum.at(found, rows.first[some], excess[some])
        return found
