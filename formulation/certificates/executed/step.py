"""Whether a step may take at most T as executed: suffixes of plans, by how they answer what comes to them.

Suffixes grow from the last stage to the front. One goes where another on the same devices begins at the same place
and answers nothing later (``formulation.certificates.executed.weighed_suffixes``): it can take its place in every
plan. And one goes where no plan of any number of stages goes on with it within T: by weighed paths, whose sums
over the suffix are known, and over the stages before it no less than ``formulation.certificates.executed.ahead``
says. Paths and weights come with the certificate; they decide how many suffixes are left, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pipecut.formulation.certificates.executed.best_passes import BestStages, PassFronts, RoomOfStages, Within
from pipecut.formulation.certificates.executed.paths import WeighedPaths, warm_ups
from pipecut.formulation.certificates.executed.sums import Sums
from pipecut.formulation.certificates.executed.ways import Move, Rows
from pipecut.formulation.certificates.executed.weighed_bounds import PathBounds
from pipecut.formulation.certificates.executed.weighed_suffixes import AnsweredSuffixes, Index, answers_of
from pipecut.formulation.limits import NEVER, Deadline, TooLargeError
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.formulation.suffixes import End

MOST_SUFFIXES = 1 << 18
"""So many suffixes are looked at in one proof."""
MOST_NUMBERS = 1 << 26
"""So many numbers are kept of the suffixes of one slot."""
AT_ONCE = 1 << 20
"""About so many numbers are worked out in one go."""


class StepProof:
    """Proofs about the step of an instance, for one limit after another.

    ``weighed``: paths with weights, of plans of so many stages; without any a proof takes longer. Raises as
    ``PathBounds``.
    """

    def __init__(
        self, instance: Instance, weighed: Sequence[WeighedPaths] = (), deadline: Deadline = NEVER
    ) -> None:
        self._instance, self._deadline = instance, deadline
        self._bounds = PathBounds(instance, weighed, deadline)

    def may_keep(self, step_ns: int) -> bool:
        """Tell the same by paths alone, in less time: False is a proof, and True says nothing.

        Raises PathError as :meth:`keeps`, and StoppedError after the deadline.
        """
        return bool(self._bounds.within(step_ns)[0])

    def keeps(self, step_ns: int) -> bool:
        """Tell whether a plan keeps to a time of a step; False is a proof that none does.

        Raises PathError for paths with weights that are too large, TooLargeError where there are too many suffixes
        of plans, or stages, and StoppedError after the deadline.
        """
        return _Growth(self._instance, self._bounds, step_ns, self._deadline).reaches_whole()


def keeps_to_step(instance: Instance, step_ns: int, weighed: Sequence[WeighedPaths] = ()) -> bool:
    """Tell whether a plan keeps to a time of a step, as :class:`StepProof` does."""
    return StepProof(instance, weighed).keeps(step_ns)


class _Growth:
    """Suffixes by slot; ``step_ns`` is the limit."""

    def __init__(self, instance: Instance, bounds: PathBounds, step_ns: int, deadline: Deadline) -> None:
        self._ways, self._rules, self._step_ns, self._deadline = bounds.ways, bounds.rules, step_ns, deadline
        self._count, self._left = bounds.micro_batches, MOST_SUFFIXES
        self._warm_ups = warm_ups(instance.training, len(self._rules))[::-1]
        self._bounds, self._rooms = bounds.within(step_ns)
        within = Within.step(self._count, step_ns)
        self._stages = PassFronts(instance, self._ways.kinds, within, deadline, self._rooms_by)

    def _rooms_by(self, kind: int, rule: Keeps | None) -> list[RoomOfStages]:
        """Return what stages of a kind may take in all slots with a rule."""
        slots = (own for one, own in zip(self._rules, self._rooms, strict=True) if one == rule)
        return [room[kind] for own in slots for room in own if kind in room]

    def reaches_whole(self) -> bool:
        """Grow until no suffix is left, or a whole plan keeps to the limit; tell whether one does."""
        behind: AnsweredSuffixes | None = None
        for slot in range(max((same[0].weighed.stages for same in self._bounds), default=0)):
            parts: list[AnsweredSuffixes] = []
            for part in self._longer(slot, behind):
                whole = (part.place == 0) & self._ways.whole[part.node]
                if whole.any():
                    return True
                parts.append(part.of(part.place > 0))
            if not parts:
                return False
            behind = AnsweredSuffixes.joined(parts).unbeaten(self._deadline)
            if behind.answers.size > MOST_NUMBERS:
                raise TooLargeError(f"{len(behind.node)} suffixes of plans are too many for a proof of a step")
        return False

    def _longer(self, slot: int, behind: AnsweredSuffixes | None) -> Iterator[AnsweredSuffixes]:
        """Yield suffixes with a stage put into a slot before those behind it (None: last stages)."""
        seen = (
            []
            if behind is None
            else [[one.seen(slot - 1, behind.answers) for one in same] for same in self._bounds]
        )
        for state, end, moves in self._ways:
            self._deadline.check()
            if behind is None:
                if state in self._ways.empty:
                    yield from self._put(slot, moves, None, [], np.zeros((0, 2), dtype=np.int64))
                continue
            for node, first in self._ways.nodes.get(state, ()):
                low, high = np.searchsorted(behind.node, [node, node + 1])
                if low < high:
                    some = np.arange(low, high)
                    sent = self._sent(end, first)[behind.place[some]]
                    yield from self._put(
                        slot, moves, behind.of(some), [[one[some] for one in own] for own in seen], sent
                    )

    def _sent(self, end: End, behind: End) -> Rows:
        """Return what crosses a boundary by place; what takes longer than a step counts as a little longer."""
        return np.minimum(self._ways.boundary(end, behind), self._step_ns + 1).T

    def _put(
        self, slot: int, moves: list[Move], behind: AnsweredSuffixes | None, seen: list[list[Sums]], sent: Rows
    ) -> Iterator[AnsweredSuffixes]:
        """Yield what is left of suffixes with stages put before these, of which paths see so much."""
        for way in moves:
            for kind in way.kinds:
                stages = self._stages.rows(kind, self._rules[slot])
                for rows, suffix in self._pairs(stages, behind):
                    part = self._made(slot, way.node, (stages, rows, suffix), behind, seen, sent)
                    if len(part.node):
                        yield part

    def _pairs(self, stages: BestStages, behind: AnsweredSuffixes | None) -> Iterator[tuple[Index, Index]]:
        """Yield pairs of a stage and a suffix that begins where it stops, about so many in one go."""
        places = np.zeros(1, dtype=np.intp) + len(self._ways.places) - 1 if behind is None else behind.place
        many = stages.begins[places + 1] - stages.begins[places]
        size = max(1, AT_ONCE // (self._count * (self._count + 1)))
        for some in np.split(np.arange(len(places)), np.flatnonzero(np.diff(many.cumsum() // size)) + 1):
            suffix = np.repeat(some, many[some])
            within = np.arange(len(suffix)) - np.repeat(many[some].cumsum() - many[some], many[some])
            if len(suffix):
                yield stages.begins[places[suffix]] + within, suffix

    def _made(
        self,
        slot: int,
        node: int,
        pairs: tuple[BestStages, Index, Index],
        behind: AnsweredSuffixes | None,
        seen: list[list[Sums]],
        sent: Rows,
    ) -> AnsweredSuffixes:
        """Return the suffixes of these pairs of a stage and a suffix that a plan within the limit may have."""
        stages, rows, suffix = pairs
        if behind is None:
            nothing = np.zeros(1, dtype=np.int64)
            sent, seen = np.zeros((1, 2), dtype=np.int64), [[nothing for _ in same] for same in self._bounds]
        passes, first = stages.passes[rows], stages.first[rows]
        good = np.zeros(len(rows), dtype=np.bool_)
        for same, sums in zip(self._bounds, seen, strict=True):
            over = np.zeros(len(rows), dtype=np.bool_)
            for one, own in zip(same, sums, strict=True):
                over |= one.over(slot, node, passes, first, sent[suffix], own[suffix], self._step_ns)
            good |= ~over
        rows, suffix = rows[good], suffix[good]
        self._left -= len(rows)
        if self._left < 0:
            raise TooLargeError("a proof of a step has to look at too many suffixes of plans")
        answers = None if behind is None else behind.answers[suffix]
        answers = answers_of(stages.passes[rows], sent[suffix], answers, self._warm_ups[slot], self._count)
        found = AnsweredSuffixes(np.full(len(rows), node), stages.first[rows], answers)
        left = (found.place == 0) & self._ways.whole[node]
        for same in self._bounds:
            left |= ~np.logical_or.reduce([one.beyond(slot, found, self._step_ns) for one in same])
        return found.of((found.ended() <= self._step_ns) & left)
