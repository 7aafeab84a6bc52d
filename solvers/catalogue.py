"""Every solver by name, and what each can do: the explicit table through which all of them are asked.

The paper's own programme stands behind the solvers (REFERENCE), and behind it the planners that are installed
beside pipecut (``solvers.installed``). Importing this module imports no solver; ``load`` and ``accepts`` do, the
latter without OR-Tools, so that ``pipecut --help`` never waits.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipecut.formulation.costs.once import once
from pipecut.solvers.installed import PLANNERS, loaded, missing, registered

if TYPE_CHECKING:
    from pipecut.formulation.outcome import Limits, Outcome
    from pipecut.formulation.problem.instance import Instance
    from pipecut.solvers.search.support import Support

    Solve = Callable[[Instance, Limits], Outcome]


def _takes_all(instance: Instance) -> Support:
    from pipecut.solvers.search.support import takes_all

    return takes_all(instance)


@dataclass(frozen=True, slots=True)
class SolverEntry:
    """A way to find a plan: its name, one line about it, and what it can do.

    ``load`` imports and returns ``solve``; ``accepts`` says what the method makes of an instance. An ``exact``
    method proves what it finds where its support says so, and has a row in ``solvers.ingredients.METHODS``. One
    that knows ``chunks`` takes instances whose groups hold several stages.
    """

    name: str
    summary: str
    load: Callable[[], Solve]
    accepts: Callable[[Instance], Support] = _takes_all
    exact: bool = False
    chunks: bool = False

    @staticmethod
    def of(
        name: str,
        summary: str,
        module: str,
        *,
        solve: str = "solve",
        support: str = "",
        exact: bool = False,
        chunks: bool = False,
        blocks: Collection[str] = (),
    ) -> SolverEntry:
        """Return an entry whose ``solve`` is in a module, its ``accepts`` there or where ``support`` says.

        ``support`` is a module, or ``module:function``. It is not asked about groups that hold several stages,
        unless the method knows ``chunks``; an exact one not about single blocks that are computed again, unless it
        knows ``blocks`` where stages take their time so (``StageTime``).
        """
        home, _, function = (support or module).partition(":")

        def accepts(instance: Instance) -> Support:
            from pipecut.solvers.search.support import of_memory_by_slot, of_single_stages, of_whole_stages

            sees_blocks = instance.cost.stage_time in blocks or not exact
            asked = () if chunks else (of_single_stages, of_memory_by_slot)
            for refusing in asked if sees_blocks else (*asked, of_whole_stages):
                if (found := refusing(name, instance)).reason:
                    return found
            return getattr(importlib.import_module(home), function or "accepts")(instance)

        return SolverEntry(
            name, summary, lambda: getattr(importlib.import_module(module), solve), accepts, exact, chunks
        )


ADDED, ANY = ("add",), ("add", "overlap")
"""Ways in which the passes and the communication of a stage make its time (``StageTime``)."""
AUTO = SolverEntry.of(
    "auto",
    "whoever sees the whole instance and is fastest, checked by another; the default",
    "pipecut.solvers.auto.solve",
    support="pipecut.solvers.search.support:takes_all",
    chunks=True,
)
MAIN = "cpsat"
"""The declarative model, which sees every rule."""
REDUCED = "reduced_dp"
"""The method for deep models on many devices."""
REDUCED_FROM = 2_000
"""Layers times devices from which it may be asked before programmes."""
SOLVERS: tuple[SolverEntry, ...] = (
    SolverEntry.of(
        "cpsat",
        "the declarative model in OR-Tools CP-SAT",
        "pipecut.solvers.cpsat.cpsat",
        support="pipecut.solvers.cpsat.accepts",
        exact=True,
        blocks=ANY,
    ),
    SolverEntry.of(
        "line_dp", "the exact dynamic programme over the line", "pipecut.solvers.reference.line_dp", exact=True
    ),
    SolverEntry.of(
        "state_dp",
        "the exact dynamic programme over device states",
        "pipecut.solvers.dynamic.states.state_dp",
        exact=True,
        blocks=ADDED,
    ),
    SolverEntry.of("step_dp", "the exact search over suffixes", "pipecut.solvers.step_time.step_dp", exact=True),
    SolverEntry.of(
        REDUCED,
        "the search over the few atoms that a deep model is made of",
        "pipecut.solvers.reduce.reduced_dp",
        exact=True,
        blocks=ADDED,
    ),
    SolverEntry.of(
        "cpsat_types",
        "the declarative model on types of stages of a deep model",
        "pipecut.solvers.cpsat.on_types.cpsat_types",
        support="pipecut.solvers.cpsat.on_types.accepts_types",
        exact=True,
        blocks=ADDED,
    ),
    SolverEntry.of(
        "cpsat_chunks",
        "the declarative model of groups that hold several stages",
        "pipecut.solvers.chunks.cpsat_chunks",
        support="pipecut.solvers.chunks.accepts_chunks",
        exact=True,
        chunks=True,
    ),
    SolverEntry.of(
        "brute_force",
        "the enumeration of all plans",
        "pipecut.solvers.exhaustive",
        exact=True,
        chunks=True,
        blocks=ANY,
    ),
)
REFERENCE: tuple[SolverEntry, ...] = (
    SolverEntry.of(
        "pipepar",
        "PipePar's planner as a true dynamic programme; proves nothing",
        "pipecut.solvers.reference.algorithm_2",
    ),
    SolverEntry.of(
        "pipepar_listed",
        "PipePar's planner as its Algorithm 2 is printed; proves nothing",
        "pipecut.solvers.reference.algorithm_2_as_printed",
    ),
)
"""The programme of the paper that optima are held against."""


def all_solvers() -> tuple[SolverEntry, ...]:
    """Return all solvers, the reference, and the planners that are installed beside them, in this order.

    Raises InstalledError for planners that are registered and cannot be loaded.
    """
    more = (one for entry in registered(PLANNERS) for one in loaded(entry))
    return (*SOLVERS, *REFERENCE, *more)


def all_names() -> tuple[str, ...]:
    """Return the names of all of them, in that order. Raises as :func:`all_solvers` does."""
    return tuple(one.name for one in all_solvers())


def find_any(name: str) -> SolverEntry:
    """Return the entry of a solver or planner. Raises ValueError with the known names for any other."""
    for one in (AUTO, *SOLVERS, *REFERENCE):
        if one.name == name:
            return one
    for one in all_solvers():
        if one.name == name:
            return one
    known = f"{AUTO.name}, {', '.join(all_names())}"
    raise ValueError(f"no solver {name!r}; expected one of {known}{missing(PLANNERS, 'planners')}")


@once()
def is_reduced(instance: Instance) -> bool:
    """Tell whether the reduction is asked about an instance before others.

    That is a large instance; one with many ways to hold a stage whose model has few places to cut that differ, as
    it repeats itself or is cut at blocks; of its step as executed one of some size with few such places, and
    one of whose step no programme sees everything, if it is of some size or has few such places.
    """
    from pipecut.formulation.problem.groups import modes_by_size
    from pipecut.solvers.reduce.seats import has_a_first_stage
    from pipecut.solvers.reduce.word import Word
    from pipecut.solvers.search.first_plan import LARGE, is_large

    asked, layers = {entry.name: entry for entry in SOLVERS}, len(instance.layers)
    if REDUCED not in asked or not asked[REDUCED].accepts(instance).takes or not has_a_first_stage(instance):
        return False
    few, big = 2 * Word.of(instance).short_space.stops <= layers, layers * instance.devices >= REDUCED_FROM
    if big and (is_large(instance) or (few and layers * sum(map(len, modes_by_size(instance).values())) >= LARGE)):
        return True
    unseen = "step_dp" not in asked or not asked["step_dp"].accepts(instance).proves
    return instance.goals[0].executed and ((few and big) or ((few or big) and unseen))
