"""Every exact method, and ``auto``, held against an oracle, on scenarios that are drawn from their schema.

``python -m benchmarks.checks.generated [--instances N] [--seed S] [--seconds T] [--jobs J]``

Small scenarios with every key that one may have (``benchmarks.checks.drawing``) are written to files and read as
a user's are. Every plan of every choice that they leave open, of the training and of the order of the layers, is
priced (``tests/enumerator.py``, which shares nothing with the solvers but the evaluator), and once more by the
evaluator that was written from the page of the formulation. ``auto`` is asked as ``pipecut plan`` asks it, about
all choices; every method that proves, and a certificate where there can be one, about one of them. Counted is what
was compared; a proof that the oracle refutes, a bound above the optimum, a plan that breaks a rule, two prices of
one plan and a crash are *wrong*. With any of them the command prints the scenario and how to get it again, and
ends with exit code 1.

Every scenario has a seed of its own, S, S + 1, and so on, so that one can be had again by itself.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import yaml

from benchmarks.checks.drawing.keys import CHUNKED, IN_GRIDS
from benchmarks.checks.drawing.scenario import Drawn, drawn, schema
from benchmarks.checks.drawing.schema import written
from benchmarks.table import print_rows
from pipecut.formulation.certificates.check import certifiable, verify
from pipecut.formulation.evaluate import Evaluation, evaluate
from pipecut.formulation.outcome import Limits, Outcome, Proof, checked
from pipecut.formulation.problem.constraints import Goal
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.plan import Plan
from pipecut.solvers.auto.solve import plan as planned
from pipecut.solvers.catalogue import find_any
from pipecut.solvers.certifying import certify
from pipecut.solvers.choices.trainings import decide
from pipecut.solvers.goals import solve_in_order
from tests.enumerator import Truth, truth
from tests.formulation.page.evaluator import StagePrice, evaluate_page

METHODS = (
    "cpsat",
    "cpsat_types",
    "line_dp",
    "state_dp",
    "step_dp",
    "reduced_dp",
    "cpsat_chunks",
    "brute_force",
)
AUTO, CERTIFICATE = "auto", "certificate"
PIECE = 25
"""Instances that a process is given at a time."""
MOST_PLANS = 300
"""Plans of all choices of a scenario together."""
GRIDS = 8
"""In one scenario of so many devices stand in grids."""
LONGEST_S = 20.0
"""How long a method may search; a search that is stopped claims less, and is held to that."""
Values = tuple[int, ...]
ANSWERS = ("optima", "infeasible", "bounds", "refused", "wrong")
"""What an answer to one instance counts as; ``bounds``: no proof, and a bound that is not above the optimum."""


@dataclass(slots=True)
class Counts:
    """What was compared: answers by (method, kind of answer), scenarios by what is written, and what was wrong."""

    instances: int = 0
    feasible: int = 0
    plans: int = 0
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    keys: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        """Add what was counted elsewhere."""
        self.instances += other.instances
        self.feasible += other.feasible
        self.plans += other.plans
        self.answers += other.answers
        self.keys += other.keys
        self.wrong += other.wrong


@dataclass(frozen=True, slots=True)
class Known:
    """What pricing every plan says of a scenario: the truth about each choice, and about all of them together.

    ``one`` is what single methods are asked about, and the truth about it.
    """

    choices: tuple[tuple[Instance, Truth], ...]
    one: tuple[Instance, Truth]

    @property
    def of_all(self) -> Values | None:
        """The best values over all choices: the first goal for a whole step, then the others."""
        ranked = (rank(one, found.values) for one, found in self.choices if found.values is not None)
        return min(ranked, default=None)


def rank(instance: Instance, values: Values) -> Values:
    """Return values by which choices are compared."""
    return (values[0] * times_in_a_step(instance), *values[1:])


def times_in_a_step(instance: Instance) -> int:
    """Return how often the first goal counts in a step: times of one micro-batch as often as there are some."""
    return instance.training.micro_batches if instance.goals[0] in (Goal.BOTTLENECK, Goal.PERIOD) else 1


def compare(first_seed: int, number: int) -> Counts:
    """Compare on scenarios with so many seeds from ``first_seed`` on."""
    counts = Counts()
    for one in range(first_seed, first_seed + number):
        compare_on(drawn_of(one), one, counts)
    return counts


def drawn_of(seed: int) -> Drawn:
    """Return the scenario of a seed: every other one is one that a certain method takes, one after another."""
    with tempfile.TemporaryDirectory() as folder:
        method = wanted_by(seed)
        theme = CHUNKED if method == "cpsat_chunks" else IN_GRIDS if seed % GRIDS == 0 else ""
        return drawn(seed, Path(folder), MOST_PLANS, partial(takes, method), theme)


def wanted_by(seed: int) -> str | None:
    """Return the method that takes the scenario of a seed; None: nobody needs to."""
    return METHODS[seed // 2 % len(METHODS)] if seed % 2 else None


def takes(method: str | None, instance: Instance) -> bool:
    """Tell whether a method takes an instance."""
    try:
        return method is None or find_any(method).accepts(instance).takes
    except ValueError:  # no stage can be there at all
        return False


def compare_on(found: Drawn, seed: int, counts: Counts) -> None:
    """Solve one scenario by all methods, and count what they say beside the truth."""
    counts.instances += 1
    counts.keys.update(written(schema(), found.document))
    try:
        rows = tuple((one, truth(one, held_by_the_page)) for one in found.choices)
        able = [one for one in found.alone if takes(wanted_by(seed), one)]
        asked = able[seed % len(able)]
        known = Known(rows, next((row for row in rows if row[0] == asked), (asked, truth(asked))))
    except TwoPricesError as error:
        counts.wrong.append(f"page: {error}\n{shown(found, seed)}")
        return
    counts.feasible += known.of_all is not None
    counts.plans += sum(one.plans for _, one in known.choices)
    try:
        answer, problem = of_all_choices(found, known)
    except Exception as error:  # a crash is an answer too, and a wrong one
        answer, problem = "wrong", f"{type(error).__name__}: {error}"
    counts.answers[AUTO, answer] += 1
    wrong = [f"{AUTO}: {problem}; the truth is {known.of_all}"] if problem else []
    if wrong := [*wrong, *compare_alone(*known.one, counts)]:
        counts.wrong.append("\n".join([*wrong, shown(found, seed)]))


def compare_alone(instance: Instance, true: Truth, counts: Counts) -> list[str]:
    """Ask every single method, and for a certificate, about one instance; return what is wrong."""
    wrong: list[str] = []
    for method in (*METHODS, CERTIFICATE):
        try:
            answer, problem = (certified if method == CERTIFICATE else solved)(instance, method, true)
        except Exception as error:
            answer, problem = "wrong", f"{type(error).__name__}: {error}"
        counts.answers[method, answer] += 1
        if answer == "wrong":
            wrong.append(f"{method}: {problem}; the truth is {true.values}")
    return wrong


def shown(found: Drawn, seed: int) -> str:
    """Return a scenario as it is written, and how to get it again."""
    graph = yaml.safe_dump(dict(found.graph), sort_keys=False, default_flow_style=None, width=115)
    return f"--seed {seed} --instances 1\n{yaml.safe_dump(dict(found.document), sort_keys=False)}\n{graph}"


class TwoPricesError(Exception):
    """The evaluator and the one that was written from the page price a plan differently."""


def held_by_the_page(instance: Instance, plan: Plan, found: Evaluation) -> None:
    """Compare a price with that of the page's own evaluator, number by number. Raises TwoPricesError."""
    page = evaluate_page(instance, plan)
    stages = [StagePrice(*(getattr(one, name) for name in StagePrice.__slots__)) for one in found.stages]
    values = () if found.objective is None else (found.objective, *found.further)
    ours = values, stages, {one.rule for one in found.violations}
    theirs = page.goals, list(page.stages), set(page.broken)
    if ours != theirs:
        raise TwoPricesError(f"{plan}\nevaluate  {ours}\nthe page  {theirs}")


