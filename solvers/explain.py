"""Why is there no plan? The limits that clash, and the smallest changes that help.

A *clash* is a set of limits that no plan keeps together, and minimal: with any one
of them left out, the others can be kept. It is found by deletion: leave limits out, in blocks that are halved, for
as long as there is still no plan; those that cannot be left out are the clash. Every step is a proof, by the
reduction of deep models or by CP-SAT. An instance can have several clashes; here they share no limit, and with all
of their limits left out there is a plan.

A *way out* of a clash loosens one of its limits. Numbers are loosened by the least amount, found by bisection down
to a byte or a stage: every plan that turns up says how much it needs, and "no plan with one less" is proved. All
other limits stay as they are, but for those of other clashes.

Before that, what a scenario leaves out unless it says otherwise (``solvers.explain.openings``) is tried:
each choice alone, and where none is enough all at once, less what is not needed. Such a way out comes with a plan.

Everything said is about all that the instance leaves open: "no plan" means with none of its choices.

The limits of an instance one by one, and the instance without some of them; and the choices that are off.

A *choice that is off* (``Opening``) is one that a scenario leaves out unless it says otherwise, such as
recomputation. No plan of a scenario that leaves it out speaks of it, though most people mean it to be open.

Is there any plan at all? The layered model without the families that price a plan.

What is left says what a plan is and what it needs: families 1 to 4, memory, and the demands of the user. Redundant
families on memory and on alike servers keep the answer "no" short.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ortools.sat.python import cp_model

from pipecut.formulation.constraints.constraint import Limit, Slack, changed, of_plans
from pipecut.formulation.constraints.devices.memory import enough_bytes, memory_slack, more_memory
from pipecut.formulation.constraints.devices.placement import can_be_free
from pipecut.formulation.constraints.layers.no_cut import PLACES
from pipecut.formulation.costs.amounts import scaled_size
from pipecut.formulation.costs.memory import MemoryParts
from pipecut.formulation.costs.tables import Tables, all_tables
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import Deadline, StoppedError, in_time
from pipecut.formulation.outcome import FalseClaimError, Limits, Outcome, Progress, Proof, begin
from pipecut.formulation.problem.constraints import Goal, OnHost, Placement, Recompute, Sharded
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Axis
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.options import Combine
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.schedules.keeps import Keeps
from pipecut.formulation.uses import has_grids
from pipecut.solvers.auto.solve import plan as best_plan
from pipecut.solvers.catalogue import REDUCED, find_any
from pipecut.solvers.choices.trainings import decide
from pipecut.solvers.cpsat.constraints.clocks import TIME_FAMILIES
from pipecut.solvers.cpsat.constraints.symmetry import post_alike
from pipecut.solvers.cpsat.engine import found, make_solver, run
from pipecut.solvers.cpsat.model import FAMILIES, build_model, floors, staircase
from pipecut.solvers.cpsat.variables import Family, read_plan
from pipecut.solvers.goals import there_is
from pipecut.solvers.reduce.best_grid import times_in_a_step
from pipecut.solvers.search.first_plan import fitting_plans
from pipecut.solvers.search.incumbent import price_of

MOST_DEGREES = 8
"""So many tensor-parallel degrees are opened at most: each is a kind of groups more."""
BY_PROGRAM = ("constraints.recompute", "constraints.sharded", "constraints.optimizer_on_host")
"""Keys whose openings offer more than a program can be told, for which a scenario opens them itself."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A choice that an instance leaves out: its key in a scenario, what is to be written there, and in words.

    ``fields`` are those of Constraints that open it; ``choices`` numbers of micro-batches.
    """

    key: str
    written: str
    words: str
    fields: Mapping[str, Any]
    choices: tuple[int, ...] = ()

    @property
    def line(self) -> str:
        """What is to be written in a scenario."""
        return f"{self.key}: {self.written}"


class Wider:
    """An instance with choices open, and with each training that is left open then, made once: that takes long."""

    def __init__(self, instance: Instance) -> None:
        """Begin with nothing made."""
        self.instance = instance
        self._made: dict[object, Instance | None] = {}
        self._chosen: dict[object, list[Instance]] = {}

    def opened(self, some: Iterable[Opening]) -> Instance | None:
        """Return what :func:`opened` does."""
        key = tuple(one.line for one in some)
        if key not in self._made:
            self._made[key] = opened(self.instance, some)
        return self._made[key]

    def chosen(self, some: Iterable[Opening], deadline: Deadline) -> list[Instance]:
        """Return what :func:`chosen` makes of it: nothing where there is no such instance. Raises StoppedError."""
        key, made = tuple(one.line for one in some), self.opened(some)
        if key not in self._chosen:
            self._chosen[key] = [] if made is None else chosen(made, deadline)
        return self._chosen[key]


def chosen(instance: Instance, deadline: Deadline) -> list[Instance]:
    """Return the instance with each training that it leaves open, the likeliest to have a plan first.

    Small micro-batches take the least memory. Raises StoppedError.
    """
    every = sorted(instance.training.choices, key=lambda one: -one.micro_batches)
    return [instance.trained(one) for one in in_time(every, deadline)]


def openings(
    instance: Instance, closed: Collection[str] = (), *, tried: bool = True, wider: Wider | None = None
) -> tuple[Opening, ...]:
    """Return the choices that an instance leaves out and could have, but for some ``closed`` keys.

    Those come first that leave plans most like the others. Of one key, the later opens more. Where a program runs
    the plan, what it does not run is closed too.
    Where they are not ``tried`` no instance is made, which takes long of a large model: they may be written,
    of splits the sequence alone, and nobody knows of what use that is. ``wider`` keeps what is made.
    """
    wider = wider or Wider(instance)
    shut = (*closed, *(BY_PROGRAM if instance.constraints.one_mode else ()))
    found = (one for one in _openings(instance, wider if tried else None) if one.key not in shut)
    return tuple(one for one in found if not tried or wider.opened((one,)) is not None)


def left_out(some: Iterable[Opening]) -> tuple[str, ...]:
    """Return in words what is left out where some choices are off, each key once."""
    return tuple({one.key: one.words for one in reversed(list(some))}.values())[::-1]


def opened(instance: Instance, some: Iterable[Opening]) -> Instance | None:
    """Return the instance with some choices open; None where it cannot have them all."""
    fields: dict[str, Any] = {}
    training = instance.training
    try:
        for one in some:
            fields |= one.fields
            if one.choices:
                training = replace(training, micro_batch_choices=one.choices, micro_batches=one.choices[0])
        return replace(instance, training=training, constraints=replace(instance.constraints, **fields))
    except ValueError:
        return None


def _openings(instance: Instance, wider: Wider | None) -> Iterator[Opening]:
    constraints, training = instance.constraints, instance.training
    if constraints.recompute is Recompute.NEVER:
        key, words = "constraints.recompute", "recomputation"
        yield Opening(key, "allowed", words, {"recompute": Recompute.ALLOWED})
    if constraints.recompute in (Recompute.NEVER, Recompute.ALLOWED) and len(CutSpace.of(instance).places) > 2:
        fields = {"recompute": Recompute.BLOCKS, "recompute_layers": ()}
        yield Opening("constraints.recompute", "blocks", "recomputation of single blocks", fields)
    if not training.micro_batch_choices:
        every = tuple(one for one in range(1, training.global_batch + 1) if training.global_batch % one == 0)
        yield Opening("training.micro_batches", "choose", "other numbers of micro-batches", {}, every)
    if set(constraints.sharded) == {Sharded.NONE}:
        written = f"[{', '.join(Sharded)}]"
        yield Opening("constraints.sharded", written, "sharded states (ZeRO)", {"sharded": tuple(Sharded)})
    if not constraints.tensor_parallel_degrees:
        degrees = _degrees(instance)
        key, written = "constraints.tensor_parallel_degrees", str(list(degrees))
        yield Opening(key, written, "replicas", {"tensor_parallel_degrees": degrees})
    if constraints.placement is Placement.LINE and can_be_free(instance):
        yield Opening("constraints.placement", "free", "free placement", {"placement": Placement.FREE})
    if constraints.optimizer_on_host is OnHost.NEVER:
        fields = {"optimizer_on_host": OnHost.ALLOWED}
        yield Opening("constraints.optimizer_on_host", "allowed", "the memory of the host", fields)
    axes = [one for one in Axis if one is not Axis.PAIRS and one not in constraints.splits]
    if wider is not None:
        axes = [one for one in axes if _gives_forms(instance, wider, one)]
    else:
        axes = [one for one in axes if one is Axis.SEQUENCE and any(row.across for row in instance.layers)]
    if axes:
        yield _split_by(instance, axes)


def _split_by(instance: Instance, axes: Sequence[Axis]) -> Opening:
    splits = (*instance.constraints.splits, *axes)
    words = f"splits by {' and '.join(axes)}"
    return Opening("constraints.splits", f"[{', '.join(splits)}]", words, {"splits": splits})


def _degrees(instance: Instance) -> tuple[int, ...]:
    """Return how many devices a replica may have: all numbers if they are few, else powers of two."""
    if instance.devices <= MOST_DEGREES:
        return tuple(range(1, instance.devices + 1))
    return tuple(1 << power for power in range(MOST_DEGREES) if 1 << power <= instance.devices)


def _gives_forms(instance: Instance, wider: Wider, axis: Axis) -> bool:
    """Tell whether some layer has more forms along an axis."""
    made = wider.opened((_split_by(instance, [axis]),))
    pairs = () if made is None else zip(instance.layers, made.layers, strict=True)
    return any(set(two.allowed_forms) - set(one.allowed_forms) for one, two in pairs)


def limits_of(instance: Instance) -> tuple[Limit, ...]:
    """Return every limit of an instance, those first that an explanation should rather do without."""
    values = sorted(of_plans(instance.constraints), key=lambda one: one.rank)
    return tuple(limit for one in values for limit in one.loosenings(instance))


def without(instance: Instance, limits: Iterable[Limit]) -> Instance:
    """Return the instance without some of its limits."""
    gone = {(limit.kind, limit.entry) for limit in limits}
    new: dict[str, Any] = {}
    for one in of_plans(instance.constraints):
        new |= one.without(gone, instance)
    if any(kind == PLACES for kind, _ in gone):
        instance = replace(instance, model=replace(instance.model, cuts=None))
    # How much memory devices have is a limit of the cluster, not of the constraints.
    classes = {str(name) for kind, name in gone if kind == "memory"}
    every = (instance.trained(one) for one in instance.training.choices) if classes else ()
    return more_memory(changed(instance, **new), classes, max(map(enough_bytes, every), default=0))


Possibility = tuple[Instance, Plan]
"""An instance with everything chosen, and a plan of it."""


@dataclass(slots=True)
class Possible:
    """Answers "is there a plan?" about variants of one instance, within limits that all questions share.

    The limits are begun.
    """

    limits: Limits
    _known: list[Plan] = field(default_factory=list)
    _tables: dict[object, Tables] = field(default_factory=dict)

    def plan(self, instance: Instance, *, likely: bool = False, quick: bool = False) -> Possibility | None:
        """Return any plan that keeps every rule, or None if it is proved that there is none, whatever is chosen.

        The instance that comes back has the training that was chosen of those that are left open. Where a plan is
        ``likely``, more simple ones are tried first; with ``quick`` nothing else is. Of a small instance none is
        that has a model, as this answers sooner.

        Raises StoppedError where the limits end the question, and FalseClaimError if the evaluator finds a
        rule broken. Cost: for each choice one model and one search; tables are shared by variants that differ in
        memory only. A plan of an earlier answer, or a simple one that fits, saves both.
        """
        return self.first(chosen(instance, self.limits.deadline), likely=likely, quick=quick)

    def first(self, parts: Sequence[Instance], *, likely: bool = False, quick: bool = False) -> Possibility | None:
        """Return the same of instances with everything chosen, the first of which that has a plan."""
        self.limits.deadline.check()
        stopped = False
        for known in (True, False):
            for at, one in enumerate(parts):
                try:
                    asked = self.share(len(parts) - at) if len(parts) > 1 else self
                    asked.limits.deadline.check()
                    plan = asked._known_plan(one) if known else asked._searched(one, likely=likely, quick=quick)
                except StoppedError:
                    stopped = True
                    continue
                if plan is not None:
                    return one, self._remember(plan)
        if stopped:
            raise StoppedError
        return None

    def _known_plan(self, instance: Instance) -> Plan | None:
        """Return a plan of an earlier answer that is one of this instance too."""
        known = in_time(reversed(self._known), self.limits.deadline)
        return next((plan for plan in known if evaluate(instance, plan).feasible), None)

    def _searched(self, instance: Instance, *, likely: bool, quick: bool) -> Plan | None:
        """Return any plan of one training, or None if there is none. Raises as :meth:`plan` does."""
        room = sum(server.devices * server.device_class.memory_bytes for server in instance.servers)
        if instance.constraints.memory and least_total_bytes(instance) > room:
            return None
        if instance.training.chunks > 1:
            raise StoppedError  # the models below know one stage a group
        if not quick and find_any(REDUCED).accepts(judged := _paced(instance)).takes:
            return self._reduced(judged)
        tables = None if has_grids(instance) else self._tables_of(instance)
        if tables is None:
            simple = fitting_plans(instance, thorough=likely, deadline=self.limits.deadline)
            for plan in in_time(simple, self.limits.deadline):
                if evaluate(instance, plan).feasible:
                    return plan
            if quick or (tables := self._tables_of(instance)) is None:
                raise StoppedError
        timed = any(limit.goal in (Goal.BOTTLENECK, Goal.ITERATION_TIME) for limit in instance.constraints.at_most)
        families = [family for family in FAMILIES if timed or family not in TIME_FAMILIES]
        memory = Family(101, "staircase", staircase(floors(tables)))
        v = build_model(tables, None, [*families, memory, Family(103, "alike", post_alike)])
        status = run(solver := make_solver(self.limits), v.model, self.limits.deadline.over)
        if status == cp_model.INFEASIBLE:
            return None
        if not found(status):
            raise StoppedError
        plan = read_plan(v, solver)
        price_of(instance, plan, "explain")
        return plan

    def _reduced(self, instance: Instance) -> Plan | None:
        """Return the first plan of a deep model that the reduction comes upon. Raises as :meth:`plan` does."""
        plans = list[Plan]()

        def hear(progress: Progress) -> None:
            plans.extend([] if progress.plan is None else [progress.plan])

        limits = replace(self.limits, progress=hear, stopped=lambda: bool(plans) or self.limits.stopped())
        outcome = find_any(REDUCED).load()(instance, limits)
        if not plans and outcome.proof is not Proof.INFEASIBLE:
            raise StoppedError
        return outcome.plan or next(iter(plans), None)

    def _remember(self, plan: Plan) -> Plan:
        """Keep a plan, the latest last."""
        if plan in self._known:
            self._known.remove(plan)
        self._known.append(plan)
        return plan

    def share(self, parts: int) -> Possible:
        """Return one that has only this part of the time that is left; what they learn, they share."""
        return replace(self, limits=self.limits.share(parts))

    def _tables_of(self, instance: Instance) -> Tables | None:
        """Return tables for an instance, the same for all with these groups: times depend on no other demand.

        None where they would be too large.
        """
        constraints = instance.constraints
        classes = tuple(instance.class_index(server) for server in range(len(instance.servers)))
        sizes = instance.demands.devices_per_stage
        again = (constraints.recompute, constraints.recompute_layers)
        state = (constraints.sharded, constraints.optimizer_on_host, constraints.tensor_parallel_degrees)
        where = (constraints.placement, constraints.max_servers, sizes, classes)
        key = (*again, *state, *where, instance.layers, instance.training)
        if key not in self._tables:
            try:
                self._tables[key] = all_tables(instance, self.limits.deadline)
            except ValueError:
                return None
        return replace(self._tables[key], instance=instance, deadline=self.limits.deadline)


def _paced(instance: Instance) -> Instance:
    """Return an instance with the same plans, judged by the formula's step where it has one."""
    formula = instance.cost.combine is Combine.MAX and not instance.training.schedule.in_halves
    return replace(instance, goals=(Goal.ITERATION_TIME,)) if formula else instance


