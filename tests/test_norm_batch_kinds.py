"""The BatchNorms that are kinds of their own, against torch, torchvision and the papers' formulas in NumPy."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_nets import gradients, pixels, relative_error
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from accum_core.engine import accumulate_gradients, check_norms, convert_norms
from accum_core.engine.objectives import CrossEntropy
from accum_core.errors import SettingError

C = 4
BAR = 1e-12
VARIANTS = ["batch_corrected", "ghost_batch", "batch_renorm", "frozen_batch"]


def trained(**settings: object) -> nn.BatchNorm2d:
    """A BatchNorm whose parameters and running statistics are nobody's defaults."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(C, eps=3e-3, **settings).double()  # type: ignore[arg-type]
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    if norm.running_mean is not None and norm.running_var is not None:
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2)
    return norm


def images(samples: int = 6, seed: int = 1) -> Tensor:
    return torch.randn(samples, C, 3, 5, generator=torch.Generator().manual_seed(seed)).double() * 2 + 1


# frozen_batch


def test_frozen_batch_norm_is_torchvisions():
    norm = trained()
    theirs = FrozenBatchNorm2d(C, eps=norm.eps).double()
    theirs.load_state_dict(norm.state_dict())
    layer = convert_norms(copy.deepcopy(norm), "frozen_batch")
    torch.testing.assert_close(layer(images()), theirs(images()), rtol=1e-12, atol=1e-12)


def test_frozen_batch_norm_moves_nothing_and_is_the_same_in_both_modes():
    layer = convert_norms(trained(), "frozen_batch")
    before = copy.deepcopy(layer.state_dict())
    training, evaluating = layer(images()), layer.eval()(images())
    assert torch.equal(training, evaluating)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_frozen_batch_norm_trains_its_affine_parameters_unless_they_are_frozen():
    norm = trained()
    norm.bias.requires_grad_(False)
    layer = convert_norms(norm, "frozen_batch")
    layer(images()).square().sum().backward()
    assert layer.weight.grad is not None
    assert layer.bias.grad is None


@pytest.mark.parametrize("source", [nn.BatchNorm2d(C), nn.GroupNorm(2, C)], ids=["fresh BatchNorm", "GroupNorm"])
def test_frozen_batch_norm_without_trained_statistics_is_an_affine_layer(source: nn.Module):
    nn.init.normal_(source.weight)
    layer = convert_norms(copy.deepcopy(source).double(), "frozen_batch")
    expected = images() / (1 + 1e-5) ** 0.5 * source.weight.double()[:, None, None]
    torch.testing.assert_close(layer(images()), expected, rtol=1e-12, atol=1e-12)


def test_frozen_batch_norm_of_one_pixel_at_micro_batch_1_is_no_problem():
    check_norms(convert_norms(nn.Sequential(nn.AdaptiveAvgPool2d(1), trained()), "frozen_batch"), images(1))


# ghost_batch


def segmentation() -> tuple[nn.Module, Tensor, Tensor]:
    """A small network with a trained BatchNorm, and 32 samples."""
    model = pixels(trained(), channels=C).double()
    numbers = torch.Generator().manual_seed(2)
    inputs = torch.randn(32, 2, 4, 4, generator=numbers).double()
    return model, inputs, torch.randint(3, (32, 4, 4), generator=numbers)


@pytest.mark.parametrize("momentum", [0.1, 0.6, None])
def test_one_batch_of_32_with_ghost_batches_of_2_is_accumulation_of_16_with_batch_norm(momentum: float | None):
    """Gradient and running statistics, counter included: what accumulation does to BatchNorm, without accumulation."""
    accumulated, inputs, targets = segmentation()
    accumulated[1].momentum = momentum
    ghosts = convert_norms(copy.deepcopy(accumulated), "ghost_batch", ghost_batch_size=2)
    micro_batches = list(zip(inputs.split(2), targets.split(2), strict=True))
    accumulate_gradients(accumulated, micro_batches, CrossEntropy())
    accumulate_gradients(ghosts, [(inputs, targets)], CrossEntropy())
    assert relative_error(gradients(ghosts), gradients(accumulated)) <= BAR
    for name, buffer in accumulated.named_buffers():
        torch.testing.assert_close(ghosts.get_buffer(name), buffer, rtol=BAR, atol=BAR)
    whole, _, _ = segmentation()
    accumulate_gradients(whole, [(inputs, targets)], CrossEntropy())
    assert relative_error(gradients(ghosts), gradients(whole)) > 0.01


