"""``splits``: along what layers may be split beside samples and features. A part of rule 4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipecut.formulation.constraints.constraint import Constraint, Violation
from pipecut.formulation.problem.constraints import Key, Listed
from pipecut.formulation.problem.layers import Axis

if TYPE_CHECKING:
    from pipecut.formulation.problem.groups import Group
    from pipecut.formulation.problem.instance import Instance


@dataclass(frozen=True, slots=True)
class Splits(Constraint):
    """Along which axes devices may also split layers: forms 3 and above (``formulation.problem.layers``).

    With ``sequence`` or ``context`` rows may be parts of a sequence, so attention needs a sample for each
    replica, in form 0 for each device. With ``pairs`` the devices of a replica may lie in a grid, where a layer
    takes one form over neighbours and another over the rest.
    """

    rule, asked = "forms", True
    key = Key(
        "splits",
        Listed(Axis),
        "along what layers may be split beside samples and features, like [sequence, context], and whether by two"
        " forms at once (pairs)",
        place=13,
    )

    splits: tuple[Axis, ...] = ()

    @classmethod
    def read(cls, found: Any, names: object) -> Mapping[str, Any]:  # noqa: ANN401
        """Return the axes, each once."""
        return {"splits": tuple(one for one in Axis if one in found)}

    @property
    def limits(self) -> bool:
        """It only adds plans, but for attention on parts of samples."""
        return False

    def check_stage(self, instance: Instance, index: int, group: Group) -> Iterator[Violation]:
        """Yield a grid of devices where layers may not be split by two forms at once."""
        if group.mode.grid > 1 and Axis.PAIRS not in self.splits:
            message = (
                f"stage {index}: devices in a grid, in rows of {group.mode.grid}, and constraints.splits does not"
                " name pairs"
            )
            yield Violation("devices", f"stage {index}", group.mode.grid, 1, "devices", message)
