"""Activation checkpointing keeps less and changes nothing else; the judge is the same model without it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from small_nets import gradients, pixels, relative_error
from torch import Tensor, nn

from accum_core import catalogue
from accum_core.engine.accumulate import accumulate_gradients
from accum_core.engine.instruments.saved_bytes import saved_for_backward
from accum_core.engine.models import deeplab, unet
from accum_core.engine.modes import evaluating
from accum_core.engine.normalization import check_norms, convert_norms
from accum_core.engine.objectives import CrossEntropy
from accum_core.engine.precision import Precision
from accum_core.engine.recompute import checkpoint_activations
from accum_core.engine.reference import reference_gradient

NORMS = list(catalogue.entries("norms"))
# InstanceNorm cannot work on the one pixel that deeplab's image pooling leaves.
CASES = [(model, norm) for model in ("deeplab", "unet") for norm in NORMS if (model, norm) != ("deeplab", "instance")]
each_case = pytest.mark.parametrize(("name", "norm"), CASES)


def network(name: str, norm: str = "batch", wrap: bool = False) -> nn.Module:
    torch.manual_seed(0)
    model = {"deeplab": deeplab, "unet": unet}[name].build(3, 4)
    return convert_norms(checkpoint_activations(model) if wrap else model, norm)


def window(samples: int = 4, micro: int = 2) -> list[tuple[Tensor, Tensor]]:
    numbers = torch.Generator().manual_seed(1)
    images = torch.randn(samples, 3, 16, 16, generator=numbers)
    labels = torch.randint(4, (samples, 16, 16), generator=numbers)
    return list(zip(images.split(micro), labels.split(micro), strict=True))


def trained(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> tuple[float, dict[str, Tensor]]:
    torch.manual_seed(5)
    return accumulate_gradients(model, batches, CrossEntropy()).loss, gradients(model)


def assert_same(wrapped: nn.Module, plain: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    """Loss, gradients, every buffer and the random state afterwards, to the last bit."""
    loss, expected = trained(plain, batches)
    drawn = torch.get_rng_state()
    found_loss, found = trained(wrapped, batches)
    assert found_loss == loss
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())
    state = wrapped.state_dict()
    assert list(state) == list(plain.state_dict())
    assert all(torch.equal(state[name], tensor) for name, tensor in plain.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)


@each_case
def test_gradients_and_buffers_are_those_without_it(name: str, norm: str):
    wrapped, plain = network(name, norm, wrap=True), network(name, norm)
    assert_same(wrapped, plain, window())


@each_case
def test_less_is_kept_for_the_backward_pass(name: str, norm: str):
    """A block keeps its input instead of what its convolution, norm and ReLU each need."""
    images, labels = window(2)[0]
    kept = {wrap: saved_for_backward(network(name, norm, wrap), images, labels, CrossEntropy()) for wrap in (0, 1)}
    assert kept[1] < kept[0]


class Block(nn.Sequential):
    """Two layers that save tensors of their own."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Sigmoid())


def kept_bytes(model: nn.Module, inputs: Tensor) -> int:
    """Bytes of the tensors saved in one forward pass, parameters aside, each once."""
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in parameters:
            saved[tensor.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(inputs)
    return sum(tensor.nbytes for tensor in saved.values())


def test_what_is_kept_is_one_input_a_block():
    """5 samples of 8 numbers of 4 bytes are 160 bytes.

    A linear layer needs its input, tanh and sigmoid their outputs, which are the next layer's input: 1 + 3 * 2 tensors
    of three blocks without, the blocks' 3 inputs with.
    """
    inputs = torch.randn(5, 8)
    model = nn.Sequential(Block(), Block(), Block())
    before = kept_bytes(model, inputs)
    assert (before, kept_bytes(checkpoint_activations(model), inputs)) == (7 * 160, 3 * 160)


def test_a_sequential_of_plain_layers_is_cut_into_the_square_root_of_its_length():
    """Nine layers in three segments keep three inputs; without, all but the linear layers' outputs: 7 tensors."""
    inputs = torch.randn(5, 8)
    layers = [layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.Tanh(), nn.Sigmoid())]
    model = nn.Sequential(*layers)
    before = kept_bytes(model, inputs)
    assert (before, kept_bytes(checkpoint_activations(model), inputs)) == (7 * 160, 3 * 160)


@pytest.mark.parametrize("norm", NORMS)
def test_a_sequential_of_plain_layers_with_every_norm(norm: str):
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Conv2d(8, 4, 3, padding=2)
    )
    wrapped = checkpoint_activations(copy.deepcopy(plain))
    assert_same(convert_norms(wrapped, norm), convert_norms(plain, norm), window())


def test_dropout_draws_the_same_masks_again():
    plain = nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 1), nn.Dropout(0.5), nn.Tanh()), nn.Conv2d(8, 4, 1))
    assert_same(checkpoint_activations(copy.deepcopy(plain)), plain, window())


