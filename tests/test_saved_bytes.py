"""Bytes kept for the backward pass: counted element by element, and by hand."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from small_nets import dense
from tiny_workload import CHANNELS, CLASSES
from torch import Tensor, nn
from torch.nn import functional as F
from watched_windows import H, W, measured, window

from accum_core.engine import convert_norms
from accum_core.engine.instruments.saved_bytes import saved_for_backward
from accum_core.engine.objectives import CrossEntropy


def elements_saved(model: nn.Module, inputs: Tensor, targets: Tensor) -> int:
    """Bytes at distinct addresses that autograd saves in a forward pass, parameters and buffers left out."""
    twin, kept = copy.deepcopy(model), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        F.cross_entropy(twin(inputs), targets, reduction="sum")

    def addresses(tensor: Tensor) -> set[int]:
        places = torch.zeros((), dtype=torch.long)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            places = places[..., None] + torch.arange(size) * stride
        return {tensor.data_ptr() + place * tensor.element_size() for place in places.flatten().tolist()}

    own = set().union(*(addresses(tensor.detach()) for tensor in [*twin.parameters(), *twin.buffers()]))
    sizes = {address: tensor.element_size() for tensor in kept for address in addresses(tensor.detach())}
    return sum(size for address, size in sizes.items() if address not in own)


@pytest.mark.parametrize("norm", ["batch", "group", "layer", "instance", "none"])
def test_saved_bytes_twin(norm: str):
    """Counted element by element; a micro-batch cut from the window does not carry the window's bytes."""
    seen = window(norm)
    if norm == "instance":
        seen.model.pool = nn.Identity()
    found = measured("saved_bytes", seen)
    assert found == {
        "micro_batch": elements_saved(seen.model, *seen.micro_batches[0]),
        "full_batch": elements_saved(seen.model, seen.inputs, seen.targets),
    }
    assert found["micro_batch"] < found["full_batch"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("samples", [1, 4])
def test_saved_bytes_of_a_dense_net_by_hand(samples: int, dtype: torch.dtype):
    """Input (3 a sample), tanh's output (6), log-probabilities (4), one total weight; labels of 8 bytes each."""
    inputs, targets = torch.randn(samples, 3, dtype=dtype), torch.zeros(samples, dtype=torch.long)
    floats = samples * (3 + 6 + 4) + 1
    expected = floats * inputs.element_size() + samples * 8
    assert saved_for_backward(dense().to(dtype), inputs, targets, CrossEntropy()) == expected


def test_saved_bytes_of_a_convolution_net_by_hand():
    """A pixel: input 2, convolution 8, tanh 8, log-probabilities 3 floats and a label of 8 bytes. GroupNorm keeps a
    mean and a deviation for each of its 4 groups a sample; one total weight."""
    model = nn.Sequential(
        nn.Conv2d(2, CHANNELS, 3, padding=1), nn.GroupNorm(4, CHANNELS), nn.Tanh(), nn.Conv2d(CHANNELS, CLASSES, 1)
    )
    samples, pixels = 3, H * W
    floats = samples * pixels * (2 + CHANNELS + CHANNELS + CLASSES) + samples * 2 * 4 + 1
    inputs, targets = torch.randn(samples, 2, H, W), torch.zeros(samples, H, W, dtype=torch.long)
    assert saved_for_backward(model, inputs, targets, CrossEntropy()) == floats * 4 + samples * pixels * 8


class TwoViews(nn.Module):
    """The input is saved twice, once as it comes and once flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(2, 4, H), nn.Linear(2 * H * W, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.convolution(images).flatten(1) + self.linear(images.flatten(1))


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut from a window"])
def test_an_element_that_two_layers_save_counts_once(cut: bool):
    """Input once, log-probabilities, one total weight, labels; also when the input lies in a window's storage."""
    images = torch.randn(6, 2, H, W)
    inputs = images[2:4] if cut else images[2:4].clone()
    floats = 2 * (2 * H * W + 4) + 1
    assert (
        saved_for_backward(TwoViews(), inputs, torch.zeros(2, dtype=torch.long), CrossEntropy()) == floats * 4 + 2 * 8
    )


@pytest.mark.parametrize("offload", ["none", "host", "recompute"])
def test_a_window_in_step_keeps_one_micro_batch_or_all(offload: str):
    """As many bytes as BatchNorm saves, which normalises over a micro-batch; at one sample it cannot, a window can."""
    plain = window("batch")
    model = convert_norms(copy.deepcopy(plain.model), "sync_batch", offload=offload)
    alone, whole = plain.micro_batches[0], (plain.inputs, plain.targets)
    expected = elements_saved(plain.model.eval(), *(whole if offload == "none" else alone))
    found = measured("saved_bytes", replace(plain, model=model))
    assert abs(found["micro_batch"] - expected) <= 0.01 * expected  # a mean and a deviation for each channel
    ones = [(plain.inputs[:1], plain.targets[:1]), (plain.inputs[1:], plain.targets[1:])]
    found = measured("saved_bytes", replace(plain, model=model, micro_batches=ones))
    assert 0 < found["micro_batch"] <= 1.01 * expected