def of_all_choices(found: Drawn, known: Known) -> tuple[str, str]:
    """Ask as ``pipecut plan`` does, about everything that is left open."""
    method = find_any(found.scenario.solver.name)
    limits = replace(found.scenario.solver.limits(), workers=1, time_limit_s=LONGEST_S)

    def ask(instance: Instance, within: Limits) -> Outcome:
        return planned(instance, within, method)

    try:
        chosen, outcome = decide(found.instance, ask, limits, method.name, cross_check=True)
    except ValueError:
        return "refused", ""
    outcome = checked(chosen, outcome)
    if outcome.any_order_bound is not None and found.instance.model.free_order:
        outcome = replace(outcome, bound=outcome.any_order_bound)
    if outcome.plan is not None:
        held_by_the_page(chosen, outcome.plan, evaluate(chosen, outcome.plan))
    return judge(outcome, known.of_all, times_in_a_step(chosen))


def solved(instance: Instance, method: str, true: Truth) -> tuple[str, str]:
    """Return what a method's answer counts as, and what is wrong with it.

    A method that cannot take all goals is asked for the first alone.
    """
    solve = find_any(method).load()
    for goals in dict.fromkeys((instance.goals, instance.goals[:1])):
        judged = replace(instance, goals=goals)
        if not takes(method, judged):
            continue
        values = None if true.values is None else true.values[: len(goals)]
        try:
            outcome = solve_in_order(judged, solve, Limits(workers=1, time_limit_s=LONGEST_S))
        except ValueError:
            continue
        return judge(checked(judged, outcome), values)
    return "refused", ""


