"""The variables of one question: where stages begin and end, which groups ranks have, and what links them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from ortools.sat.python import cp_model

from pipecut.formulation.limits import Deadline, in_time
from pipecut.formulation.problem.groups import Group
from pipecut.formulation.problem.units import Link
from pipecut.solvers.chunks.case import Case, Dealt
from pipecut.solvers.chunks.counting import least_by_number
from pipecut.solvers.chunks.runs import AtomRun

Literal = cp_model.IntVar
Row = dict[Literal, int]


@dataclass(slots=True, eq=False, kw_only=True)
class ChunkVariables:
    """Variables of a case, and how an answer is read.

    ``kinds[r]`` and ``links[r]`` are the kinds that rank r may be of, and the links to the next rank, where there
    is one (``Case.pairs``), each with what says that it is so; nothing where there is one alone. ``coarse``: runs
    are known by their number of atoms alone.
    """

    case: Case
    threshold_ns: int
    deadline: Deadline
    coarse: bool = False
    model: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    start: list[dict[int, Literal]] = field(default_factory=list)
    run: list[dict[tuple[int, int], Literal]] = field(default_factory=list)
    group: list[list[Literal]] = field(default_factory=list)
    kinds: list[dict[int, list[Literal]]] = field(default_factory=list)
    links: list[dict[Link | None, list[Literal]]] = field(default_factory=list)
    least: dict[tuple[int, int], Mapping[tuple[int, int], AtomRun]] = field(default_factory=dict)

    def declare(self) -> None:
        """Make all variables. Raises StoppedError after the deadline."""
        self._stages()
        self._choices()
        self.kinds = [self._kinds(rank) for rank in range(self.case.layout.ranks)]
        self.links = [self._links(rank) for rank in range(len(self.case.pairs))]

    def read(self, solver: cp_model.CpSolver) -> Dealt:
        """Return the plan that was found."""
        ends = [next(key for key, one in row.items() if solver.boolean_value(one)) for row in self.run]
        chosen = (next(q for q, one in enumerate(row) if solver.boolean_value(one)) for row in self.group)
        return Dealt(tuple(accumulate((j - i for i, j in ends), initial=0)), tuple(chosen))

    def key(self, run: tuple[int, int]) -> tuple[int, int]:
        """Return what stands for a run: itself, or a run of as many atoms from the first."""
        return (0, run[1] - run[0]) if self.coarse else run

    def rows(self, at: int, kind: int) -> Mapping[tuple[int, int], AtomRun]:
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


def total(row: Row) -> cp_model.LinearExprT:
    """Return a sum of literals with their weights."""
    return cp_model.LinearExpr.weighted_sum(list(row), list(row.values())) if row else 0
