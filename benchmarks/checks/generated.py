"""Every exact method held against an oracle, on generated instances.

``python -m benchmarks.checks.generated [--instances N] [--seed S] [--seconds T] [--jobs J]``

Small instances with everything that a scenario may ask for (``tests/problems.py``) are solved by pricing every
plan (``tests/enumerator.py``, which shares nothing with the solvers but the evaluator), by every method that
proves, and by a certificate where there can be one. Counted is what was compared; a proof that the oracle refutes,
a bound above the optimum, a plan that breaks a rule and a crash are *wrong*. With any of them the command prints
the instance and how to get it again, and ends with exit code 1.

Every instance has a seed of its own, S, S + 1, and so on, so that one can be had again by itself.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import pprint
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace

from hypothesis import HealthCheck, Phase, given, seed, settings

from benchmarks.table import print_rows
from formulation.certificates.check import certifiable, verify
from formulation.outcome import Limits, Outcome, Proof, checked
from formulation.problem.instance import Instance
from formulation.problem.options import Sharded
from solvers.catalogue import find_solver
from solvers.certifying.certify import certify
from solvers.search.goals import solve_in_order
from tests.enumerator import Truth, truth
from tests.problems import dealt_out, problems

METHODS = (
    "cpsat",
    "cpsat_atoms",
    "line_dp",
    "state_dp",
    "paced_dp",
    "step_dp",
    "halves_dp",
    "period_dp",
    "cpsat_chunks",
    "brute_force",
)
CERTIFICATE = "certificate"
DEALT_OUT = 16
"""One instance in so many has groups that hold several stages."""
PIECE = 50
"""Instances that a process is given at a time."""
Values = tuple[int, ...]
ANSWERS = ("optima", "infeasible", "bounds", "refused", "wrong")
"""What an answer to one instance counts as; ``bounds``: no proof, and a bound that is not above the optimum."""


@dataclass(slots=True)
class Counts:
    """What was compared: answers by (method, kind of answer), instances by what they ask, and what was wrong."""

    instances: int = 0
    feasible: int = 0
    plans: int = 0
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        """Add what was counted elsewhere."""
        self.instances += other.instances
        self.feasible += other.feasible
        self.plans += other.plans
        self.answers += other.answers
        self.asked += other.asked
        self.wrong += other.wrong


def compare(first_seed: int, number: int) -> Counts:
    """Compare on instances with so many seeds from ``first_seed`` on."""
    counts = Counts()
    for one in range(first_seed, first_seed + number):
        compare_on(instance_of(one), counts, f"--seed {one} --instances 1")
    return counts


def instance_of(number: int) -> Instance:
    """Return the instance of a seed.

    Hypothesis begins every run with the simplest instance and goes on with variations of what it has; so a run of
    its own is made for every seed, and of each the first instance that is not the simplest one is taken.
    """
    found: list[Instance] = []

    @seed(number)
    @settings(
        max_examples=2,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(problems() if number % DEALT_OUT else dealt_out())
    def draw(instance: Instance) -> None:
        found.append(instance)

    draw()
    return found[min(1, len(found) - 1)]


def compare_on(instance: Instance, counts: Counts, where: str) -> None:
    """Solve one instance by all methods, and count what they say beside the truth."""
    true = truth(instance)
    counts.instances += 1
    counts.feasible += true.values is not None
    counts.plans += true.plans
    counts.asked.update(asked(instance))
    for method in (*METHODS, CERTIFICATE):
        try:
            answer, problem = (certified if method == CERTIFICATE else solved)(instance, method, true)
        except Exception as error:  # a crash is an answer too, and a wrong one
            answer, problem = "wrong", f"{type(error).__name__}: {error}"
        counts.answers[method, answer] += 1
        if answer == "wrong":
            shown = f"{method}: {problem}; the truth is {true.values}"
            counts.wrong.append(f"{shown}\n{where}\n{pprint.pformat(instance, width=115)}")


def solved(instance: Instance, method: str, true: Truth) -> tuple[str, str]:
    """Return what a method's answer counts as, and what is wrong with it.

    A method that cannot take all goals is asked for the first alone.
    """
    solve = find_solver(method).load()
    for goals in dict.fromkeys((instance.goals, instance.goals[:1])):
        judged = replace(instance, goals=goals)
        values = None if true.values is None else true.values[: len(goals)]
        try:
            outcome = solve_in_order(judged, solve, Limits(workers=1))
        except ValueError:
            continue
        return judge(checked(judged, outcome), values)
    return "refused", ""


def judge(outcome: Outcome, values: Values | None) -> tuple[str, str]:
    """Hold an outcome that passed the evaluator against the best values; return what it counts as.

    Of several goals those count that are proved, up to the first that is not.
    """
    if outcome.proof is Proof.OPTIMAL:
        further = itertools.takewhile(lambda claim: claim.bound == claim.value, outcome.further)
        found = (outcome.objective, *(claim.value for claim in further))
        same = values is not None and found == values[: len(found)]
        return ("optima", "") if same else ("wrong", f"claims that {found} is optimal")
    if outcome.proof is Proof.INFEASIBLE:
        return ("infeasible", "") if values is None else ("wrong", "claims that there is no plan")
    if outcome.proof is Proof.FEASIBLE and (values is None or (outcome.objective or 0) < values[0]):
        return "wrong", f"has a plan of {outcome.objective}"
    if outcome.bound is None:
        return "refused", ""
    above = values is not None and outcome.bound > values[0]
    return ("wrong", f"claims that no plan is below {outcome.bound}") if above else ("bounds", "")


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


def asked(instance: Instance) -> Iterator[str]:
    """Yield in words what an instance asks for."""
    constraints, demands = instance.constraints, instance.demands
    yield f"goal {instance.goals[0]}"
    if len(instance.goals) > 1:
        yield "goals in order"
    yield f"placement {constraints.placement}"
    yield f"schedule {instance.training.schedule}"
    for reading in ("combine", "stage_time", "boundary", "boundary_charge", "all_reduce", "count"):
        yield f"{reading} {getattr(instance.cost, reading)}"
    yield f"sharing {instance.cost.sharing}"
    yield f"synchronisation {instance.cost.synchronisation}"
    yield f"recompute {constraints.recompute}"
    also = {
        "memory": constraints.memory,
        "at_most": bool(constraints.at_most),
        "forms": bool(demands.forms),
        "reserve": bool(demands.reserve),
        "max_servers": constraints.max_servers is not None,
        "tensor_parallel_degrees": bool(constraints.tensor_parallel_degrees),
        "sharded": set(constraints.sharded) != {Sharded.NONE},
        "measured times": any(layer.measured for layer in instance.layers),
        "places to cut": instance.model.cuts is not None,
        "warm-ups": instance.training.warm_up != "classic",
        "tied weights": any(instance.copies),
        "adapters": any(server.adapters for server in instance.servers),
        "several stages a group": instance.training.chunks > 1,
        "several device classes": len(instance.device_classes) > 1,
    }
    yield from (name for name, there in also.items() if there)
    yield from demands.named()


def rows(counts: Counts) -> Iterator[dict[str, object]]:
    """Yield the counts of every method."""
    for method in (*METHODS, CERTIFICATE):
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
    listed = ", ".join(f"{name} {counts.asked[name]:,}" for name in sorted(counts.asked))
    print(f"\nInstances by what they ask: {listed}")
    return 1 if counts.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
