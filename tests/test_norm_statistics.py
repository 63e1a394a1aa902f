"""Statistics of a window's micro-batches at each normalising layer, against NumPy on the raw values."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_workload import CLASSES, TinyNet
from torch import Tensor, nn
from watched_windows import measured, window

from accum_core.engine import convert_norms
from accum_core.engine.instrument import Window
from accum_core.engine.objectives import CrossEntropy
from accum_core.engine.recompute import checkpoint_activations
from accum_core.errors import SettingError
from accum_core.norm_statistics import distances, growth, opened, running_distances, sizes_of, split, whole

SIZES = [3, 2, 2]
EPS = 1e-5
Raw = NDArray[np.float64]


def raw(samples: int = 7, channels: int = 4, pixels: int = 9) -> Raw:
    """Values [B, C, P] whose samples and channels differ in mean and deviation."""
    draw = np.random.default_rng(3)
    shift, scale = draw.normal(size=(samples, channels, 1)), draw.uniform(0.2, 3, size=(samples, channels, 1))
    return shift + scale * draw.normal(size=(samples, channels, pixels))


def of_samples(values: Raw) -> tuple[Raw, Raw]:
    """Mean and variance of each channel and sample, [C, B]."""
    return values.mean(axis=2).T, values.var(axis=2).T


def by_hand(values: Raw, sizes: list[int], eps: float) -> tuple[float, float]:
    """Both distances from raw values, in loops."""
    parts = np.split(values, np.cumsum(sizes)[:-1])
    means, variances = [], []
    for channel in range(values.shape[1]):
        mean, scale = values[:, channel].mean(), values[:, channel].var() + eps
        for part in parts:
            share = len(part) / len(values)
            means.append(share * (part[:, channel].mean() - mean) ** 2 / scale)
            variances.append(share * (part[:, channel].var() - values[:, channel].var()) ** 2 / scale**2)
    return math.sqrt(sum(means) / values.shape[1]), math.sqrt(sum(variances) / values.shape[1])


# The arithmetic.


@pytest.mark.parametrize("sizes", [[7], [3, 2, 2], [1] * 7, [4, 3], [2, 5]])
@pytest.mark.parametrize("pixels", [1, 9])
def test_a_split_has_the_statistics_of_its_raw_values(sizes: list[int], pixels: int):
    values = raw(pixels=pixels)
    found = split(*of_samples(values), sizes)
    parts = np.split(values, np.cumsum(sizes)[:-1])
    np.testing.assert_allclose(found[0], np.stack([part.mean(axis=(0, 2)) for part in parts], axis=1), atol=1e-14)
    np.testing.assert_allclose(found[1], np.stack([part.var(axis=(0, 2)) for part in parts], axis=1), atol=1e-14)
    mean, variance = whole(*of_samples(values))
    np.testing.assert_allclose(mean, values.mean(axis=(0, 2)), atol=1e-14)
    np.testing.assert_allclose(variance, values.var(axis=(0, 2)), rtol=1e-13)
    apart = distances(*of_samples(values), sizes, EPS)
    assert (apart.mean, apart.variance) == pytest.approx(by_hand(values, sizes, EPS), rel=1e-12, abs=1e-14)


def test_the_squared_distance_is_the_variance_that_the_micro_batches_miss():
    """Law of total variance: 1 - average of var_i / var_w, at most 1; one micro-batch is no distance away."""
    means, variances = of_samples(raw(channels=1))
    _, variance = whole(means, variances)
    for sizes in ([1] * 7, SIZES):
        missed = 1 - np.average(split(means, variances, sizes)[1][0], weights=sizes) / variance[0]
        assert distances(means, variances, sizes, 0).mean ** 2 == pytest.approx(missed, rel=1e-12)
        assert 0 < missed < 1
    assert distances(means, variances, [7], 0).mean == pytest.approx(0, abs=1e-15)


def test_samples_that_are_alike_inside_are_all_apart():
    """No variance in a sample: at micro-batch 1 all of the window's lies between; a channel of zeros has none."""
    means = np.array([[1.0, -1.0, 1.0, -1.0]])
    assert distances(means, np.zeros((1, 4)), [1] * 4, 0).mean == 1
    assert distances(means, np.zeros((1, 4)), [1] * 4, 0).variance == 1
    assert distances(np.zeros((1, 4)), np.zeros((1, 4)), [1] * 4, 0).mean == 0


