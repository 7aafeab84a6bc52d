"""What stages before a suffix, and those behind a prefix, take at least under ZB-H1, of plans of so many stages.

As ``solvers.step_time.bounds.rest`` has it for whole backward passes, with what ZB-H1 puts off left out where it
may run beside the drain. With f, i, w the passes of a stage (i: backward, up to the gradient of its input), M
micro-batches and S stages, for a limit T on the step:

* stage s has done at least M - min(s + 1, M) of its w before its last i, as it does that of pair k right behind
  pair k + s: ``early = M (f + i) + (M - min(S, M)) w`` is never more than what it has done by then;
* ``behind``: the least until the first stage of a suffix has done its last i, ``max(early, f + i + t + what is
  behind)``: the suffix has no micro-batch before the first f, and the stage no last gradient before the suffix;
* ``ahead``: the least f, i and transfers of all stages before it, one after another: the first micro-batch comes
  through all f, and the last gradient goes back through all i;
* a stage by itself takes ``M (f + i + w) + sync``, as it synchronises behind its last w.

Stages that do not fit to all of these are in no plan within T.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.limits import Deadline, in_time
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.solvers.step_time.bounds.pass_tables import PassTables
from pipecut.solvers.step_time.bounds.rays import least_times
from pipecut.solvers.step_time.bounds.spans import Bits, Spans, spans_of
from pipecut.solvers.step_time.bounds.ways import NOTHING, Ways

NEVER_NS = 1 << 58
"""The time of no plan at all."""


@dataclass(frozen=True, slots=True, eq=False)
class HalfSpans:
    """Least times by kind, first place and stop: ``pace`` is f + i, ``early`` and ``whole`` as above.

    ``spans`` has what fits into memory and what boundaries take; ``stages`` is S.
    """

    spans: Spans
    pace: Times
    early: Times
    stages: int

    @property
    def whole(self) -> Times:
        """Passes of a step with its synchronisation."""
        return self.spans.whole


def half_spans(tables: Tables, passes: PassTables, space: CutSpace, stages: int) -> HalfSpans:
    """Work out the least passes of all stages. Raises as ``solvers.step_time.bounds.spans.spans_of`` does."""
    many, spans = tables.instance.training.micro_batches, spans_of(tables, passes, space)
    late = min(stages, many)
    return HalfSpans(
        spans=replace(
            spans,
            # More stages than there can be are in no plan, whatever fits.
            rules=(*spans.rules, *spans.rules[-1:] * stages)[:stages],
            warm_ups=tuple(range(slot, slot + 1) for slot in range(stages)),
        ),
        pace=least_times(tables, passes, (1, 1, 0, -1), space).time,
        early=least_times(tables, passes, (many, many, 0, -late), space).time,
        stages=stages,
    )


class HalfRest:
    """``behind`` and ``ahead`` for one limit, by slot, end and place, as ``solvers.step_time.search`` reads them.

    ``useful[rule]`` tells which stages of a kind may be in a plan within the limit, in slots of which this is the
    rule of what they keep; ``best`` is a bound of all plans. Raises StoppedError after the deadline. Cost: ways
    times stages of a kind, in every slot.
    """

    def __init__(self, of: HalfSpans, ways: Ways, most_ns: int, deadline: Deadline) -> None:
        self.spans, self.ways, self.most_ns, self._of, self._deadline = of.spans, ways, most_ns, of, deadline
        rules = set(of.spans.rules)
        self._allowed: dict[int, Bits] = {rule: of.spans.roomy[rule] & (of.whole <= most_ns) for rule in rules}
        shape = (of.stages, len(ways.node), of.pace.shape[2])
        self.behind: Times = np.full(shape, NEVER_NS, dtype=np.int64)
        self.ahead: Times = np.full(shape, NEVER_NS, dtype=np.int64)
        self.useful: dict[int, Bits] = {rule: np.zeros(of.pace.shape, dtype=np.bool_) for rule in rules}
        self.best = NEVER_NS
        for slot in range(of.stages):
            self._look_back(slot)
        self.ahead[-1, ways.whole, 0] = 0
        for slot in reversed(range(of.stages)):
            self._look_ahead(slot)

    def useful_of(self, warm_up: int) -> Bits:
        """Return which stages of a slot, which alone says their warm-up, may be in a plan within the limit."""
        return self.useful[self.spans.rules[warm_up]]

    def _stages(self, slot: int, way: int) -> tuple[Times, Times, Times, Times, Times]:
        """Return first places and stops, pace, least until the last i, and whole steps, with what is fetched."""
        ways, sent, count = self.ways, self.spans.boundaries, self.spans.micro_batches
        kind = ways.kind[way]
        first, stop = np.nonzero(self._allowed[self.spans.rules[slot]][kind])
        fetched = sent.fetched[ways.front[way], first] + sent.returned[ways.link[way], stop]
        pace = self._of.pace[kind, first, stop] + fetched
        source, behind = ways.source[way], np.full(self.behind.shape[2], NEVER_NS, dtype=np.int64)
        if slot and source != NOTHING:
            behind = self.behind[slot - 1, source] + sent.both[ways.link[way]]
        if not slot and source == NOTHING:
            behind[-1] = 0
        until = np.maximum(self._of.early[kind, first, stop] + count * fetched, pace + behind[stop])
        return first, stop, pace, until, self._of.whole[kind, first, stop] + count * fetched

    def _look_back(self, slot: int) -> None:
        for way in in_time(self._ways(slot), self._deadline):
            first, _, _, until, whole = self._stages(slot, way)
            least = np.maximum(until, whole)
            until[least > self.most_ns] = NEVER_NS
            target = self.ways.target[way]
            np.minimum.at(self.behind[slot, target], first, until)
            if slot == self._of.stages - 1 and self.ways.whole[target]:
                self.best = min(self.best, int(least[first == 0].min(initial=NEVER_NS)))

    def _look_ahead(self, slot: int) -> None:
        """From stages in a slot to what is ahead of the suffixes behind them."""
        useful = self.useful[self.spans.rules[slot]]
        for way in in_time(self._ways(slot), self._deadline):
            first, stop, pace, until, whole = self._stages(slot, way)
            before = self.ahead[slot, self.ways.target[way]][first]
            fits = (before + until <= self.most_ns) & (whole <= self.most_ns)
            useful[self.ways.kind[way], first[fits], stop[fits]] = True
            if slot:
                value = (before + pace)[fits] + self.spans.boundaries.both[self.ways.link[way], stop[fits]]
                np.minimum.at(self.ahead[slot - 1, self.ways.source[way]], stop[fits], value)

    def _ways(self, slot: int) -> list[int]:
        """Return the ways of stages in a slot: last ones have nothing behind them, others something."""
        found: list[int] = np.flatnonzero((self.ways.source == NOTHING) == (slot == 0)).tolist()
        return found
