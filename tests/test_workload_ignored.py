"""Land cover with ignored pixels: which are labelled, how much of each tile, and the same whatever is asked for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from accum_core.engine import train
from accum_core.engine.workloads import load
from accum_core.engine.workloads.landcover_ignored import IGNORED, LEAST_SHARE
from accum_core.records import RunConfig


def shares() -> np.ndarray:
    found = load("landcover_ignored")
    _, labels = found.samples(range(found.num_samples))
    return (labels != IGNORED).double().mean(dim=(1, 2)).numpy()


def test_shares_are_squares_of_uniform_numbers() -> None:
    """u^2 has the mean 1/3 and the variance 1/5 - 1/9; the least share of 1/64 hardly moves either."""
    found = shares()
    assert found.mean() == pytest.approx(1 / 3, abs=4 * np.sqrt(4 / 45 / len(found)))
    assert found.std() == pytest.approx(np.sqrt(4 / 45), rel=0.1)
    assert found.min() == pytest.approx(LEAST_SHARE)
    # Distribution function of u^2: P(share <= x) = sqrt(x).
    for x in (0.1, 0.25, 0.5, 0.9):
        assert (found <= x).mean() == pytest.approx(np.sqrt(x), abs=4 / (2 * np.sqrt(len(found))))


def test_what_is_labelled_is_labelled_as_before_and_lies_on_one_side_of_a_line() -> None:
    whole, partly = load("landcover"), load("landcover_ignored")
    images, labels = whole.samples([3, 40, 500])
    same_images, parts = partly.samples([3, 40, 500])
    assert torch.equal(images, same_images)
    valid = parts != IGNORED
    assert torch.equal(parts[valid], labels[valid])
    places = np.stack([*np.mgrid[:64, :64], np.ones((64, 64))], -1).reshape(-1, 3)
    for tile in valid.reshape(3, -1).numpy():
        assert 0 < tile.sum() < tile.size
        # A line between the two: some w with w . place >= 1 where it is labelled and <= -1 where it is not.
        side = np.where(tile, -1, 1)[:, None]
        assert linprog(np.zeros(3), A_ub=side * places, b_ub=-np.ones(tile.size), bounds=(None, None)).success


def test_a_tile_is_labelled_alike_whatever_is_asked_for_with_it() -> None:
    partly = load("landcover_ignored")
    _, together = partly.samples([7, 8, 9])
    _, alone = partly.samples([9])
    assert torch.equal(together[2], alone[0])


@pytest.mark.parametrize(("reduction", "low", "high"), [("exact", 0, 1e-12), ("mean_of_means", 0.05, 10)])
def test_the_mean_of_means_is_off_where_tiles_weigh_unequally(reduction: str, low: float, high: float) -> None:
    config = RunConfig.of(
        workload="landcover_ignored", model="unet", norm="group", effective_batch_size=8, micro_batch_size=2,
        updates=1, warmup_updates=0, precision="float64", reduction=reduction, seed=1,
    )  # fmt: skip
    (record,) = train(config)
    assert low <= record.instruments["gradient_error"]["relative_error"] <= high
