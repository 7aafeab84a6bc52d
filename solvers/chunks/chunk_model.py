"""Is there a plan of a layout that takes at most T? One question to CP-SAT, with a variable for every run.

Variables: ``start[s][i]``, stage s begins at place i; ``run[s][i, j]``, it ends at place j; ``group[r][q]``,
rank r has its q-th choice. Exactly one run of each stage and one group of each rank; a stage begins where the
one before it ends.

*Bottleneck*: the runs of each rank together take at most T, and so do the transfers between any two ranks.

*Step*: every path of passes that wait for one another takes at most T (``solvers.chunks.pass_chains``), those that
were critical for plans that were found among them. Where a rank may have groups of several kinds, or be joined
by several links, the least of them stands in the paths of other ranks.

*Memory*: at every moment at which a rank may keep most, what it keeps of all its stages fits beside their largest
working set; with backward passes in halves also what waits between them.

A *coarse* question knows a run by its number of atoms alone, which takes the least that any such run does. There
are fewer variables by far; its "no" is a "no", and its "yes" is a plan that has to be looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from ortools.sat.python import cp_model

from pipecut.formulation.costs.memory import capacity_bytes
from pipecut.formulation.limits import Deadline, in_time
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.units import Link
from pipecut.solvers.chunks.case import Case, Dealt
from pipecut.solvers.chunks.counting import Counts, least_by_number
from pipecut.solvers.chunks.runs import Runs

Literal = cp_model.IntVar
Row = dict[Literal, int]
TIMES = ("forward_ns", "backward_ns", "weight_ns", "sync_ns")
"""What of a stage may lie on a path, by its name in ``AtomRun`` and, without the unit, in ``ChunkPath``."""


@dataclass(slots=True, eq=False, kw_only=True)
class Question:
    """The model of one question, and how an answer is read.

    ``kinds[r]`` and ``links[r]`` are the kinds that rank r may be of, and the links to the next rank, where there
    is one (``Case.pairs``), each with what says that it is so; nothing where there is one alone. ``coarse``: runs
    are known by their number of atoms alone.
    """

    case: Case
    threshold_ns: int
    counts: Counts
    deadline: Deadline
    coarse: bool = False
    model: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    start: list[dict[int, Literal]] = field(default_factory=list)
    run: list[dict[tuple[int, int], Literal]] = field(default_factory=list)
    group: list[list[Literal]] = field(default_factory=list)
    kinds: list[dict[int, list[Literal]]] = field(default_factory=list)
    links: list[dict[Link | None, list[Literal]]] = field(default_factory=list)
    least: dict[tuple[int, int], Runs] = field(default_factory=dict)

    def build(self) -> None:
        """Make variables and constraints. Raises StoppedError after the deadline."""
        self._stages()
        self._choices()
        self.kinds = [self._kinds(rank) for rank in range(self.case.layout.ranks)]
        self.links = [self._links(rank) for rank in range(len(self.case.pairs))]
        self._post()

    def read(self, solver: cp_model.CpSolver) -> Dealt:
        """Return the plan that was found."""
        ends = [next(key for key, one in row.items() if solver.boolean_value(one)) for row in self.run]
        chosen = (next(q for q, one in enumerate(row) if solver.boolean_value(one)) for row in self.group)
        return Dealt(tuple(accumulate((j - i for i, j in ends), initial=0)), tuple(chosen))

    def key(self, run: tuple[int, int]) -> tuple[int, int]:
        """Return what stands for a run: itself, or a run of as many atoms from the first."""
        return (0, run[1] - run[0]) if self.coarse else run

    def rows(self, at: int, kind: int) -> Runs:
        """Return what stands for the runs that a stage may be."""
        if not self.coarse:
            return self.case.runs[kind]
        if (at, kind) not in self.least:
            self.least[at, kind] = least_by_number(self.case.runs[kind], self.case.windows[at])
        return self.least[at, kind]

    def _stages(self) -> None:
        for at, (starts, stops) in in_time(enumerate(self.case.windows), self.deadline):
            kinds = set(self.case.kinds[self.case.rank_of(at)])
            keys = {self.key((i, j)): None for i in starts for j in stops if i < j}
            fitting = [key for key in keys if any(self._short(at, key, kind) for kind in kinds)]
            self.run.append({key: self.model.new_bool_var("") for key in fitting})
            self.model.add_exactly_one(self.run[at].values())
            self.start.append({i: self.model.new_bool_var("") for i in starts if not self.coarse})
            if not self.coarse:
                self.model.add_exactly_one(self.start[at].values())
                self._join(self.start[at], at, 0)
                if at:
                    self._join(self.start[at], at - 1, 1)

    def _join(self, start: dict[int, Literal], at: int, end: int) -> None:
        """Let the run of a stage begin (0) or end (1) where a stage starts."""
        found: dict[int, list[Literal]] = {}
        for ends, literal in self.run[at].items():
            found.setdefault(ends[end], []).append(literal)
        for i, literal in start.items():
            self.model.add(sum(found.get(i, [])) == literal)

    def _short(self, at: int, ends: tuple[int, int], kind: int) -> bool:
        found = self.rows(at, kind).get(ends)
        if found is None:
            return False
        alone = self.case.instance.training.micro_batches * found.passes_ns if self.case.steps else found.total_ns
        return alone <= self.threshold_ns

    def _choices(self) -> None:
        servers = self.case.instance.servers
        used: list[Row] = [{} for _ in servers]
        for rank, choices in enumerate(self.case.layout.choices):
            row = [self.model.new_bool_var("") for _ in choices]
            self.group.append(row)
            self.model.add_exactly_one(row)
            for literal, group, kind in zip(row, choices, self.case.kinds[rank], strict=True):
                used_up = dict(group.counts)
                for server, count in used_up.items():
                    used[server][literal] = count
                for at in self.case.own(rank):
                    for ends, run in self.run[at].items():
                        if not self._short(at, ends, kind):
                            self.model.add_bool_or(~run, ~literal)
        for server, terms in zip(servers, used, strict=True):
            self.model.add(total(terms) <= server.devices)

    def _kinds(self, rank: int) -> dict[int, list[Literal]]:
        choices: dict[int, list[Literal]] = {}
        for literal, kind in zip(self.group[rank], self.case.kinds[rank], strict=True):
            choices.setdefault(kind, []).append(literal)
        if len(choices) == 1:
            return {kind: [] for kind in choices}
        found: dict[int, list[Literal]] = {}
        for kind, literals in choices.items():
            found[kind] = [self.model.new_bool_var("")]
            self.model.add(sum(literals) == found[kind][0])
        return found

    def _links(self, rank: int) -> dict[Link | None, list[Literal]]:
        """Return the links to the next rank. A choice of both that overdraws a server is none."""
        after = (rank + 1) % self.case.layout.ranks
        pairs: dict[Link | None, list[tuple[Literal, Literal]]] = {}
        for one, group in zip(self.group[rank], self.case.layout.choices[rank], strict=True):
            for other, behind in zip(self.group[after], self.case.layout.choices[after], strict=True):
                if self.case.fit_together(group, behind):
                    link = Group.link_between(self.case.instance, group, behind)
                    pairs.setdefault(link, []).append((one, other))
        if len(pairs) == 1:
            return {link: [] for link in pairs}
        found: dict[Link | None, list[Literal]] = {}
        for link, both in pairs.items():
            found[link] = [self.model.new_bool_var("")]
            for one, other in both:
                self.model.add_bool_or(~one, ~other, found[link][0])
        return found

    def _post(self) -> None:
        self._count()
        if not all(self.links):  # no two groups of neighbours are there at once
            self.model.add_bool_or(self.model.new_constant(0))
            return
        if self.case.steps:
            self._step(_Least(self))
        for rank in in_time(range(self.case.layout.ranks), self.deadline):
            if not self.case.steps:
                self._bottleneck(rank)
            if self.case.instance.constraints.memory:
                self._memory(rank)
        for dealt in self.case.seen:
            ends = enumerate(pairwise(dealt.places))
            begun = [self.run[at][self.key(run)] for at, run in ends if self.key(run) in self.run[at]]
            if len(begun) < self.case.stages:
                continue
            chosen = [row[q] for row, q in zip(self.group, dealt.choice, strict=True)]
            self.model.add_bool_or(*(~one for one in (*begun, *chosen)))

    def _count(self) -> None:
        """Limit the atoms of every rank by what it can hold within the threshold, and let all be held."""
        whole: Row = {}
        for rank, most in enumerate(self.counts.held(self.threshold_ns)):
            runs = (pair for at in self.case.own(rank) for pair in self.run[at].items())
            atoms = {literal: j - i for (i, j), literal in runs}
            self.model.add(total(atoms) <= most)
            whole |= atoms
        self.model.add(total(whole) == self.case.space.stops)

    def _bottleneck(self, rank: int) -> None:
        for kind, condition in self.kinds[rank].items():
            terms = {
                literal: rows[ends].total_ns
                for at, rows in ((at, self.rows(at, kind)) for at in self.case.own(rank))
                for ends, literal in self.run[at].items()
                if ends in rows
            }
            self._at_most([total(terms)], condition)
        pairs = self.case.pairs
        for link, condition in ({} if self.coarse or rank == len(pairs) else self.links[rank]).items():
            activation, gradient = self.case.known.over(link)
            begun = (self.start[at + 1] for at in pairs[rank])
            sent = {literal: activation[i] + gradient[i] for row in begun for i, literal in row.items()}
            self._at_most([total(sent)], condition)

    def _step(self, least: _Least) -> None:
        for path in in_time(self.case.paths, self.deadline):
            sent = [often * least.sent(at, 0) for at, often in enumerate(path.activation) if often]
            sent += [often * least.sent(at, 1) for at, often in enumerate(path.gradient) if often]
            rows = [(part, getattr(path, part.removesuffix("_ns"))) for part in TIMES]
            for kind, condition in self.kinds[path.rank].items():
                terms = list(sent)
                for part, row in rows:
                    for at, often in enumerate(row):
                        own = kind if self.case.rank_of(at) == path.rank else None
                        terms += [often * least.of(at, part, own)] if often else []
                self._at_most(terms, condition)

    def _memory(self, rank: int) -> None:
        """Limit what a rank holds of all its stages; groups of one size, class and mode hold the same."""
        kinds, group = set(self.case.kinds[rank]), self.case.layout.choices[rank][0]
        capacity, on_host = capacity_bytes(self.case.instance, group), group.mode.optimizer_on_host
        working, again = (self.model.new_int_var(0, max(0, capacity), "") for _ in range(2))
        lasting: list[cp_model.LinearExprT] = []
        kept: list[cp_model.LinearExprT] = []
        between: list[cp_model.LinearExprT] = []
        halves = self.case.instance.training.schedule.in_halves
        for at in self.case.own(rank):
            # A run may be too long on one kind and not on another: any kind that has it says what it holds.
            rows = {ends: row for kind in kinds for ends, row in self.rows(at, kind).items()}
            known = [(literal, rows[ends].parts) for ends, literal in self.run[at].items()]
            once = {one: row.weights + row.gradients + row.optimizer * (not on_host) for one, row in known}
            lasting.append(total(once))
            kept.append(self._whole({one: row.stash + row.received for one, row in known}))
            self.model.add(total({one: row.working_set for one, row in known}) <= working)
            if halves:
                between.append(self._whole({one: row.recomputed + row.output_gradients for one, row in known}))
            else:
                self.model.add(total({one: row.recomputed for one, row in known}) <= again)
        for counts in self.case.kept()[rank]:
            held = [count * size for count, size in zip(counts, kept + between, strict=True)]
            self.model.add(sum([*lasting, *held, working, again]) <= capacity)

    def _whole(self, row: Row) -> cp_model.IntVar:
        """Return a variable that is what the chosen entry of a row is worth."""
        found = self.model.new_int_var(min(row.values(), default=0), max(row.values(), default=0), "")
        self.model.add(total(row) == found)
        return found

    def _at_most(self, terms: Iterable[cp_model.LinearExprT], condition: list[Literal]) -> None:
        """Limit a sum by the threshold where a condition holds."""
        posted = self.model.add(sum(terms) <= self.threshold_ns)
        if condition:
            posted.only_enforce_if(condition)


@dataclass(slots=True)
class _Least:
    """What stages and boundaries take at least, each a variable that is made once."""

    question: Question
    known: dict[object, cp_model.IntVar] = field(default_factory=dict)

    def of(self, at: int, part: str, kind: int | None = None) -> cp_model.IntVar:
        """Return a part of what a stage takes: on groups of a kind, or at least of all that it may have."""
        if (at, part, kind) not in self.known:
            case, row = self.question.case, self.question.run[at]
            kinds = {kind} if kind is not None else set(case.kinds[case.rank_of(at)])
            tables = [self.question.rows(at, one) for one in kinds]
            terms = {
                literal: min((getattr(runs[ends], part) for runs in tables if ends in runs), default=0)
                for ends, literal in row.items()
            }
            self.known[at, part, kind] = self.question._whole(terms)
        return self.known[at, part, kind]

    def sent(self, at: int, direction: int) -> cp_model.IntVar:
        """Return what crosses the boundary behind a stage, forward (0) or backward (1), over the best link."""
        if (at, direction) not in self.known:
            case = self.question.case
            links = (row for row, pair in zip(self.question.links, case.pairs, strict=True) if at in pair)
            rows = [case.known.over(link)[direction] for link in next(links, ())]
            if not rows:  # inside a group
                self.known[at, direction] = self.question.model.new_constant(0)
                return self.known[at, direction]
            if self.question.coarse:
                least = min(row[i] for row in rows for i in case.windows[at + 1][0])
                self.known[at, direction] = self.question.model.new_constant(least)
                return self.known[at, direction]
            begun = self.question.start[at + 1].items()
            terms = {literal: min(row[i] for row in rows) for i, literal in begun}
            self.known[at, direction] = self.question._whole(terms)
        return self.known[at, direction]


def total(row: Row) -> cp_model.LinearExprT:
    """Return a sum of literals with their weights."""
    return cp_model.LinearExpr.weighted_sum(list(row), list(row.values())) if row else 0
