"""How exact each kind of window is: ``python -m benchmarks exactness`` writes docs/exactness.md.

A window of landcover tiles with unequal weights is accumulated in every combination of norm, reduction, tail, number
type, number of ranks and activation checkpointing. ``cases`` lists them and says by what each micro-batch's gradient is
multiplied, ``gradients`` has the engine make them, ``judge`` computes what they must be, and ``report`` writes it down.
"""

from __future__ import annotations

import torch

from benchmarks import Result
from benchmarks.exactness import report
from benchmarks.exactness.cases import TYPES, cases
from benchmarks.exactness.gradients import gradients
from benchmarks.exactness.judge import BOUNDS, judged


def measure() -> list[Result]:
    """The largest distance of each number type from what must be, and the combinations that do not hold."""
    torch.set_num_threads(1)
    made = gradients(cases())
    rows = [judged(case, gradient) for case, gradient in made.items()]
    report.write(rows)
    results = []
    for name in TYPES:
        row, count = report.farthest(rows, name)
        where = f"{row.case.norm}, {row.case.reduction}, {row.case.tail}, ranks: {row.case.world_size}"
        detail = f"largest distance of {count} windows of docs/exactness.md ({where})"
        results.append(Result(f"gradient from what must be, {name}", row.distance or 0.0, BOUNDS[name], "", detail))
    wrong = float(sum(not row.holds for row in rows))
    return [*results, Result("combinations of docs/exactness.md that do not hold", wrong, 0, "", f"of {len(rows)}")]
