"""Hypothesis strategies for the demands of a user."""

from __future__ import annotations

from hypothesis import HealthCheck
from hypothesis import strategies as st

from pipecut.formulation.constraints.devices.reserve import Reserve
from pipecut.formulation.constraints.layers.forms import FormLimit
from pipecut.formulation.constraints.layers.pin import Pin
from pipecut.formulation.problem.constraints import Constraints, Placement
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.layers import FORMS, Split

SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@st.composite
def globs(draw: st.DrawFn, instance: Instance) -> str:
    """A glob that matches one layer or more: layers are called layer0, layer1, ..."""
    total = len(instance.layers)
    one, other = sorted((draw(st.integers(0, total - 1)), draw(st.integers(0, total - 1))))
    return draw(st.sampled_from([f"layer{one}", f"layer[{one}-{other}]"]))


@st.composite
def pins(draw: st.DrawFn, instance: Instance) -> Pin:
    """A pin to a server or two, a class, or a stage that a plan may not have."""
    layers, names = draw(globs(instance)), [server.name for server in instance.servers]
    kind = draw(st.integers(0, 2))
    if kind == 0:
        return Pin(layers, servers=tuple(draw(st.sets(st.sampled_from(names), min_size=1, max_size=2))))
    if kind == 1:
        return Pin(layers, device=draw(st.sampled_from([one.name for one in instance.device_classes])))
    return Pin(layers, stage=draw(st.integers(-3, 3)))


@st.composite
def constraints(draw: st.DrawFn, instance: Instance, most: int = 3) -> Constraints:
    """One demand or more of any kinds, on the line or free, with or without a memory limit."""
    kinds = draw(st.sets(st.sampled_from(sorted(MADE)), min_size=1, max_size=most))
    found: dict[str, object] = {}
    for kind in sorted(kinds):
        found |= MADE[kind](draw, instance)
    placement = draw(st.sampled_from([Placement.LINE, Placement.LINE, Placement.FREE]))
    return Constraints(memory=draw(st.booleans()), placement=placement, **found)  # type: ignore[arg-type]


def _stages(draw: st.DrawFn, instance: Instance) -> dict[str, object]:
    least, most = sorted((draw(st.integers(1, 4)), draw(st.integers(1, 4))))
    return draw(
        st.sampled_from(
            [
                {"stages_at_least": most},
                {"stages_at_most": least},
                dict(stages_at_least=least, stages_at_most=most),
            ]
        )
    )


def _apart(draw: st.DrawFn, instance: Instance) -> dict[str, object]:
    """Two sets of layers, one or more each, that may lie between one another."""
    order = draw(st.permutations(range(len(instance.layers))))
    if len(order) < 2:
        return {}
    one = draw(st.integers(1, len(order) - 1))
    other = draw(st.integers(one + 1, len(order)))
    sets = (order[:one], order[one:other])
    return {"apart": (tuple(f"layer[{''.join(map(str, row))}]" for row in sets),)}


def _forms(draw: st.DrawFn, instance: Instance) -> dict[str, object]:
    choosing = [layer for layer in instance.layers if layer.split is not Split.FOLLOW]
    if not choosing:
        return {}
    layer = draw(st.sampled_from(choosing))
    kept = draw(st.sampled_from(layer.allowed_forms))
    return {"forms": (FormLimit(layer.name, tuple(sorted({kept, draw(st.sampled_from(FORMS))}))),)}


def _reserve(draw: st.DrawFn, instance: Instance) -> dict[str, object]:
    server = draw(st.sampled_from(instance.servers))
    share = draw(st.sampled_from([10, 90, 99]))
    return {"reserve": (Reserve(server.name, server.device_class.memory_bytes * share // 100),)}


MADE = {
    "stages": _stages,
    "pins": lambda draw, at: {"pins": tuple(draw(pins(at)) for _ in range(draw(st.integers(1, 2))))},
    "together": lambda draw, at: {"together": (tuple(draw(st.lists(globs(at), min_size=1, max_size=2))),)},
    "apart": _apart,
    "no_cut": lambda draw, at: {"no_cut": (draw(globs(at)),)},
    "forms": _forms,
    "devices_per_stage": lambda draw, at: {
        "devices_per_stage": tuple(draw(st.sets(st.integers(1, 4), min_size=1, max_size=2)))
    },
    "reserve": _reserve,
    "stages_per_server": lambda draw, at: {"stages_per_server": draw(st.integers(1, 3))},
    "equal_stages": lambda draw, at: {"equal_stages": True, "one_mode": draw(st.booleans())},
}
