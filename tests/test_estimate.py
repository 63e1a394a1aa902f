"""What a long preset says before it starts: how much, how long, how large, or why it cannot be."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from accum_core.engine import Training, checkpoints
from accum_core.engine.workloads import load
from accum_core.records import RunConfig
from experiments import find
from experiments.cli import disk, estimate, main
from experiments.cli.disk import DiskError, checkpoint_bytes


def killed(configs: object) -> None:
    """Stands for ``attempt``, in the process of its own."""
    os.kill(os.getpid(), signal.SIGKILL)


def digits(**settings: object) -> RunConfig:
    return RunConfig.of(
        **{"workload": "digits", "model": "mlp", "updates": 1000, "effective_batch_size": 8, "micro_batch_size": 4}
        | settings
    )


def test_the_work_is_counted() -> None:
    configs = [digits(), digits(seed=1), digits(updates=500, effective_batch_size=16)]
    assert estimate.work(configs) == "To compute: 3 runs, 2,500 updates, 24,000 samples."


def test_time_grows_with_runs_and_updates_and_only_each_kind_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every update at 2 seconds and a clock that only they move, the estimate is plain arithmetic."""
    clock = [0.0]
    monkeypatch.setattr(estimate.time, "perf_counter", lambda: clock[0])
    measured = []

    def two_seconds(training: object) -> tuple[float, list[int]]:
        measured.append(training)
        return 2.0, [50, 10]

    monkeypatch.setattr(estimate, "_timed", two_seconds)
    monkeypatch.setattr(estimate, "checkpoint_bytes", lambda training: 7_000_000)
    found = estimate.measured([digits(seed=seed, micro_batch_size=micro) for seed in (1, 2, 3) for micro in (4, 8)])
    assert len(measured) == 2
    assert found.seconds == 3 * 2 * 1000 * 2.0
    assert found.memory > 0
    # 1000 records of 10 bytes, 67 measurements of 40 more (every 15 updates), two more checkpoints of a run under way.
    assert found.disk == 6 * (7_000_000 + 1000 * 10 + 67 * 40) + 2 * 7_000_000


def test_a_checkpoint_takes_on_the_disk_what_was_counted(tmp_path: Path) -> None:
    training = Training(digits())
    checkpoints.save(training.state_dict(), path := tmp_path / "checkpoint.pt")
    assert checkpoint_bytes(training) == path.stat().st_size


def test_a_disk_that_is_too_small_is_named_with_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: SimpleNamespace(free=3 * 2**20))
    store = tmp_path / "runs.sqlite"
    disk.check_room(3 * 2**20, store)
    with pytest.raises(DiskError) as refused:
        disk.check_room(7 * 2**30, store)
    assert str(refused.value) == (
        f"The runs write 7.0 GiB beside the store {store}, where 3.0 MiB are free: free some space, or name a file on "
        "another disk in ACCUMULATION_LAB_STORE; nothing was started."
    )


def test_an_estimate_is_measured_on_this_machine() -> None:
    found = estimate.estimate([digits()])
    assert not isinstance(found, str)
    assert found.seconds > 0
    assert found.memory > 43_018 * 4  # the perceptron's weights alone
    text = estimate.sentence(found)
    assert f"on {found.device}" in text and "GiB at the peak" in text


def test_a_process_that_the_system_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel does where the memory runs out; by a signal, so that nothing in the process can say why."""
    monkeypatch.setattr(estimate, "attempt", killed)
    with pytest.raises(estimate.EstimateError, match="ended from outside.* nothing was started"):
        estimate.estimate([])


def test_ctrl_c_before_anything_is_queued_promises_no_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(configs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("ACCUMULATION_LAB_STORE", str(tmp_path / "runs.sqlite"))
    monkeypatch.setattr(estimate, "estimate", interrupted)
    assert main(["run", "goyal_2017_linear_scaling", "--preset", "full"]) == 130
    assert capsys.readouterr().err.endswith("Stopped with no run done; the same command starts anew.\n")


def test_times_are_written_for_people() -> None:
    assert ": 90 min for" in estimate.sentence(estimate.Estimate(5400, 2**30, 2**20, "cpu"))
    assert ": 3 hours for" in estimate.sentence(estimate.Estimate(10_800, 2**30, 2**20, "cpu"))
    assert ": 10 days for" in estimate.sentence(estimate.Estimate(864_000, 2**30, 2**20, "cpu"))


@pytest.mark.parametrize(
    ("most", "sizes", "remedy"),
    [
        (4, (8, 4, 2), "micro-batch 4 does, which takes N = 2"),
        (2, (8,), "micro-batch 2 does, which takes N = 4"),
        (1, (8,), "none does"),  # BatchNorm of the perceptron cannot work on one sample
        (0, (4,), "none does"),
    ],
)
def test_what_does_not_fit_is_named_with_what_does(
    monkeypatch: pytest.MonkeyPatch, most: int, sizes: tuple[int, ...], remedy: str
) -> None:
    """Also where no run of the preset has the size that fits."""
    workload = load("digits")
    build = workload.build_model

    class Limited(nn.Module):
        """Has memory for a few samples."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = build("mlp")

        def forward(self, images: Tensor) -> Tensor:
            if self.training and len(images) > most:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            logits: Tensor = self.inner(images)
            return logits

    monkeypatch.setattr(workload, "build_model", lambda name: Limited())
    assert estimate.attempt([digits(micro_batch_size=micro) for micro in sizes]) == (
        f"mlp with norm batch at micro-batch {sizes[0]} does not fit into the memory of cpu ({remedy}): nothing was "
        "started."
    )


def test_without_the_data_a_long_preset_ends_before_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACCUMULATION_LAB_STORE", str(tmp_path / "runs.sqlite"))
    monkeypatch.setenv("ACCUMULATION_LAB_DATA", str(tmp_path))
    assert main(["run", "wu_he_2018_group_norm", "--preset", "full"]) == 1
    told = capsys.readouterr().err
    preset = find("wu_he_2018_group_norm").preset("full")
    runs = [run for seed in preset.seeds for run in preset.configs(seed).values()]
    assert f"To compute: {len(runs)} runs, {19_500 * len(runs):,} updates" in told
    assert "cifar-10-python.tar.gz" in told
    from accum_core.runs.store import Store

    assert all(Store().find(run) is None for run in runs)
