"""Plans that a proof says do not exist, held against it where nobody proves it a second time.

All plans a move away from the best one, and plans drawn at random: cuts, sizes of groups, modes, forms and blocks
that are computed again. The evaluator prices each that keeps the rules; one that is better refutes a proof. Where
that rests on the tables of the reduction, so does a stage that takes less than these say that any such stage does.
What finds nothing proves nothing: it is said how much was looked at.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pipecut.formulation.constraints.rules import structure_violations
from pipecut.formulation.costs.amounts import goal_amount, plural
from pipecut.formulation.costs.memory import MemoryParts, capacity_bytes
from pipecut.formulation.costs.passes import stage_passes
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import Deadline, StoppedError
from pipecut.formulation.outcome import FalseClaimError, Limits, Outcome
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.cuts import CutSpace, single_blocks
from pipecut.formulation.problem.groups import Group, forms_on
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.modes import Mode, modes
from pipecut.formulation.problem.plan import Plan, Span, Stage
from pipecut.solvers.catalogue import REDUCED
from pipecut.solvers.ingredients import methods_of
from pipecut.solvers.reasons.cuts import moved_cut
from pipecut.solvers.reasons.priced_plans import laid, put
from pipecut.solvers.reduce.reduced_dp import stages_of
from pipecut.solvers.reduce.reduced_stages import ReducedStages

# How long an attack takes at most: a plan of a large model is priced in some hundredths of a second.
ATTACK_S = 2.5
# So many plans are drawn at most, and so many that keep the rules priced.
TRIES, DRAWN = 600, 240
# Cuts are moved over so many places.
NEAR = 2
# In such a part of the plans that are drawn stages have about equal work, and the same of modes.
EVEN = 0.6
Forms = tuple[int, ...]


Claim = tuple[Instance, Outcome, int | None]
"""That no plan of an instance, by its first goal, is less than a value (None: there is none), and who says so."""


def attacked(claims: Sequence[Claim], limits: Limits) -> str:
    """Say how many plans were held against some claims; nothing where there was no time.

    Raises FalseClaimError with what refutes one. Cost: an evaluation for each plan that keeps the rules, until the
    deadline.
    """
    drawn = near = stages = 0
    whole, limits = True, limits.within(ATTACK_S)
    for at, (instance, outcome, bound) in enumerate(claims):
        if instance.training.chunks > 1:
            continue
        chance = random.Random(limits.seed)  # noqa: S311 (nothing is secret)
        first, deadline = replace(instance, goals=instance.goals[:1]), limits.share(len(claims) - at).deadline
        attack = _Attack(first, outcome, bound, deadline, chance)
        attack.run()
        drawn, near, stages = drawn + attack.drawn, near + attack.near, stages + len(attack.stages)
        whole &= attack.whole
    if not drawn + near:
        return ""
    around = f"{'all ' * whole}{near} {plural(near, 'neighbour')}" * bool(near)
    some = f"{drawn} drawn {plural(drawn, 'plan')}" * bool(drawn)
    said = f"{' and '.join(filter(None, (around, some)))} that fit, priced by the evaluator: none better"
    below = f"; {stages} {plural(stages, 'stage')} of theirs, none below the tables" * bool(stages)
    return f"{said}{below}; not proved a second time"


@dataclass(slots=True)
class _Attack:
    instance: Instance
    outcome: Outcome
    bound: int | None
    deadline: Deadline
    chance: random.Random
    drawn: int = 0
    near: int = 0
    stages: set[tuple[Stage, int]] = field(default_factory=set)
    whole: bool = True
    space: CutSpace = field(init=False)
    modes: dict[int, tuple[Mode, ...]] = field(init=False)
    tables: ReducedStages | None = None

    def __post_init__(self) -> None:
        instance = self.instance
        self.space = CutSpace.of(instance)
        found = {size: modes(instance, size) for size in range(1, instance.devices + 1)}
        self.modes = {size: ways for size, ways in found.items() if ways}

    def run(self) -> None:
        """Price neighbours and draws in turn until time is over, or enough were priced."""
        if REDUCED in methods_of(self.outcome):
            with contextlib.suppress(StoppedError):
                self.tables = stages_of(self.instance, self.deadline)
        near = list(self._neighbours(self.outcome.plan)) if self.outcome.plan is not None else []
        self.chance.shuffle(near)
        waiting, tries = iter(near), TRIES
        while tries and not self.deadline.over():
            tries -= 1
            other = next(waiting, None)
            if other is not None:
                self.near += self._priced(other)
            if self.drawn < DRAWN and self.modes:
                self.drawn += self._priced(self._some())
            elif other is None:
                break
        self.whole = next(waiting, None) is None

    def _priced(self, plan: Plan) -> bool:
        """Price a plan; tell whether it keeps the rules. Raises FalseClaimError if it refutes the claim.

        Where one stage alone takes as long in all micro-batches as is claimed, nothing more is priced.
        """
        instance, solver, bound = self.instance, self.outcome.solver, self.bound
        if any(structure_violations(instance, plan)) or not self._fits(plan):
            return False
        if instance.goals[0] is Goal.STEP_TIME:
            times = [self._passes(stage) for stage in plan.stages]
            if bound is not None and instance.training.micro_batches * max(times) >= bound:
                self._held_to_tables(plan, times)
                return True
        found, say = evaluate(instance, plan), partial(goal_amount, instance.goals[0])
        value = found.objective or 0
        if not found.feasible:
            return False
        if bound is None or value < bound:
            claim = "no plan exists" if bound is None else f"no plan is below {say(bound)}"
            raise FalseClaimError(f"{solver} claims that {claim}, but there is a plan of {say(value)}")
        executed = instance.goals[0].executed
        times = [self._passes(one) for one in plan.stages] if executed else [one.total_ns for one in found.stages]
        self._held_to_tables(plan, times)
        return True

    def _passes(self, stage: Stage) -> int:
        """Return what the passes of a stage take for a micro-batch."""
        found = stage_passes(self.instance, stage, halves=False)
        return found.forward_ns + found.backward_ns + found.again_ns

    def _fits(self, plan: Plan) -> bool:
        """Tell whether stages fit into their devices, where that counts."""
        instance = self.instance
        return not instance.constraints.memory or all(
            MemoryParts.of_stage(instance, plan, at).total <= capacity_bytes(instance, stage.group)
            for at, stage in enumerate(plan.stages)
        )

    def _held_to_tables(self, plan: Plan, times: Sequence[int]) -> None:
        """Raise FalseClaimError where a stage of a plan that keeps the rules takes less than tables say."""
        rows = [] if self.tables is None else self.tables.at_least(plan)
        for at, least in enumerate(rows):
            if times[at] < least and evaluate(self.instance, plan).feasible:
                words = f"claims that stage {at} takes {least} ns or more, the evaluator finds {times[at]} ns"
                raise FalseClaimError(f"{self.outcome.solver} {words}")
        self.stages.update((stage, len(plan) - at) for at, stage in enumerate(plan.stages[: len(rows)]))

    def _forms(self, layer: int, group: Group) -> Forms:
        one = self.instance.layers[layer]
        return (0,) if one.split is Split.FOLLOW else forms_on(one, group)

    def _some(self) -> Plan:
        """Return a plan that is drawn: stages of about equal work or any, in like forms and modes or in any."""
        chance, atoms, instance = self.chance, self.space.stops, self.instance
        sizes = self._sizes(chance.randint(1, min(atoms, instance.devices // min(self.modes))))
        ends = sorted(chance.sample(range(1, atoms), len(sizes) - 1))
        if chance.random() < EVEN:
            even = itertools.accumulate(sizes[:-1])
            ends = [max(at, atoms * done // sum(sizes)) for at, done in enumerate(even, 1)]
        like, heavy = chance.random() < EVEN, chance.random()
        shared = {size: chance.choice(ways) for size, ways in self.modes.items()}
        alike, stages = instance.alike, list[Stage]()
        taste = [chance.random() for _ in alike]
        for (first, stop), size in zip(itertools.pairwise((0, *ends, atoms)), sizes, strict=True):
            mode = shared[size] if like else chance.choice(self.modes[size])
            span = self.space.layers(Span(first, stop))
            group = Group.on_line(instance, 0, size, mode)
            rows = ((taste[alike[layer]], self._forms(layer, group)) for layer in span.layers)
            forms = tuple(own[int(share * len(own))] for share, own in rows)
            again = tuple(run for run in single_blocks(self.instance, span, mode) if chance.random() < heavy)
            stages.append(Stage(span, group, forms, again=again))
        return laid(instance, Plan(tuple(stages)))

    def _sizes(self, stages: int) -> list[int]:
        """Return how many devices about so many stages have: equally many, or any."""
        left, found = self.instance.devices, list[int]()
        while stages > len(found) and (fits := [size for size in self.modes if size <= left]):
            even = max((one for one in fits if one <= left // (stages - len(found))), default=min(fits))
            found.append(self.chance.choice([even, *fits]))
            left -= found[-1]
        return found

    def _neighbours(self, plan: Plan) -> Iterator[Plan]:
        """Yield the plans a move away: another cut, mode, or size, other forms, a block run otherwise."""
        places = self.space.places
        for at, stage in enumerate(plan.stages):
            yield from (put(plan, at, one) for one in self._alone(stage))
            if at:
                place = places.index(stage.span.first)
                first, stop = plan.stages[at - 1].span.first, stage.span.stop
                near = [one for one in places[max(0, place - NEAR) : place + NEAR + 1] if first < one < stop]
                yield from (moved_cut(plan, at, one) for one in near if one != stage.span.first)
                yield from self._resized(plan, at)

    def _alone(self, stage: Stage) -> Iterator[Stage]:
        """Yield a stage in other modes, in other forms of alike layers, and with a block run otherwise."""
        group, span = stage.group, stage.span
        others = (mode for mode in self.modes.get(group.devices, ()) if mode != group.mode)
        yield from (stage.on(replace(group, mode=mode)) for mode in others)
        alike = self.instance.alike
        firsts = {alike[layer]: layer for layer in reversed(span.layers)}
        for like, first in firsts.items():
            for form in self._forms(first, group):
                rows = zip(span.layers, stage.forms, strict=True)
                forms = tuple(form if alike[layer] == like else own for layer, own in rows)
                if forms != stage.forms:
                    yield replace(stage, forms=forms)
        blocks = single_blocks(self.instance, span, group.mode)
        for block in blocks:
            yield replace(stage, again=tuple(one for one in blocks if (one in stage.again) != (one == block)))

    def _resized(self, plan: Plan, at: int) -> Iterator[Plan]:
        """Yield the plan in which a stage and the one before it have other numbers of devices, as many in all."""
        one, two = plan.stages[at - 1 : at + 1]
        for size in self.modes:
            rest = one.group.devices + two.group.devices - size
            if size != one.group.devices and rest in self.modes:
                pairs = itertools.product(self._sized(one, size), self._sized(two, rest))
                yield from (
                    laid(self.instance, put(put(plan, at - 1, first), at, second)) for first, second in pairs
                )

    def _sized(self, stage: Stage, devices: int) -> Iterator[Stage]:
        """Yield a stage on so many devices in modes near to its own: with as many replicas, or of its degree."""
        group, own = Group.on_line(self.instance, 0, devices), stage.group
        for mode in self.modes[devices]:
            like = replace(mode, replicas=own.mode.replicas, grid=1) == replace(own.mode, grid=1)
            degree = mode.tensor_parallel_degree(devices)
            if like and (mode.replicas == own.mode.replicas or degree == own.tensor_parallel_degree):
                yield stage.on(replace(group, mode=mode))
