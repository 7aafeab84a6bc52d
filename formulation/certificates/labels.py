"""The proof in a certificate: labels of suffixes, checked by induction from the last stage to the first.

A *suffix* is the last stages of a plan. Its label lists the layers at which suffixes with

* as many stages (slots 0 to k, counted from the last; left out where the slot changes nothing, which is where
  memory is not limited or every stage keeps the same number of micro-batches),
* the same devices (``formulation.suffixes.states``), and
* a first stage on the same servers, with as many adapters

may start, if every stage and boundary takes at most T. A suffix that has no label starts nowhere. The induction
puts every possible stage in front of every labelled suffix: it stops at a cut of that suffix's label over whose
link the boundary takes at most T, and must not be able to start at a layer that its own label leaves out. Stages
start and stop at places to cut (``formulation.problem.cuts``) alone, so what a label says of other layers does
not matter. Only the *next* cut behind such a layer is looked at, because a stage that does not fit never fits when
it goes on further. The step rests on two facts: a layer at the end only adds to the computation, the communication
and the memory of a stage; and servers that cannot be told apart may exchange their places.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import cache

from formulation.certificates.stages import StageFits
from formulation.costs.times import activation_ns, gradient_ns
from formulation.problem.cuts import CutSpace
from formulation.problem.groups import Group, GroupKind
from formulation.problem.instance import Instance
from formulation.problem.units import Link
from formulation.suffixes.slots import slots_matter
from formulation.suffixes.states import End, State, Step, suffixes

Runs = tuple[tuple[int, int], ...]
"""Layers, as ascending runs (first, last) with both ends inside."""
Key = tuple[int, State, End]
"""Slot of the suffix's first stage (0 where slots change nothing), devices taken, end of the first stage."""
Labels = dict[Key, Runs]
Suffix = tuple[End, Runs]
"""End of a suffix's first stage, and the layers at which it may start."""


class CertificateError(ValueError):
    """A certificate does not prove what it claims; the message says where it fails."""


def verify_labels(instance: Instance, threshold_ns: int, labels: Labels) -> None:
    """Check by induction that no plan takes at most ``threshold_ns``; else raise CertificateError.

    Cost: one lookup for each slot, labelled state and stage before it, and a few exact stages for each label.
    Raises ValueError as ``possible_groups`` and ``suffixes`` do.
    """
    _Induction(instance, threshold_ns, labels).check()


