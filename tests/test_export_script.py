"""The exported script gives the losses of the engine's own loop, to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from exported import execute, printed, recorded

from accum_core.engine import train
from accum_core.engine.workloads import load
from accum_core.export import source
from accum_core.records import RunConfig, Validation

ROOT = Path(__file__).parent.parent
SHORT = {"effective_batch_size": 8, "micro_batch_size": 2, "updates": 3, "warmup_updates": 2, "seed": 5}
GROUP = {**SHORT, "norm": "group"}
DIGITS = {**SHORT, "workload": "digits", "model": "conv"}
MLP = {**DIGITS, "model": "mlp", "norm": "group"}
TEXT = {**SHORT, "workload": "pydoc_paragraphs", "model": "gpt", "effective_batch_size": 4}
HEADS = {**SHORT, "workload": "landcover_recipe", "model": "lraspp_mobilenet_v3_large", "effective_batch_size": 4}
GROWING = {"schedule": "step", "milestones": (1, 2), "decay": "batch", "decay_factor": 0.5}
TUNED = {"beta2": 0.95, "clip_norm": 1.0, "schedule": "cosine", "weight_decay": 0.0}
ADAMW = {"optimizer": "adamw", "learning_rate": 1e-3}

# The number of threads decides the order of a convolution's sums, so both sides take one.
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def weights_for_miou(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum over the final weights and statistics in the place of the mIoU: quicker, and it sees every bit."""

    def validate(model: torch.nn.Module) -> Validation:
        total = sum(value.double().sum().item() for value in model.state_dict().values())
        return Validation(miou=total, pixel_accuracy=0.0, class_iou=(), loss=0.0)

    for name in ("landcover", "landcover_ignored", "landcover_recipe"):
        monkeypatch.setattr(load(name), "validate", validate)


def check_bits(config: RunConfig) -> None:
    records = list(train(config))
    _, output = execute(source("script", config))
    assert printed(output) == recorded(records)


