"""Deep models on a line of devices: reduced to the few atoms that they are made of, and solved in seconds.

The model is read as a word (``solvers.reduce.word``), its stages become cells (``solvers.reduce.cells``), and two
searches use them: for the step by the formula (``solvers.reduce.intervals``), which is proved, and for the step as
executed (``solvers.reduce.executed.steps``), which is proved but where mixtures of ways to run a stage leave a
small gap.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pipecut.formulation.costs.bounds import lower_bound
from pipecut.formulation.evaluate import evaluate
from pipecut.formulation.limits import Deadline, TooLargeError
from pipecut.formulation.outcome import Limits, Outcome, begin
from pipecut.formulation.problem.constraints import Goal, Placement, Recompute
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.formulation.problem.instance import Instance, longest_run_ns
from pipecut.formulation.problem.options import BoundaryCharge, Combine, StageTime, Synchronisation
from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.shares import server_classes
from pipecut.formulation.problem.training import Schedule
from pipecut.formulation.uses import reads_neighbours
from pipecut.solvers.reduce.by_count import ByCount
from pipecut.solvers.reduce.executed.steps import ByStep
from pipecut.solvers.reduce.intervals import ByFormula
from pipecut.solvers.reduce.reduced_stages import ReducedStages
from pipecut.solvers.reduce.seats import SeatLine, has_a_first_stage, sizes_of, ways_of
from pipecut.solvers.reduce.word import Word
from pipecut.solvers.search.incumbent import Incumbent
from pipecut.solvers.search.stoppable import stoppable
from pipecut.solvers.search.support import Support, capped, on_the_line, sized

NAME = "reduced_dp"
OFFERED = ("no_cut", "together", "devices_per_stage", "stages", "equal_stages")
"""Demands that are kept by what is offered: places to cut, and numbers of devices, replicas and stages."""
BYTES_A_CELL = 1200
"""Of a kind of group and a run of atoms: sums for every row of weights, of two cases."""


def reason_against(instance: Instance, name: str = NAME) -> str | None:
    """Return None if the search sees the whole instance, else what it does not see; ``name`` is who searches."""
    instance = capped(instance)
    training, cost, asked = instance.training, instance.cost, instance.constraints
    unseen = [one for one in instance.demands.named() if one not in OFFERED]
    unseen += [one.name for one in asked.own] + ["at_most"] * (asked.at_most != on_the_line(instance))
    executed = instance.goals[0] is Goal.STEP_TIME
    reasons = {
        f"{name} minimises a step, the first goal is {instance.goals[0]}": instance.goals[0]
        not in (Goal.STEP_TIME, Goal.ITERATION_TIME),
        f"{name} does not see the constraints {', '.join(unseen)}": unseen,
        f"{name} knows 1F1B with classic warm-ups": training.schedule is not Schedule.ONE_F_ONE_B
        or training.warm_up != "classic",
        f"{name} puts stages on the line": asked.placement is not Placement.LINE,
        f"{name} adds up passes and transfers": cost.combine is not Combine.MAX
        or cost.stage_time is not StageTime.ADD
        or cost.boundary_charge is not BoundaryCharge.LINK,
        f"{name} knows executed steps without overlap": executed
        and Synchronisation.OVERLAPPED in (cost.synchronisation, cost.inside),
        f"{name} knows blocks that read from the one before them": asked.recompute.by_blocks
        and asked.memory
        and not reads_neighbours(instance),
        f"{name} knows blocks that are free, or all computed again for memory": asked.recompute.by_blocks
        and (asked.one_mode if asked.recompute is Recompute.BLOCKS else not asked.memory),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


@sized
def accepts(instance: Instance) -> Support:
    """Say what the search makes of an instance (``solvers.search.support``). Cost: linear in the layers."""
    reason = reason_against(instance)
    if reason:
        return Support(reason=reason)
    needed, formula = bytes_needed(instance), instance.goals[0] is Goal.ITERATION_TIME
    return Support(proves=formula and not is_counted(instance), bytes_needed=needed)


def bytes_needed(instance: Instance) -> int:
    """Return what the cells of an instance take at most. Raises TooLargeError where they are too large."""
    _check_joints(instance, len(sizes_of(instance)))
    ways, atoms = ways_of(instance), CutSpace.of(instance).stops
    _check_joints(instance, len(ways))
    kinds = sum(map(len, ways.values()))
    word = Word.of(instance)
    nodes = min(atoms * (atoms + 1) // 2, 2 * atoms * (word.short_space.stops + 2))
    needed = BYTES_A_CELL * kinds * nodes
    what = f"times of {nodes} runs of atoms on {kinds} kinds of device groups"
    TooLargeError.refuse_above(what, needed, "narrow constraints.devices_per_stage")
    return needed


def _check_joints(instance: Instance, sizes: int) -> None:
    """Raise TooLargeError for too many sizes of stages."""
    if sizes * sizes * instance.devices > MOST_JOINTS:
        places = f"{sizes} sizes of stages on {instance.devices} devices are too many places"
        raise TooLargeError(f"{places}; narrow constraints.devices_per_stage")


MOST_JOINTS = 20_000_000
"""Pairs of sizes at places of the line."""
MOST_SUMS = 2_000_000
"""So many stages are looked at by their places, for each number of stages behind them; else by their devices."""
MOST_PLACED = 60_000_000
"""The same of an executed step, for what counts of devices leave."""


def is_counted(instance: Instance) -> bool:
    """Tell whether the line of an instance has too many places to search them all, by the formula."""
    return _sums(instance) > MOST_SUMS


def _sums(instance: Instance) -> int:
    """Return how many stages there are by their places, for each number of stages behind them."""
    return instance.devices * len(sizes_of(instance)) * CutSpace.of(instance).stops ** 2


@stoppable(NAME, best=True)
def solve(instance: Instance, limits: Limits | None = None) -> Outcome:
    """Find the plan with the least step: by the formula with proof, as executed with a bound that is close.

    Raises ValueError where :func:`accepts` has a reason.
    """
    reason = reason_against(instance)
    if reason is not None:
        raise ValueError(reason)
    limits = begin(limits)
    most = longest_run_ns(instance, instance.training.micro_batches) + 1
    known = Incumbent(NAME, instance, limits, most, lower_bound(instance))
    known.offer()
    known.begin_where_known()
    if not has_a_first_stage(instance):
        known.lower = known.upper
        return known.outcome()
    search = search_of(instance, known.upper, limits.deadline)
    search.begin()
    _learn(known, search)
    going: Search | None = search
    while going is not None and not known.closed:
        search, going = going, gone_on(going)
        _learn(known, search)
    return known.outcome()


Search = ByFormula | ByCount | ByStep


def gone_on(search: Search) -> Search | None:
    """Go on with a search; return the one that is on then, None where nothing is left to do."""
    if search.step():
        return search
    if not isinstance(search, ByCount) or search.then is None or search.bound >= search.most:
        return None
    found = search.then(search)
    found.begin()
    return found


def search_of(instance: Instance, upper: int, deadline: Deadline) -> Search:
    """Return the search for the first goal of an instance, for plans below a value."""
    instance = capped(instance)
    executed = instance.goals[0] is Goal.STEP_TIME
    counted, stages = executed or is_counted(instance), stages_of(instance, deadline)
    judged = replace(instance, goals=instance.goals[:1])
    if not counted:
        return ByFormula(stages, upper)
    placed = executed and _sums(instance) <= MOST_PLACED
    # Where servers are not alike it says little of stages how many devices they have.
    if placed and len(set(server_classes(instance))) > 1:
        return ByStep(judged, stages, upper)
    found = ByCount.of(stages, partial(value_of, judged), upper)
    if placed:
        found.then = lambda one: ByStep(judged, stages, one.upper, one.bound, one.plan, one.best)
    return found


def stages_of(instance: Instance, deadline: Deadline) -> ReducedStages:
    """Return the stages of an instance as a search begins with them."""
    word, executed = Word.of(instance), instance.goals[0] is Goal.STEP_TIME
    return ReducedStages.of(word, SeatLine.of(instance, word.space), deadline, each=executed)


def value_of(instance: Instance, plan: Plan) -> int | None:
    """Return what a plan takes by the first goal, priced by the evaluator; None where it is not one."""
    found = evaluate(instance, plan)
    return found.objective if found.feasible else None


def _learn(known: Incumbent, search: Search) -> None:
    """Take over what a search has found so far."""
    if search.plan is not None and search.best < known.upper:
        known.take(search.plan)
    if search.bound > known.lower:
        known.lower = min(search.bound, known.upper)
        known.tell()
