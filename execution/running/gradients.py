"""Gradients summed over the processes that hold a parameter: replicas of a stage, all stages of a tied weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from execution.processes.channel import Channel
from execution.running.layout import RunLayout
from execution.splitting.stage import StageModule


def holders_of(stages: Iterable[StageModule], layout: RunLayout) -> dict[str, tuple[int, ...]]:
    """Return for every trained parameter the processes that hold it, in order."""
    found: dict[str, set[int]] = {}
    for stage in stages:
        for name, parameter in stage.named_parameters():
            if parameter.requires_grad:
                found.setdefault(name, set()).update(layout.processes[stage.index])
    return {name: tuple(sorted(holders)) for name, holders in found.items()}


def sums_of(holders: Mapping[str, tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Return the sets of processes that sum gradients, the same list in every process."""
    return tuple(sorted({one for one in holders.values() if len(one) > 1}))


class Earlier:
    """Gradients that are there before a step: they have been summed, and must not be summed again."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Take them out of the parameters."""
        self._kept = [(one, one.grad) for one in parameters.values() if one.grad is not None]
        for one, _ in self._kept:
            one.grad = None

    @torch.no_grad()
    def add(self) -> None:
        """Add the gradients of the step to them."""
        for one, earlier in self._kept:
            one.grad = earlier if one.grad is None else earlier.add_(one.grad)
        self._kept.clear()


def sum_gradients(
    parameters: Mapping[str, nn.Parameter], holders: Mapping[str, tuple[int, ...]], channel: Channel
) -> None:
    """Sum the gradients of this process's parameters, each over its holders: one buffer for each set of these.

    A parameter without a gradient counts as one of zeros. Raises PeerError.
    """
    for members in sums_of(holders):
        if channel.process not in members:
            continue
        summed = [parameters[name] for name, held in sorted(holders.items()) if held == members]
        for dtype in sorted({one.dtype for one in summed}, key=str):
            _sum_of([one for one in summed if one.dtype == dtype], members, channel)


def _sum_of(parameters: Sequence[nn.Parameter], members: Sequence[int], channel: Channel) -> None:
    flat = torch.cat([(torch.zeros_like(one) if one.grad is None else one.grad).reshape(-1) for one in parameters])
    channel.sum(flat, members, "sum of gradients")
    for parameter, part in zip(parameters, flat.split([one.numel() for one in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)
