"""The noise scale from per-sample gradients: one backward pass a sample, every possible window, known distributions."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from small_nets import Product, ProductLoss, TwoTerms, dense
from tiny_workload import stand_in, tiny
from torch import Tensor, nn
from torch.nn import functional as F
from watched_windows import measured, window

from accum_core.engine import train
from accum_core.engine.instrument import Window, load_instruments
from accum_core.engine.instruments import sample_noise
from accum_core.engine.objectives import Contrastive, CrossEntropy, Objective
from accum_core.engine.recompute import checkpoint_activations
from accum_core.errors import SettingError
from accum_core.noise_scale import window_estimate
from accum_core.records import RunConfig


def of_samples(model: nn.Module, inputs: Tensor, targets: Tensor, objective: Objective | None = None) -> Window:
    """A window that is all there is: one micro-batch, and no training set behind it."""
    return Window(model, inputs, targets, [(inputs, targets)], objective or CrossEntropy(), 1, 1, True)


def found_in(seen: Window) -> dict[str, Any]:
    return load_instruments(["sample_noise"])["sample_noise"].measure(seen)


def numbers(found: dict[str, Any]) -> dict[str, float]:
    return {name: found[name] for name in ("samples", "noise", "gradient_square", "set_gradient_square")}


def one_by_one(model: nn.Module, inputs: Tensor, targets: Tensor) -> NDArray[np.float64]:
    """Gradient of each sample's own mean loss, ``[n, parameters]``: a backward pass of its own, in float64."""
    rows = []
    for sample, target in zip(inputs.split(1), targets.split(1), strict=True):
        twin = copy.deepcopy(model).double()
        F.cross_entropy(twin(sample.double()), target).backward()
        rows.append(torch.cat([p.grad.flatten() for p in twin.parameters()]).numpy())
    return np.stack(rows)


def digits_net(norm: nn.Module, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(6, 8, bias=False), norm, nn.ReLU(inplace=True), nn.Dropout(dropout), nn.Linear(8, 4)
    )


# Against one backward pass a sample.


@pytest.mark.parametrize("norm", [nn.Identity(), nn.LayerNorm(8), nn.GroupNorm(2, 8)])
@pytest.mark.parametrize("precision", [torch.float64, torch.float32, torch.bfloat16])
def test_it_is_the_covariance_of_the_samples_gradients(norm: nn.Module, precision: torch.dtype) -> None:
    """NumPy's variance with n - 1, and |g|^2 less its part of n; low precision is differentiated in float32."""
    model = digits_net(norm).to(precision)
    inputs, targets = torch.randn(23, 2, 3).to(precision), torch.randint(4, (23,))
    gradients = one_by_one(model, inputs, targets)
    noise = float(gradients.var(axis=0, ddof=1).sum())
    square = float(np.square(gradients.mean(axis=0)).sum())
    found = found_in(of_samples(model, inputs, targets))
    near = 1e-12 if precision == torch.float64 else 1e-5
    assert (found["samples"], found["reason"]) == (23, None)
    assert found["noise"] == pytest.approx(noise, rel=near)
    assert found["set_gradient_square"] == pytest.approx(square, rel=near)
    assert found["gradient_square"] == pytest.approx(square - noise / 23, rel=near)


def test_samples_that_weigh_differently_count_by_their_weight() -> None:
    """Valid pixels of 7 samples: one has none, one half of them. The mean of p_i p_j g_i g_j over pairs, divided by
    that of p_i p_j, is free of noise; what of |g|^2 is more than that is noise."""
    seen = window("group")
    pixels = (seen.targets != -100).sum((1, 2)).double().numpy()
    held = np.flatnonzero(pixels)
    parts = pixels[held] / pixels.sum()
    gradients = one_by_one(seen.model, seen.inputs[held], seen.targets[held])
    mean = parts @ gradients
    pairs = [(i, j) for i in range(len(held)) for j in range(len(held)) if i != j]
    products = sum(parts[i] * parts[j] * float(gradients[i] @ gradients[j]) for i, j in pairs)
    square = products / sum(parts[i] * parts[j] for i, j in pairs)
    noise = (float(mean @ mean) - square) / float(parts @ parts)
    found = found_in(seen)
    assert found["noise"] == pytest.approx(noise, rel=1e-11)
    assert found["set_gradient_square"] == pytest.approx(float(mean @ mean), rel=1e-11)
    assert found["gradient_square"] == pytest.approx(square, rel=1e-11)


