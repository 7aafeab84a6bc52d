"""The proof in a certificate: labels of suffixes, checked by induction from the last stage to the first.

A *suffix* is the last stages of a plan. Its label lists the layers at which suffixes with

* as many stages (slots 0 to k, counted from the last; left out where the slot changes nothing, which is where
  memory is not limited or every stage keeps the same number of micro-batches),
* the same devices (``formulation.suffixes``), and
* a first stage on the same servers, with as many adapters

may start, if every stage and boundary takes at most T. A suffix that has no label starts nowhere. The induction
puts every possible stage in front of every labelled suffix: it stops at a cut of that suffix's label over whose
link the boundary takes at most T, and must not be able to start at a layer that its own label leaves out. Stages
start and stop at places to cut (``formulation.problem.cuts``) alone, so what a label says of other layers does
not matter. Only the *next* cut behind such a layer is looked at, because a stage that does not fit never fits when
it goes on further. The step rests on two facts: a layer at the end only adds to the computation, the communication
and the memory of a stage; and servers that cannot be told apart may exchange their places.

Whether forms exist that keep a stage within a time and a memory at once; from the formulas alone.

For checking certificates, written apart from ``solvers.atoms.chains``: layer by layer it
keeps, by the forms of the layers that later ones still look at, every triple (communication, bytes kept, largest
working set) that no other undercuts in all three. Exact for any layer graph.

Whether a stage fits: within a time and, where memory is limited, its devices, whatever the forms of its layers.

For checking certificates: from the formulas alone, and exact. Sums of what each layer takes at least, whatever its
form, settle most cases; then the exact least time (``formulation.costs.least``); and last, where either limit
alone could be kept, a search for forms that keep both at once (``formulation.certificates.labels``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate

from pipecut.formulation.costs.least import StagePrices
from pipecut.formulation.costs.memory import MemoryParts, received_bytes
from pipecut.formulation.costs.times import activation_ns, gradient_ns
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import Group, GroupKind, forms_on, layouts_on
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.options import StageTime
from pipecut.formulation.problem.units import Link
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.formulation.suffixes import End, State, Step, slots_matter, suffixes

Triple = tuple[int, int, int]
"""Communication in ns, bytes kept, largest working set in bytes."""
Forms = tuple[int, ...]


class FormSearch:
    """Searches the forms of stages of one instance; single layers are priced once and remembered."""

    def __init__(self, instance: Instance, prices: StagePrices) -> None:
        self._instance, self._prices = instance, prices
        self._held = cache(lambda kind, *layer: MemoryParts.of_layer(instance, kind, *layer))
        self._received = cache(lambda kind, cut: received_bytes(instance, kind, cut))

    def least_held(self, kind: GroupKind, rule: Keeps, layer: int) -> int:
        """Return the bytes that a layer keeps on a device at least, whatever its form."""
        forms = layouts_on(self._instance, layer, kind)
        return min(self._shares(kind, layer, form, 0).times(rule, kind.mode).lasting for form in forms)

    def exist(self, kind: GroupKind, rule: Keeps, layers: tuple[int, int], time_ns: int, room: int) -> bool:
        """Tell whether some forms communicate at most ``time_ns`` and need at most ``room`` bytes.

        ``layers`` are the first layer and the one after the last. Cost: O(layers x 3**live x triples**2) steps.
        """
        room -= rule.in_flight * self._received(kind, layers[0])
        live: list[int] = []
        states: dict[Forms, list[Triple]] = {(): [(0, 0, 0)]}
        for layer in range(*layers):
            follows = self._instance.layers[layer].split is Split.FOLLOW
            around = live if follows else [*live, layer]
            kept = [at for at, one in enumerate(around) if self._prices.last_use[one] > layer]
            grown: dict[Forms, list[Triple]] = {}
            for forms, triples in states.items():
                for chosen, time, share in self._choices(kind, (layers[0], layer), live, forms):
                    held = share.times(rule, kind.mode).lasting
                    key = tuple(chosen[at] for at in kept)
                    for triple in triples:
                        new = (triple[0] + time, triple[1] + held, max(triple[2], share.working_set))
                        if new[0] <= time_ns and new[1] + new[2] <= room:
                            _keep(grown.setdefault(key, []), new)
            states, live = grown, [around[at] for at in kept]
        return bool(states)

    def _choices(
        self, kind: GroupKind, at: tuple[int, int], live: list[int], forms: Forms
    ) -> list[tuple[Forms, int, MemoryParts]]:
        """Return the forms around a layer with each of its own, what that communicates, and what it holds.

        ``at`` are the first layer of the stage, and this one.
        """
        first, layer = at
        row, prices = self._instance.layers[layer], self._prices
        if row.split is Split.FOLLOW:
            source = self._instance.sources[layer]
            form = forms[live.index(source)] if source in live else None
            time = prices.inside(kind, layer, form or 0, first)
            return [(forms, time, self._shares(kind, layer, form, first))]
        edges = [
            (forms[live.index(edge.source)], edge) for edge in prices.into.get(layer, []) if edge.source in live
        ]
        return [
            (
                (*forms, form),
                prices.inside(kind, layer, form, first)
                + sum(prices.between(kind, edge, at, form) for at, edge in edges),
                self._shares(kind, layer, form, first),
            )
            for form in forms_on(row, kind)
        ]

    def _shares(self, kind: GroupKind, layer: int, form: int | None, first: int) -> MemoryParts:
        """Return what a device holds of a layer laid out as ``form`` says (None: that is decided elsewhere)."""
        return self._held(kind, layer, form or 0, self._instance.copied(layer, first))


def _keep(known: list[Triple], new: Triple) -> None:
    """Add a triple unless another undercuts it in everything; drop those that it undercuts."""
    for one in known:
        if one[0] <= new[0] and one[1] <= new[1] and one[2] <= new[2]:
            return
    known[:] = [one for one in known if not (new[0] <= one[0] and new[1] <= one[1] and new[2] <= one[2])]
    known.append(new)


class StageFits:
    """Answers for one instance and threshold; what was found is remembered by kind, rule, start and stop."""

    def __init__(self, instance: Instance, kinds: tuple[GroupKind, ...], threshold_ns: int) -> None:
        self._instance, self._kinds, self._threshold_ns = instance, kinds, threshold_ns
        self._prices = StagePrices(instance)
        self._forms = FormSearch(instance, self._prices)
        self._overlap = instance.cost.stage_time is StageTime.OVERLAP
        rules = [Keeps.in_slot(instance.training, slot) for slot in range(instance.devices)]
        self._rules = rules if instance.constraints.memory else [None] * len(rules)
        self._capacity = [min(instance.device_classes[one].memory_bytes for one in kind.classes) for kind in kinds]
        self._time_floor = cache(lambda kind: self._prices.floors(self._kinds[kind]))
        self._byte_floor = cache(self._byte_floors)
        self._fit = cache(self._fits)

    def first_that_fits(self, slot: int, kind: int, starts: Sequence[int], stop: int) -> int | None:
        """Return one of the starts, ascending, from which a stage up to ``stop`` fits, or None.

        Sums over single layers only grow towards the front, so where they exclude a start they exclude all before.
        """
        rule = self._rules[slot]
        for start in reversed(starts):
            if self._excluded(kind, rule, start, stop):
                return None
            if self._fit(kind, rule, start, stop):
                return start
        return None

    def _excluded(self, kind: int, rule: Keeps | None, start: int, stop: int) -> bool:
        compute, communication = self._time_floor(kind)
        if (
            self._time(compute[stop] - compute[start], communication[stop] - communication[start])
            > self._threshold_ns
        ):
            return True
        if rule is None:
            return False
        held = self._byte_floor(kind, rule)
        return held[stop] - held[start] > self._capacity[kind]

    def _fits(self, kind: int, rule: Keeps | None, start: int, stop: int) -> bool:
        compute, _ = self._time_floor(kind)
        computing = compute[stop] - compute[start]
        least = self._prices.communication_ns(self._kinds[kind], start, stop)
        if self._time(computing, least) > self._threshold_ns:
            return False
        if rule is None:
            return True
        left = self._threshold_ns if self._overlap else self._threshold_ns - computing
        return self._forms.exist(self._kinds[kind], rule, (start, stop), left, self._capacity[kind])

    def _time(self, computing: int, communicating: int) -> int:
        return max(computing, communicating) if self._overlap else computing + communicating

    def _byte_floors(self, kind: int, rule: Keeps) -> list[int]:
        """Return prefix sums of what each layer keeps at least, without working sets and what was received."""
        own = (self._forms.least_held(self._kinds[kind], rule, at) for at in range(len(self._instance.layers)))
        return [0, *accumulate(own)]


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
