"""Keras's fit and its mend, on gradients that are known by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scalar_tasks import moved, scalar_task

from accum_core.frameworks import keras_fit
from accum_core.frameworks.harness import host

pytestmark = [
    # fit says so of every data set whose length it does not know.
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    # Keras hands parameters to numpy's array() as PyTorch does not know it yet.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]

TABLE = [
    # Micro-batches of one sample; N; where the documented loop and where the mended one leads.
    # S1 of the faults seen in the wild: the mean of 10 and of 2, 2, 2 is 4 a value, and 6 a micro-batch.
    ("unequal", [[10], [2, 2, 2]], 2, -6.0, -4.0),
    # A micro-batch without a label adds nothing, and yet is one of N.
    ("empty", [[3, 3], [5, 5], [None, None], [None, 1]], 4, -(3 + 5 + 1) / 4, -(3 * 2 + 5 * 2 + 1) / 5),
    # T13: the short window 5 is lost.
    ("tail", [[1], [2], [3], [4], [5]], 2, -(1.5 + 3.5), -(1.5 + 3.5 + 5)),
    # T15: never a step.
    ("n_above", [[1], [2], [3]], 4, 0.0, -2.0),
]


@pytest.mark.parametrize(
    ("samples", "steps", "documented", "mended"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE]
)
def test_divides_the_means_by_n(
    samples: list[list[Any]], steps: int, documented: float, mended: float, tmp_path: Path
) -> None:
    task = scalar_task(samples, tmp_path, accumulation_steps=steps)
    keras_fit.train(task)
    assert moved(task) == pytest.approx([documented], rel=1e-12)
    task = scalar_task(samples, tmp_path, accumulation_steps=steps)
    keras_fit.train_mended(task)
    assert moved(task) == pytest.approx([mended], rel=1e-12)


def test_a_short_window_goes_on_into_the_next_epoch(tmp_path: Path) -> None:
    task = scalar_task([[1], [2], [6]], tmp_path, accumulation_steps=2, epochs=2)
    keras_fit.train(task)
    assert moved(task) == pytest.approx([-((1 + 2) / 2 + (6 + 1) / 2 + (2 + 6) / 2)], rel=1e-12)


@pytest.mark.parametrize("mend", [False, True])
def test_clips_the_windows_gradient_once(mend: bool, tmp_path: Path) -> None:
    # P27: the mean of [1, 0] and [0, 1] at a norm of 0.5.
    task = scalar_task([[[1, 0]], [[0, 1]]], tmp_path, start=(0.0, 0.0), accumulation_steps=2, clip_norm=0.5)
    (keras_fit.train_mended if mend else keras_fit.train)(task)
    assert moved(task) == pytest.approx([-(0.125**0.5)] * 2, rel=1e-5)


def test_the_schedule_counts_micro_batches(tmp_path: Path) -> None:
    # C19: updates of gradient 1 at the rates of 0.5^3 and 0.5^7, where 1, 0.5 and 0.25 would be right.
    samples = [[1]] * 10
    task = scalar_task(samples, tmp_path, accumulation_steps=4, gamma=0.5)
    keras_fit.train(task)
    assert moved(task) == pytest.approx([-(0.5**3 + 0.5**7)], rel=1e-12)
    task = scalar_task(samples, tmp_path, accumulation_steps=4, gamma=0.5)
    keras_fit.train_mended(task)
    assert moved(task) == pytest.approx([-1.75], rel=1e-12)


def test_weight_decay_and_adam_count_updates(tmp_path: Path) -> None:
    # C24: zero gradients, so the decay alone moves the weight, once.
    task = scalar_task(
        [[0]] * 4, tmp_path, start=(1.0,), accumulation_steps=4, learning_rate=0.1, weight_decay=0.1, optimizer="adamw"
    )
    assert keras_fit.train(task).updates == 1
    assert moved(task) == pytest.approx([0.99], rel=1e-12)


def test_a_backup_in_an_epoch_counts_twice(tmp_path: Path) -> None:
    # Stopped after 3 of 8: the half of the window is kept, and the epoch begins again behind it.
    samples = [[1], [2], [4], [8], [16], [32], [64], [128]]
    task = scalar_task(samples, tmp_path, accumulation_steps=2, stop_after=3)
    keras_fit.train(task)
    assert moved(task) == pytest.approx([-((1 + 2) + (4 + 1) + (2 + 4) + (8 + 16) + (32 + 64)) / 2], rel=1e-12)
    task = scalar_task(samples, tmp_path, accumulation_steps=2, stop_after=3)
    keras_fit.train_mended(task)
    assert moved(task) == pytest.approx([-255 / 2], rel=1e-12)


def test_logs_an_epochs_mean(tmp_path: Path) -> None:
    samples = [[1], [3], [5], [7]]
    task = scalar_task(samples, tmp_path, start=(1.0,), accumulation_steps=2, learning_rate=0.125)
    # The first window moves the weight to 1 - 0.125 * 2.
    assert keras_fit.train(task).logged == [(1 + 3 + 0.75 * (5 + 7)) / 4]
    task = scalar_task(samples, tmp_path, start=(1.0,), accumulation_steps=2, learning_rate=0.125)
    assert keras_fit.train_mended(task).logged == [2.0, 0.75 * 6]


def test_own_losses_divide_by_valid_labels_but_by_samples_under_class_weights() -> None:
    first, second = host.rows("keras_fit", ["layers"], ["ignored_pixels", "class_weights"], 60)
    assert (first.formula, first.verdict, first.mended_verdict) == ("mean of means over N", "wrong", "exact")
    assert second.verdict == "exact"


def test_two_ranks_are_refused_and_can_be_had() -> None:
    (row,) = host.rows("keras_fit", ["own"], ["two_ranks"], 60)
    assert (row.verdict, row.mended_verdict) == ("refuses", "exact")


def test_defects_are_there_in_the_pinned_version() -> None:
    scripts = "\n".join(script for _, _, script in keras_fit.DEFECTS)
    done = subprocess.run([sys.executable, "-c", scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Averages of 1, 2, 3 taken after each update, or with the second and third four times over; one infinite gradient,
    # clipped to 1; minimum(1., 1.); four steps of 1, two of them twice.
    assert done.stdout.split() == ["2.25", "2.46875", "0.0", "-1.0", "-1.0", "nan", "torch.float32", "-6.0"]
