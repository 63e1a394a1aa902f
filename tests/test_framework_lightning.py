"""The loops of Lightning's Trainer and of Fabric, and the mended ones, on cases known by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from scalar_tasks import moved, scalar_task

from accum_core.frameworks import lightning_fabric, lightning_trainer
from accum_core.frameworks.contract import Outcome, Task
from accum_core.frameworks.harness import host

# Lightning gives advice in warnings, and uses parts of torch by their old names.
pytestmark = pytest.mark.filterwarnings("ignore")
ONE_TO_FIVE = [[1.0], [2.0], [3.0], [4.0], [5.0]]
Train = Callable[[Task], Outcome]
TRAIN, MENDED = lightning_trainer.train, lightning_trainer.train_mended
GUIDE, WINDOWS = lightning_fabric.train, lightning_fabric.train_mended


@pytest.mark.parametrize(("train", "right"), [(TRAIN, -6), (MENDED, -4), (GUIDE, -10), (WINDOWS, -4)])
def test_tokens(train: Train, right: float, tmp_path: Path) -> None:
    """S1: 16 / 4 for 1 token of gradient 10 and 3 of 2; the mean of means is 6; the guide steps after the first."""
    task = scalar_task([[10.0], [2.0, 2.0, 2.0]], tmp_path, accumulation_steps=2)
    train(task)
    assert moved(task) == pytest.approx([right], rel=1e-12)


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize(("train", "right"), [(TRAIN, -7.5), (MENDED, -10), (GUIDE, -15), (WINDOWS, -10)])
def test_short_window(train: Train, right: float, sized: bool, epochs: int, tmp_path: Path) -> None:
    """T12, T17: 1.5 + 3.5 + 5; divided by N, 1.5 + 3.5 + 2.5; by the guide's condition, undivided, 1 + 5 + 9."""
    task = scalar_task(ONE_TO_FIVE, tmp_path, accumulation_steps=2, sized=sized, epochs=epochs)
    train(task)
    assert moved(task) == pytest.approx([epochs * right], rel=1e-12)


@pytest.mark.parametrize(("train", "right"), [(TRAIN, -1.5), (MENDED, -2), (GUIDE, -1), (WINDOWS, -2)])
def test_n_above_the_epoch(train: Train, right: float, tmp_path: Path) -> None:
    """T15: one update, of 6 / 3; divided by N = 4 it is 6 / 4; the guide's is the first micro-batch's."""
    task = scalar_task(ONE_TO_FIVE[:3], tmp_path, accumulation_steps=4)
    train(task)
    assert moved(task) == pytest.approx([right], rel=1e-12)


@pytest.mark.parametrize(("train", "last"), [(TRAIN, 0.5), (MENDED, 1), (WINDOWS, 1)])
def test_schedule(train: Train, last: float, tmp_path: Path) -> None:
    """C19: rates 1, 0.5, 0.25 for three updates of ten micro-batches; only the last window's gradient differs."""
    task = scalar_task([[1.0]] * 10, tmp_path, accumulation_steps=4, gamma=0.5)
    train(task)
    assert moved(task) == pytest.approx([-(1 + 0.5 + 0.25 * last)], rel=1e-12)


@pytest.mark.parametrize(("train", "right"), [(TRAIN, -3), (MENDED, -1.75)])
def test_schedule_without_an_interval(train: Train, right: float, tmp_path: Path) -> None:
    """Twelve micro-batches of gradient 1 are three updates at a rate of 1 in an epoch, or at 1, 0.5 and 0.25."""
    task = replace(scalar_task([[1.0]] * 12, tmp_path, accumulation_steps=4, gamma=0.5), kind="no_interval")
    train(task)
    assert moved(task) == pytest.approx([right], rel=1e-12)


@pytest.mark.parametrize("train", [TRAIN, MENDED, WINDOWS])
def test_clipping(train: Train, tmp_path: Path) -> None:
    """P27: the mean of [1, 0] and [0, 1] clipped to 0.5; clipped one by one it would be [0.2236, 0.4472]."""
    samples = [[[1.0, 0.0]], [[0.0, 1.0]]]
    task = scalar_task(samples, tmp_path, start=(0.0, 0.0), accumulation_steps=2, clip_norm=0.5)
    train(task)
    assert moved(task) == pytest.approx([-(0.125**0.5)] * 2, rel=1e-5)  # torch clips to 0.5 x norm / (norm + 1e-6)


@pytest.mark.parametrize(("train", "second"), [(TRAIN, 1 + 2 + 3 + 4), (MENDED, 26), (WINDOWS, 26)])
def test_resume(train: Train, second: float, tmp_path: Path) -> None:
    """Stopped after 6 of 8, saved after 4: 5 to 8 come next, or, from a loader that starts again, 1 to 4."""
    samples = [[float(gradient)] for gradient in range(1, 9)]
    task = scalar_task(samples, tmp_path, accumulation_steps=4, stop_after=6)
    train(task)
    assert moved(task) == pytest.approx([-(10 / 4 + second / 4)], rel=1e-12)


@pytest.mark.parametrize(
    ("train", "logged"), [(TRAIN, [0, -6, -25]), (MENDED, [0, -5.25, -25]), (WINDOWS, [0, -5.25, -25])]
)
def test_logged(train: Train, logged: list[float], tmp_path: Path) -> None:
    """The weight before an update, 0, -1.5 and -5, times the mean of the window's gradients or the last of them."""
    task = scalar_task(ONE_TO_FIVE, tmp_path, accumulation_steps=2)
    assert train(task).logged == pytest.approx(logged, rel=1e-12)


@pytest.mark.parametrize(("train", "right"), [(TRAIN, 6), (MENDED, 4)])
def test_logged_at_an_epoch(train: Train, right: float, tmp_path: Path) -> None:
    """Losses 10 over one token and 2 over three are 16 / 4; as two samples they are 12 / 2."""
    samples = [[10.0], [2.0, 2.0, 2.0]]
    task = replace(scalar_task(samples, tmp_path, start=(1.0,), accumulation_steps=2), kind="epoch_log")
    assert train(task).logged == pytest.approx([right], rel=1e-12)


def test_fabric_divided(tmp_path: Path) -> None:
    """Counted over epochs: windows (1 2), (3 1), (2 3) of two epochs of three micro-batches, each over two."""
    task = replace(scalar_task(ONE_TO_FIVE[:3], tmp_path, accumulation_steps=2, epochs=2), kind="divided")
    GUIDE(task)
    assert moved(task) == pytest.approx([-(3 + 4 + 5) / 2], rel=1e-12)


@pytest.mark.timeout(180)
def test_iterable_under_two_ranks() -> None:
    """Two epochs of ten micro-batches, four a window, are six updates; where each rank passes all ten, ten."""
    (row,) = host.rows("lightning_trainer", ["ranks"], ["iterable"], limit=120)
    assert row.right is not None
    assert (row.right.updates, row.updates) == (6, 10)
    assert (row.verdict, row.mended_verdict) == ("wrong", "exact")


@pytest.mark.parametrize(
    "defect", [*lightning_trainer.DEFECTS, *lightning_fabric.DEFECTS], ids=lambda defect: defect[0]
)
def test_defect_shows(defect: tuple[str, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each script prints what it found ``instead of`` what is right."""
    _, _, script = defect
    exec(script, {})
    found, _, right = capsys.readouterr().out.rpartition("\n")[0].splitlines()[-1].partition(" instead of ")
    assert right and found != right
