"""docs/exactness.md: a table with the worst of each kind, then every combination."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import torch

from accum_core.engine.environment import describe
from accum_core.reduction import REDUCTION_KINDS
from benchmarks.exactness.cases import (
    FULL,
    MICRO_BATCH,
    SAMPLES,
    TAIL_SAMPLES,
    TYPES,
    WINDOWS,
    WORLDS,
    Case,
    sees_the_window,
)
from benchmarks.exactness.judge import BOUNDS, Row

REPORT: Final = Path(__file__).parents[2] / "docs" / "exactness.md"
MUST_BE: Final = {
    "exact": "the sum over all valid labels, divided by their number",
    "mean_of_means": "each micro-batch's mean, divided by their number and the ranks': wrong, as micro-batches weigh "
    "differently",
    "sum_of_means": "each micro-batch's mean, divided by the ranks' number alone: about as many times too large as a "
    "rank has micro-batches",
    "sum": "the sum over all valid labels, divided by the ranks' number alone: the number of labels a rank times too "
    "large",
}
TAILS: Final = {
    FULL: f"a full window, {SAMPLES} samples",
    "rescale": f"a tail of {TAIL_SAMPLES} samples, tail rule rescale",
    "divide_by_n": f"a tail of {TAIL_SAMPLES} samples, tail rule divide_by_n",
}
INTRODUCTION: Final = """\
# Exactness

Written by `python -m benchmarks exactness`.

**What is measured.** The gradient error, norm(g - reference) / norm(reference): how far the gradient g that the engine
leaves after a window is from the reference, the gradient of the whole window in one pass in float64 at the same
weights. Where a combination must be right, the error must be 0. Where it must be wrong, arithmetic says by how much: a
window's gradient is a sum of its micro-batches' gradients, each times what the reduction and the tail rule put on it.
Those gradients are computed one by one in float64, without the engine, and added up: this is the gradient that must be.

**When it holds.** The distance, norm(g - must be) / norm(must be), is at most {bounds}. For the 16-bit types that is
four times what one rounding may be off by, since a value passes through several; "passes alone" is what plain passes in
the type are off by when their gradients are summed in float64, so what no loop could avoid.

