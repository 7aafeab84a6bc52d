"""A constraint is two files of one name; schema, pages, blindness and explanations follow from the first."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest

from pipecut.formulation.constraints.constraint import Constraint
from pipecut.formulation.constraints.layers.together import Together
from pipecut.formulation.constraints.plans.stages import StageCount
from pipecut.formulation.problem.constraints import Constraints, kinds
from pipecut.ingest.scenario.schema import ConstraintsSection
from pipecut.solvers.cpsat.model import FAMILIES
from pipecut.solvers.explain import limits_of
from pipecut.solvers.reference.line_dp import PLACES
from pipecut.solvers.search.support import unseen
from tests.examples import chain, instance_of, matrix, mesh

ROOT = Path(__file__).parents[3]
RULES_ROOM, FAMILIES_ROOM = ROOT / "formulation/constraints", ROOT / "solvers/cpsat/constraints"
KINDS = {kind.__module__.rpartition(".")[2]: kind for kind in kinds()}


def files(room: Path) -> set[str]:
    return {path.relative_to(room).as_posix() for path in room.glob("*/*.py") if path.name != "__init__.py"}


def test_every_constraint_with_a_number_has_a_family_in_the_file_of_its_name() -> None:
    numbered = {kind.__module__: kind for kind in kinds() if kind.number}
    paths = {name.removeprefix("pipecut.formulation.constraints.").replace(".", "/") + ".py" for name in numbered}
    assert paths == files(FAMILIES_ROOM)
    assert {kind.number: kind.rule for kind in numbered.values()}.items() <= {
        family.number: family.name for family in FAMILIES
    }.items()


def test_every_file_is_one_constraint() -> None:
    assert len(kinds()) == len(KINDS) == len(files(RULES_ROOM))


@pytest.mark.parametrize("path", sorted(files(FAMILIES_ROOM)))
def test_a_family_shares_no_code_with_its_rule(path: str) -> None:
    tree = ast.parse((FAMILIES_ROOM / path).read_text(encoding="utf-8"))
    taken = {node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.module}
    assert not {module for module in taken if module.startswith("pipecut.formulation.constraints")}


def test_every_field_has_one_owner_and_asks_for_nothing_by_itself() -> None:
    names = [one.name for kind in kinds() for one in fields(kind)]  # type: ignore[arg-type]
    assert len(names) == len(set(names))
    plain = replace(instance_of(chain([matrix("a")], []), mesh(1, 1)), constraints=Constraints())
    assert [one.rule for one in plain.constraints.values if one.limits] == ["line"]
    assert [limit.kind for limit in limits_of(plain)] == ["placement"]
    assert unseen(plain, "line", "memory", "devices") == ("line",) and plain.demands.named() == ()


def test_every_key_of_a_scenario_is_that_of_a_constraint() -> None:
    keys = [kind.key.name for kind in kinds() if kind.key]
    assert sorted(keys) == sorted(ConstraintsSection.model_fields)


def test_the_page_names_every_constraint_and_says_truly_who_sees_it() -> None:
    page = (ROOT / "docs/constraints.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| .+ \| ([^|]+) \|$", page, re.MULTILINE))
    demands = [kind.key.name for kind in kinds() if kind.key and kind.demand and not kind.asked]
    exact = {*PLACES, "devices_per_stage"}
    seen_by = {name: "every exact solver" if name in exact else "CP-SAT, brute force" for name in demands}
    assert {name: rows.get(name) for name in demands} == seen_by
    assert [kind.key.name for kind in kinds() if kind.key and not re.search(rf"\b{kind.key.name}\b", page)] == []


def test_the_formulas_name_the_file_of_every_rule() -> None:
    page = (ROOT / "docs/formulation.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| .+ \| `(\w+\.\w+)` \|$", page, re.MULTILINE)
    expected = [
        (str(kind.number), kind.rule, kind.__module__.removeprefix("pipecut.formulation.constraints."))
        for kind in kinds()
        if kind.number
    ]
    assert set(expected) <= set(rows)


def test_constraints_are_a_frozen_collection_of_values() -> None:
    made = Constraints(together=(("a", "b"),), stages_at_most=3)
    assert made == Constraints((Together((("a", "b"),)), StageCount(stages_at_most=3)))
    assert hash(made) == hash(replace(made)) and made != Constraints()
    assert made.of(StageCount).stages_at_most == made.stages_at_most == 3 and made.no_cut == ()
    assert replace(made, together=(), stages_at_least=2) == Constraints(stages_at_least=2, stages_at_most=3)
    assert repr(made) == (
        "Constraints(StageCount(stages_at_least=None, stages_at_most=3), Together(together=(('a', 'b'),)))"
    )
    with pytest.raises(TypeError, match="no constraint max_stages below"):
        Constraints(max_stages=3)
    with pytest.raises(AttributeError, match="no attribute 'max_stages'"):
        made.max_stages  # noqa: B018


def test_a_constraint_from_elsewhere_is_refused() -> None:
    """Nothing would post it, so that searches would come back with plans that break it."""

    @dataclass(frozen=True)
    class Stray(Constraint):
        stray: int = 0

    with pytest.raises(TypeError, match="no constraint Stray below"):
        Constraints((Stray(1),))
