"""Small batches at equal tokens: what the arms share, the paper's settings, effects and figures from made-up runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from accum_core.records import RunConfig, Validation
from accum_core.scaling import half_life
from experiments.marek_2025_small_batches import EXPERIMENT


def made(losses: dict[str, float]) -> Any:
    """Runs of which the effective batch and the loss at the end are known; the large batch is 64."""
    sizes = {label: 64 if label.endswith("large") else int(label.split("_")[1]) for label in losses}
    return {
        label: SimpleNamespace(metrics={"token_loss": loss}, config=SimpleNamespace(effective_batch_size=sizes[label]))
        for label, loss in losses.items()
    }


RUNS = made(
    {
        "adam_large": 2.7,
        "adam_8": 2.4,
        "adam_1": 2.5,
        "adam_1_fixed": 2.53,
        "sgd_large": 3.0,
        "sgd_8": 2.8,
        "sgd_1": 2.55,
    }
)


def arms(preset: str) -> dict[str, RunConfig]:
    return dict(EXPERIMENT.preset(preset).configs(5))


@pytest.mark.parametrize("preset", ["smoke", "bench", "full"])
def test_every_arm_sees_the_same_samples_once_with_the_same_half_life(preset: str) -> None:
    runs = arms(preset)
    assert len({run.updates * run.effective_batch_size for run in runs.values()}) == 1
    for label, run in runs.items():
        if run.optimizer == "sgd":
            assert run.momentum == 0
        elif label.endswith("fixed"):
            assert run.scaled_beta2 == 0.95
        else:
            kept = half_life(run.scaled_beta2, run.effective_batch_size)
            assert kept == pytest.approx(half_life(0.95, run.base_batch_size))
    assert runs["adam_large"].accumulation_steps > 1 == runs["adam_1"].accumulation_steps
    assert runs["adam_large"].base_batch_size == runs["adam_large"].effective_batch_size


def test_the_bench_is_262_thousand_bytes_in_batches_of_64_8_and_1() -> None:
    runs = arms("bench")
    assert {run.effective_batch_size for run in runs.values()} == {64, 8, 1}
    assert {run.updates * run.effective_batch_size * 64 for run in runs.values()} == {262_144}


def test_the_full_preset_has_the_papers_settings() -> None:
    """martin-marek/batch-size, pretraining/runs/gpt2s/optimizer_comp/final_configs.sh."""
    found = {
        label: (run.effective_batch_size, run.peak_learning_rate, run.weight_decay, run.momentum)
        for label, run in arms("full").items()
    }
    assert found == {
        "adam_large": (512, 0.0048, 0.1, 0.9),
        "adam_1": (1, 0.0024, 0.0, 0.9),
        "adam_1_fixed": (1, 0.00015, 0.0, 0.9),
        "sgd_1": (1, 0.2, 0.0, 0.0),
    }
    assert arms("full")["adam_1"].scaled_beta2 == pytest.approx(0.9999, abs=5e-7)
    assert all(run.warmup_updates == run.updates // 20 and run.schedule == "cosine" for run in arms("full").values())


def test_effects_are_differences_of_losses() -> None:
    """2.7 - 2.5, 2.53 - 2.5, 2.7 - 2.55, and (3.0 - 2.7) - (2.55 - 2.5)."""
    expected = {"small_gain": 0.2, "half_life_gain": 0.03, "sgd_gain": 0.15, "lead_lost": 0.25}
    assert EXPERIMENT.measure(RUNS) == pytest.approx(expected)
    without = {label: run for label, run in RUNS.items() if label != "sgd_large"}
    assert "lead_lost" not in EXPERIMENT.measure(without)


def test_loss_against_batch_names_the_best_of_each_optimizer() -> None:
    figure = EXPERIMENT.figures[0]
    drawn = figure.lines({5: RUNS, 6: RUNS})
    assert drawn["AdamW, beta2 at equal half-life"][5] == [(1, 2.5), (8, 2.4), (64, 2.7)]
    assert drawn["SGD without momentum"][6] == [(1, 2.55), (8, 2.8), (64, 3.0)]
    assert drawn["AdamW, beta2 as it was"][5] == [(1, 2.53), (64, 2.7)]
    title = figure.finding(drawn)
    assert "AdamW does best at a batch of 8 (2.40 nats per token)" in title
    assert "SGD at one of 1 (2.55)" in title


def test_curves_of_any_number_of_updates_share_their_x() -> None:
    """Each arm is validated after every quarter of the samples."""
    runs = arms("bench")
    validated = {run.validate_every * run.effective_batch_size for run in runs.values()}
    assert validated == {1024}

    def run(loss: float) -> Any:
        records = [
            (512, None),
            (1024, Validation(loss=9.0, token_loss=9.0)),
            (4096, Validation(loss=loss, token_loss=loss)),
        ]
        return SimpleNamespace(records=[SimpleNamespace(samples=n, validation=found) for n, found in records])

    losses = {"adam_large": 2.7, "adam_1": 2.5, "sgd_large": 3.0, "sgd_1": 2.6}
    figure = EXPERIMENT.figures[1]
    drawn = figure.lines({5: {label: run(loss) for label, loss in losses.items()}})
    assert drawn["SGD, accumulated"] == {5: [(1024, 9.0), (4096, 3.0)]}
    assert figure.finding(drawn) == "AdamW, batch 1 ends at 2.50 nats per token, SGD, accumulated at 3.00"
