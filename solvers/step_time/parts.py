"""What stages are made of, worked out once for all searches of an instance."""

from __future__ import annotations

from dataclasses import dataclass

from pipecut.formulation.costs.memory_tables import MemoryTables
from pipecut.formulation.costs.tables import Tables
from pipecut.formulation.problem.cuts import CutSpace
from pipecut.solvers.atoms.programs import Programs, programs
from pipecut.solvers.step_time.bounds.columns import Formula
from pipecut.solvers.step_time.bounds.pass_tables import PassTables, formula_tables, pass_tables


@dataclass(frozen=True, slots=True, eq=False)
class StageParts:
    """What stages are made of: passes of layers, programs of atoms, memory (None: it is not limited)."""

    tables: Tables
    space: CutSpace
    passes: PassTables
    programs: Programs
    held: MemoryTables | None


def stage_parts(tables: Tables, space: CutSpace) -> StageParts:
    """Work out what stages are made of, by the formula of the first goal or as executed.

    Raises StoppedError after the deadline of the tables.
    """
    held = MemoryTables.of(tables) if tables.instance.constraints.memory else None
    formula = Formula.of(tables.instance)
    passes = pass_tables(tables) if formula is None else formula_tables(tables, formula)
    return StageParts(tables, space, passes, programs(passes.told_apart(tables), held, space), held)
