"""The contract of every instrument under ``engine/instruments``, and a brute-force twin of those there are."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from small_nets import dense, relative_error
from tiny_workload import CHANNELS, CLASSES, TinyNet
from torch import Tensor, nn
from torch.nn import functional as F

from accum_core import catalogue
from accum_core.engine import accumulate_gradients, convert_norms
from accum_core.engine.instrument import Instrument, Window, load_instruments
from accum_core.engine.instruments.saved_bytes import saved_for_backward
from accum_core.engine.objectives import CrossEntropy
from accum_core.statistics import decode_sketch, sketch_distance

INSTRUMENTS = catalogue.entries("instruments")
H = W = 4


def window(norm: str = "batch", dropout: float = 0.0, update: int = 1, every: int = 5, new: bool = True) -> Window:
    """A ragged window of 3, 2 and 2 samples with some labels ignored, before any pass."""
    torch.manual_seed(0)
    model = convert_norms(TinyNet(dropout), norm, **({"num_groups": 4} if norm == "group" else {})).double()
    inputs, targets = torch.randn(7, 2, H, W).double(), torch.randint(CLASSES, (7, H, W))
    targets[1] = -100
    targets[3, :2] = -100
    micro_batches = list(zip(inputs.split([3, 2, 2]), targets.split([3, 2, 2]), strict=True))
    return Window(model, inputs, targets, micro_batches, CrossEntropy(), update, every, new)


def measured(name: str, seen: Window) -> dict[str, Any]:
    """What an instrument records of a window that is accumulated under its eyes."""
    instrument = load_instruments()[name]
    accumulate_gradients(
        seen.model,
        seen.micro_batches,
        seen.objective,
        after_micro_batch=lambda index: instrument.after_micro_batch(seen, index),
    )
    return instrument.measure(seen)


# The contract.


@pytest.mark.parametrize("name", INSTRUMENTS)
def test_it_says_what_it_is_and_records_what_json_can_hold(name: str):
    assert isinstance(INSTRUMENTS[name]["TITLE"], str)
    instrument = load_instruments()[name]
    assert isinstance(instrument, Instrument)
    found = measured(name, window())
    assert found
    assert all(isinstance(field, str) for field in found)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize("name", INSTRUMENTS)
def test_it_changes_nothing_that_training_sees(name: str):
    """Parameters, gradients, buffers, random state and modes, in a model with BatchNorm and dropout."""
    seen = window("batch", dropout=0.5)
    model = seen.model
    instrument = load_instruments()[name]

    def snapshot() -> list[Tensor]:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        return [tensor.clone() for tensor in [*model.state_dict().values(), *grads, torch.get_rng_state()]]

    def watched(index: int) -> None:
        before = snapshot()
        instrument.after_micro_batch(seen, index)
        assert all(map(torch.equal, before, snapshot()))

    accumulate_gradients(model, seen.micro_batches, seen.objective, after_micro_batch=watched)
    before, held = snapshot(), [p.grad for p in model.parameters()]
    instrument.measure(seen)
    assert all(map(torch.equal, before, snapshot()))
    assert all(p.grad is grad for p, grad in zip(model.parameters(), held, strict=True))
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("name", INSTRUMENTS)
def test_measuring_twice_gives_the_same(name: str):
    """A second window of the same samples, with the same instrument's memory of the first."""
    instrument, seen, found = load_instruments()[name], window("group"), []
    for _ in range(2):
        accumulate_gradients(
            seen.model,
            seen.micro_batches,
            seen.objective,
            after_micro_batch=lambda index: instrument.after_micro_batch(seen, index),
        )
        found.append(instrument.measure(seen))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["gradient_error", "micro_gradient_norms", "weight_sketch"])
def test_due_on_the_first_update_and_every_so_many_after(name: str):
    due = [k for k in range(1, 14) if load_instruments()[name].due(window(update=k, every=5, new=False))]
    assert due == [1, 6, 11]


def test_memory_is_due_on_the_first_window_of_a_split():
    instrument = load_instruments()["saved_bytes"]
    assert instrument.due(window(update=7, new=True))
    assert not instrument.due(window(update=6, new=False))


# The twins.


def by_autograd(model: nn.Module, inputs: Tensor, targets: Tensor, divide_by: int) -> dict[str, Tensor]:
    """Gradient of the summed cross-entropy over a weight, on a copy of the model."""
    twin = copy.deepcopy(model)
    (F.cross_entropy(twin(inputs), targets, reduction="sum") / divide_by).backward()
    return {name: p.grad for name, p in twin.named_parameters()}


