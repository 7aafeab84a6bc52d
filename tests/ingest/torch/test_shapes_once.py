"""What is remembered of an operator's result is what it makes, and nothing that could come out otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pipecut.ingest.torch.shapes_once import Shapes

ATEN = torch.ops.aten
OPERATORS: dict[str, tuple[Any, Callable[..., tuple[Any, ...]]]] = {
    "add": (ATEN.add.Tensor, lambda x, y: (x, y)),
    "a number": (ATEN.mul.Tensor, lambda x, _: (x, 2)),
    "another number": (ATEN.mul.Tensor, lambda x, _: (x, 2.0)),
    "a truth": (ATEN.mul.Tensor, lambda x, _: (x, True)),
    "division": (ATEN.div.Tensor, lambda x, y: (x, y)),
    "comparison": (ATEN.gt.Tensor, lambda x, y: (x, y)),
    "product": (ATEN.mm.default, lambda x, y: (x, y.t())),
    "all of it": (ATEN.sum.default, lambda x, _: (x,)),
    "rows": (ATEN.sum.dim_IntList, lambda x, _: (x, [1], True)),
    "columns": (ATEN.amax.default, lambda x, _: (x, [0])),
    "side by side": (ATEN.cat.default, lambda x, y: ([x, y], 1)),
    "copy": (ATEN.clone.default, lambda x, _: (x,)),
    "a choice": (ATEN.where.self, lambda x, y: (x > y, x, y)),
    "like it": (ATEN.zeros_like.default, lambda x, _: (x,)),
    "a triangle": (ATEN.tril.default, lambda x, _: (x,)),
    "a view": (ATEN.t.default, lambda x, _: (x,)),
    "several": (ATEN.split.Tensor, lambda x, _: (x, 1)),
    "the highest": (ATEN.max.dim, lambda x, _: (x, 1)),
    "in place": (ATEN.add_.Tensor, lambda x, _: (x, 1)),
}
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda x: x,
    "turned": lambda x: x.t(),
    "every other column": lambda x: torch.cat([x, x], 1)[:, ::2],
    "one row over and over": lambda x: x[:1].expand(x.shape),
}
KINDS = (torch.float32, torch.bfloat16, torch.int64)


def laid_out(result: object, *given: torch.Tensor) -> list[object]:
    """Return the layouts of results, and whether they lie in the memory of what was given."""
    results = result if isinstance(result, (list, tuple)) else [result]
    memory = {one.untyped_storage()._cdata for one in given}
    return [
        (
            x.shape,
            x.stride(),
            x.dtype,
            x.device,
            x.untyped_storage().nbytes(),
            x.untyped_storage()._cdata in memory,
        )
        for x in results
        if isinstance(x, torch.Tensor)
    ]


@pytest.mark.few(6)
@pytest.mark.parametrize("name", OPERATORS)
def test_results_are_laid_out_as_the_operator_lays_them_out(name: str) -> None:
    """Twice each, so that what was remembered of one question stands beside all others."""
    shapes, (operator, arguments) = Shapes(), OPERATORS[name]
    questions = list(itertools.product(LAYOUTS.values(), LAYOUTS.values(), KINDS, KINDS, [(2, 3), (3, 3)]))
    for first, second, kind, other, shape in questions * 2:
        made = [torch.empty((3, 3), dtype=each, device="meta") for each in (kind, other)]
        given = arguments(first(made[0])[: shape[0]], second(made[1])[: shape[0]])
        try:
            expected = laid_out(operator(*given), *made)
        except (RuntimeError, NotImplementedError) as error:
            with pytest.raises(type(error)):
                shapes.result(operator, given, {})
        else:
            assert laid_out(shapes.result(operator, given, {}), *made) == expected


def test_numbers_of_several_kinds_are_several_questions() -> None:
    shapes, whole = Shapes(), torch.ones(2, dtype=torch.bool, device="meta")
    found = [shapes.result(ATEN.mul.Tensor, (whole, one), {}).dtype for one in (True, 1, 1.0, 1 + 0j)]  # type: ignore[attr-defined]
    assert found == [torch.bool, torch.int64, torch.float32, torch.complex64]


def test_the_default_format_belongs_to_the_question() -> None:
    shapes, whole = Shapes(), torch.empty(2, dtype=torch.int64, device="meta")
    before = torch.get_default_dtype()
    try:
        found = []
        for kind in (torch.float32, torch.float64):
            torch.set_default_dtype(kind)
            found.append(shapes.result(ATEN.mul.Tensor, (whole, 0.5), {}).dtype)  # type: ignore[attr-defined]
    finally:
        torch.set_default_dtype(before)
    assert found == [torch.float32, torch.float64]


class Counted:
    """An operator that is called as ``add`` is, makes what it is told to make, and counts its calls."""

    namespace, _schema = "aten", ATEN.add.Tensor._schema

    def __init__(self, make: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        self.make, self.calls = make, 0

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.make(x, y)


def test_an_alike_question_does_not_run_the_operator_again() -> None:
    shapes, operator = Shapes(), Counted(torch.add)
    x, y = torch.empty(2, 3, device="meta"), torch.empty(2, 3, device="meta")
    assert shapes.result(operator, (x, y), {}) is not shapes.result(operator, (y, x), {})
    assert operator.calls == 1


def test_a_part_of_larger_memory_is_not_made_alike() -> None:
    shapes, operator = Shapes(), Counted(lambda x, _: torch.empty(4, 4, device="meta")[:2])
    x = torch.empty(2, 3, device="meta")
    assert [laid_out(shapes.result(operator, (x, x), {}))[0][4] for _ in range(2)] == [64, 64]  # type: ignore[index]


def test_an_operand_that_comes_back_is_not_made_alike() -> None:
    shapes, operator = Shapes(), Counted(lambda x, _: x)
    for _ in range(2):
        x = torch.empty(2, 3, device="meta")
        assert shapes.result(operator, (x, x), {}) is x


def test_what_has_values_is_always_run() -> None:
    shapes, x = Shapes(), torch.ones(2)
    assert shapes.result(ATEN.add.Tensor, (x, x), {}).tolist() == [2, 2]  # type: ignore[attr-defined]
    assert shapes.result(ATEN.add.Tensor, (x, x * 2), {}).tolist() == [3, 3]  # type: ignore[attr-defined]
