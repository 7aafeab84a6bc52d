"""AlexNet as an instance: the chain that AccPar's program reads, on equal devices of one server."""

from __future__ import annotations

from collections.abc import Sequence

from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FORMS, Layer
from pipecut.formulation.problem.units import Link
from pipecut_literature.accpar.levels import array, chain_graph
from pipecut_literature.accpar.published import ALEXNET
from pipecut_literature.common.one_stage import prefer


def alexnet(devices: int) -> Instance:
    """AlexNet with batch 512 in 2 bytes an element on so many TPU-v2."""
    return array(chain_graph("alexnet", ALEXNET), Link(8 * 10**9), (("TPU-v2", devices, 180 * 10**12),))


def typed(instance: Instance, types: Sequence[int] = FORMS) -> tuple[Layer, ...]:
    """The layers of an instance, with only these forms allowed."""
    return tuple(prefer(layer, tuple(types)) for layer in instance.layers)
