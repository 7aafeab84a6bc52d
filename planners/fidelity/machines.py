"""The machines of the published runs: manufacturers' numbers, and the one efficiency that is estimated."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from planners.common.accelerator import Accelerator, efficiency_for
from planners.megatron.published import LAYER_SHAPE, LAYER_TIMES, TERA
from planners.megatron.transformer_step import whole_ns
from planners.megatron.transformer_time import layer_passes

__all__: list[str] = []

GIGA = 10**9
NS_PER_MS = 10**6

A100 = Accelerator(
    name="A100 80 GB in DGX nodes",
    peak_flops_per_second=312 * TERA,
    memory_bytes_per_second=2039 * GIGA,
    near_bytes_per_second=300 * GIGA,
    far_bytes_per_second=25 * GIGA,
)
"""Dense 16-bit matrix products; NVLink 3 (600 GB/s, half in either direction); one 200 Gbit/s adapter a device."""
TPU_V3 = Accelerator("TPUv3 core", peak_flops_per_second=61_500 * GIGA, near_bytes_per_second=82 * GIGA)
"""Half a chip of 123 TFLOP/s; one 656 Gbit/s link between chips."""
TPU_V2 = Accelerator("TPUv2 core", peak_flops_per_second=22_500 * GIGA, near_bytes_per_second=62 * GIGA)
"""Half a chip of 45 TFLOP/s; one 496 Gbit/s link between chips."""
P100 = Accelerator("P100 on PCIe 3.0", peak_flops_per_second=9_300 * GIGA, near_bytes_per_second=15_750_000_000)
"""32-bit products; 16 lanes of PCIe 3.0."""


def estimated(machine: Accelerator) -> Accelerator:
    """Return the machine with the efficiency of one published time: Korthikanti et al., Table 4, first row.

    Forward and backward pass of one 22B layer together: no pipeline, no replicas, no ends, no optimiser.
    """
    row = LAYER_TIMES[0]

    def predicted_ns(efficiency: Fraction) -> int:
        passes = layer_passes(LAYER_SHAPE, row.setting, replace(machine, efficiency=efficiency))
        return whole_ns(passes.forward_s + passes.backward_s)

    published_ns = round((row.forward_ms + row.backward_ms) * NS_PER_MS)
    return replace(machine, efficiency=efficiency_for(predicted_ns, published_ns))