@pytest.mark.parametrize("bytes_at_a_time", [1, 5 * 8 * 100])
def test_the_bound_on_memory_changes_nothing(bytes_at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, targets = digits_net(nn.LayerNorm(8)).double(), torch.randn(23, 6).double(), torch.randint(4, (23,))
    whole = found_in(of_samples(model, inputs, targets))
    monkeypatch.setattr(sample_noise, "MOST_BYTES", bytes_at_a_time)
    assert numbers(found_in(of_samples(model, inputs, targets))) == pytest.approx(numbers(whole), rel=1e-12)


def test_frozen_parameters_have_no_gradient() -> None:
    model, inputs, targets = digits_net(nn.LayerNorm(8)).double(), torch.randn(9, 6).double(), torch.randint(4, (9,))
    gradients = one_by_one(model, inputs, targets)
    model[1].weight.requires_grad_(False)
    found = found_in(of_samples(model, inputs, targets))
    assert found["noise"] == pytest.approx(float(gradients[:, 48:].var(axis=0, ddof=1).sum()), rel=1e-12)


def test_dropout_draws_for_each_sample_and_leaves_no_trace() -> None:
    """Four times the same sample: without dropout no noise at all, with it some; the random state is as before."""
    inputs, targets = torch.ones(4, 6).double(), torch.zeros(4, dtype=torch.long)
    assert found_in(of_samples(digits_net(nn.LayerNorm(8)).double(), inputs, targets))["noise"] < 1e-20
    model = digits_net(nn.LayerNorm(8), dropout=0.5).double()
    before = torch.get_rng_state()
    assert found_in(of_samples(model, inputs, targets))["noise"] > 1e-3
    assert torch.equal(torch.get_rng_state(), before)


# What it estimates.


def test_all_windows_without_replacement_have_it_as_their_mean() -> None:
    """Every way to draw 4 of 6 samples in two micro-batches of 2: what accumulation finds in them averages to it."""
    torch.manual_seed(1)
    model, inputs, targets = dense().double(), torch.randn(6, 3).double(), torch.randint(4, (6,))
    names = ("norms", "window_norm", "weights", "effective_samples")
    estimates = []
    for first in itertools.combinations(range(6), 2):
        for second in itertools.combinations(set(range(6)) - set(first), 2):
            some, labels = inputs[[*first, *second]], targets[[*first, *second]]
            parts = list(zip(some.split(2), labels.split(2), strict=True))
            fields = measured("micro_gradient_norms", Window(model, some, labels, parts, CrossEntropy(), 1, 1, False))
            estimates.append(window_estimate(*(fields[name] for name in names)))
    found = found_in(of_samples(model, inputs, targets))
    assert np.mean([e.gradient_square for e in estimates]) == pytest.approx(found["gradient_square"], rel=1e-10)
    assert np.mean([e.noise for e in estimates]) == pytest.approx(found["noise"], rel=1e-10)


@pytest.mark.parametrize("weighted", [False, True])
def test_both_are_unbiased_for_the_distribution_of_the_samples(weighted: bool) -> None:
    """The loss w x has the gradient x: sets of 6 normal draws of mean 0.5 and deviation 2, within 4 standard errors."""
    draw = np.random.default_rng(11)
    found = []
    for _ in range(1500):
        x = torch.from_numpy(draw.normal(0.5, 2.0, size=6))
        weights = torch.from_numpy(draw.uniform(0.1, 2.0, size=6)) if weighted else torch.ones(6, dtype=torch.float64)
        found.append(found_in(of_samples(Product(), x, weights, ProductLoss())))
    for field, truth in (("gradient_square", 0.25), ("noise", 4.0)):
        values = [fields[field] for fields in found]
        assert abs(np.mean(values) - truth) < 4 * stats.sem(values)


# Which samples, and which not.


def test_a_large_training_set_is_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, targets = dense().double(), torch.randn(10, 3).double(), torch.randint(4, (10,))
    asked: list[Sequence[int]] = []

    def draw(indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        asked.append(indices)
        return inputs[list(indices)], targets[list(indices)]

    seen = Window(model, inputs[:2], targets[:2], [], CrossEntropy(), 1, 1, True, num_samples=10, draw=draw)
    assert found_in(seen)["samples"] == 10
    monkeypatch.setattr(sample_noise, "MOST_SAMPLES", 4)
    gradients = one_by_one(model, inputs[[0, 2, 5, 7]], targets[[0, 2, 5, 7]])
    assert found_in(seen)["noise"] == pytest.approx(float(gradients.var(axis=0, ddof=1).sum()), rel=1e-12)
    assert asked == [list(range(10)), [0, 2, 5, 7]]


@pytest.mark.parametrize("norm", ["batch", "sync_batch"])
def test_layers_across_samples_are_refused(norm: str) -> None:
    found = found_in(window(norm))
    assert (found["noise"], found["gradient_square"], found["set_gradient_square"]) == (None, None, None)
    assert "Layer stem.1 looks across samples" in found["reason"]


def test_blocks_that_are_computed_again_are_refused() -> None:
    model = checkpoint_activations(dense())
    found = found_in(of_samples(model, torch.randn(4, 3), torch.randint(4, (4,))))
    assert (found["noise"], "leave activation checkpointing off" in found["reason"]) == (None, True)


def test_losses_without_a_sample_of_its_own_are_refused() -> None:
    targets = torch.tensor([1.0, -1.0, 1.0, 1.0])
    assert (
        "weigh samples differently" in found_in(of_samples(dense(), torch.randn(4, 3), targets, TwoTerms()))["reason"]
    )
    pairs = torch.randn(4, 2, 3)
    found = found_in(of_samples(dense(), pairs, torch.ones(4, dtype=torch.long), Contrastive()))
    assert "samples meet in the loss" in found["reason"]


# In a run.


def test_it_watches_only_the_runs_that_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "sample_noise" not in load_instruments()
    workload = stand_in(monkeypatch)()
    plain, asked = (next(train(tiny(extra_instruments=names))) for names in ((), ("sample_noise",)))
    assert set(asked.instruments) - set(plain.instruments) == {"sample_noise"}
    assert asked.gradient_norm == plain.gradient_norm
    found = asked.instruments["sample_noise"]
    assert found["samples"] == workload.num_samples == 26
    assert math.isfinite(found["noise"]) and found["noise"] > 0


def test_an_unknown_instrument_is_refused_by_name() -> None:
    with pytest.raises(SettingError, match=r"extra_instruments = 'per_sample'.*sample_noise"):
        RunConfig.of(extra_instruments=("per_sample",))
