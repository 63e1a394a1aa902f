"""Formulas of the harness, which have names, as mathematics: what a right answer is, and what a loop computed.

A window holds n micro-batches over all R ranks, N of them where it is full; micro-batch i has the summed loss s, the
weight w and m samples. Nothing is computed here.
"""

from __future__ import annotations

from typing import Final

NOTATION: Final = (
    "A window holds $n$ micro-batches over all $R$ ranks, $N$ where it is full. Micro-batch $i$ has $m_i$ samples, the "
    "summed loss $s_i$ and the weight $w_i$: its samples, valid labels or class weights. $\\theta$ are the parameters, "
    "$\\eta$ is the learning rate."
)

MEAN: Final = r"\nabla\,\frac{\sum_{i=1}^{n} s_i}{\sum_{i=1}^{n} w_i}"
_EACH: Final = r"\sum_{i=1}^{n} \nabla\,\frac{s_i}{w_i}"
_SUM: Final = r"\sum_{i=1}^{n} \nabla s_i"

DIVISIONS: Final[dict[str, str]] = {
    "sum over weight": MEAN,
    "mean of means over N": rf"\frac{{1}}{{N}} {_EACH}",
    "mean of means over the window's micro-batches": rf"\frac{{1}}{{n}} {_EACH}",
    "mean of means over the micro-batches with a label": r"\frac{1}{|\{i: w_i > 0\}|} "
    r"\sum_{w_i > 0} \nabla\,\frac{s_i}{w_i}",
    "sum of means": _EACH,
    "mean of means over N, divided by N again": rf"\frac{{1}}{{N^2}} {_EACH}",
    "sum": _SUM,
    "sum over samples": r"\nabla\,\frac{\sum_{i=1}^{n} s_i}{\sum_{i=1}^{n} m_i}",
    "sum over N": rf"\frac{{1}}{{N}} {_SUM}",
    "sum over weight, times N": rf"N\,{MEAN}",
    "sum over weight, divided by N": rf"\frac{{1}}{{N}}\,{MEAN}",
    "sum over weight, as if the window were full": rf"\frac{{n}}{{N}}\,{MEAN}",
    "samples' mean of means": r"\sum_{i=1}^{n} \frac{m_i}{\sum_{j=1}^{n} m_j} \nabla\,\frac{s_i}{w_i}",
    "sum over weight on each rank, mean over ranks": r"\frac{1}{R} \sum_{r=1}^{R} \nabla\,"
    r"\frac{\sum_{i \in r} s_i}{\sum_{i \in r} w_i}",
    "sum over weight, divided by the ranks": rf"\frac{{1}}{{R}}\,{MEAN}",
    "sum over weight, times the ranks": rf"R\,{MEAN}",
    "mean of means over N of one rank": rf"\frac{{R}}{{N}} {_EACH}",
}
"""What a division's name stands for, as the gradient of a window."""

RIGHT: Final[dict[str, str]] = {
    "clipping": rf"g \cdot \min\left(1, \frac{{c}}{{\lVert g \rVert}}\right), \quad g = {MEAN}",
    "schedule": r"\eta_k = \eta_0\,\gamma^{k} \quad \text{after } k \text{ updates}",
    "weight_decay": r"\theta - \eta \lambda \theta - \eta\,\frac{g}{|g| + \epsilon}, \quad g = " + MEAN,
    "logged_loss": r"\frac{\sum_{i=1}^{n} s_i}{\sum_{i=1}^{n} w_i}",
}
"""What is right in a case; ``MEAN`` where none stands here."""


def right(case: str) -> str:
    """What a right loop computes in a case."""
    return RIGHT.get(case, MEAN)


def division(formula: str) -> str:
    """What the first part of a formula's name stands for; "" for one that has no mathematics here."""
    name = formula.partition("; ")[0]
    if name in DIVISIONS:
        return DIVISIONS[name]
    if name.startswith("sum over "):
        return (
            r"\nabla\,\frac{\sum_{i=1}^{n} s_i}{\sum_{i=1}^{n} c_i}, \quad c_i = \text{"
            + name[len("sum over ") :]
            + "}"
        )
    return ""
