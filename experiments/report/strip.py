"""A claim's effects on one line: a dot a seed, their mean with its interval, and where the claim holds. No script."""

from __future__ import annotations

import base64
import math

from accum_core import palette
from experiments.report.findings import Judged

WIDTH, HEIGHT, EDGE = 340, 40, 10  # pixels


def strip(one: Judged, *, dark: bool) -> str:
    """The line as an SVG picture in a ``data:`` address.

    Args:
        one: a claim with its effects.
        dark: whether it stands on a dark surface.
    """
    claim, verdict = one.claim, one.verdict
    bounds = [bound for bound in (claim.at_least, claim.at_most) if bound is not None]
    values = [*one.effects.values(), *bounds, verdict.low, verdict.high]
    low, high = min(values), max(values)
    span = (high - low) or 1.0

    def x(value: float) -> float:
        if math.isinf(value):
            return 0.0 if value < 0 else float(WIDTH)
        return EDGE + (value - low) / span * (WIDTH - 2 * EDGE)

    left = x(-math.inf if claim.at_least is None else claim.at_least)
    right = x(math.inf if claim.at_most is None else claim.at_most)
    holds, color = palette.VERDICT_COLORS["supported"].on(dark), palette.VERDICT_COLORS[verdict.verdict].on(dark)
    text, middle = palette.TEXT.on(dark), HEIGHT / 2
    parts = [f'<rect x="{left:.1f}" width="{right - left:.1f}" height="{HEIGHT}" fill="{holds}" opacity="0.14"/>']
    parts += [
        f'<path d="M{x(bound):.1f} 0V{HEIGHT}" stroke="{holds}" stroke-width="2" stroke-dasharray="4 3"/>'
        for bound in bounds
    ]
    parts += [
        f'<circle cx="{x(value):.1f}" cy="{middle}" r="4" fill="{text}" opacity="0.45"/>'
        for value in one.effects.values()
    ]
    parts += [
        f'<path d="M{x(verdict.low):.1f} {middle}H{x(verdict.high):.1f}" stroke="{color}" stroke-width="3"/>',
        *(
            f'<path d="M{x(end):.1f} {middle - 7}V{middle + 7}" stroke="{color}" stroke-width="2"/>'
            for end in (verdict.low, verdict.high)
        ),
        f'<path d="M{x(verdict.effect):.1f} {middle - 7}l6 7-6 7-6-7z" fill="{color}"/>',
    ]
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}">{"".join(parts)}</svg>'
    )
    return f"data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()}"
