"""Fine-tuning by micro-batches: what the arms share, effects from made-up runs, and what the page opens with."""

from __future__ import annotations

import platform
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import experiments
from accum_core import scaling
from accum_core.engine.workloads import load
from accum_core.result_file import ResultFile
from accum_ui.language_model import choice as choices
from experiments.docstring_finetuning import EXPERIMENT


def made(error: float, loss: float) -> Any:
    """A run with a gradient error in its first and last window, and held-out losses on the way to the last."""
    records = [
        SimpleNamespace(
            update=update,
            samples=32 * update,
            instruments={"gradient_error": {"relative_error": error * share}} if share else {},
            validation=SimpleNamespace(token_loss=loss + 1 - update / 16) if update >= 8 else None,
        )
        for update, share in ((1, 0.5), (8, 0.0), (16, 1.0))
    ]
    return SimpleNamespace(metrics={"gradient_error": error, "token_loss": loss}, records=records)


RUNS = {
    "padded_whole": made(0.0, 1.5),
    "padded_exact": made(1e-7, 1.5002),
    "padded_means": made(0.25, 1.51),
    "packed_whole": made(0.0, 1.4),
    "packed_exact": made(2e-7, 1.3995),
    "packed_means": made(0.05, 1.38),
    "padded_small": made(0.0, 1.45),
}


def test_effects_of_one_seed() -> None:
    """Plain differences: 0.25 - 0.05, |1.3995 - 1.4|, |1.38 - 1.3995| and 1.5002 - 1.45."""
    assert EXPERIMENT.measure(RUNS) == pytest.approx(
        {
            "exact_padded": 1e-7, "exact_packed": 2e-7, "means_padded": 0.25, "means_packed": 0.05,
            "packing_evens": 0.2, "apart": 0.0005, "means_loss": 0.0195, "small_gain": 0.0502,
        }
    )  # fmt: skip


def test_arms_of_one_layout_differ_in_the_split_and_the_division_alone() -> None:
    runs = EXPERIMENT.preset("bench").configs(41)
    for rows in ("padded", "packed"):
        whole, exact, means = (runs[f"{rows}_{arm}"] for arm in ("whole", "exact", "means"))
        assert whole.model_copy(update={"micro_batch_size": exact.micro_batch_size}) == exact
        assert means.model_copy(update={"reduction": "exact"}) == exact
        assert exact.accumulation_steps == 8
    padded, packed = (runs[f"{rows}_exact"] for rows in ("padded", "packed"))
    assert packed.model_copy(update={"workload": padded.workload}) == padded


def test_the_small_batch_sees_the_same_samples_at_equal_half_life() -> None:
    runs = EXPERIMENT.preset("bench").configs(41)
    large, small = runs["padded_exact"], runs["padded_small"]
    assert (small.accumulation_steps, small.effective_batch_size) == (1, 4)
    assert small.updates * small.effective_batch_size == large.updates * large.effective_batch_size
    assert small.scaled_beta2 == pytest.approx(scaling.beta_at_equal_half_life(0.95, 32, 4))
    # The best rate halves while the batch falls to a 512th, 9 halvings: by 2^(-3/9) over an eighth.
    assert small.learning_rate == pytest.approx(0.001 * 2 ** (-1 / 3), rel=1e-2)


def test_figures_draw_what_was_measured() -> None:
    errors, losses = (figure.lines({5: RUNS, 6: RUNS}) for figure in EXPERIMENT.figures)
    assert errors["padded, mean of means"][5] == [(0, 0.125), (15, 0.25)]
    assert losses["8 × 4, mean of means"][6] == [(256, pytest.approx(2.01)), (512, pytest.approx(1.51))]
    titles = [figure.finding(figure.lines({5: RUNS})) for figure in EXPERIMENT.figures]
    assert titles[0] == "Exact is off by at most 2 × 10⁻⁷, mean of means by up to 25 % padded and 5 % packed"
    assert titles[1] == "After the same functions one batch of 32 ends at 1.500 nats a byte, batches of 4 at 1.450"


@pytest.mark.parametrize("rows", choices.ROWS)
def test_the_page_opens_with_committed_runs(rows: str) -> None:
    result = ResultFile.read(experiments.result_path(choices.EXPERIMENT))
    committed = {run.result.config for run in result.runs}
    usual = choices.adjusted(choices.DEFAULT, rows=rows)
    assert {choices.config(usual), *choices.division_configs(usual)} <= committed
    assert set(choices.advice_configs(choices.DEFAULT)) <= committed
    assert choices.DEFAULT.seed == result.seeds[0]
    (shown,) = [run.result for run in result.runs if run.result.config == choices.config(usual)]
    assert shown.records[-1].validation is not None and shown.records[-1].instruments["samples"]["prompts"]


def gradient(model: torch.nn.Module, windows: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Of the mean over the windows of each one's mean over its learnt bytes."""
    losses = [F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()) for inputs, targets in windows]
    found = torch.autograd.grad(torch.stack(losses).mean(), list(model.parameters()))
    return torch.cat([part.flatten() for part in found])


@pytest.mark.parametrize("rows", choices.ROWS)
def test_the_committed_first_window_is_what_a_few_lines_of_torch_compute(rows: str) -> None:
    """In float64, from the definitions; the functions are those of the Python that computed the record."""
    result = ResultFile.read(experiments.result_path(choices.EXPERIMENT))
    if platform.python_version() != result.environment.python:
        pytest.skip(f"Python {result.environment.python} has the functions of the record")
    workload = load({"padded": "sft", "packed": "sft_packed"}[rows])
    order = np.random.default_rng((result.seeds[0], 0)).permutation(workload.num_samples)[:32]
    inputs, targets = workload.samples(order.tolist())
    model = workload.build_model("tiny_lm").double()
    whole = gradient(model, [(inputs, targets)])
    means = gradient(model, [(inputs[start : start + 4], targets[start : start + 4]) for start in range(0, 32, 4)])
    records = {run.label: run.result.records[0] for run in result.runs if run.seed == result.seeds[0]}
    told = records[f"{rows}_means"].instruments["gradient_error"]
    assert told["relative_error"] == pytest.approx(((means - whole).norm() / whole.norm()).item(), rel=1e-4)
    assert told["cosine"] == pytest.approx(torch.cosine_similarity(means, whole, dim=0).item(), abs=1e-5)
    assert records[f"{rows}_exact"].gradient_norm == pytest.approx(whole.norm().item(), rel=1e-4)
    with torch.no_grad():
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).item()
    assert [records[f"{rows}_{arm}"].loss for arm in ("whole", "exact", "means")] == pytest.approx([loss] * 3, rel=1e-5)
