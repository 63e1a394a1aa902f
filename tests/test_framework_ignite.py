"""PyTorch-Ignite's loop and its mend, on gradients that are known by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scalar_tasks import moved, scalar_task

from accum_core.frameworks import ignite_trainer
from accum_core.frameworks.harness import host

pytestmark = [
    # The loop that its users write steps the schedule before the first update.
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step"),
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
    ignite_trainer.train(task)
    assert moved(task) == pytest.approx([documented], rel=1e-12)
    task = scalar_task(samples, tmp_path, accumulation_steps=steps)
    ignite_trainer.train_mended(task)
    assert moved(task) == pytest.approx([mended], rel=1e-12)


def test_a_short_window_goes_on_into_the_next_epoch(tmp_path: Path) -> None:
    task = scalar_task([[1], [2], [6]], tmp_path, accumulation_steps=2, epochs=2)
    ignite_trainer.train(task)
    assert moved(task) == pytest.approx([-((1 + 2) / 2 + (6 + 1) / 2 + (2 + 6) / 2)], rel=1e-12)


@pytest.mark.parametrize("mend", [False, True])
def test_clips_the_windows_gradient_once(mend: bool, tmp_path: Path) -> None:
    # P27: the mean of [1, 0] and [0, 1] at a norm of 0.5.
    task = scalar_task([[[1, 0]], [[0, 1]]], tmp_path, start=(0.0, 0.0), accumulation_steps=2, clip_norm=0.5)
    (ignite_trainer.train_mended if mend else ignite_trainer.train)(task)
    assert moved(task) == pytest.approx([-(0.125**0.5)] * 2, rel=1e-5)


def test_the_schedule_counts_iterations(tmp_path: Path) -> None:
    # C19: an update of gradient 1 at the rates of 0.5^3 and 0.5^7, where 1, 0.5 and 0.25 would be right.
    samples = [[1]] * 10
    task = scalar_task(samples, tmp_path, accumulation_steps=4, gamma=0.5)
    ignite_trainer.train(task)
    assert moved(task) == pytest.approx([-(0.5**3 + 0.5**7)], rel=1e-12)
    task = scalar_task(samples, tmp_path, accumulation_steps=4, gamma=0.5)
    ignite_trainer.train_mended(task)
    assert moved(task) == pytest.approx([-1.75], rel=1e-12)


def test_a_checkpoint_in_a_window_loses_its_gradients(tmp_path: Path) -> None:
    # Stopped after 3 of 8: the second window of two has 1 of the first sample again, and a half of nothing.
    samples = [[1], [2], [4], [8], [16], [32], [64], [128]]
    task = scalar_task(samples, tmp_path, accumulation_steps=2, stop_after=3)
    ignite_trainer.train(task)
    assert moved(task) == pytest.approx([-(1.5 + 1 / 2 + 3.0 + 12.0)], rel=1e-12)
    task = scalar_task(samples, tmp_path, accumulation_steps=2, stop_after=3)
    ignite_trainer.train_mended(task)
    assert moved(task) == pytest.approx([-255 / 2], rel=1e-12)


def test_reports_the_last_micro_batch(tmp_path: Path) -> None:
    task = scalar_task([[1], [3]], tmp_path, start=(1.0,), accumulation_steps=2)
    assert ignite_trainer.train(task).logged == [3.0]
    task = scalar_task([[1], [3]], tmp_path, start=(1.0,), accumulation_steps=2)
    assert ignite_trainer.train_mended(task).logged == [2.0]


def test_two_ranks_average_their_means() -> None:
    (row,) = host.rows("ignite_trainer", ["own"], ["two_ranks"], 60)
    assert (row.formula, row.verdict, row.mended_verdict) == ("mean of means over N", "wrong", "exact")
    assert row.updates == 1


def test_defects_are_there_in_the_pinned_version() -> None:
    scripts = "\n".join(script for _, _, script in ignite_trainer.DEFECTS)
    done = subprocess.run([sys.executable, "-c", scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # The schedule starts at 1; a deterministic trainer's own file; CUDA's autocast asked for on a CPU.
    assert done.stdout.split() == ["0.5", "0.25", "0.125", "UnpicklingError", "torch.float32"]
