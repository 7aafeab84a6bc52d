"""docs/formulation.md, "Several stages a group": who shares a group, and the order of its passes."""

from __future__ import annotations

from pipecut.formulation.problem.plan import Plan
from pipecut.formulation.problem.training import Schedule
from tests.formulation.page.numbers import Numbers


def groups(numbers: Numbers, stages: int) -> int:
    """p: how many groups so many stages have."""
    return stages // numbers.training.chunks


def on(numbers: Numbers, stage: int, stages: int) -> int:
    """The group of a stage: round after round, or down and up again."""
    ranks = groups(numbers, stages)
    if numbers.training.schedule is Schedule.ZERO_BUBBLE_V:
        return stage if stage < ranks else stages - 1 - stage
    return stage % ranks


def dealt(numbers: Numbers, plan: Plan) -> bool:
    """Whether stages are dealt out to groups, and interleaved micro-batches go in rounds."""
    chunks, ranks = numbers.training.chunks, groups(numbers, len(plan.stages))
    if chunks == 1:
        return True
    rounds = 1 if numbers.training.schedule is Schedule.ZERO_BUBBLE_V else ranks
    if ranks < 2 or len(plan.stages) % chunks or numbers.training.micro_batches % rounds:
        return False
    return all(
        (sorted(stage.group.counts), stage.group.mode) == (sorted(first.group.counts), first.group.mode)
        for at, stage in enumerate(plan.stages)
        for first in (plan.stages[on(numbers, at, len(plan.stages))],)
    )


def in_order(numbers: Numbers, stages: int, group: int) -> list[tuple[str, int, int]]:
    """The passes (F, B or W, stage, micro-batch) of a group, in its order; in a V, B is the first half."""
    if numbers.training.schedule is Schedule.ZERO_BUBBLE_V:
        return _in_a_v(numbers.training.micro_batches, groups(numbers, stages), group)
    chunks, ranks, steps = numbers.training.chunks, groups(numbers, stages), numbers.training.micro_batches
    forward, backward = [], []
    for at in range(chunks * steps):
        chunk = at // ranks % chunks
        batch = at // (ranks * chunks) * ranks + at % ranks
        forward.append(("F", chunk * ranks + group, batch))
        backward.append(("B", (chunks - 1 - chunk) * ranks + group, batch))
    warm = min(2 * (ranks - group - 1) + (chunks - 1) * ranks, len(forward))
    found = forward[:warm]
    for at, one in enumerate(backward):
        found += forward[warm + at : warm + at + 1]
        found.append(one)
    return found


def _in_a_v(steps: int, ranks: int, group: int) -> list[tuple[str, int, int]]:
    """The phases of the page, of each chunk and kind the micro-batches in order; those that are none left out."""
    most = max(steps, 2 * ranks - 1)
    phases = [
        ("F0", 2 * (ranks - group) - 1),
        ("F1 F0", group),
        ("F1 B1 W1", ranks - group),
        ("F0 B0 W0 F1 B1 W1", most - ranks),
        ("B0 B1", group),
        ("B0 W0", ranks - group),
        ("W1", group),
        ("W0", group),
    ]
    found, stage_of, next_of = [], {"0": group, "1": 2 * ranks - 1 - group}, dict[str, int]()
    for names, often in phases:
        for name in names.split() * often:
            batch = next_of.get(name, 0)
            next_of[name] = batch + 1
            if batch < steps:
                found.append((name[0], stage_of[name[1]], batch))
    return found


def kept(numbers: Numbers, stages: int, group: int) -> list[list[tuple[int, int]]]:
    """n_c and w_c of every chunk of a group, at every moment."""
    whole = numbers.training.schedule is not Schedule.ZERO_BUBBLE_V
    held = [[0, 0] for _ in range(numbers.training.chunks)]
    found = []
    for kind, stage, _ in in_order(numbers, stages, group):
        chunk = held[stage // groups(numbers, stages)]
        chunk[0] += kind == "F"
        chunk[1] += kind == "B" and not whole
        found.append([(one, other) for one, other in held])
        chunk[0] -= kind == ("B" if whole else "W")
        chunk[1] -= kind == "W"
    return found
