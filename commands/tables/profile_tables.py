"""What ``pipecut profile`` measured, as lines and a table for people."""

from __future__ import annotations

from typing import Any

from commands.tables.run_tables import plain_table
from commands.terminal import human, output

ROWS = 20
"""Layers that are shown: those where prediction and measurement are furthest apart."""


def write_profiled(content: dict[str, Any]) -> None:
    """Write the sums beside the whole, the link, and the layers where the prediction was most wrong."""
    for one in content["sizes"]:
        parts = []
        for way in ("forward", "backward"):
            summed, whole = one[f"sum_{way}_ns"], one[f"whole_{way}_ns"]
            apart = f" ({100 * (summed / whole - 1):+.1f} %)" if whole else ""
            parts.append(f"{way} {human.duration(summed)} in all layers, {human.duration(whole)} whole{apart}")
        samples = human.count(one["samples"], "sample")
        output.write(f"{samples}: {'; '.join(parts)}; spread {100 * one['spread']:.1f} %\n")
    latency = human.duration(content["link_latency_ns"])
    bandwidth = content["link_bits_per_second"] / 1e9
    output.write(f"link between two processes: {latency} and {bandwidth:.3g} Gbit/s\n")
    layers = sorted(content["layers"], key=_apart_ns, reverse=True)
    columns = ("forward", "predicted", "backward", "predicted")
    table = plain_table(("layer", "left"), *((one, "right") for one in columns))
    for row in layers[:ROWS]:
        keys = ("forward_ns", "predicted_forward_ns", "backward_ns", "predicted_backward_ns")
        table.add_row(human.printable(row["layer"]), *(human.duration(row[key]) for key in keys))
    output.show(table)
    if len(layers) > ROWS:
        output.write(f"... and {human.count(len(layers) - ROWS, 'layer')} with smaller differences\n")
    output.write(f"{content['out']}: {content['machine']}, torch {content['torch']}; name it as model.profile\n")


def _apart_ns(row: dict[str, Any]) -> int:
    return abs(sum(row[f"predicted_{way}_ns"] - row[f"{way}_ns"] for way in ("forward", "backward")))
