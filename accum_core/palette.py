"""The colours of every chart, defined once: the run, its reference, one a norm, one a verdict.

Each is a pair of shades, for a light and a dark surface, with a contrast of at least 4.5 on its surfaces, so that a
label may carry its line's colour. The run, the reference, BatchNorm and GroupNorm also stay apart under simulated
protanopia, deuteranopia and tritanopia; the others lean on the label that stands beside each line.
"""

from __future__ import annotations

from itertools import cycle
from typing import Final, NamedTuple

from accum_core import catalogue
from accum_core.claims import VerdictWord
from accum_core.reduction import ReductionKind


class Shade(NamedTuple):
    """One colour on the two kinds of surface, as ``#RRGGBB``."""

    light: str
    dark: str

    def on(self, dark: bool) -> str:
        """The shade for a dark or a light surface."""
        return self.dark if dark else self.light


RUN: Final = Shade("#B01038", "#F0596B")
REFERENCE: Final = Shade("#667080", "#A3ADBB")
TEXT: Final = Shade("#1B2430", "#E8ECF1")
MUTED: Final = Shade("#566070", "#A3ADBB")
GRID: Final = Shade("#E3E7EC", "#2C3440")
SURFACE: Final = Shade("#FFFFFF", "#0E1117")
CARD: Final = Shade("#F5F7FA", "#1A2029")

_NORM_SHADES: Final = (
    Shade("#0A50A8", "#5CAEF8"),
    Shade("#A65D00", "#F5B14C"),
    Shade("#06382B", "#9AF0C8"),
    Shade("#8A3FD1", "#D08CFF"),
    Shade("#4A1046", "#E3A6DC"),
    Shade("#0F7283", "#FEF16D"),
)
_APART: Final = ("batch", "batch_corrected", "group", "layer", "instance", "none")
"""The norms that most charts compare: each has a shade of its own, whatever norms come to be."""
NORM_COLORS: Final[dict[str, Shade]] = dict(
    zip(dict.fromkeys((*_APART, *catalogue.entries("norms"))), cycle(_NORM_SHADES), strict=False)
)
"""One colour a norm: a new norm's file gets one by being there."""

REDUCTION_COLORS: Final[dict[ReductionKind, Shade]] = {
    "exact": Shade("#00695C", "#5FD6C0"),
    "mean_of_means": RUN,
    "sum_of_means": Shade("#A65D00", "#F5B14C"),
    "sum": Shade("#0A50A8", "#5CAEF8"),
}
VERDICT_COLORS: Final[dict[VerdictWord, Shade]] = {
    "supported": Shade("#00695C", "#5FD6C0"),
    "refuted": Shade("#B01038", "#F0596B"),
    "inconclusive": Shade("#566070", "#A3ADBB"),
}