def test_running_statistics_that_follow_the_window_are_no_distance_away():
    """The running variance follows the unbiased one; one deviation off in the mean is a distance of 1."""
    values = raw()
    mean, unbiased = values.mean(axis=(0, 2)), values.transpose(1, 0, 2).reshape(4, -1).var(axis=1, ddof=1)
    variance = values.var(axis=(0, 2))
    assert running_distances(*of_samples(values), mean, unbiased, 9, 0).mean == pytest.approx(0, abs=1e-12)
    assert running_distances(*of_samples(values), mean, unbiased, 9, 0).variance == pytest.approx(0, abs=1e-12)
    off = running_distances(*of_samples(values), mean + np.sqrt(variance), unbiased + 2 * variance, 9, 0)
    assert (off.mean, off.variance) == pytest.approx((1, 2), rel=1e-12)


def test_growth_is_the_factor_from_layer_to_layer():
    """Exact for a geometric series, with gaps; the slope of the logarithms otherwise."""
    assert growth([3 * 1.5**k for k in range(6)]) == pytest.approx(1.5, rel=1e-12)
    assert growth([1.0, 0.0, 4.0, math.inf, 16.0, math.nan]) == pytest.approx(2, rel=1e-12)
    assert growth([2.0, 2.0, 2.0]) == pytest.approx(1, rel=1e-12)
    assert growth([1.0, 0.0]) is None


def test_sizes_and_their_refusals():
    assert sizes_of(7, 3) == [3, 3, 1]
    assert sizes_of(6, 32) == [6]
    with pytest.raises(SettingError, match="micro_batch_size.*at least 1"):
        sizes_of(7, 0)
    for wrong in ([3, 3], [7, 0], []):
        with pytest.raises(SettingError, match="7 samples together"):
            split(*of_samples(raw()), wrong)


# The instrument.


def inputs_of(model: nn.Module, batches: list[Tensor]) -> dict[str, list[Raw]]:
    """What each BatchNorm or GroupNorm of a copy of the model is given in passes over the batches, by its name."""
    twin, seen = copy.deepcopy(model), {}
    for name, module in twin.named_modules():
        if isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.GroupNorm)):
            module.register_forward_hook(
                lambda _, inputs, output, name=name: seen.setdefault(name, []).append(
                    inputs[0].detach().flatten(2).double().numpy()
                )
            )
    for batch in batches:
        twin(batch)
    return seen


def pieces(values: Raw, sizes: list[int]) -> list[Raw]:
    return np.split(values, np.cumsum(sizes)[:-1])