def test_ghost_batches_make_the_running_statistics_independent_of_the_split():
    model, inputs, targets = segmentation()
    found = []
    for micro in (2, 4, 32):
        ghosts = convert_norms(copy.deepcopy(model), "ghost_batch", ghost_batch_size=2)
        accumulate_gradients(ghosts, list(zip(inputs.split(micro), targets.split(micro), strict=True)), CrossEntropy())
        found.append(torch.cat([buffer.flatten() for buffer in ghosts.buffers()]))
    torch.testing.assert_close(found[1], found[0], rtol=BAR, atol=BAR)
    torch.testing.assert_close(found[2], found[0], rtol=BAR, atol=BAR)


@pytest.mark.parametrize("size", [6, 7, 100])
def test_a_ghost_batch_of_the_whole_micro_batch_is_batch_norm(size: int):
    norm = trained()
    layer = convert_norms(copy.deepcopy(norm), "ghost_batch", ghost_batch_size=size)
    assert torch.equal(layer(images(6)), norm(images(6)))


@pytest.mark.parametrize(("samples", "size", "fails"), [(4, 2, False), (3, 2, True), (2, 1, True), (1, 2, True)])
def test_a_ghost_batch_of_one_value_a_channel_is_refused_with_what_to_use(samples: int, size: int, fails: bool):
    """As torch does when the layer runs: a last ghost batch of 1 counts too."""
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), trained())
    convert_norms(model, "ghost_batch", ghost_batch_size=size)
    if not fails:
        check_norms(model, images(samples))
        model(images(samples))
        return
    with pytest.raises(SettingError, match=rf"micro_batch_size = {samples}: .*ghost batch.*divides the micro-batch"):
        check_norms(model, images(samples))
    with pytest.raises(ValueError, match="more than 1 value"):
        model(images(samples))


# batch_renorm


def renormalised(x: np.ndarray, norm: nn.BatchNorm2d, r_max: float, d_max: float) -> np.ndarray:
    """Algorithm 1 of Ioffe 2017, channel by channel."""
    assert norm.running_mean is not None and norm.running_var is not None
    y = np.empty_like(x)
    for c in range(x.shape[1]):
        mean, deviation = x[:, c].mean(), np.sqrt(x[:, c].var() + norm.eps)
        running = np.sqrt(norm.running_var[c].item() + norm.eps)
        r = np.clip(deviation / running, 1 / r_max, r_max)
        d = np.clip((mean - norm.running_mean[c].item()) / running, -d_max, d_max)
        y[:, c] = norm.weight[c].item() * ((x[:, c] - mean) / deviation * r + d) + norm.bias[c].item()
    return y


@settings(max_examples=30, deadline=None)
@given(st.floats(1, 4), st.floats(0, 4), st.integers(0, 100))
def test_batch_renorm_is_the_papers(r_max: float, d_max: float, seed: int):
    norm, inputs = trained(), images(3, seed)
    expected = renormalised(inputs.numpy(), norm, r_max, d_max)
    layer = convert_norms(copy.deepcopy(norm), "batch_renorm", r_max=r_max, d_max=d_max)
    np.testing.assert_allclose(layer(inputs).detach().numpy(), expected, rtol=1e-9, atol=1e-9)