def judge(outcome: Outcome, values: Values | None, times: int = 1) -> tuple[str, str]:
    """Hold an outcome that passed the evaluator against the best values; return what it counts as.

    Of several goals those count that are proved, up to the first that is not. The first goal counts so many
    ``times`` in the best values.
    """
    if outcome.proof is Proof.OPTIMAL:
        further = itertools.takewhile(lambda claim: claim.bound == claim.value, outcome.further)
        found = ((outcome.objective or 0) * times, *(claim.value for claim in further))
        same = values is not None and found == values[: len(found)]
        return ("optima", "") if same else ("wrong", f"claims that {found} is optimal")
    if outcome.proof is Proof.INFEASIBLE:
        return ("infeasible", "") if values is None else ("wrong", "claims that there is no plan")
    if outcome.proof is Proof.FEASIBLE and (values is None or (outcome.objective or 0) * times < values[0]):
        return "wrong", f"has a plan of {(outcome.objective or 0) * times}"
    if outcome.bound is None:
        return "refused", ""
    above = values is not None and outcome.bound * times > values[0]
    return ("wrong", f"claims that no plan is below {outcome.bound * times}") if above else ("bounds", "")


def certified(instance: Instance, _: str, true: Truth) -> tuple[str, str]:
    """Make a certificate for the best plan and verify it; it may prove less than the optimum under demands."""
    if true.plan is None or true.values is None or certifiable(instance) is not None:
        return "refused", ""
    try:
        certificate = certify(instance, true.plan, true.values[0])
    except ValueError:
        return "refused", ""
    verify(instance, certificate)
    if certificate.bound > true.values[0]:
        return "wrong", f"proves that no plan is below {certificate.bound}"
    return ("optima" if certificate.optimal else "bounds"), ""


def rows(counts: Counts) -> Iterator[dict[str, object]]:
    """Yield the counts of every method."""
    for method in (AUTO, *METHODS, CERTIFICATE):
        yield {"method": method, **{answer: counts.answers[method, answer] for answer in ANSWERS}}


def compare_in_pieces(instances: int, first_seed: int, seconds: float | None, jobs: int) -> Counts:
    """Compare piece by piece, on several processes if asked; no piece is begun after the time."""
    began, counts, at = time.monotonic(), Counts(), 0
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        while at < instances and (seconds is None or time.monotonic() - began < seconds):
            starts = range(at, min(instances, at + jobs * PIECE), PIECE)
            sizes = [min(PIECE, instances - start) for start in starts]
            for found in pool.map(compare, [first_seed + start for start in starts], sizes):
                counts.add(found)
                for text in found.wrong:
                    print(f"WRONG {text}\n", flush=True)
            at += sum(sizes)
            spent = time.monotonic() - began
            print(f"{at} instances, {len(counts.wrong)} wrong, {spent:.0f} s", file=sys.stderr)
    return counts


def main() -> int:
    """Compare, print the counts and whatever is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--instances", type=int, default=1_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the first instance")
    parser.add_argument("--seconds", type=float, metavar="T", help="begin nothing new after this time")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that work at the same time")
    arguments = parser.parse_args()
    counts = compare_in_pieces(arguments.instances, arguments.seed, arguments.seconds, arguments.jobs)
    without, wrong = counts.instances - counts.feasible, len(counts.wrong)
    print(
        f"{counts.instances:,} instances from seed {arguments.seed}: {counts.feasible:,} with a plan,"
        f" {without:,} without; {counts.plans:,} plans priced; wrong: {wrong}\n"
    )
    print_rows(rows(counts), as_json=False)
    listed = ", ".join(f"{name} {counts.keys[name]:,}" for name in sorted(counts.keys))
    print(f"\nScenarios by what is written: {listed}")
    return 1 if counts.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