@pytest.mark.parametrize("norm", ["batch", "group", "sync_batch"])
def test_norm_statistics_twin(norm: str):
    """The values that the layers are given in the micro-batches' passes; with sync_batch, in one pass of all."""
    seen = window(norm)
    at_once = norm == "sync_batch"
    batches = [seen.inputs] if at_once else [inputs for inputs, _ in seen.micro_batches]
    expected = inputs_of(seen.model, batches)
    found = measured("norm_statistics", seen)
    assert found["sizes"] == SIZES
    assert [layer["name"] for layer in found["layers"]] == ["stem.1", "pool.2"]
    for layer in found["layers"]:
        values = np.concatenate(expected[layer["name"]])
        assert (layer["kind"], layer["across"], layer["eps"]) == (norm, norm != "group", EPS)
        assert (layer["channels"], layer["pixels"]) == values.shape[1:]
        apart = by_hand(values, SIZES, EPS)
        assert (layer["mean_distance"], layer["variance_distance"]) == pytest.approx(apart, rel=1e-5)
        module = seen.model.get_submodule(layer["name"])
        assert (layer["running_mean_distance"] is None) == (norm == "group")
        if norm != "group":
            mean, variance = values.mean(axis=(0, 2)), values.var(axis=(0, 2))
            unbiased = values.transpose(1, 0, 2).reshape(values.shape[1], -1).var(axis=1, ddof=1)
            off = (module.running_mean.numpy() - mean) ** 2 / (variance + EPS)
            assert layer["running_mean_distance"] == pytest.approx(math.sqrt(off.mean()), rel=1e-5)
            off = ((module.running_var.numpy() - unbiased) / (variance + EPS)) ** 2
            assert layer["running_variance_distance"] == pytest.approx(math.sqrt(off.mean()), rel=1e-5)
        few = opened(layer)
        assert few.channels == (0, 4)
        for sizes in (SIZES, [7], [1] * 7, [4, 3]):
            means, variances = split(few.means, few.variances, sizes)
            parts = [part[:, list(few.channels)] for part in pieces(values, sizes)]
            np.testing.assert_allclose(means.T, [part.mean(axis=(0, 2)) for part in parts], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(variances.T, [part.var(axis=(0, 2)) for part in parts], rtol=1e-5, atol=1e-6)


def test_one_micro_batch_is_the_window():
    seen = window()
    one = Window(seen.model, seen.inputs, seen.targets, [(seen.inputs, seen.targets)], seen.objective, 1, 1, True)
    for layer in measured("norm_statistics", one)["layers"]:
        assert layer["mean_distance"] == pytest.approx(0, abs=1e-12)
        assert layer["variance_distance"] == pytest.approx(0, abs=1e-12)


def test_activation_checkpointing_shows_each_layer_once():
    """Blocks are run again in the backward pass, which is no pass of the window."""
    seen = window()
    expected = measured("norm_statistics", window())
    checkpoint_activations(seen.model)
    assert measured("norm_statistics", seen) == expected


class Backwards(nn.Module):
    """Registers its last layer first, and runs the norm of the middle twice."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.shared, self.first = nn.BatchNorm1d(4), nn.BatchNorm1d(4), nn.BatchNorm1d(4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.last(self.shared(2 * self.shared(self.first(inputs)))))


def vectors(model: nn.Module, samples: int = 6, width: int = 4) -> dict[str, Any]:
    """What is measured of a model of vectors [M, width] in three micro-batches."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(samples, width), torch.randint(CLASSES, (samples,))
    micro_batches = list(zip(inputs.chunk(3), targets.chunk(3), strict=True))
    return measured("norm_statistics", Window(model, inputs, targets, micro_batches, CrossEntropy(), 1, 1, True))


def test_layers_come_in_the_order_in_which_the_network_runs_them():
    found = vectors(Backwards())["layers"]
    assert [layer["name"] for layer in found] == ["first", "shared", "shared@2", "last"]
    assert all(layer["pixels"] == 1 for layer in found)


def test_a_frozen_layer_does_not_look_across_samples():
    model = Backwards()
    model.last.eval()
    assert [layer["across"] for layer in vectors(model)["layers"]] == [True, True, True, False]


@pytest.mark.parametrize(("layers", "samples"), [(11, 32), (53, 32), (53, 256), (3, 4096)])
def test_a_record_stays_below_30_kilobytes(layers: int, samples: int):
    """The Lab's network and ResNet-50's layers; what does not fit is left closed, spread over the depth."""
    model = nn.Sequential(*[nn.BatchNorm1d(4) for _ in range(layers)], nn.Linear(4, CLASSES))
    found = vectors(model, samples)
    assert len(json.dumps(found)) < 30_000
    kept = [layer["opened"] is not None for layer in found["layers"]]
    assert len(kept) == layers
    assert all(kept) if (layers, samples) == (11, 32) else not all(kept)
    assert all((opened(layer) is not None) == held for layer, held in zip(found["layers"], kept, strict=True))
    if samples < 1000:
        assert kept[0]
        assert kept[-1]


def test_a_model_without_norms_has_no_layers():
    assert vectors(nn.Sequential(nn.Linear(4, CLASSES))) == {"sizes": [], "layers": []}


def test_behind_a_batch_norm_the_micro_batches_look_alike():
    """A layer behind BatchNorm gets samples that were moved together: its means lie closer than the same net's with
    GroupNorm there, where a shift of a sample reaches the next layer."""
    shifted = torch.linspace(-5, 5, 6)[:, None, None, None] + torch.randn(6, 2, 4, 4)
    targets = torch.zeros(6, 4, 4, dtype=torch.long)
    far = []
    for norm in ("batch", "none"):
        torch.manual_seed(0)
        model = convert_norms(TinyNet(), norm)
        parts = list(zip(shifted.split(2), targets.split(2), strict=True))
        found = measured("norm_statistics", Window(model, shifted, targets, parts, CrossEntropy(), 1, 1, True))
        far.append([layer["mean_distance"] for layer in found["layers"]])
    assert far[0][0] == far[1][0]
    assert far[0][1] < far[1][1] / 2
