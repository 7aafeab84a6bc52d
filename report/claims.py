"""What a claim is about, in words: the objective under the goal of the instance, and numbers of every goal."""

from __future__ import annotations

from formulation.instance import Instance
from formulation.options import Combine, Goal

MEANINGS = {
    Goal.ITERATION_TIME: "one optimiser step, with its fill and drain",
    Goal.COST: "the price per hour of the devices used",
    Goal.MEMORY: "the largest peak memory of any stage, on one device",
    Goal.DEVICES: "the devices used",
    Goal.STAGES: "the stages",
}
FORMATS = {
    "ns": ("ns", "exact"),
    "bytes": ("bytes", "exact_bytes"),
    "millionths per hour": ("price", "price"),
}
"""How a number of a unit is written, for the eye and exactly; of any other unit, a count, it is whole."""


def meaning_of(instance: Instance) -> str:
    """Return what the objective of an instance is."""
    goal = instance.goals[0]
    if goal is not Goal.BOTTLENECK:
        return MEANINGS[goal]
    slowest = "the slowest" if instance.cost.combine is Combine.MAX else "the sum"
    return f"{slowest} of all stages and boundaries, per micro-batch"


def formats_of(unit: str) -> tuple[str, str]:
    """Return the formats (``report.wording.FORMATS``) of a goal's unit: rounded for the eye, and exact."""
    return FORMATS.get(unit, ("whole", "whole"))
