"""``sync_batch`` with what is drawn, computed again and rounded: dropout, augmentation, checkpoints, low precision."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from recorded_draws import Masking, dropout, with_draws
from small_nets import gradients, relative_error
from step_nets import PLACES, apart, at_once, conv, images, in_parts, net, product, skip
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from accum_core.engine import accumulate_gradients, convert_norms
from accum_core.engine.objectives import CrossEntropy
from accum_core.engine.precision import Precision
from accum_core.engine.recompute import checkpoint_activations
from accum_core.errors import SettingError

pytestmark = pytest.mark.usefixtures("moving")


def dropping(own: Any, x: Tensor) -> Tensor:
    """Dropout before, between and after the layers."""
    x = own.b(own.c(own.drop(x)))
    return own.drop(own.b2(own.d(own.drop(x).tanh()))) + x


def augmented(own: Any, x: Tensor) -> Tensor:
    """A brightness and a mirroring, drawn for each sample inside of the model."""
    return dropping(own, own.mirror(own.light(x) + 1))


def light(inputs: Tensor) -> Tensor:
    return torch.empty(len(inputs), 1, 1, 1, dtype=inputs.dtype).uniform_(0.5, 2)


def signs(inputs: Tensor) -> Tensor:
    return torch.randint(0, 2, (len(inputs), 1, 1, 1)).to(inputs.dtype) * 2 - 1


@pytest.mark.parametrize("place", PLACES)
def test_dropout_and_augmentation_are_those_of_a_full_batch_with_the_same_draws(place: str):
    torch.manual_seed(0)
    model = net(augmented, drop=dropout(), light=Masking(light), mirror=Masking(signs))
    found, expected = with_draws(model, *images(), (1, 3, 2), place)
    assert found.error(expected) <= 1e-12
    masks = found.model.drop.drawn
    assert not torch.equal(masks[1][0], masks[2][0][:1].expand_as(masks[1][0]))  # passes do not draw the same


class Blocks(nn.Module):
    """Two blocks with layers and dropout in them, for checkpointing."""

    def __init__(self, drop: nn.Module):
        super().__init__()
        self.first = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), drop, nn.Tanh(), conv(8, 8), nn.BatchNorm2d(8), drop)
        self.second = nn.Sequential(drop, nn.BatchNorm2d(8), nn.Tanh(), drop)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(self.first(inputs))


class Checkpointed(Blocks):
    """Its blocks are computed again in the backward pass by torch's own checkpointing."""

    reentrant = False

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs.clone().requires_grad_()
        middle = checkpoint(self.first, inputs, use_reentrant=self.reentrant)
        return checkpoint(self.second, middle, use_reentrant=self.reentrant)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["ours", "torch"])
def test_blocks_that_are_computed_again_draw_what_they_drew(place: str, kind: str):
    """Between two draws of a block lies a layer, at which the other passes draw."""
    torch.manual_seed(0)
    model = (Blocks if kind == "ours" else Checkpointed)(dropout()).double()
    plain = Blocks(dropout()).double()
    plain.load_state_dict(model.state_dict())

    def loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        if kind == "ours" and type(model.first.forward).__name__ != "_Block":
            checkpoint_activations(model)
        return product(model, inputs, targets)

    inputs, factors = images()
    torch.manual_seed(3)
    found, _ = with_draws(model, inputs, factors, (1, 3, 2), place, loss)
    torch.manual_seed(3)
    expected, whole = with_draws(plain, inputs, factors, (1, 3, 2), place)
    assert found.error(whole) <= 1e-12
    assert found.error(expected) <= 1e-12


@pytest.mark.parametrize("place", PLACES)
def test_reentrant_checkpointing_is_refused(place: str):
    model = Checkpointed(nn.Identity()).double()
    model.reentrant = True
    with pytest.raises(SettingError, match="use_reentrant=True; use use_reentrant=False"):
        in_parts(model, *images(), (3, 3), place)


def test_the_same_seed_gives_the_same_bits_wherever_the_work_is_kept():
    """With torch's own dropout, in place too."""
    model = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.Dropout(0.3), nn.ReLU(inplace=True), conv(8, 8),
                          nn.BatchNorm2d(8), nn.Dropout(0.5, inplace=True), conv(8, 8))  # fmt: skip
    inputs, factors = images(dtype=torch.float32)
    found = []
    for place in (*PLACES, "none"):
        torch.manual_seed(7)
        found.append(in_parts(model, inputs, factors, (2, 3, 1), place))
    assert all(other.equals(found[0]) for other in found[1:])


