"""A result of ``segmentation_batch_size`` made up for tests of the report and the page of papers; nothing was trained.

BatchNorm loses 0.2, 0.3 and 0.4 mIoU (mean 0.3, s = 0.1), GroupNorm 0.01, 0 and -0.01 (mean 0, s = 0.01).
"""

from __future__ import annotations

import made_results

import experiments
from accum_core.result_file import ResultFile
from accum_core.runs.sweep import judge
from experiments.report import findings
from experiments.report.findings import Findings

NAME = "segmentation_batch_size"
SEEDS = (11, 12, 13)
HALF = 4.302652729749464 * 0.1 / 3**0.5
"""t(0.975, 2) s / sqrt(3) of BatchNorm's loss; the quantile stands in tables of Student's distribution as 4.303."""


def committed() -> ResultFile:
    """The result, as the command would write it."""
    mious = {
        ("batch", 8): (0.5, 0.6, 0.7),
        ("batch", 2): (0.3, 0.3, 0.3),
        ("group", 8): (0.5, 0.5, 0.5),
        ("group", 2): (0.49, 0.5, 0.51),
    }
    made = made_results.result(mious, errors={"batch": 1.25, "group": 2e-7}, seeds=SEEDS)
    runs = tuple(run.model_copy(update={"label": run.label.replace("_8", "_whole")}) for run in made.runs)
    return made.model_copy(update={"runs": runs, "claims": judge(experiments.find(NAME), "bench", runs)})


def found() -> Findings:
    """What follows from it."""
    return findings.find(experiments.find(NAME), committed())
