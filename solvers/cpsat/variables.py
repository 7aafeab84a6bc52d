"""What a layer costs by the kind of its group and the form that its layout has: ns or bytes.

The decision variables of the CP-SAT model, with verbs to speak of them.

*Slots* are stages counted from the last one: slot 0 is the last stage, slot 1 the one before it. Slots that are
not used lie at the front and are empty. Counting from the end makes the number of micro-batches in flight a
constant of the slot, which keeps memory limits linear.

======================  ===========================================================================
``starts[k][i]``        slot k starts at layer i or earlier (order encoding of its cut point)
``runs[k][g]``          slot k runs on device group g
``kind[k][c]``          slot k runs on a group of kind c
``layer_kind[l][c]``    the stage of layer l runs on a group of kind c
``state[l][c, t]``      layer l runs on kind c in form t (layers with a form of their own)
``cut[l]``              a stage starts at layer l
``touches[k][s]``       slot k has a device of server s
``join[k][x]``          slots k + 1 and k are joined by link x (index into ``tables.links``)
``crossing[l][x]``      a stage starts at layer l and its boundary goes over link x
``again[l]``            the block of layer l is computed again alone (where stages may choose blocks)
``longer[k][w]``        slot k has w or more forward passes before its first backward pass (where that is chosen)
======================  ===========================================================================

Variables that are at least this much under these conditions: what forms cost, in ns or in bytes.

What a family is, and the two that every plan is made of. Each is a generator of (index, constraint).

Numbers and names are those of ``formulation.constraints.rules``; docs/formulation.md has the formulas. The family
of a constraint is the file of the same name below ``solvers/cpsat/constraints/``; what plans may cost is in
``solvers.cpsat.constraints.clocks``.

From an assignment of the variables back to a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ortools.sat.python import cp_model

from pipecut.formulation.costs.tables import Tables, Times
from pipecut.formulation.limits import in_time
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.groups import forms_on
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import Split
from pipecut.formulation.problem.plan import Plan, Span, Stage

Literal = cp_model.IntVar
Expression = cp_model.LinearExpr | int


@dataclass(frozen=True, slots=True)
class Variables:
    """The model and its variables.

    ``thresholds`` are what a plan may have at most of every goal that is limited; ``threshold_ns`` what every
    stage and boundary may therefore take.
    """

    model: cp_model.CpModel
    tables: Tables
    thresholds: Mapping[Goal, int]
    threshold_ns: int
    slots: int
    starts: list[list[Literal]]
    runs: list[list[Literal]]
    kind: list[list[Literal]]
    layer_kind: list[list[Literal]]
    state: list[dict[tuple[int, int], Literal]]
    cut: list[Literal]
    touches: list[list[Literal]]
    join: list[list[Literal]]
    crossing: list[list[Literal]]
    known_together: dict[tuple[int, int], cp_model.LiteralT]
    again: list[Literal]
    recomputing: Mapping[int, int]
    longer: list[dict[int, Literal]]

    @property
    def layers(self) -> int:
        """Number of layers; of atoms, where the tables have rows of these."""
        return self.tables.rows

    def starts_by(self, slot: int, layer: int) -> Literal:
        """Return the literal 'slot starts at this layer or earlier'; slot -1 stands for the end of the model."""
        if slot < 0:
            return self.starts[0][self.layers] if layer >= self.layers else self.cut[0]
        return self.starts[slot][layer]

    def used(self, slot: int) -> Expression:
        """Return 1 if the slot holds a stage: the slot after it then starts later than layer 0."""
        return 1 if slot == 0 else 1 - self.starts[slot - 1][0]

    def priced(self, kind: int) -> tuple[int, ...]:
        """Return the kinds that may price layers of stages of this kind, or of the stage of a layer priced so."""
        base = next((own for own, again in self.recomputing.items() if again == kind), kind)
        return (base, self.recomputing[base]) if base in self.recomputing else (kind,)

    def warm_ups(self, slot: int) -> Iterator[tuple[int, list[cp_model.LiteralT]]]:
        """Yield the least warm-up of a slot, and every longer one with what says that it warms up so long."""
        yield self.tables.instance.training.warm_up_in(slot), []
        for many, literal in self.longer[slot].items() if self.longer else ():
            yield many, [literal]

    def together(self, first: int, last: int) -> cp_model.LiteralT:
        """Return a literal that is true exactly if no stage starts after ``first`` up to ``last``.

        It is defined in the model when it is first asked for.
        """
        if (first, last) not in self.known_together:
            cuts = [self.cut[i] for i in range(first + 1, last + 1)]
            if len(cuts) == 1:
                self.known_together[first, last] = ~cuts[0]
            else:
                same = self.model.new_bool_var(f"together[{first},{last}]")
                self.model.add_bool_or([*cuts, same])
                for cut in cuts:
                    self.model.add_implication(same, ~cut)
                self.known_together[first, last] = same
        return self.known_together[first, last]


def make_variables(tables: Tables, thresholds: Mapping[Goal, int], threshold_ns: int, slots: int) -> Variables:
    """Create all variables. A state whose own time alone exceeds the threshold is left out: it cannot hold.

    Raises StoppedError after the deadline of the tables.
    """

    def timed(number: int) -> Iterator[int]:
        return in_time(range(number), tables.deadline)

    model = cp_model.CpModel()
    total, kinds, links = tables.rows, len(tables.kinds), range(len(tables.links))
    always, never = model.new_constant(1), model.new_constant(0)
    starts = [
        [model.new_bool_var(f"starts[{k},{i}]") for i in range(total - 1)] + [always, always] for k in timed(slots)
    ]
    return Variables(
        model=model,
        tables=tables,
        thresholds=thresholds,
        threshold_ns=threshold_ns,
        slots=slots,
        starts=starts,
        runs=[[model.new_bool_var(f"runs[{k},{g}]") for g in range(len(tables.groups))] for k in timed(slots)],
        kind=[[model.new_bool_var(f"kind[{k},{c}]") for c in range(kinds)] for k in range(slots)],
        layer_kind=[[model.new_bool_var(f"layer_kind[{i},{c}]") for c in range(kinds)] for i in timed(total)],
        state=[_states(model, tables, layer, threshold_ns) for layer in timed(total)],
        cut=[never] + [model.new_bool_var(f"cut[{i}]") for i in range(1, total)],
        touches=[
            [model.new_bool_var(f"touches[{k},{s}]") for s in range(len(tables.instance.servers))]
            for k in range(slots)
        ],
        join=[[model.new_bool_var(f"join[{k},{x}]") for x in links] for k in range(slots - 1)],
        crossing=[[model.new_bool_var(f"crossing[{i},{x}]") for x in links] for i in range(total)],
        known_together={},
        again=_again(model, tables),
        recomputing=tables.recomputing(),
        longer=_longer(model, tables.instance, slots),
    )


def _longer(model: cp_model.CpModel, instance: Instance, slots: int) -> list[dict[int, Literal]]:
    """Return by slot the warm-ups above the least; none where nobody chooses, or where only memory would grow."""
    training = instance.training
    if not training.chooses_warm_ups or instance.goals[0] is not Goal.STEP_TIME:
        return []
    above = [range(training.warm_up_in(k) + 1, training.micro_batches + 1) for k in range(slots)]
    return [{w: model.new_bool_var(f"longer[{k},{w}]") for w in row} for k, row in enumerate(above)]


def _again(model: cp_model.CpModel, tables: Tables) -> list[Literal]:
    """Return by layer the literal of its block; none where stages may not choose blocks."""
    if not tables.recomputing():
        return []
    space, found = CutSpace.of(tables.instance), list[Literal]()
    for at, ((first, stop), ways) in enumerate(zip(space.atoms(), space.again(tables.instance), strict=True)):
        literal = model.new_constant(ways[0]) if len(ways) == 1 else model.new_bool_var(f"again[{at}]")
        found += [literal] * (stop - first)
    return found


def _states(
    model: cp_model.CpModel, tables: Tables, layer: int, threshold_ns: int
) -> dict[tuple[int, int], Literal]:
    row = tables.instance.layers[layer]
    if row.split is Split.FOLLOW:
        return {}
    return {
        (c, t): model.new_bool_var(f"state[{layer},{c},{t}]")
        for c, kind in enumerate(tables.kinds)
        for t in forms_on(row, kind)
        if int(tables.inside[c, layer, t]) <= threshold_ns
    }


class Conditional:
    """A variable that is at least each of several amounts under conditions; amounts above ``limit`` cannot be."""

    def __init__(self, v: Variables, name: str, limit: int) -> None:
        self._v, self._name, self._limit = v, name, limit
        self._floors: list[tuple[int, list[cp_model.LiteralT]]] = []
        self.constraints: list[cp_model.Constraint] = []

    def at_least(self, amount: int, conditions: list[cp_model.LiteralT]) -> None:
        """Require ``amount`` when all conditions hold."""
        if amount > self._limit:
            self.constraints.append(self._v.model.add_bool_or([~condition for condition in conditions]))
        elif amount > 0:
            self._floors.append((amount, conditions))

    def variable(self) -> Expression:
        """Return the variable, or 0 if nothing is ever required."""
        if not self._floors:
            return 0
        paid = self._v.model.new_int_var(0, max(amount for amount, _ in self._floors), self._name)
        for amount, conditions in self._floors:
            floor = self._v.model.add(paid >= amount)
            floor.only_enforce_if(conditions)
            self.constraints.append(floor)
        return paid


def price_by_form(
    v: Variables, name: str, layer: int, part: Times, limit: int, *only: cp_model.LiteralT
) -> Conditional:
    """Return at least ``part[kind, form]`` of a layer where all literals ``only`` hold, and 0 elsewhere.

    A layer without a form of its own lies as its source does; where a stage starts between them, or it has no
    source, it lies as in form 0. Amounts above ``limit`` cannot be.
    """
    price = Conditional(v, f"{name}[{layer}]", limit)
    add_by_form(v, price, layer, part, *only)
    return price


def add_by_form(v: Variables, price: Conditional, layer: int, part: Times, *only: cp_model.LiteralT) -> None:
    """Let a price be at least what :func:`price_by_form` says."""
    source, alone = v.tables.instance.sources[layer], list(only)
    if source is not None:
        with_source = list(only)
        if source != layer:
            same = v.together(source, layer)
            with_source.append(same)
            alone.append(~same)
        for (c, t), literal in v.state[source].items():
            for own in v.priced(c):
                mine = [v.layer_kind[layer][own]] if v.again and source != layer else []
                if own == c or mine:
                    price.at_least(int(part[own, t]), [literal, *mine, *with_source])
    if source != layer:
        for c, literal in enumerate(v.layer_kind[layer]):
            price.at_least(int(part[c, 0]), [literal, *alone])


def price_of_change(v: Variables, name: str, index: int, part: Times, limit: int) -> Conditional:
    """Return at least ``part[kind, form, form]`` of a form edge between two layers of one stage, and else 0."""
    edge = v.tables.instance.form_edges[index]
    same, price = v.together(edge.source, edge.consumer), Conditional(v, name, limit)
    for (c, s), one in v.state[edge.source].items():
        for (d, t), other in v.state[edge.consumer].items():
            if d in v.priced(c):
                price.at_least(int(part[d, s, t]), [one, other, same])
    return price


Posted = Iterator[tuple[tuple[int, ...], cp_model.Constraint]]


@dataclass(frozen=True, slots=True)
class Family:
    """A named, numbered group of constraints; ``post`` adds them to the model and yields each with its index."""

    number: int
    name: str
    post: Callable[[Variables], Posted]


def post_cover(v: Variables) -> Posted:
    """(1) Cut points decrease strictly from slot to slot until layer 0, and each layer lies in one slot.

    ``starts[k][i] => starts[k][i+1]``;  ``starts[k-1][i+1] => starts[k][i]``;  the first used slot starts at 0;
    ``cut[l] = sum_k (starts[k][l] - starts[k][l-1])``.
    """
    model = v.model
    for k in range(v.slots):
        for i in range(v.layers - 2):
            yield (k, i), model.add_implication(v.starts[k][i], v.starts[k][i + 1])
        if k > 0:
            for i in range(v.layers - 1):
                yield (k, i), model.add_implication(v.starts[k - 1][i + 1], v.starts[k][i])
    yield (v.slots,), model.add(v.starts[v.slots - 1][0] == 1)
    for i in range(1, v.layers):
        yield (i,), model.add(v.cut[i] == sum(v.starts[k][i] - v.starts[k][i - 1] for k in range(v.slots)))


def post_devices(v: Variables) -> Posted:
    """(2) A used slot runs on exactly one group, an unused one on none; servers give what they have.

    The group fixes the kind of the slot and the servers that it touches.
    """
    groups, instance = v.tables.groups, v.tables.instance
    members: list[list[int]] = [[] for _ in v.tables.kinds]
    for group, kind in enumerate(v.tables.kind_of):
        members[kind].append(group)
    on = [
        [(g, dict(group.counts).get(s, 0)) for g, group in enumerate(groups)] for s in range(len(instance.servers))
    ]
    for k in range(v.slots):
        yield (k,), v.model.add_at_most_one(v.runs[k])
        yield (k,), v.model.add(sum(v.runs[k]) == v.used(k))
        for c, same in enumerate(members):
            yield (k, c), v.model.add(v.kind[k][c] == sum(v.runs[k][g] for g in same))
        for s, counts in enumerate(on):
            yield (k, s), v.model.add(v.touches[k][s] == sum(v.runs[k][g] for g, count in counts if count))
    for s, counts in enumerate(on):
        taken = sum(count * v.runs[k][g] for k in range(v.slots) for g, count in counts if count)
        yield (s,), v.model.add(taken <= instance.servers[s].devices)


PLAN_FAMILIES: tuple[Family, ...] = (
    Family(1, "cover", post_cover),
    Family(2, "devices", post_devices),
)


def read_plan(v: Variables, solver: cp_model.CpSolver) -> Plan:
    """Read cut points, groups and forms of a solved model."""
    stages: list[Stage] = []
    stop = v.layers
    for k in range(v.slots):
        group = next((g for g, literal in enumerate(v.runs[k]) if solver.boolean_value(literal)), None)
        if group is None:
            break
        first = next(i for i, literal in enumerate(v.starts[k]) if solver.boolean_value(literal))
        forms = tuple(_form(v, solver, layer) for layer in range(first, stop))
        again, warm_up = _again_reading(v, solver, Span(first, stop)), _warm_up(v, solver, k)
        stages.append(Stage(Span(first, stop), v.tables.groups[group], forms, warm_up, again))
        stop = first
    return Plan(tuple(reversed(stages)))


def _again_reading(v: Variables, solver: cp_model.CpSolver, span: Span) -> tuple[Span, ...]:
    """Return the blocks of a stage that are computed again alone."""
    if not v.again:
        return ()
    blocks = CutSpace.of(v.tables.instance).blocks(span)
    return tuple(one for one in blocks if solver.boolean_value(v.again[one.first]))


def _warm_up(v: Variables, solver: cp_model.CpSolver, slot: int) -> int | None:
    """Return how many forward passes a stage has before its first backward pass, where that is chosen."""
    if not v.longer:
        return None
    return max(many for many, only in v.warm_ups(slot) if all(map(solver.boolean_value, only)))


def _form(v: Variables, solver: cp_model.CpSolver, layer: int) -> int:
    if not v.state:
        return 0
    chosen = (form for (_, form), literal in v.state[layer].items() if solver.boolean_value(literal))
    return next(chosen, 0)