def test_script_runs_from_the_root_as_it_stands() -> None:
    config = RunConfig.of(**SHORT)
    done = subprocess.run(
        [sys.executable, "-"],
        input=source("script", config),
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert printed(done.stdout) == recorded(list(train(config)))


@pytest.mark.parametrize(
    "settings",
    [
        {**GROUP, "norm_groups": 4, "model": "unet"},
        {**SHORT, "micro_batch_size": 8, "warmup_updates": 0},
        {**SHORT, "effective_batch_size": 32, "micro_batch_size": 32, "updates": 2, "warmup_updates": 1},
        {**GROUP, "precision": "float64"},
        {**SHORT, "norm": "batch_corrected"},
        {**SHORT, "norm": "sync_batch"},
        {**SHORT, "norm": "sync_batch", "offload": "recompute", "reduction": "mean_of_means"},
        {**SHORT, "norm": "sync_batch", "precision": "bfloat16_autocast"},
        {**SHORT, "norm": "sync_batch", "micro_batch_size": 8},
        {**SHORT, "norm": "batch_renorm", "learning_rate": 1e-3},
        {**SHORT, "norm": "ghost_batch", "micro_batch_size": 4},
        {**SHORT, **GROWING, "norm": "batch_corrected", "warmup_updates": 0},
        {**SHORT, **GROWING, "norm": "batch_renorm", "micro_batch_size": 8, "largest_batch_size": 16},
        {**SHORT, "activation_checkpointing": True, "average_decay": 0.9, "schedule": "constant", "warmup_updates": 0},
        {**SHORT, "precision": "bfloat16"},
        {**SHORT, "precision": "bfloat16", "accumulate_in_float32": False, "clip_norm": 0.1},
        {**GROUP, "workload": "landcover_ignored", "reduction": "mean_of_means", "tail": "rescale"},
        {**HEADS, "norm": "batch"},
        {**HEADS, "norm": "sync_batch", "reduction": "mean_of_means", "weight_decay_spares": "norms"},
    ],
    ids=str,
)
def test_script_gives_the_engines_losses(weights_for_miou: None, settings: dict[str, Any]) -> None:
    check_bits(RunConfig.of(**settings))


@pytest.mark.parametrize(
    "settings",
    [
        {**DIGITS, "norm": "evonorm_s0"},
        {**DIGITS, "norm": "none", "reduction": "sum_of_means", "learning_rate": 1e-3},
        {**DIGITS, "reduction": "sum", "learning_rate": 1e-5},
        {**MLP, "scaling": "linear", "base_batch_size": 3},
        {**MLP, "nesterov": True, "schedule": "linear", "clip_norm": 0.1, "clip_value": 0.01},
        {**MLP, **ADAMW, "schedule": "cosine", "scaling": "half_life", "weight_decay_spares": "norms"},
        {**MLP, **ADAMW, "schedule": "step", "milestones": (1,), "weight_decay_spares": "norms_and_biases"},
        {**MLP, "schedule": "cosine", "warmup_updates": 0},
        {**MLP, "schedule": "linear", "warmup_updates": 0, "average_decay": 0.5},
        {**DIGITS, "precision": "bfloat16_autocast"},
        {**MLP, **GROWING, "milestones": (60, 100), "updates": 120, "effective_batch_size": 16, "tail": "divide_by_n"},
        {**TEXT, **ADAMW, "weight_decay_spares": "norms"},
        {**TEXT, "reduction": "mean_of_means", "precision": "bfloat16_autocast", "clip_norm": 1.0},
        {**TEXT, "workload": "pydoc_blocks"},
        {**TEXT, **ADAMW, "workload": "sft", "model": "tiny_lm"},
        {**TEXT, **ADAMW, **TUNED, "workload": "sft_packed", "model": "tiny_lm", "reduction": "mean_of_means"},
    ],
    ids=str,
)
def test_script_of_digits_and_text_gives_the_engines_losses(settings: dict[str, Any]) -> None:
    check_bits(RunConfig.of(**settings))


@pytest.mark.parametrize("more", [{}, {"non_finite": "skip_window", "clip_norm": 1.0}, GROWING], ids=str)
def test_script_leaves_out_the_windows_that_overflow_as_the_engine_does(more: dict[str, Any]) -> None:
    # A sum of losses times the first scale of 65536 is more than float16 holds.
    settings = {**DIGITS, "precision": "float16_autocast", "reduction": "sum", "learning_rate": 1e-5}
    config = RunConfig.of(**settings, **more)
    records = list(train(config))
    assert any(incident.kind == "overflow" for record in records for incident in record.incidents)
    _, output = execute(source("script", config))
    assert printed(output) == recorded(records)


def test_script_leaves_out_a_window_that_is_not_finite_as_the_engine_does(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load("digits")
    images = digits.samples(range(digits.num_samples))[0].clone()
    spoilt = set(range(0, digits.num_samples, 20))  # some windows of 8 hold one, some none
    images[sorted(spoilt)] = torch.nan
    monkeypatch.setattr(digits, "_images", images)
    config = RunConfig.of(**{**DIGITS, "non_finite": "skip_window"})
    records = list(train(config))
    assert sum(incident.kind == "non_finite" for record in records for incident in record.incidents) > 0
    _, output = execute(source("script", config))
    assert printed(output) == recorded(records)


@pytest.mark.parametrize("reduction", ["exact", "mean_of_means"])
@pytest.mark.parametrize("tail", ["drop", "rescale", "divide_by_n"])
def test_script_treats_the_tail_as_the_engine_does(
    monkeypatch: pytest.MonkeyPatch, weights_for_miou: None, reduction: str, tail: str
) -> None:
    # 21 samples make two windows of 8 and a tail of 2 + 2 + 1; without the tail, update 3 begins the next epoch.
    monkeypatch.setattr(load("landcover"), "num_samples", 21)
    config = RunConfig.of(**{**GROUP, "updates": 4, "reduction": reduction, "tail": tail})
    records = list(train(config))
    assert records[2].micro_batches == (12 if tail == "drop" else 11)
    _, output = execute(source("script", config))
    assert printed(output) == recorded(records)


def test_script_of_norms_that_see_the_window_advances_its_passes_together() -> None:
    together, alone = (source("script", RunConfig.of(norm="sync_batch", micro_batch_size=micro)) for micro in (2, 32))
    assert "losses = in_step(model, [" in together and together.count(".backward()") == 1
    assert "in_step" not in alone and ".backward()  # adds to .grad" in alone


def test_script_fits_a_screen_and_holds_the_settings() -> None:
    text = source("script", RunConfig.of(norm="group", micro_batch_size=4))
    assert "EFFECTIVE, MICRO, N = 32, 4, 8" in text
    assert '"group", num_groups=8' in text
    assert max(map(len, text.splitlines())) <= 120