class Running(nn.Module):
    """It divides by a level that it has just moved: a second pass must not start from the moved one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(3, 4, 1)
        self.register_buffer("level", torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.inner(inputs)
        self.level.mul_(0.5).add_(outputs.detach().abs().mean())
        return (outputs / self.level.clone()).tanh()


def test_buffers_that_the_pass_reads_are_those_of_its_beginning():
    torch.manual_seed(0)
    plain = nn.Sequential(Running(), nn.Conv2d(4, 4, 1))
    assert_same(checkpoint_activations(copy.deepcopy(plain)), plain, window())


@pytest.mark.parametrize(
    "freeze",
    [
        lambda model: model.stem.requires_grad_(False),
        lambda model: model.head.requires_grad_(False),
        lambda model: model.stem.requires_grad_(False).eval(),
        lambda model: model.eval(),
    ],
    ids=["first", "last", "first in evaluation mode", "evaluation mode"],
)
@pytest.mark.parametrize("name", ["deeplab", "unet"])
def test_frozen_parts_and_evaluation_mode(name: str, freeze: Callable[[nn.Module], nn.Module]):
    wrapped, plain = network(name, wrap=True), network(name)
    freeze(wrapped)
    freeze(plain)
    assert_same(wrapped, plain, window())


def test_under_autocast():
    """The backward pass comes after the autocast has ended, and computes again in its type."""
    wrapped, plain = network("deeplab", wrap=True), network("deeplab")
    for model in (plain, wrapped):
        accumulate_gradients(model, window(), CrossEntropy(), precision=Precision(autocast=torch.bfloat16))
    expected, found = gradients(plain), gradients(wrapped)
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())


def test_two_backward_passes_through_one_graph_are_the_same():
    torch.manual_seed(0)
    model = checkpoint_activations(nn.Sequential(Running(), nn.Conv2d(4, 4, 1)))
    images, labels = window(2)[0]
    loss = nn.functional.cross_entropy(model(images), labels)
    parameters, level = list(model.parameters()), model[0].level.clone()
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    second = torch.autograd.grad(loss, parameters)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert torch.equal(model[0].level, level)


def test_without_gradients_nothing_is_computed_twice():
    """A hook inside a block is called once in a look, and twice in a window, forward and again."""
    model, calls = network("unet", wrap=True), []
    model.stem[0].register_forward_hook(lambda *_: calls.append(1))
    batch = window(2)[0]
    with evaluating(model):
        model(batch[0])
    assert len(calls) == 1
    accumulate_gradients(model, [batch], CrossEntropy())
    assert len(calls) == 3


def test_hooks_on_a_block_are_called_once():
    model, calls = network("unet", wrap=True), []
    model.stem.register_forward_hook(lambda *_: calls.append(1))
    accumulate_gradients(model, [window(2)[0]], CrossEntropy())
    assert len(calls) == 1


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_computes_with_its_own_weights(duplicate: Callable[[nn.Module], nn.Module]):
    original, plain = network("unet", wrap=True), network("unet")
    twin = duplicate(original)
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.fill_(float("nan"))
    assert_same(twin, plain, window())
    assert not gradients(original)


@each_case
def test_the_reference_is_that_of_the_model_without_it(name: str, norm: str):
    """It runs on float64 copies of parameters and buffers, and the backward pass comes when they are gone again."""
    images, labels = (torch.cat(part) for part in zip(*window(), strict=True))
    wrapped, plain = network(name, norm, wrap=True), network(name, norm)
    state = copy.deepcopy(wrapped.state_dict())
    found = reference_gradient(wrapped, images, labels, CrossEntropy(), dtype=torch.float64)
    expected = reference_gradient(plain, images, labels, CrossEntropy(), dtype=torch.float64)
    assert found.loss == expected.loss
    assert relative_error(dict(found.by_parameter), dict(expected.by_parameter)) <= 1e-12
    assert all(torch.equal(tensor, state[key]) for key, tensor in wrapped.state_dict().items())
    assert not gradients(wrapped)


def test_the_check_of_norms_sees_through_it():
    check_norms(network("deeplab", "group", wrap=True), torch.randn(1, 3, 16, 16))


def test_wrapping_twice_is_wrapping_once():
    assert_same(checkpoint_activations(network("unet", wrap=True)), network("unet"), window())


def test_blocks_in_a_list_are_found():
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([pixels(channels=4, classes=2) for _ in range(2)])
            self.head = nn.Conv2d(2, 4, 1)

        def forward(self, inputs: Tensor) -> Tensor:
            for block in self.blocks:
                inputs = block(inputs)
            return self.head(inputs)

    torch.manual_seed(0)
    plain = Listed()
    wrapped = checkpoint_activations(copy.deepcopy(plain))
    batches = [(images[:, :2], labels) for images, labels in window()]
    images, labels = batches[0]
    assert saved_for_backward(wrapped, images, labels, CrossEntropy()) < saved_for_backward(
        plain, images, labels, CrossEntropy()
    )
    assert_same(wrapped, plain, batches)
