"""(4) ``forms``: a layer whose stage shares its work takes one of its forms, and only those that a user allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipecut.formulation.constraints.constraint import Constraint, Limit, Violation, named
from pipecut.formulation.problem.constraints import Key, Keyed, Listed, Written

if TYPE_CHECKING:
    from pipecut.formulation.problem.constraints import Lookup
    from pipecut.formulation.problem.groups import Group
    from pipecut.formulation.problem.instance import Instance
    from pipecut.formulation.problem.plan import Plan

SECTION = Keyed(
    "FormsSection",
    "Which parallel forms layers may take.",
    (
        Key("layers", Written.GLOB, "layers by name, like 'classifier.*'", required=True),
        Key(
            "allowed",
            Listed(Written.FORM, 1),
            "the forms that they may take, of 0 to 7, or pairs of forms, 8 to 33",
            required=True,
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class FormLimit:
    """Layers (a glob on their names) take one of the ``allowed`` forms where they share their work."""

    layers: str
    allowed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Forms(Constraint):
    """All limits on forms. They narrow the forms of layers on the instance, so that every solver sees them."""

    number, rule, rank, asked = 4, "forms", 110, True
    key = Key("forms", Listed(SECTION), "parallel forms that layers may take", place=13)

    forms: tuple[FormLimit, ...] = ()

    @classmethod
    def read(cls, found: Any, names: object) -> Mapping[str, Any]:  # noqa: ANN401
        """Return the limits."""
        return {"forms": tuple(FormLimit(row.layers, tuple(row.allowed)) for row in found)}

    def resolve(self, look: Lookup) -> Mapping[str, Any]:
        """Return pairs (layers that choose a form, allowed forms), where every layer keeps a form."""
        from pipecut.formulation.problem.demands import forms_left

        pairs = tuple((_choosing(look, f"forms[{at}]", row), row.allowed) for at, row in enumerate(self.forms))
        for at, left in forms_left(look.all_layers, pairs).items():
            if not left:
                has = ", ".join(map(str, look.all_layers[at].allowed_forms))
                look.wrong("forms", f"they leave layer {look.all_layers[at].name} none of its forms ({has})")
        return {"forms": pairs}

    def check(self, instance: Instance, plan: Plan) -> Iterator[Violation]:
        """(4) Every layer takes one of its forms: 0 if it has no form of its own or shares no work."""
        from pipecut.formulation.problem.groups import forms_on
        from pipecut.formulation.problem.layers import FORMS, Split

        for index, stage in enumerate(plan.stages):
            yield from _without_forms(instance, index, stage.group)
            degree = stage.group.tensor_parallel_degree
            for layer, form in zip(stage.span.layers, stage.forms, strict=False):
                row = instance.layers[layer]
                choices = FORMS[:1] if row.split is Split.FOLLOW else forms_on(row, stage.group)
                if choices and form not in choices:
                    listed = ", ".join(map(str, choices))
                    message = (
                        f"stage {index}, layer {row.name}: form {form}, expected {listed}"
                        f" ({row.split} layer on {degree} devices)"
                    )
                    yield Violation("forms", f"stage {index}: {row.name}", form, choices[-1], "form", message)

    def loosenings(self, instance: Instance) -> Iterator[Limit]:
        """Yield each entry."""
        for at, (row, (layers, _)) in enumerate(zip(self.forms, instance.demands.forms, strict=True)):
            words = f"{named(instance, [row.layers], layers)} in form {' or '.join(map(str, row.allowed))}"
            yield Limit(f"constraints.forms[{at}]", words, "forms", at)


def _without_forms(instance: Instance, index: int, group: Group) -> Iterator[Violation]:
    """Yield a degree at which some layer of the model has no form: no stage may have it, whatever it holds."""
    degree, devices, grid = group.tensor_parallel_degree, group.devices, group.mode.grid
    for row in instance.layers:
        if row.across is not None and not row.across.has_form(row.allowed_forms, degree, devices, grid):
            if 0 < row.across.samples < group.replicas:
                samples, replicas = row.across.samples, group.replicas
                message = (
                    f"stage {index}: {replicas} replicas share micro-batches of {samples} samples, and with"
                    f" constraints.splits rows may be parts of a sequence: {row.name} needs a sample for each;"
                    " take fewer replicas, or fewer micro-batches"
                )
                yield Violation("forms", f"stage {index}", replicas, samples, "replicas", message)
                return
            message = (
                f"stage {index}: {devices} devices, {degree} a replica, and layer {row.name} of"
                f" {row.across.pieces} heads or experts has none of its forms {row.allowed_forms} there: allow"
                " form 1 too, or other constraints.tensor_parallel_degrees"
            )
            yield Violation("forms", f"stage {index}", degree, row.across.pieces, "devices", message)
            return


def _choosing(look: Lookup, where: str, row: FormLimit) -> tuple[int, ...]:
    """Return the matching layers that choose a form."""
    from pipecut.formulation.problem.layers import EVERY_FORM, Split

    matching = look.layers(f"{where}.layers", row.layers)
    found = tuple(at for at in matching if look.all_layers[at].split is not Split.FOLLOW)
    if matching and not found:
        look.wrong(
            where, f"every layer that matches '{row.layers}' keeps the layout of its producer and has no form"
        )
    if not row.allowed or not set(row.allowed) <= set(EVERY_FORM):
        look.wrong(where, f"allowed forms {list(row.allowed)}, expected some of 0 to {EVERY_FORM[-1]}")
    return found
