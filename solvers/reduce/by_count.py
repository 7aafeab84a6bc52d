"""The least time of a step on clusters with too many places: stages by how many devices they have, at a price.

Plans whose slowest stage takes more than ``lo`` and at most ``hi`` are bounded by the programme of
``solvers.reduce.device_prices`` at the price of a device that makes the bound largest: it is concave in the price,
so two answers, one with more devices than there are and one with fewer, tell where to ask next. Intervals are
halved, the one that promises least first; in short ones suffixes are told apart by their devices, and all ways
through a step are looked at (``solvers.reduce.by_devices``). Answers whose stages stand on the line, one behind
the other, are plans. The *slowest stage* is the one whose least time is the longest when nothing is open any more.

By the formula stages and boundaries count once, and the slowest of them beside it. As executed, with ``tail`` the
stages behind the slowest one and what is between, which it has s of, and ``pre`` those before it, a step of M
micro-batches takes at least (``solvers.reduce.executed.slowest``)

* ``pre + 2 tail + (M - s) p`` where M >= s + 2;
* ``pre + tail + (M + 1) p / 2`` else: the stage runs all forward passes before the first backward one. One way
  goes through its first forward pass, down and up behind it, and all its backward passes; another one through all
  forward passes, down and up, and its last backward pass. The mean of both is no more than the longer one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from pipecut.formulation.limits import Deadline, TooLargeError
from pipecut.formulation.problem.instance import FORBIDDEN
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers.reduce.by_devices import MOST, DeviceSums
from pipecut.solvers.reduce.counted import CountedStages, ExecutedStages
from pipecut.solvers.reduce.device_prices import Option, PricedAnswer, PricedQuestion, PricedSums
from pipecut.solvers.reduce.executed.steps import ByStep
from pipecut.solvers.reduce.programme import Cell
from pipecut.solvers.reduce.reduced_stages import ReducedStages
from pipecut.solvers.search.grids import one_f_one_b

# Intervals are halved until they are no longer than such a part of where they begin.
FINE = 1 << 11
# Stages are settled, and plans priced, in intervals that are no longer than such a part of their begin.
NARROW = 16
# A bound is the best of all prices where it is as near to what any could bring as such a part of a plan.
CLOSE = 1 << 14
# Or as near as such a part of what pipelines differ in whose slowest stages are at the ends of an interval.
ROUGH = 64
# So many prices are asked for an interval at most.
PRICES = 16
# Plans are looked for exactly that take more than the bound by such a part of it at most, at first and later.
PART, COARSEST = 128, 64
# So many plans are priced at most.
TRIED = 40


@dataclass(order=True, slots=True)
class Open:
    """An interval: its bound, the price that makes it, its answer, and whether that is ``exact`` in devices.

    Plans are looked for exactly that take more than the bound by no more than one ``part`` of it in so many.
    """

    bound: int
    lo: int = field(compare=False)
    hi: int = field(compare=False)
    price: int = field(compare=False)
    cells: tuple[Cell, ...] = field(default=(), compare=False)
    exact: bool = field(default=False, compare=False)
    part: int = field(default=PART, compare=False)


@dataclass(slots=True)
class ByCount:
    """The search of one number of micro-batches; the fields are those of ``ByStep``.

    ``executed``: the step as executed, else by the formula; ``bounded``: there boundaries count among stages.
    ``make`` returns the plan of some stages, ``takes`` what one of them in a slot takes in it. ``then`` returns
    who goes on where it has ended, which is given to it.
    """

    stages: CountedStages
    micro_batches: int
    executed: bool
    make: Callable[[Sequence[Cell]], Plan | None]
    takes: Callable[[Cell, int], int | None]
    price: Callable[[Plan], int | None]
    deadline: Deadline
    upper: int
    bounded: bool = True
    bound: int = 0
    plan: Plan | None = None
    best: int = FORBIDDEN
    then: Callable[[ByCount], ByStep] | None = None
    _open: list[Open] = field(default_factory=list)
    _seen: set[tuple[Cell, ...]] = field(default_factory=set)
    _promised: list[tuple[int, list[Cell]]] = field(default_factory=list)

    @staticmethod
    def of(stages: ReducedStages, price: Callable[[Plan], int | None], upper: int) -> ByCount:
        """Search for the step of these stages: as executed where they count the time of passes alone."""
        many, deadline, takes = stages.micro_batches, stages.deadline, partial(_taken, stages)
        of = ExecutedStages(stages) if stages.each else stages
        counted = CountedStages.of(stages, of)
        return ByCount(counted, many, stages.each, of.plan, takes, price, deadline, upper)

    @property
    def most(self) -> int:
        """Return the value that a plan has to be below to be of use."""
        return min(self.upper, self.best)

    def begin(self) -> None:
        """Open all plans whose slowest stage takes no more than is of use."""
        # Any stage runs as many passes as there are micro-batches.
        hi, price = self.most // self.micro_batches, self.most // self.stages.line.devices
        least = self.stages.pace_ns()
        whole = Open(self.micro_batches * least, least - 1, hi, price)
        fewest, most = self.stages.numbers
        self._open = [whole] if least <= hi and fewest <= most else []

    def step(self) -> bool:
        """Halve the interval that promises least; tell whether anything is left to do."""
        if not self._open or self._open[0].bound >= self.most:
            self._open, self.bound = [], max(self.bound, self.most)
            return False
        top = heapq.heappop(self._open)
        self.bound = max(self.bound, top.bound)
        narrow, fine = (top.hi - top.lo <= max(0, top.lo) // part + 1 for part in (NARROW, FINE))
        if narrow and not top.exact:
            try:
                self._keep(self._exactly(top), top)
            except TooLargeError:  # whoever goes on tells stages apart by their places
                heapq.heappush(self._open, top)
                return False
            self._try_best()
            return True
        if narrow and self._closer(top):
            heapq.heappush(self._open, replace(top, exact=False))
            return True
        if fine:
            heapq.heappush(self._open, top)
            return False
        middle = (top.lo + top.hi) // 2
        for lo, hi in ((top.lo, middle), (middle, top.hi)):
            self._put(lo, hi, top)
        return True

    def _closer(self, one: Open) -> bool:
        """Settle the stages of an answer, and a little beyond its interval; tell whether anything changed.

        Its plan is made of other stages then.
        """
        limit = min(self.most // self.micro_batches, one.hi + one.hi // NARROW)
        changed = self.stages.closer(one.cells, limit + 1, self.most)
        if changed:
            self._seen.discard(one.cells)
        return changed

    def _put(self, lo: int, hi: int, of: Open) -> None:
        """Keep a part of an interval if a plan of it may be of use."""
        self._keep(self._bounded(lo, hi, of.price), of)
        if hi - lo <= max(0, lo) // NARROW + 1:
            self._try_best()
        self._promised = []

    def _keep(self, found: Open | None, of: Open) -> None:
        if found is not None and found.bound < self.most:
            found.bound = max(of.bound, found.bound, self.micro_batches * (found.lo + 1))
            heapq.heappush(self._open, found)

    def _try_best(self) -> None:
        """Price the plan that promises most of those that were met and not priced before."""
        new = [one for one in self._promised if tuple(one[1]) not in self._seen]
        if new:
            self._try(min(new, key=lambda one: one[0])[1])
        self._promised = []

    def _bounded(self, lo: int, hi: int, price: int) -> Open | None:
        """Return an interval with its largest bound; None where no plan is of use."""
        question, total = self._question(lo, hi), self.stages.line.devices
        added, enough = question.more[0], max(self.most // CLOSE, self.micro_batches * (hi - lo) // ROUGH)
        # Sums less the price of all devices may be below nothing: any answer is better than none.
        best, few, many = Open(-FORBIDDEN, lo, hi, price), None, None
        for _ in range(PRICES):
            found = self._ask(question, price)
            if found is None:
                return None
            best = max(best, Open(found.value + added, lo, hi, price, found.cells))
            if found.devices > total:
                many = price, found
            else:
                few = price, found
                if found.devices == total or not price:
                    break
            if few is None or many is None:
                price = 4 * price + 1 if few is None else price // 4
                continue
            price, most = _crossed(many, few, total)
            if most + added - best.bound <= enough or not many[0] < price < few[0]:
                break
        return best

    def _exactly(self, one: Open) -> Open | None:
        """Return an interval with the bound of plans on no more devices than there are; None where none is of use.

        Plans are looked for that take little more than the bound; where there are none it has risen by as much.
        """
        question = self._question(one.lo, one.hi)
        bound = max(one.bound, question.beside)
        within = replace(question, budget=min(question.budget, bound + bound // one.part + 1))
        sums, found = PricedSums.of(self.stages, within, self._payable(within, one.price)), None
        if sums.fill():
            found = DeviceSums.of(sums, self.deadline).least(MOST if self.then else None)
        if found is None:
            return replace(one, bound=within.budget + 1, part=max(COARSEST, one.part // 2))
        self._promise(found)
        least = max(bound, found.value + question.more[0])
        return replace(one, bound=least, cells=found.cells, exact=True, part=PART)

    def _payable(self, question: PricedQuestion, price: int) -> int:
        return min(price, (FORBIDDEN - 1 - question.budget) // self.stages.line.devices)

    def _ask(self, question: PricedQuestion, price: int) -> PricedAnswer | None:
        self.deadline.check()
        found = PricedSums.of(self.stages, question, self._payable(question, price)).least()
        if found is not None and found.devices <= self.stages.line.devices:
            self._promise(found)
        return found

    def _promise(self, found: PricedAnswer) -> None:
        """Keep an answer that may be a plan of use."""
        promised = self._step_of(found.times, found.crossed) + found.once
        if promised < self.most and self.stages.fits(list(found.cells)):
            self._promised.append((promised, list(found.cells)))

    def _step_of(self, times: Sequence[int], crossed: Sequence[int]) -> int:
        """Return what a step of stages that take so long promises: as executed it may take a little longer."""
        if self.executed:
            return one_f_one_b(np.array(times), np.array(crossed, dtype=np.int64), self.micro_batches)
        slowest = max((*times, *crossed) if self.bounded else times)
        return sum(times) + sum(crossed) + (self.micro_batches - 1) * slowest

    def _question(self, lo: int, hi: int) -> PricedQuestion:
        many, most = self.micro_batches, self.stages.numbers[1]
        if not self.executed:
            beside = (many - 1) * (lo + 1)
            once, budget = ((Option(1, 0, 0, 1),),), self.most - 1
            return PricedQuestion(lambda _: once, lo, hi, budget, self.bounded, beside, (beside,))
        # The mean of both ways through a stage, and that of those through one that has fewer micro-batches.
        beside = (2 * (many - 1) - min(most - 1, many - 1)) * (lo + 1) // 2
        more = (0, max(0, many - most) * (lo + 1), (many - 1) * (lo + 1) // 2)
        return PricedQuestion(self._phases, lo, hi, self.most - 1, False, beside, more, many)

    def _phases(self, slot: int) -> tuple[tuple[Option, ...], ...]:
        """Return what stages may be as executed: the slowest or before it; behind it twice, or once."""
        many = self.micro_batches
        # Behind a stage with few micro-batches all counts once.
        slowest = Option(0, 2 * (many - slot), 1, 2) if many >= slot + 2 else Option(0, many + 1, 2, 1)
        before = (Option(1, 0, 0, 1),) if slot else ()
        once = () if many > self.stages.numbers[1] else (Option(1, 0, 2, 1),)
        return (slowest, *before), (Option(2, 0, 1, 2),), once

    def _try(self, cells: Sequence[Cell]) -> None:
        """Price the plan of an answer, if it is a new one that promises to be better than the best."""
        key = tuple(cells)
        if key in self._seen or len(self._seen) >= TRIED:
            return
        self._seen.add(key)
        times = [self.takes(cell, len(cells) - 1 - at) for at, cell in enumerate(cells)]
        known = [time for time in times if time is not None]
        if len(known) < len(times) or self._step_of(known, [0] * (len(known) - 1)) >= self.most + self.most // 64:
            return
        plan = self.make(cells)
        value = None if plan is None else self.price(plan)
        if value is not None and value < self.most:
            self.plan, self.best = plan, value


def _taken(stages: ReducedStages, cell: Cell, slot: int) -> int | None:
    """Return what a stage takes that is among the fastest that fit; None if none was found."""
    found = stages.label(cell, slot)
    return None if found is None else stages.taken(found[1])


def _crossed(many: tuple[int, PricedAnswer], few: tuple[int, PricedAnswer], total: int) -> tuple[int, int]:
    """Return the price at which two answers take the same, and what they take there, which no bound exceeds.

    One has more devices than there are in total, the other one fewer.
    """
    (low, one), (high, other) = many, few
    more, less = one.devices - total, other.devices - total
    price = (other.value - one.value + low * more - high * less) // (more - less)
    return price, one.value + (price + 1 - low) * more