def test_the_same_bits_with_skip_connections_wherever_the_work_is_kept():
    torch.manual_seed(0)
    model, (inputs, factors) = net(skip).float(), images(dtype=torch.float32)
    found = [in_parts(model, inputs, factors, (2, 3, 1), place) for place in PLACES]
    assert found[1].equals(found[0]) and found[2].equals(found[0])


def rounding(place: str | None, model: nn.Module, precise: dict[str, Tensor], **how: Any) -> float:
    """The relative error of a window's gradient in low precision, or of one full batch's."""
    inputs, labels = how.pop("inputs"), how.pop("labels")
    own = copy.deepcopy(model) if place is None else convert_norms(copy.deepcopy(model), "sync_batch", offload=place)
    size = len(inputs) if place is None else 2
    parts = list(zip(inputs.split(size), labels.split(size), strict=True))
    accumulate_gradients(own, parts, CrossEntropy(), **how)
    return relative_error({name: gradient.double() for name, gradient in gradients(own).items()}, precise)


@pytest.mark.parametrize("kind", ["autocast", "bfloat16"])
def test_low_precision_is_as_near_as_that_of_a_full_batch(kind: str):
    """Against float64: at most twice the distance that one full batch in the same precision has itself."""
    torch.manual_seed(0)
    block = conv(3, 8), nn.BatchNorm2d(8), nn.Tanh()
    model = nn.Sequential(*block, conv(8, 8), nn.BatchNorm2d(8), nn.Tanh(), conv(8, 5))
    model = model if kind == "autocast" else model.bfloat16()
    inputs, labels = images(8, dtype=torch.float32)[0], torch.randint(5, (8, 6, 6))
    exact = copy.deepcopy(model).double()
    accumulate_gradients(exact, [(inputs.double(), labels)], CrossEntropy())
    how: dict[str, Any] = {"inputs": inputs, "labels": labels}
    if kind == "autocast":
        how["precision"] = Precision(autocast=torch.bfloat16)
    else:
        how["inputs"] = inputs.bfloat16()
    own = rounding(None, model, gradients(exact), **how)
    assert own > 1e-4  # it does round
    for place in PLACES:
        assert rounding(place, model, gradients(exact), **how) <= 2 * own


def test_a_layer_of_a_tensor_that_another_pass_has_made_and_given_up():
    """The first pass makes a large tensor that all normalise; while it waits, the others read it."""

    def compute(own: Any, x: Tensor) -> Tensor:
        if not hasattr(own, "large"):
            own.large = own.d(own.c.weight.reshape(1, 8, 9, 3)).expand(4, 8, 9, 3) * torch.arange(1, 5).view(4, 1, 1, 1)
        return own.b2(own.large).mean() * own.b(own.c(x))

    torch.manual_seed(0)
    model, (inputs, factors) = net(compute), images()
    found = [in_parts(model, inputs, factors, (1, 3, 2), place) for place in PLACES]
    assert found[1].error(found[0]) <= 1e-12 >= found[2].error(found[0])
    assert apart(found[0].gradients, at_once(model, inputs, factors).gradients) <= 1e-12
    for each in found:
        assert each.model.large.untyped_storage().nbytes() == 4 * 8 * 9 * 3 * 8


def test_a_tensor_that_another_pass_has_changed_is_what_it_has_become():
    """The first pass makes it of what is kept, the others change it at the same meeting, and then all use it."""

    def compute(own: Any, x: Tensor) -> Tensor:
        y = own.c(x).tanh()
        if hasattr(own, "large"):
            own.large.mul_(3)
        else:
            own.large = (y * 2).detach()
        return own.b(y) * own.large

    torch.manual_seed(0)
    model, (inputs, factors) = net(compute), images()
    found = [in_parts(model, inputs, factors, (1, 3, 2), place) for place in PLACES]
    whole = net(lambda own, x: own.b(y := own.c(x).tanh()) * (y[:1] * 18).detach())
    whole.load_state_dict(model.state_dict())
    assert max(each.error(at_once(whole, inputs, factors)) for each in found) <= 1e-12