def flat(parts: dict[str, Tensor], prefix: str = "") -> Tensor:
    return torch.cat([part.flatten() for name, part in parts.items() if name.startswith(prefix)])


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_gradient_error_twin(norm: str):
    """Both gradients as long vectors; a layer is a child of the network. BatchNorm is off, GroupNorm is not."""
    seen = window(norm)
    valid = int((seen.targets != -100).sum())
    expected = by_autograd(seen.model, seen.inputs, seen.targets, valid)
    parts = [by_autograd(seen.model, inputs, targets, valid) for inputs, targets in seen.micro_batches]
    actual = {name: sum(part[name] for part in parts) for name in expected}
    found = measured("gradient_error", seen)
    a, e = flat(actual), flat(expected)
    assert found["relative_error"] == pytest.approx(float((a - e).norm() / e.norm()), rel=1e-9, abs=1e-12)
    assert found["cosine"] == pytest.approx(float(F.cosine_similarity(a, e, dim=0)), rel=1e-12)
    assert found["norm_ratio"] == pytest.approx(float(a.norm() / e.norm()), rel=1e-12)
    layers = {layer: (flat(actual, layer), flat(expected, layer)) for layer in ("stem", "pool", "head")}
    by_layer = {layer: float((a - e).norm() / e.norm()) for layer, (a, e) in layers.items()}
    assert found["by_layer"] == pytest.approx(by_layer, rel=1e-9, abs=1e-12)
    assert (found["relative_error"] > 0.05) if norm == "batch" else (found["relative_error"] < 1e-13)


def test_a_layer_whose_reference_is_zero_is_infinitely_off_and_not_exact():
    """As for one parameter: error infinite if only the reference is zero."""
    seen = window("group")
    seen.model.register_module("idle", nn.Linear(2, 2).double())
    accumulate_gradients(seen.model, seen.micro_batches, seen.objective)
    for parameter in seen.model.idle.parameters():
        parameter.grad = torch.ones_like(parameter)
    found = load_instruments()["gradient_error"].measure(seen)
    assert found["by_layer"]["idle"] == math.inf
    assert found["by_layer"]["stem"] < 1e-12


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_micro_gradient_norms_twin(norm: str):
    """Each micro-batch's summed loss over the window's valid labels, differentiated alone."""
    seen = window(norm)
    valid = int((seen.targets != -100).sum())
    expected = [float(flat(by_autograd(seen.model, *batch, valid)).norm()) for batch in seen.micro_batches]
    assert measured("micro_gradient_norms", seen)["norms"] == pytest.approx(expected, rel=1e-9)


def test_sketch_norm_is_the_norm_of_all_weights():
    seen = window()
    exact = torch.cat([p.detach().flatten() for p in seen.model.parameters()]).norm()
    assert measured("weight_sketch", seen)["norm"] == pytest.approx(float(exact), rel=1e-12)


def sketch(model: nn.Module) -> dict[str, Any]:
    """The instrument's fields for a model outside of any training."""
    empty = torch.zeros(1)
    return load_instruments()["weight_sketch"].measure(Window(model, empty, empty, [], CrossEntropy(), 1, 1, False))


def test_sketch_distance_is_within_its_stated_error_of_the_exact_distance():
    """Over 60 random displacements of 5000 weights: the square of estimate over exact has mean 1 and a standard
    deviation of sqrt(2 / 256); 4 standard errors are allowed to each, and 5 standard deviations to a single one."""
    torch.manual_seed(1)
    reference = nn.Sequential(nn.Linear(60, 60), nn.Linear(60, 22), nn.BatchNorm1d(22))
    exact_norm = sketch(reference)["norm"]
    size = decode_sketch(sketch(reference)["sketch"]).size
    ratios = []
    for scale in np.geomspace(1e-3, 10, 60):
        other = copy.deepcopy(reference)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(scale * torch.randn_like(parameter))
        pairs = zip(other.parameters(), reference.parameters(), strict=True)
        exact = math.sqrt(sum(float((a - b).detach().double().square().sum()) for a, b in pairs)) / exact_norm
        ratios.append(sketch_distance(sketch(other)["sketch"], sketch(reference)["sketch"], exact_norm) / exact)
    squares, stated = np.square(ratios), math.sqrt(2 / size)
    assert abs(squares.mean() - 1) < 4 * stated / math.sqrt(len(ratios))
    assert squares.std(ddof=1) < stated * (1 + 4 / math.sqrt(2 * len(ratios)))
    assert np.abs(squares - 1).max() < 5 * stated
    assert sketch_distance(sketch(reference)["sketch"], sketch(reference)["sketch"], exact_norm) == 0


def test_sketches_do_not_depend_on_the_random_state_or_on_the_norm():
    """Runs of different seeds and norms compare: names and places alone decide the signs."""
    model = TinyNet()
    first = sketch(model)
    torch.manual_seed(123)
    assert sketch(copy.deepcopy(model)) == first
    assert sketch(convert_norms(model, "none")) == first


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


def test_the_two_measures_of_a_window_agree_on_its_gradient():
    """The shares of a one-micro-batch window: its only norm is the norm of the accumulated gradient."""
    seen = window("group")
    whole = Window(seen.model, seen.inputs, seen.targets, [(seen.inputs, seen.targets)], seen.objective, 1, 1, True)
    norms = measured("micro_gradient_norms", whole)["norms"]
    accumulated = {name: p.grad for name, p in seen.model.named_parameters()}
    assert norms == [pytest.approx(float(flat(accumulated).norm()), rel=1e-12)]
    full = by_autograd(seen.model, seen.inputs, seen.targets, int((seen.targets != -100).sum()))
    assert relative_error(accumulated, full) < 1e-12