def least_total_bytes(instance: Instance) -> int:
    """Return what the devices of any plan hold together at least, however layers are divided or copied.

    The weights and their gradients, the optimiser's state, and what is kept for as many micro-batches as are in
    flight in the last stage; for none where single blocks may be computed again, one after another.
    """
    constraints = instance.constraints
    on_host = constraints.optimizer_on_host is not OnHost.NEVER
    kept = {Recompute.NEVER: Keeps.in_slot(instance.training, 0).in_flight, Recompute.BLOCKS: 0}
    return (
        MemoryParts.undivided(instance)
        .times(Keeps(versions=1, in_flight=kept.get(constraints.recompute, 1)), Mode(optimizer_on_host=on_host))
        .lasting
    )


NOTHING_CLASHES = "there is a plan, so nothing clashes"
"""What is noted where the limits can be kept after all."""
EXPLAIN = "explain"
"""Who a plan is by that only answers whether there is one."""
QUESTION_PARTS = 4
"""One question of a bisection gets the time that is left divided by this."""


@dataclass(frozen=True, slots=True)
class WayOut:
    """A change after which the clash is gone: of which limits, in words, and for numbers by how much.

    ``amount`` is None where a limit is left out altogether. ``least`` is a proved lower limit of the amount; it
    is the amount itself unless the search was stopped.
    """

    paths: tuple[str, ...]
    words: str
    amount: int | None = None
    least: int | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Clash:
    """Limits that cannot be kept together. ``minimal``: proved that any one of them can be left out."""

    limits: tuple[Limit, ...]
    minimal: bool
    ways_out: tuple[WayOut, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenedPlan:
    """A way out that opens choices which are off: what is written in the scenario, and a plan with its claim.

    ``instance`` has them open, and all that it leaves open chosen as in the plan.
    """

    lines: tuple[str, ...]
    instance: Instance
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why there is no plan. ``complete``: every question was answered; else ``notes`` say what is open.

    ``opened`` are the ways out that need no limit loosened. ``left_out`` names the choices that the instance
    leaves out, which were tried; ``hopeless``: proved that there is no plan with all of them open either.
    """

    clashes: tuple[Clash, ...]
    complete: bool
    seconds: float
    notes: tuple[str, ...] = ()
    opened: tuple[OpenedPlan, ...] = ()
    left_out: tuple[str, ...] = ()
    hopeless: bool = False


def explain(instance: Instance, limits: Limits | None = None, closed: Collection[str] = ()) -> Explanation:
    """Explain why an instance has no plan; an explanation without a clash says that it has one.

    ``closed`` are keys of a scenario that may not be opened. Cost: about as many searches as there are limits and
    choices that are off, and some thirty for each number that is loosened.
    """
    began = time.monotonic()
    possible = Possible(begin(limits))
    wider = Wider(instance)
    off = openings(instance, closed, wider=wider)
    ways, hopeless, answered = _opened_plans(wider, off, possible)
    told: dict[str, Any] = {"opened": ways, "left_out": left_out(off), "hopeless": hopeless}
    if all(one.chunks > 1 for one in instance.training.choices):
        note = (
            f"what clashes is not searched where groups hold {instance.training.chunks} stages; a plan needs two"
            " groups or more, whose number divides the micro-batches, and a run of layers for each of their stages"
        )
        return Explanation((), False, time.monotonic() - began, (note,), **told)
    clashes, complete = list[Clash](), False
    with contextlib.suppress(StoppedError):
        _find_clashes(instance, possible.share(2), clashes)
        complete = True
    for at, clash in enumerate(clashes):
        others = [limit for other in clashes if other is not clash for limit in other.limits]
        found, known = _ways_out(instance, others, clash.limits, possible)
        clashes[at] = replace(clash, ways_out=tuple(found))
        complete = complete and known
    done = complete and answered
    notes = ["stopped early: not every question was answered"] * (not done)
    notes += [NOTHING_CLASHES] * (complete and not clashes)
    notes += [f"{len(clashes)} independent clashes: each needs a way out"] * (len(clashes) > 1)
    return Explanation(tuple(clashes), done, time.monotonic() - began, tuple(notes), **told)


def _opened_plans(
    wider: Wider, off: Sequence[Opening], possible: Possible
) -> tuple[tuple[OpenedPlan, ...], bool, bool]:
    """Return plans with choices open that are off, whether none is proved to exist, and whether all is answered.

    Half of the time is for finding them, and a third of the rest for better ones. Simple plans are tried first, of
    each choice; a search is made where none of these is one. Once there is a way out, others need not be known.
    """
    asking, found, hopeless = possible.share(2), dict[int, Possibility](), dict[int, bool]()
    for quick in (True, False):
        for at, one in enumerate(off):
            if hopeless.get(at) or (found and not quick) or any(off[other].key == one.key for other in found):
                continue  # where the same key opened less, that is enough
            plan, hopeless[at] = _asked(wider, (one,), asking.share(len(off) + 1 - at), quick=quick)
            found |= {} if plan is None else {at: plan}
    ways = [((off[at],), plan) for at, plan in found.items()]
    if not found and off:
        plan, none = _asked(wider, off, asking, quick=False)
        if plan is None:
            return (), none, none
        ways = [_fewest(wider, off, plan, asking)]
    planning = possible.share(3)
    parts = range(len(ways), 0, -1)
    best = [_planned(wider, *one, planning.limits.share(part)) for part, one in zip(parts, ways, strict=True)]
    return tuple(best), not off, True


def _asked(
    wider: Wider, some: Sequence[Opening], possible: Possible, *, quick: bool
) -> tuple[Possibility | None, bool]:
    """Return a plan with some choices open, if one is found, and whether it is proved that there is none."""
    try:
        plan = possible.first(wider.chosen(some, possible.limits.deadline), likely=True, quick=quick)
    except StoppedError:
        return None, False
    return plan, plan is None


def _fewest(
    wider: Wider, off: Sequence[Opening], plan: Possibility, possible: Possible
) -> tuple[tuple[Opening, ...], Possibility]:
    """Leave choices out again, the last first, for as long as a plan is found in time."""
    kept = list(off)
    for at, one in enumerate(reversed(off)):
        fewer = [other for other in kept if other is not one]
        found, _ = _asked(wider, fewer, possible.share(len(off) - at), quick=False)
        if found is not None:
            kept, plan = fewer, found
    last = {one.key: one for one in kept}  # of one key the later opens more
    return tuple(last.values()), plan


def _planned(wider: Wider, some: Sequence[Opening], plan: Possibility, limits: Limits) -> OpenedPlan:
    """Return the best plan with some choices open that a search within limits finds, or the one that is known."""
    instance, lines = wider.instance, tuple(one.line for one in some)
    first = there_is(*plan, EXPLAIN)

    def ask(one: Instance, within: Limits) -> Outcome:
        return best_plan(one, within, cross_check=False)

    with contextlib.suppress(ValueError, StoppedError):
        found, best = decide(wider.opened(some) or instance, ask, limits)
        if best.proof is Proof.INFEASIBLE:
            raise FalseClaimError(
                f"{best.solver} claims that no plan exists with {'; '.join(lines)}, but there is one"
            )
        if best.proof is not Proof.UNKNOWN and _of_a_step(found, best) <= _of_a_step(plan[0], first):
            return OpenedPlan(lines, found, best)
    return OpenedPlan(lines, plan[0], first)


def _of_a_step(instance: Instance, outcome: Outcome) -> int:
    """Return the first goal of a plan for a whole step, so that numbers of micro-batches compare."""
    return (outcome.objective or 0) * times_in_a_step(instance)


def _find_clashes(instance: Instance, possible: Possible, clashes: list[Clash]) -> None:
    """Add clash after clash, each without the limits of those before. Raises StoppedError."""
    rest = list(every := limits_of(instance))
    while rest:
        gone = [limit for limit in every if limit not in rest]
        if possible.plan(without(instance, gone)) is not None:
            return
        kept, minimal = _shrink(instance, gone, rest, possible)
        clashes.append(Clash(tuple(kept), minimal))
        if not minimal:
            raise StoppedError
        rest = [limit for limit in rest if limit not in kept]


def _shrink(
    instance: Instance, gone: Sequence[Limit], limits: Sequence[Limit], possible: Possible
) -> tuple[list[Limit], bool]:
    """Leave limits out, block by block, while no plan appears; return the others, and whether each was tried.

    What is too hard to tell, in its part of the time, is kept.
    """
    kept, minimal, size = list(limits), True, max(1, len(limits) // 2)
    while size:
        at = 0
        while at < len(kept):
            block = kept[at : at + size]
            dropped = [*gone, *(limit for limit in limits if limit not in kept), *block]
            try:
                none = possible.share(QUESTION_PARTS).plan(without(instance, dropped)) is None
            except StoppedError:
                none, minimal = False, minimal and size > 1
            kept = [limit for limit in kept if not none or limit not in block]
            at += 0 if none else size
        size //= 2
    return kept, minimal


def _ways_out(
    instance: Instance, others: Sequence[Limit], limits: Sequence[Limit], possible: Possible
) -> tuple[list[WayOut], bool]:
    """Return what helps where the limits of other clashes are left out, and whether all was answered.

    First whether a change helps at all and how much of it surely does, then the least amounts, each in its share
    of the time.
    """
    base = without(instance, others)
    memories = [limit for limit in limits if limit.kind == "memory"]
    changes = [memories] * (len(memories) > 1) + [[limit] for limit in limits]
    enough: list[tuple[list[Limit], Possibility]] = []
    answered = True
    for at, change in enumerate(changes):
        try:
            plan = possible.share(len(changes) - at + 1).plan(without(instance, [*others, *change]), likely=True)
        except StoppedError:
            answered = False
            continue
        if plan is not None:
            enough.append((change, plan))
    shares = range(len(enough), 0, -1)
    ways = [_way_out(base, *one, possible.share(part)) for part, one in zip(shares, enough, strict=True)]
    return ways, answered and all(way.amount == way.least for way in ways)


def _way_out(instance: Instance, limits: Sequence[Limit], plan: Possibility, possible: Possible) -> WayOut:
    """Return the least change of limits without which there is a plan: of one, or of several memories alike."""
    paths = tuple(limit.path for limit in limits)
    slack = (
        limits[0].slack
        if len(limits) == 1
        else memory_slack([str(limit.entry) for limit in limits], instance.constraints.memory_margin)
    )
    if slack is None:
        remedy = limits[0].remedy
        return WayOut(paths, f"leave out {limits[0].path}" if remedy is None else remedy(plan[1]))
    low, high = _least(instance, slack, plan, possible)
    words = slack.say(high)
    if low < high:
        least, most = (_amount(number, slack.unit) for number in (low, high))
        words += f" is enough; the least that is lies between {least} and {most}"
    return WayOut(paths, words, high, low, slack.unit)


def _amount(number: int, unit: str) -> str:
    return scaled_size(number) if unit == "bytes" else f"{number:,} {unit}"


def _least(instance: Instance, slack: Slack, plan: Possibility, possible: Possible) -> tuple[int, int]:
    """Bisect for the least amount; return limits of it, equal unless the time was over.

    Every third question asks for one less than what is known to be enough. A question gets a part of the time
    that is left; amounts that are too hard to tell are gone around, below and above in turn.
    """
    low, high, steps = 1, _used(instance, slack, plan), 0
    hard: tuple[int, int] | None = None
    while low < high and not possible.limits.deadline.over():
        steps += 1
        if hard is None:
            middle = high - 1 if steps % 3 == 0 else (low + high) // 2
        else:
            middle = (low + hard[0]) // 2 if steps % 2 else (hard[1] + high) // 2
            if middle in hard:
                break
        try:
            found = possible.share(QUESTION_PARTS).plan(slack.by(instance, middle))
        except StoppedError:
            hard = (min(middle, hard[0]), max(middle, hard[1])) if hard else (middle, middle)
            continue
        if found is None:
            low = middle + 1
        else:
            high = min(high, _used(instance, slack, found))
        if hard is not None and not low <= hard[0] <= hard[1] < high:
            hard = None
    return low, high


def _used(instance: Instance, slack: Slack, found: Possibility) -> int:
    """Return how much more room a plan needs than an instance has, with what was chosen with it."""
    chosen, plan = found
    return slack.used(instance.trained(chosen.training), plan)