**The window.** {samples} landcover tiles cut to 8 x 8, in a tail {tail}, in micro-batches of {micro} at most; a share
of each tile's labels is ignored, from none in the first to 90 % in the last, so micro-batches weigh differently. Over
ranks (gloo, DistributedDataParallel) each has its share of the samples: {split}. The network: two 3 x 3 convolutions,
each with the norm and SiLU behind it, and a transposed one; initial weights and images are numbers that bfloat16 holds,
so all types start from the same. Under float16 the loss is scaled by 65536, and by half as much until all is finite.
"""


def farthest(rows: Sequence[Row], precision: str) -> tuple[Row, int]:
    """The row of a number type that is farthest from what it must be, and how many there are."""
    mine = [row for row in rows if row.case.precision == precision and row.distance is not None]
    return max(mine, key=_distance), len(mine)


def write(rows: Sequence[Row]) -> None:
    """Write the report."""
    REPORT.write_text(text(rows), encoding="utf-8")


def text(rows: Sequence[Row]) -> str:
    """The report."""
    environment = describe(torch.device("cpu"))
    told = [f"{BOUNDS[name]:.2g} in {name}" for name in TYPES]
    introduction = INTRODUCTION.format(
        bounds=", ".join(told), samples=SAMPLES, tail=TAIL_SAMPLES, micro=MICRO_BATCH, split=_split()
    )
    dropped = [row for row in rows if not row.case.makes_an_update]
    wrong = [row for row in rows if not row.holds]
    norms = list(dict.fromkeys(row.case.norm for row in rows))
    lines = [
        _joined(introduction.strip()),
        "",
        f"{environment.date}, {environment.processor}, {environment.platform}, Python {environment.python}, "
        f"torch {environment.torch}, code version {environment.code_version}.",
        "",
        "## In short",
        "",
        f"{len(rows)} combinations: {len(norms)} norms, {len(REDUCTION_KINDS)} reductions, a full window and a tail "
        f"under each of {len(WINDOWS) - 1} rules, {len(TYPES)} number types, 1, 2 and 4 ranks, with and without "
        f"activation checkpointing. {len(rows) - len(wrong)} hold, {len(wrong)} do not. In {len(dropped)} of them the "
        f"rule is drop, and no update is made of the tail: {sum(row.holds for row in dropped)} hold.",
        "",
        f"Norms that see one sample at a time, or the window as a whole: {_those(norms, True)}. Norms that see one "
        f"micro-batch at a time: {_those(norms, False)}. Theirs is another gradient than the window's, however the "
        "loss is divided; what it must be is made of their own micro-batches' gradients.",
        "",
        "The gradient errors that must be, and the largest distance from what must be in each number type:",
        "",
        *_summary(rows),
    ]
    for reduction in REDUCTION_KINDS:
        for tail, told_tail in TAILS.items():
            mine = [row for row in rows if (row.case.reduction, row.case.tail) == (reduction, tail)]
            lines += ["", f"## {reduction}: {told_tail}", "", f"Must be {_must_be(reduction, tail)}.", ""]
            lines += _details(mine)
    return "\n".join([*lines, ""])


def _summary(rows: Sequence[Row]) -> Iterator[str]:
    yield f"| reduction | window | norms see | error that must be | {' | '.join(TYPES)} | hold |"
    yield f"|{'---|' * (len(TYPES) + 5)}"
    yield f"| | | | bound | {' | '.join(f'{BOUNDS[name]:.2g}' for name in TYPES)} | |"
    for reduction in REDUCTION_KINDS:
        for tail in TAILS:
            for whole in (True, False):
                mine = [
                    row
                    for row in rows
                    if (row.case.reduction, row.case.tail, sees_the_window(row.case.norm)) == (reduction, tail, whole)
                ]
                window = FULL if tail == FULL else f"tail, {tail}"
                seen = "samples, or the window" if whole else "micro-batches"
                least, most = (f(row.expected or 0.0 for row in mine) for f in (min, max))
                must = _number(least) if _number(least) == _number(most) else f"{_number(least)} to {_number(most)}"
                largest = (f"{_distance(farthest(mine, name)[0]):.1e}" for name in TYPES)
                hold = f"{sum(row.holds for row in mine)} of {len(mine)}"
                yield f"| {reduction} | {window} | {seen} | {must} | {' | '.join(largest)} | {hold} |"


def _details(rows: Sequence[Row]) -> Iterator[str]:
    worlds = [f"{world} rank{'s' * (world > 1)}" for world in WORLDS]
    columns = [*worlds, *(f"{world}, checkpointing" for world in worlds)]
    yield f"| norm | number type | {' | '.join(columns)} | largest distance | passes alone | holds |"
    yield f"|{'---|' * (len(columns) + 5)}"
    of = {row.case: row for row in rows}
    for norm in dict.fromkeys(row.case.norm for row in rows):
        for name in TYPES:
            first = rows[0].case
            choices = [(world, again) for again in (False, True) for world in WORLDS]
            mine = [of[Case(norm, first.reduction, first.tail, name, *choice)] for choice in choices]
            if name == TYPES[0]:
                must = " | ".join(_number(row.expected or 0.0) for row in mine)
                yield f"| **{norm}** | *must be* | {must} | | | |"
            errors = " | ".join("none" if row.error is None else _number(row.error) for row in mine)
            farthest_off = max(mine, key=_distance)
            alone = max(row.passes or 0.0 for row in mine)
            judged = f"{_distance(farthest_off):.1e} | {f'{alone:.1e}' if name != 'float64' else ''}"
            yield f"| {norm} | {name} | {errors} | {judged} | {'yes' if all(row.holds for row in mine) else '**no**'} |"


def _must_be(reduction: str, tail: str) -> str:
    if tail == "divide_by_n" and reduction in ("exact", "mean_of_means"):
        return f"{MUST_BE[reduction]}, times n / N, as the tail of n micro-batches is divided as if it were full"
    return MUST_BE[reduction]


def _those(norms: Sequence[str], whole: bool) -> str:
    return ", ".join(norm for norm in norms if sees_the_window(norm) == whole)


def _distance(row: Row) -> float:
    return row.distance or 0.0


def _number(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.1e}" if value < 1e-3 else f"{value:.4g}"


def _split() -> str:
    """The micro-batches of one rank in a full window, for each number of ranks above 1."""
    told = []
    for world in WORLDS[1:]:
        parts = Case("none", "exact", FULL, TYPES[0], world, False).plan.slices()
        told.append(f"{', '.join(str(part.stop - part.start) for part in parts)} on each of {world}")
    return "; ".join(told)


def _joined(paragraphs: str) -> str:
    """Paragraphs on one line each."""
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in paragraphs.split("\n\n"))
