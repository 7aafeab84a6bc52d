"""The best plan of every variant of an instance, one after another, in time that is shared among them.

A plan of one variant as a plan of another: servers are found again by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import NEVER, Deadline
from pipecut.formulation.outcome import Limits, Outcome, Proof, checked
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers.goals import there_is
from pipecut.solvers.reduce.best_grid import times_in_a_step
from pipecut.solvers.whatif.variants import ChangedInstance, base_variant


def carried(plan: Plan, holder: Instance, variant: Instance) -> tuple[Instance, Plan] | None:
    """Return a variant, with what it leaves open chosen as in the holder of a plan, and the plan on its servers.

    None where a server of the plan is not there, or what the holder chose is no choice here. Rules are not looked
    at.
    """
    at = {server.name: index for index, server in enumerate(variant.servers)}
    found = {index: at[server.name] for index, server in enumerate(holder.servers) if server.name in at}
    used = {server for stage in plan.stages for server, _ in stage.group.counts}
    training = variant.training.chosen({one: getattr(holder.training, one) for one in variant.training.left_open})
    if training is None or not used <= set(found):
        return None
    try:
        here = replace(holder, cluster=variant.cluster, training=training, constraints=variant.constraints)
    except ValueError:
        return None
    stages = []
    for stage in plan.stages:
        counts = sorted((found[server], count) for server, count in stage.group.counts)
        stages.append(replace(stage, group=Group(tuple(counts), stage.group.mode)))
    return here, Plan(tuple(stages))


OF_THE_BASE = 2
"""The part of the time that the instance itself may take: everything is compared with its plan."""
LATE = "not asked: no time was left"
AFTER_S = 2.0
"""How long plans of others are priced in variants after the time is over."""
NOBODY = "no search"
"""Who a claim is by where a plan of another variant is all that is known."""
PROVED = (Proof.OPTIMAL, Proof.INFEASIBLE)

Ask = Callable[[Instance, Limits], tuple[Instance, Outcome]]
"""Any search: the instance with what it left open chosen, and the outcome about it."""


@dataclass(frozen=True, slots=True)
class ChangedAnswer:
    """What became of a variant: the instance with everything chosen, and a claim about it.

    ``reason`` says why nobody was asked, or nobody takes it; ``outcome`` then is None, or about a plan of another
    variant that is one of this too.
    """

    variant: ChangedInstance
    instance: Instance | None = None
    outcome: Outcome | None = None
    reason: str = ""

    @property
    def late(self) -> bool:
        """Whether no time was left to ask."""
        return self.reason == LATE

    @property
    def proved(self) -> bool:
        """Tell whether there is nothing more to be known."""
        return self.outcome is not None and self.outcome.proof in PROVED

    @property
    def of_a_step(self) -> int | None:
        """The first goal for a whole step: the time of a micro-batch counts as often as there are some."""
        return self._of_a_step(None if self.outcome is None else self.outcome.objective)

    @property
    def bound_of_a_step(self) -> int | None:
        """What no plan of the variant is below, for a whole step; None where nothing is proved."""
        return self._of_a_step(None if self.outcome is None else self.outcome.bound)

    def _of_a_step(self, value: int | None) -> int | None:
        if value is None or self.instance is None or self.outcome is None:
            return None
        if self.outcome.proof not in (Proof.OPTIMAL, Proof.FEASIBLE):
            return None
        return value * times_in_a_step(self.instance)


def answers(
    instance: Instance, changed: Sequence[ChangedInstance], ask: Ask, limits: Limits
) -> Iterator[ChangedAnswer]:
    """Yield the answer about the instance itself, then one for each variant; what is not proved comes again.

    Every search may take its share of the time that is left, so what one leaves the others have; when all were
    asked once, those without a proof are asked again in the time that is left. Where the best plan of a variant
    with more plans is one of this variant too, it is the best here, and nothing is searched. No answer is worse
    than a plan of another answer that is one of this variant too; so something is also known of variants for which
    no time was left, and the instance itself comes again where a plan of a variant is better. Raises what ``ask``
    raises, but for ValueError, which is the answer's ``reason``.
    """
    limits = limits.begun()
    asking = _Asking(ask, limits.deadline)
    yield asking.about(base_variant(instance), limits.share(OF_THE_BASE) if changed else limits)
    for at, variant in enumerate(changed):
        yield asking.about(variant, limits.share(len(changed) - at))
        yield from asking.improved(asking.done[:1])
    again = [one for one in asking.done if one.outcome is not None and not one.proved]
    for at, one in enumerate(again):
        if limits.deadline.over() or limits.end_s is None:
            break
        found = asking.again(one, limits.share(len(again) - at))
        if found is not None:
            yield found
    yield from asking.improved(asking.done)


@dataclass(slots=True)
class _Asking:
    """Who is asked, and what has been answered."""

    ask: Ask
    deadline: Deadline
    done: list[ChangedAnswer] = field(default_factory=list)
    _tried: set[tuple[str, object, Plan]] = field(default_factory=set)
    _end: Deadline | None = None

    def about(self, variant: ChangedInstance, limits: Limits) -> ChangedAnswer:
        """ChangedAnswer about a variant, without a search where an answer that is there settles it."""
        found = self._known(variant) or self._no_worse(self._searched(variant, limits))
        self.done.append(found)
        return found

    def improved(self, some: Sequence[ChangedAnswer]) -> Iterator[ChangedAnswer]:
        """Yield those of some answers again of which the plan of another is a better one."""
        for before in list(some):
            found = self._no_worse(before)
            if found is not before:
                self.done[self.done.index(before)] = found
                yield found

    def again(self, before: ChangedAnswer, limits: Limits) -> ChangedAnswer | None:
        """Return a better answer than one without a proof; None where there is none."""
        found = self._known(before.variant) or self._searched(before.variant, limits, before)
        found = self._no_worse(found)
        if not _is_better(found, before):
            return None
        self.done[self.done.index(before)] = found
        return found

    def _no_worse(self, found: ChangedAnswer) -> ChangedAnswer:
        """Return an answer with the best plan of others in the place of its own, where that is worse or not there.

        What they take is compared for a whole step. Its bound, which is about all that it leaves open, stays;
        where there is no answer it is that which needs no search. Every plan is priced once in a variant, and when
        the time is over for a moment only.
        """
        what, asked = found.variant.what, found.variant.instance
        for one in self.done:
            plan = None if one.outcome is None else one.outcome.plan
            if plan is None or one.instance is None or asked is None or found.proved or self._is_late():
                continue
            other = carried(plan, one.instance, found.instance or asked)
            if other is None or (key := (what, other[0].training, other[1])) in self._tried:
                continue
            self._tried.add(key)
            evaluation = evaluate(*other)
            known, value, often = found.of_a_step, evaluation.objective, times_in_a_step(other[0])
            if value is not None and evaluation.feasible and (known is None or value * often < known):
                outcome = _carried_outcome(found, other, f"the plan of: {one.variant.what}")
                found = replace(found, instance=other[0], outcome=outcome)
        return found

    def _is_late(self) -> bool:
        if self._end is None and self.deadline.over():
            self._end = NEVER.within(AFTER_S)
        return self._end is not None and self._end.over()

    def _searched(
        self, variant: ChangedInstance, limits: Limits, before: ChangedAnswer | None = None
    ) -> ChangedAnswer:
        if variant.instance is None:
            return ChangedAnswer(variant, reason=variant.reason)
        if limits.deadline.over():
            return ChangedAnswer(variant, reason=LATE)
        start = None if before is None or before.outcome is None else before.outcome.plan
        start = start or self._start(variant)
        try:
            chosen, outcome = self.ask(variant.instance, replace(limits, start=start))
        except ValueError as error:
            return ChangedAnswer(variant, reason=str(error))
        return ChangedAnswer(variant, chosen, outcome)

    def _start(self, variant: ChangedInstance) -> Plan | None:
        """Return the plan of the instance itself, where it is one of a variant too."""
        base = self.done[0] if self.done else None
        if base is None or base.instance is None or base.outcome is None or variant.instance is None:
            return None
        names = [[server.name for server in one.servers] for one in (base.instance, variant.instance)]
        same = names[0] == names[1] and base.instance.layers == variant.instance.layers
        return base.outcome.plan if same else None

    def _known(self, variant: ChangedInstance) -> ChangedAnswer | None:
        """Return the best plan of a variant with more plans, where it keeps the limits of this one."""
        wider = [one for one in self.done if one.variant.what in variant.wider and one.proved]
        for one in wider:
            for holder in dict.fromkeys((one, self.done[0])):
                found = _settled(variant, one, holder)
                if found is not None:
                    return found
        return None


def _settled(variant: ChangedInstance, wider: ChangedAnswer, holder: ChangedAnswer) -> ChangedAnswer | None:
    """Return the answer about a wider variant as one about this variant, if a plan as good is one of this one too.

    ``holder`` has that plan. None of the plans that this variant has is better than the best of all that the wider
    one has; where the wider one has no plan, there is none here. A user's own rule may be about anything, and then
    nothing follows.
    """
    outcome, instance = wider.outcome, variant.instance
    if outcome is None or instance is None or instance.constraints.own:
        return None
    kept = replace(outcome, seconds=0.0, notes=(f"settled by: {wider.variant.what}",))
    if outcome.proof is Proof.INFEASIBLE:
        return ChangedAnswer(variant, instance, kept)
    if wider.instance is None or holder.instance is None or holder.outcome is None or holder.outcome.plan is None:
        return None
    if holder.instance.training != wider.instance.training:
        return None
    plan = holder.outcome.plan
    here = replace(holder.instance, cluster=instance.cluster, constraints=instance.constraints)
    found = evaluate(here, plan)
    if not found.feasible or (found.objective, *found.further) != tuple(one.value for one in outcome.claims):
        return None
    return ChangedAnswer(variant, here, checked(here, replace(kept, plan=plan)))


def _carried_outcome(found: ChangedAnswer, other: tuple[Instance, Plan], note: str) -> Outcome:
    """Return the claim about a plan of another answer: that there is one, and the bound that is known."""
    instance, plan = other
    bound = None if found.outcome is None else found.outcome.bound
    if bound is not None and found.instance is not None:
        bound = bound * times_in_a_step(found.instance) // times_in_a_step(instance)
    elif not instance.training.left_open:
        bound = lower_bound(instance)
    by, seconds = (NOBODY, 0.0) if found.outcome is None else (found.outcome.solver, found.outcome.seconds)
    return checked(instance, there_is(instance, plan, by, note, bound, seconds))


def _is_better(found: ChangedAnswer, before: ChangedAnswer) -> bool:
    """Tell whether an answer says more: a proof, a better plan, or a higher bound."""
    if found.outcome is None or before.outcome is None:
        return False
    if found.proved:
        return True
    value, known = found.of_a_step, before.of_a_step
    if value != known:
        return known is None or (value is not None and value < known)
    return (found.bound_of_a_step or 0) > (before.bound_of_a_step or 0)
