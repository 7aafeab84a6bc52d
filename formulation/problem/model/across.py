"""What a layer does across rows or columns, and which further ways to split it that makes possible.

Beside samples, input features and output features (forms 0 to 2) devices may split a layer along an :class:`Axis`.
Each axis brings forms of its own; what they send and hold are rows of ``formulation.costs.forms.SHARDINGS``. They
are offered only where ``constraints.splits`` names their axis.

Where it names ``pairs``, the devices of a replica may lie in a grid, in rows of neighbours (``Mode.grid``). Then a
layer may be split in one form over the neighbours and in another over the rows: a *pair* (:data:`PAIRS`). In one
of the two every device has samples or tokens of its own, so that sums of one tensor are never over both at once.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from formulation.problem.layers import Layer

FORMS = (0, 1, 2)
"""The three parallel forms of a matrix product (PipePar Fig. 1; AccPar's Types I, II, III)."""


class Axis(enum.StrEnum):
    """Along what devices may split layers beside samples, input features and output features."""

    SEQUENCE = "sequence"
    """Matrix products leave or take parts of the sequence (Korthikanti et al., arXiv 2205.05198, §4.2.2)."""
    CONTEXT = "context"
    """Attention on parts of the sequence: keys and values go round all devices (arXiv 2310.01889)."""
    EXPERTS = "experts"
    """Each device has some of the experts of a mixture, and gets their tokens (GShard, arXiv 2006.16668)."""
    VOCABULARY = "vocabulary"
    """A loss on parts of the vocabulary adds up a few numbers a token (Megatron-LM, arXiv 1909.08053, §3)."""
    PAIRS = "pairs"
    """Two forms at once, one over neighbouring devices and the other over the rest: no axis of a layer."""


FORMS_ALONG: Mapping[Axis, Mapping[int, int]] = MappingProxyType(
    {
        Axis.SEQUENCE: MappingProxyType({3: 1, 4: 2}),
        Axis.CONTEXT: MappingProxyType({5: 0}),
        Axis.EXPERTS: MappingProxyType({6: 0}),
        Axis.VOCABULARY: MappingProxyType({7: 1}),
    }
)
"""By axis its forms, each with the form beside which it is offered: who may not take that gets neither."""
SINGLE_FORMS = (*FORMS, *(form for forms in FORMS_ALONG.values() for form in forms))
"""With those along a further axis, which ``constraints.splits`` offers."""
OWN_TOKENS = (0, 5, 6)
"""Forms in which a device works on samples or tokens of its own: by rows, in a ring, by experts."""
TOGETHER = ((0, 1, 2, 3, 4, 6), (0, 1, 2, 5), (0, 1, 2, 7))
"""Forms that some layer may have all of: a product, attention, a loss."""
PAIRS: Mapping[int, tuple[int, int]] = MappingProxyType(
    dict(
        enumerate(
            dict.fromkeys(
                pair
                for forms in TOGETHER
                for pair in itertools.permutations(forms, 2)
                if set(pair).intersection(OWN_TOKENS)
            ),
            start=len(SINGLE_FORMS),
        )
    )
)
"""By number the form over neighbouring devices, and that over the rows of them."""
EVERY_FORM = (*SINGLE_FORMS, *PAIRS)
"""All of them: a plan names one for each layer."""


@dataclass(frozen=True, slots=True)
class Across:
    """What a layer does across the rows or columns of its input, for one sample.

    ``axis``: ``CONTEXT`` is attention, ``EXPERTS`` what works on tokens sorted by expert, ``VOCABULARY`` a loss.
    ``pieces`` are the heads of attention (of queries or of keys and values, whichever are fewer) or the experts:
    a device has some of them, never a part of one; 0 where any number of devices will do. ``sent_bytes`` are the
    keys and values, or the numbers that a loss adds up over the vocabulary in one sum. ``samples`` are those of a
    micro-batch, where rows may be parts of a sequence: each replica has a whole sample of attention, and in form
    0 all devices have equally many whole ones (0: rows are samples). Raises ValueError for a negative number, and
    for pairs, which are no axis of a layer.
    """

    axis: Axis
    pieces: int = 0
    sent_bytes: int = 0
    samples: int = 0

    def __post_init__(self) -> None:
        if min(self.pieces, self.sent_bytes, self.samples) < 0:
            raise ValueError(f"{self}: expected numbers of 0 or more")
        if self.axis is Axis.PAIRS:
            raise ValueError(f"{self}: pairs are no axis of a layer, expected one of {', '.join(FORMS_ALONG)}")

    def allows(self, form: int, degree: int, devices: int, grid: int = 1) -> bool:
        """Tell whether replicas of ``degree`` devices in rows of ``grid``, ``devices`` in all, can have this form.

        Where rows may be parts of a sequence, no two replicas share a sample of attention, and in form 0 no two
        devices do, as all have equally many rows. Of a pair each form has its own devices: those that the other
        one leaves.
        """
        if form in PAIRS:
            (one, other), rows = PAIRS[form], degree // grid
            return self.allows(one, grid, devices // rows) and self.allows(other, rows, devices // grid)
        if self.axis is Axis.CONTEXT and self.samples > 0:
            shared = form == 0 and degree > 1 and self.samples % devices
            if shared or self.samples < devices // degree:
                return False
        pieces = self.pieces if (self.axis, form) in ((Axis.CONTEXT, 2), (Axis.EXPERTS, 6)) else 0
        return pieces % degree == 0

    def has_form(self, forms: Iterable[int], degree: int, devices: int, grid: int = 1) -> bool:
        """Tell whether replicas of ``degree`` devices, ``devices`` in all, can have one of these forms.

        A replica of one device has form 0.
        """
        if degree == 1:
            return self.allows(0, 1, devices)
        return any(self.allows(form, degree, devices, grid) for form in forms if grid > 1 or form not in PAIRS)


def with_pairs(forms: Iterable[int]) -> tuple[int, ...]:
    """Return forms of a layer, and the pairs of which it may take both."""
    own = {*forms}
    return (*sorted(own), *(number for number, pair in PAIRS.items() if own.issuperset(pair)))


def axes_of(layer: Layer) -> tuple[Axis, ...]:
    """Return along what devices may split a layer, beside samples and features."""
    across = () if layer.across is None or layer.split == "follow" else (layer.across.axis,)
    return (Axis.SEQUENCE, *across) if layer.is_matrix else across


def forms_problem(layer: Layer) -> str:
    """Say what is wrong with the forms that a layer may take; nothing if they will do."""
    known = (*FORMS, *(form for axis in axes_of(layer) for form in FORMS_ALONG[axis]))
    if not layer.allowed_forms or not set(layer.allowed_forms) <= set(with_pairs(known)):
        return f", expected some of {known}"
    return ""
