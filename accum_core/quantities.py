"""Numbers as people read them: plain where that reads well, a power of ten where one is tiny or huge, points."""

from __future__ import annotations

from typing import Final

POINT: Final = 0.01  # one point of mIoU or of an error
IN_POINTS: Final = ("mIoU", "error")
"""Units of shares in [0, 1]: their differences are told in points."""
MINUS: Final = "\u2212"
SUPERSCRIPT: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, digits: int = 2) -> str:
    """A number for a sentence: plain where that reads well, with a power of ten where it is tiny or huge."""
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e5:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{float(mantissa):g} × 10{str(int(exponent)).translate(SUPERSCRIPT)}"
    if abs(value) < 1:
        return f"{value:.{digits}g}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def bound(share: float) -> str:
    """A threshold on a share in [0, 1] for a claim's statement: in points, with the share itself behind."""
    count = f"{share / POINT:g}"
    return f"{count} {'point' if count == '1' else 'points'} ({share:g})"


def quantity(unit: str, *values: float, digits: int = 1) -> str:
    """An effect, or the two ends of its interval, in the unit of its claim.

    Args:
        unit: of the claim: shares are told in points, a ratio ("") as it is, all else with the unit behind it.
        digits: behind the point, of points.
    """
    if unit in IN_POINTS:
        text, unit = " to ".join(f"{value / POINT:z.{digits}f}" for value in values), "points"
    else:
        text = " to ".join(number(value, digits + 1) for value in values)
    return f"{text.replace('-', MINUS)} {unit}".rstrip()
