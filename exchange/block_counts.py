"""Megatron-LM's stages: how many blocks of a transformer each has, after its arguments.

``pipeline_model_parallel_size`` stages share the blocks evenly; ``decoder_first_pipeline_num_layers`` and
``decoder_last_pipeline_num_layers`` set the first and the last stage, and those between share the rest evenly.
``num_layers_per_stage`` lists all numbers instead. What stands before the first block (embeddings) belongs to the
first stage, what stands behind the last one (norm, head) to the last.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping

from formulation.problem.instance import Instance
from ingest.graphs.errors import quoted

__all__: list[str] = []

SIZE, FIRST, LAST = (
    "pipeline_model_parallel_size",
    "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers",
)
NUMBERS = (SIZE, "num_layers", FIRST, LAST)
LISTED = "num_layers_per_stage"
BLOCK_KEYS = (*NUMBERS, LISTED, "blocks")
"""The keys of a file; ``blocks`` names the module that holds the blocks, where several could be meant."""


def stages_of_blocks(instance: Instance, settings: Mapping[str, object]) -> tuple[list[int], list[str]]:
    """Return the stage of every layer, or what is wrong: counts that do not add up, or no blocks in the model."""
    starts, problems = _block_starts(instance, settings.get("blocks"))
    if problems:
        return [], problems
    counts, problems = _counts(settings, len(starts))
    if problems:
        return [], problems
    cuts = [starts[end] for end in itertools.accumulate(counts[:-1])]
    return [bisect.bisect_right(cuts, layer) for layer in range(len(instance.layers))], []


def _block_starts(instance: Instance, named: object) -> tuple[list[int], list[str]]:
    """Return the first layer of every block, or why there are none."""
    lists: dict[str, dict[int, list[int]]] = {}
    for index, layer in enumerate(instance.layers):
        parts = layer.name.split(".")
        at = next((at for at, part in enumerate(parts) if at and part.isdecimal()), None)
        if at is not None:
            lists.setdefault(".".join(parts[:at]), {}).setdefault(int(parts[at]), []).append(index)
    known = ", ".join(sorted(lists)) or "none"
    if named is None and len(lists) != 1:
        return [], [f": modules with numbered blocks in the model: {known}; name one with the key 'blocks'"]
    chosen = next(iter(lists)) if named is None else named
    if not isinstance(chosen, str) or chosen not in lists:
        return [], [f": blocks: found {quoted(chosen)}, expected a module with numbered blocks: {known}"]
    blocks = [lists[chosen][number] for number in sorted(lists[chosen])]
    problems = [
        f": block {chosen}.{number} does not come after the one before it in execution order"
        for number, (before, block) in zip(sorted(lists[chosen])[1:], itertools.pairwise(blocks), strict=True)
        if block[0] < before[-1]
    ]
    return [block[0] for block in blocks], problems


def _counts(settings: Mapping[str, object], blocks: int) -> tuple[list[int], list[str]]:
    """Return the number of blocks of every stage, or what is wrong with the counts."""
    numbers: dict[str, int] = {}
    problems: list[str] = []
    for key in NUMBERS:
        value = settings.get(key)
        if type(value) is int and 1 <= value < 2**31:
            numbers[key] = value
        elif value is not None:
            problems.append(f": {key}: found {quoted(value)}, expected a whole number, 1 or more")
    if numbers.get("num_layers", blocks) != blocks:
        problems.append(f": num_layers: found {numbers['num_layers']}, expected the model's {blocks} blocks")
    if problems:
        return [], problems
    if LISTED in settings:
        return _listed(settings[LISTED], numbers, blocks)
    if SIZE not in numbers:
        return [], [f": expected {SIZE} or {LISTED}"]
    return _even(numbers, blocks)


def _listed(raw: object, numbers: Mapping[str, int], blocks: int) -> tuple[list[int], list[str]]:
    """Return the listed numbers of blocks, one for each stage."""
    counts = [one for one in raw if type(one) is int and one >= 1] if isinstance(raw, list) else []
    if not isinstance(raw, list) or len(counts) != len(raw) or not counts:
        return [], [f": {LISTED}: found {quoted(raw)}, expected whole numbers, 1 or more"]
    problems = [
        f": {LISTED}: found {len(counts)} numbers, expected {SIZE} = {numbers[SIZE]}"
        for _ in range(numbers.get(SIZE, len(counts)) != len(counts))
    ]
    if sum(counts) != blocks:
        problems.append(f": {LISTED}: found {sum(counts)} blocks in all, expected the model's {blocks}")
    problems += [f": found {key} beside {LISTED}, expected one of them" for key in (FIRST, LAST) if key in numbers]
    return counts, problems


def _even(numbers: Mapping[str, int], blocks: int) -> tuple[list[int], list[str]]:
    """Return even numbers of blocks but for the first and last stage, which may be set."""
    ends = [numbers[key] for key in (FIRST, LAST) if key in numbers]
    stages, left = numbers[SIZE] - len(ends), blocks - sum(ends)
    if stages < 0 or (stages == 0) != (left == 0) or (stages and (left < stages or left % stages)):
        beside = f" beside {' + '.join(map(str, ends))} in the first or last" if ends else ""
        return [], [
            f": {SIZE}: found {numbers[SIZE]} stages for {blocks} blocks{beside}; {left} blocks cannot be shared"
            f" evenly by {stages} stages, expected as much in each, 1 or more"
        ]
    counts = [left // stages] * stages if stages else []
    first = [numbers[FIRST]] if FIRST in numbers else []
    return [*first, *counts, *([numbers[LAST]] if LAST in numbers else [])], []