class _Induction:
    def __init__(self, instance: Instance, threshold_ns: int, labels: Labels) -> None:
        self._total = len(instance.layers)
        self._places = CutSpace.of(instance).places
        self._slots = min(len(self._places) - 1, instance.devices)
        self._instance, self._threshold_ns, self._labels = instance, threshold_ns, labels
        self._matter = slots_matter(instance)
        self._suffixes = suffixes(instance)
        kinds = [GroupKind.of(instance, group) for group in Group.possible(instance)]
        self._kinds = tuple(dict.fromkeys(kinds))
        number = {kind: at for at, kind in enumerate(self._kinds)}
        self._kinds_at = tuple(
            tuple(dict.fromkeys(number[kinds[index]] for index in place.groups)) for place in self._suffixes.places
        )
        self._fits = StageFits(instance, self._kinds, threshold_ns)
        self._steps = cache(lambda state: tuple(self._suffixes.before(state)))
        self._crossable = cache(self._cuts_over)
        self._cuts_between = cache(lambda one, other: self._crossable(self._link(one, other)))

    def check(self) -> None:
        """Check the labels themselves, that none is a whole plan, and every step of the induction."""
        by_state: dict[int, dict[State, list[Suffix]]] = {}
        for (slot, state, first), runs in self._labels.items():
            self._check_label(slot, state, first, runs)
            by_state.setdefault(slot, {}).setdefault(state, []).append((first, runs))
        for state in self._suffixes.empty():
            self._check_before(0, state, None)
        if not self._matter:
            for state, known in by_state.get(0, {}).items():
                self._check_before(0, state, known)
            return
        for slot in range(1, self._slots):
            for state, known in by_state.get(slot - 1, {}).items():
                self._check_before(slot, state, known)

    def _check_label(self, slot: int, state: State, first: End, runs: Runs) -> None:
        where = f"label of slot {slot}, devices {state}, servers {first[0]}"
        if not 0 <= slot < (self._slots if self._matter else 1):
            raise CertificateError(f"{where}: no plan has such a slot")
        if not self._suffixes.possible(state) or not set(first[0]) <= set(range(len(self._instance.servers))):
            raise CertificateError(f"{where}: the cluster has no such devices")
        ends = [end for run in runs for end in run]
        if ends != sorted(ends) or not all(0 <= end < self._total for end in ends):
            raise CertificateError(f"{where}: expected runs of layers 0 to {self._total - 1} in order, got {runs}")
        if runs and runs[0][0] == 0 and self._suffixes.complete(state):
            raise CertificateError(f"{where}: it starts at layer 0, so it does not exclude a whole plan")

    def _check_before(self, slot: int, state: State, known: list[Suffix] | None) -> None:
        """Check every stage that comes before suffixes in this state (None: before nothing, a last stage)."""
        following: dict[End, _Following] = {}
        for step in self._steps(state):
            end = self._suffixes.places[step.place].end
            if end not in following:
                following[end] = _Following(self._options(end, known))
            self._check_step(slot, step, following[end])

    def _options(self, end: End, known: list[Suffix] | None) -> list[tuple[list[int], Runs]]:
        if known is None:
            return [([self._total], ((self._total, self._total),))]
        return [(self._cuts_between(end, first), runs) for first, runs in known]

    def _check_step(self, slot: int, step: Step, following: _Following) -> None:
        runs = self._labels.get((slot, step.state, step.first), ())
        for low, high in _left_out(runs, self._total):
            start = low
            while start < high:
                stop = following.after(start)
                if stop is None:
                    break
                until = min(high, stop)
                starts = self._places[bisect_left(self._places, start) : bisect_left(self._places, until)]
                for kind in self._kinds_at[step.place]:
                    found = self._fits.first_that_fits(slot, kind, starts, stop)
                    if found is not None:
                        devices = self._kinds[kind].devices
                        raise CertificateError(
                            f"slot {slot}: a stage of layers {found} to {stop} on {devices} devices"
                            f" fits within {self._threshold_ns} ns, so the label of devices {step.state},"
                            f" servers {step.first[0]} leaves out layer {found} wrongly"
                        )
                start = until

    def _link(self, one: End, other: End) -> Link | None:
        groups = [Group(tuple((server, 1) for server in servers)) for servers, _ in (one, other)]
        return Group.link_between(self._instance, *groups, lanes=min(one[1], other[1]))

    def _cuts_over(self, link: Link | None) -> list[int]:
        """Return the cut points, ascending, whose boundary a link carries within the threshold."""
        return [
            cut
            for cut in self._places[1:-1]
            if activation_ns(self._instance, cut, link) + gradient_ns(self._instance, cut, link)
            <= self._threshold_ns
        ]


class _Following:
    """Cuts at which a stage may stop: for each suffix behind it those of its label that its link can carry."""

    def __init__(self, options: list[tuple[list[int], Runs]]) -> None:
        self._options = options
        self._known: dict[int, int | None] = {}

    def after(self, layer: int) -> int | None:
        """Return the least such cut behind a layer; None if there is none."""
        if layer not in self._known:
            found = (_next(cuts, runs, layer) for cuts, runs in self._options)
            self._known[layer] = min((cut for cut in found if cut is not None), default=None)
        return self._known[layer]


def _next(cuts: list[int], runs: Runs, layer: int) -> int | None:
    """Return the least of some ascending cuts that is behind a layer and in one of the runs."""
    for first, last in runs:
        at = bisect_left(cuts, max(first, layer + 1))
        if at < len(cuts) and cuts[at] <= last:
            return cuts[at]
    return None


def _left_out(runs: Runs, total: int) -> Iterator[tuple[int, int]]:
    """Yield what runs leave out of the layers 0 .. total - 1, half-open."""
    behind = 0
    for first, last in runs:
        if behind < first:
            yield behind, first
        behind = last + 1
    if behind < total:
        yield behind, total
