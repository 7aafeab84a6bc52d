"""Two plans on one page: every number of both is its own, and the difference is said from the first one's side."""

from __future__ import annotations

from typing import Any

import pytest

from pipecut.report.page import difference, page_of, two_plans
from tests.report.runs import content
from tests.report.test_page import Page


@pytest.mark.parametrize(
    ("this", "other", "unit", "words"),
    [
        (1000, 1000, "ns", "the same"),
        (1000, 1500, "ns", "500 ns, 50.0 % more"),
        (1000, 750, "ns", "250 ns, 25.0 % less"),
        (0, 750, "ns", "750 ns more"),
        (1000, 29_000, "ns", "29.0 times as much"),
        (0.5, 0.25, "share", "25.0 % less"),
        (None, 3, "ns", ""),
    ],
)
def test_the_difference(this: float | None, other: float | None, unit: str, words: str) -> None:
    assert difference(this, other, unit) == words


def test_both_plans_are_on_the_page() -> None:
    found = content(3, 6)
    other: dict[str, Any] = content(2, 6) | {"plan": "other.json"}
    page = Page(page_of(found | {"against": other}))
    rows = {row.path for row in two_plans(found | {"against": other})}
    assert {"claim.objective", "peak_bytes", "devices_used", "measures.0.timeline"} <= rows
    shown = {attributes["data-path"]: attributes["value"] for attributes, _ in page.numbers}
    assert shown["claim.objective"] == str(found["claim"]["objective"]) == "15000"
    assert shown["against.claim.objective"] == str(other["claim"]["objective"]) == "12000"
    assert shown["against.stages.1.price.total_ns"] == "12000"
    words = "".join(page.words)
    assert "other.json" in words and "3.000 µs, 20.0 % less" in words
    identities = [value for name, value in page.attributes if name == "id"]
    assert len(identities) == len(set(identities)), "no identity is given twice"


def test_the_objective_follows_from_the_table_and_the_chain_from_the_timeline() -> None:
    found = content(3, 6)
    assert sum(part["time_ns"] for part in found["chain"]) == found["makespan_ns"]
    assert found["claim"]["sums"] == {
        "sum_ns": 38_416,
        "largest_ns": 15_000,
        "follows": "the largest time",
        "called": "bottleneck",
        "means": "the bottleneck: a micro-batch cannot leave the pipeline more often than this",
    }
    shown = {attributes["data-path"] for attributes, _ in Page(page_of(found)).numbers}
    assert {f"chain.{at}.time_ns" for at in range(len(found["chain"]))} <= shown
