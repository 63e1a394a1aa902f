"""Tables as the commands print them."""

from __future__ import annotations

from collections.abc import Sequence

from accum_core.claims import Claim, Verdict
from accum_core.statistics import MOST_SEEDS, POWER


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """One line a row, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def verdicts(found: Sequence[Verdict], stated: Sequence[Claim]) -> str:
    """One claim a line, with its statement below it and, where the seeds decide nothing, how many might."""
    claims = {claim.id: claim for claim in stated}
    rows = [("claim", "verdict", "effect", "95 % interval", "seeds")]
    for verdict in found:
        effect = f"{verdict.effect:.3g} {claims[verdict.id].unit}".rstrip()
        interval = f"{verdict.low:.3g} to {verdict.high:.3g}"
        rows.append((verdict.id, verdict.verdict, effect, interval, str(verdict.num_seeds)))
    head, *lines = aligned(rows)
    told = [head]
    for line, verdict in zip(lines, found, strict=True):
        told += [line, f"  {verdict.statement}"]
        if verdict.verdict == "inconclusive":
            told.append(f"  {to_decide(claims[verdict.id], verdict)}")
    return "\n".join(told)


def to_decide(claim: Claim, verdict: Verdict) -> str:
    """How many seeds would decide a claim that these did not."""
    seeds = claim.seeds_to_decide(verdict)
    if seeds is None:
        return (
            f"If this is the true effect, more than {MOST_SEEDS} seeds are needed: it lies too near to the threshold."
        )
    return f"If this is the true effect, {seeds} seeds of this spread decide with a probability of {POWER:.0%}."