def test_no_gradient_flows_through_the_correction():
    """The gradient in x is that of r x_hat + d with constants; autograd of that formula is the judge."""
    norm, inputs = trained(), images(2).requires_grad_()
    layer = convert_norms(copy.deepcopy(norm), "batch_renorm", r_max=3.0, d_max=5.0)
    mean, variance = inputs.mean((0, 2, 3)), inputs.var((0, 2, 3), correction=0)
    deviation, running = (variance + norm.eps).sqrt(), (norm.running_var + norm.eps).sqrt()
    r = (deviation / running).clamp(1 / 3, 3).detach()[:, None, None]
    d = ((mean - norm.running_mean) / running).clamp(-5, 5).detach()[:, None, None]
    plain = (inputs - mean[:, None, None]) / deviation[:, None, None]
    expected = (plain * r + d) * norm.weight[:, None, None] + norm.bias[:, None, None]
    (wanted,) = torch.autograd.grad(expected.pow(3).sum(), inputs)
    (found,) = torch.autograd.grad(layer(inputs).pow(3).sum(), inputs)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_without_clipping_training_mode_computes_what_evaluation_mode_does():
    layer = convert_norms(trained(), "batch_renorm", r_max=1000.0, d_max=1000.0)
    before = copy.deepcopy(layer).eval()
    torch.testing.assert_close(layer(images()), before(images()), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", [{"r_max": 1.0, "d_max": 0.0}, {"warmup": 10}], ids=str)
def test_without_a_correction_batch_renorm_is_batch_norm(options: dict[str, float]):
    """Outputs, and running statistics in any case."""
    norm = trained()
    layer = convert_norms(copy.deepcopy(norm), "batch_renorm", **options)
    for seed in (1, 2):
        torch.testing.assert_close(layer(images(seed=seed)), norm(images(seed=seed)), rtol=1e-12, atol=1e-12)
    for name, value in norm.state_dict().items():
        torch.testing.assert_close(layer.state_dict()[name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("passes", "r_max", "d_max"), [(0, 1, 0), (10, 1, 0), (30, 1 + 2 * 2 / 7, 2.5), (50, 1 + 2 * 4 / 7, 5), (80, 3, 5)]
)
def test_the_bounds_are_relaxed_in_the_papers_proportions(passes: int, r_max: float, d_max: float):
    """W = 10: BatchNorm until pass 10 (5 thousand), d_max by pass 50 (25 thousand), r_max by pass 80 (40 thousand)."""
    norm = trained()
    norm.num_batches_tracked.fill_(passes)
    far = images() * 50 + 1000  # both corrections are clipped
    expected = renormalised(far.numpy(), norm, r_max, d_max)
    layer = convert_norms(norm, "batch_renorm", r_max=3.0, d_max=5.0, warmup=10)
    np.testing.assert_allclose(layer(far).detach().numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "options", "told"),
    [
        ("ghost_batch", {"ghost_batch_size": 0}, "ghost_batch_size = 0: must be at least 1"),
        ("batch_renorm", {"r_max": 0.5}, "renorm_r_max = 0.5: must be at least 1"),
        ("batch_renorm", {"d_max": -1.0}, "renorm_d_max = -1.0: must be at least 0"),
        ("batch_renorm", {"warmup": -1}, "renorm_warmup = -1: must be at least 0"),
    ],
)
def test_an_option_out_of_bounds_is_refused(kind: str, options: dict[str, float], told: str):
    with pytest.raises(SettingError, match=told):
        convert_norms(trained(), kind, **options)


# All of them.


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(VARIANTS), min_size=1, max_size=5), st.sampled_from([0.02, None]), st.booleans())
def test_any_way_through_the_batch_norms_keeps_statistics_and_settings(
    way: list[str], momentum: float | None, tracks: bool
):
    norm = trained(momentum=momentum, track_running_stats=tracks)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    layer: nn.Module = norm
    for kind in [*way, "batch"]:
        layer = convert_norms(layer, kind)
    assert (layer.momentum, layer.track_running_stats) == (momentum, tracks)
    assert layer.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


@pytest.mark.parametrize("kind", ["ghost_batch", "batch_renorm"])
def test_without_running_statistics_evaluation_mode_is_batch_norms(kind: str):
    norm = trained(track_running_stats=False)
    layer = convert_norms(copy.deepcopy(norm), kind)
    assert torch.equal(layer.eval()(images()), norm.eval()(images()))
