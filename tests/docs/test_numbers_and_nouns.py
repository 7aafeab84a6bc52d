"""A number that may be one stands before its noun by one helper: no message says ``1 bytes``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipecut.formulation.costs.amounts import counted

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("commands", "exchange", "execution", "face", "ingest", "report", "solvers/reasons", "solvers/whatif")
NOUNS = (
    "adapters|blocks|bytes|characters|chunks|columns|devices|entries|forms|keys|labels|"
    "layers|levels|lines|machines|micro-batches|places|plans|points|positions|processes|questions|"
    "ranks|replicas|rows|samples|servers|stages|steps|tensors|values"
)
BEHIND = re.compile(rf"^ (?:{NOUNS})\b(?! per second)")
NEVER_ONE = {
    ("commands/orders.py", "self.chunks"),  # two or more, or there is no interleaving
    ("commands/parts/reasons.py", "total"),  # one device has always something to do
    ("commands/parts/reasons.py", "len(sorts)"),
    ("commands/parts/reasons.py", "idle.used + 1"),
    ("exchange/whole_blocks.py", "columns"),  # of a grid
    ("exchange/whole_blocks.py", "kept[0].replicas"),  # any number of samples divides among one
    ("exchange/whole_blocks.py", "stage.group.tensor_parallel_degree"),  # one divides nothing
    ("exchange/torchtitan.py", "precision.optimizer"),  # above Adam's
    ("execution/dividing/deciding.py", "len(shares)"),
    ("execution/profiling.py", "job.at_once"),
    ("execution/running/data.py", "samples"),  # a loss is compared with those of its halves, or of doubles
    ("execution/running/validating.py", "many"),
    ("ingest/files.py", "values"),  # more than the limit, like the next ones
    ("ingest/graphs/cut_places.py", "len(readers)"),  # one may cross a cut
    ("ingest/graphs/runtimes.py", "found[0]"),  # three numbers with strokes between them
    ("ingest/graphs/runtimes.py", "training.chunks"),
    ("ingest/scenario/checks.py", "server.adapters"),  # above the devices
    ("ingest/scenario/checks.py", "servers"),
    ("ingest/scenario/checks.py", "server.devices"),
    ("ingest/scenario/messages.py", "limit"),  # ends in "or more", or is above one
    ("ingest/scenario/sweep_file.py", "number"),
    ("ingest/text/overrides.py", "len(items)"),  # behind a question whether it is one
    ("ingest/torch/exported_file.py", "entry.file_size"),
    ("ingest/text/quantities.py", "len(value)"),
}


def spoken(room: str) -> Iterator[tuple[str, str, str]]:
    """Yield file, expression and words of each number before a noun in plural; constants are no surprise."""
    for path in sorted((ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                for one, other in zip(node.values, node.values[1:], strict=False):
                    if not (isinstance(one, ast.FormattedValue) and isinstance(other, ast.Constant)):
                        continue
                    value = ast.unparse(one.value)
                    if BEHIND.match(str(other.value)) and not value.isupper() and "counted(" not in value:
                        yield path.relative_to(ROOT).as_posix(), value, str(other.value)


@pytest.mark.parametrize("room", ROOMS)
def test_no_plural_stands_behind_a_number_that_may_be_one(room: str) -> None:
    found = [(file, value, words) for file, value, words in spoken(room) if (file, value) not in NEVER_ONE]
    assert found == []


@pytest.mark.slow
def test_what_is_never_one_is_still_said() -> None:
    assert {(file, value) for room in ROOMS for file, value, _ in spoken(room)} >= NEVER_ONE


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [
        (0, "layer", "0 layers"),
        (1, "byte", "1 byte"),
        (2, "byte", "2 bytes"),
        (2, "micro-batch", "2 micro-batches"),
        (3, "forward pass", "3 forward passes"),
    ],
)
def test_a_number_with_its_noun(number: int, noun: str, said: str) -> None:
    assert counted(number, noun) == said
