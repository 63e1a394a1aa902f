"""``sync_batch`` in networks whose tensors cross a layer in odd ways: views, hooks, caches, in-place work, Functions.

With ``host`` and ``recompute`` a pass gives up what it holds while it waits at a layer, and what comes back for it in
the backward pass waits elsewhere too; none of it may show in the numbers, which are one full batch's.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from step_nets import check, conv, images, net, skip
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

pytestmark = pytest.mark.usefixtures("moving")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Scaled(torch.autograd.Function):
    """x w (x + 1), with what it saves given to autograd, and kept on its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.own = x + 1
        return x * w * ctx.own

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return gradient * w * (2 * x + 1), (gradient * x * ctx.own).sum((0, 2, 3), keepdim=True)


class Doubling(torch.autograd.Function):
    """Its input, as a view of it, whose gradient it doubles."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


def dense(own: Any, x: Tensor) -> Tensor:
    x = own.c(x)
    for norm in (own.b, own.b2, own.b):
        x = x + torch.cat([own.e(norm(x).relu()), x[:, :4]], 1)
    return x


def chunks(own: Any, x: Tensor) -> Tensor:
    x = own.c(x)
    first, second = x.chunk(2, 1)
    second = own.b4(second.tanh()).relu_()
    return torch.cat([first, second], 1) * x


def views(own: Any, x: Tensor) -> Tensor:
    x = own.c(x)
    part, turned = x[:, 2:6], x.transpose(2, 3)
    with torch.no_grad():
        still = x[:, 1:5]
    y = own.b4(part * still)
    return torch.cat([y * part, y], 1) * turned * x


def function(own: Any, x: Tensor) -> Tensor:
    x = own.c(x)
    y = Scaled.apply(x, own.c.weight[:, :1, :1, :1].reshape(1, 8, 1, 1))
    return own.b(own.d(y)) * y + Doubling.apply(x) * own.b2(x)


def in_place(own: Any, x: Tensor) -> Tensor:
    x = own.c(x)
    y = own.b(x).sub_(1).mul_(2)
    z = own.d(y)
    z += y
    z[:, :2].tanh_()
    return own.b2(z).sigmoid_() * z


def spectrum(own: Any, x: Tensor) -> Tensor:
    """Complex numbers, a conjugate and an imaginary part that torch computes when it reads them."""
    x = own.c(x)
    z = torch.fft.fft2(x, norm="ortho")
    w = z.conj()
    y = own.b(own.d(torch.fft.ifft2(w * z * w, norm="ortho").real))
    return y * w.real + w.imag * z.imag * y.sin()


def expanded(own: Any, x: Tensor) -> Tensor:
    x = own.c(x)
    mean = x.mean((2, 3), keepdim=True).expand_as(x)
    return own.b(own.d(mean * x)) * mean + mean.expand_as(x)


def chosen(own: Any, x: Tensor) -> Tensor:
    """Masks and indices."""
    x = own.c(x)
    mask, index = x > 0, x.argmax(1, keepdim=True)
    y = own.b(own.d(x))
    return torch.where(mask, y, x.gather(1, index) * y)


def sampled(own: Any, x: Tensor) -> Tensor:
    x = own.c(x)
    shift = own.c.weight[0, :2].reshape(1, 2, 9)[:, :, :3].expand(len(x), 2, 3)
    x = F.grid_sample(x, F.affine_grid(shift, list(x.shape), align_corners=False), align_corners=False)
    x = F.interpolate(own.b(x), scale_factor=2, mode="bicubic")
    return F.interpolate(own.b2(F.avg_pool2d(own.d(x), 2)), size=(6, 6), mode="bilinear")


def sequence(own: Any, x: Tensor) -> Tensor:
    x = own.b(own.c(x)).flatten(2).transpose(1, 2)
    x = own.lstm(x + own.attention(x, x, x, need_weights=False)[0])[0]
    return own.b1(x.transpose(1, 2)).unflatten(2, (6, 6))


def cached(own: Any, x: Tensor) -> Tensor:
    """The first pass makes what all use: a tensor with a graph, one without, and one that goes through a layer."""
    if not hasattr(own, "scale"):
        own.scale = own.d(own.c.weight.reshape(1, 8, 9, 3)).mean((2, 3), keepdim=True)
        own.mask = torch.linspace(0, 1, 6 * 8 * 36, dtype=x.dtype).view(6, 8, 6, 6).cos()
    x = own.b(own.c(x) * own.scale) * own.scale
    return own.b2(own.d(x) * own.mask[:1]) * own.scale + own.mask[1]


def hooked(own: Any, x: Tensor) -> Tensor:
    x = own.c(x)
    x.register_hook(lambda gradient: gradient * 2)
    y = own.b(own.d(x))
    x.register_hook(lambda gradient: gradient + 1)  # after it has crossed a layer
    return own.b2(y * x) * x


def shared(own: Any, x: Tensor) -> Tensor:
    """Memory that numpy refers to cannot be moved."""
    x = own.c(x)
    numbers = x.detach().numpy()
    y = own.b(own.d(x))
    return y * torch.from_numpy(numbers.copy())


def sparse(own: Any, x: Tensor) -> Tensor:
    x = own.c(x)
    ones = torch.eye(8, dtype=x.dtype).to_sparse()
    y = torch.sparse.mm(ones, own.b(own.d(x)).reshape(-1, 8).T).T
    return y.reshape(x.shape) * x


NETS = {
    compute.__name__: (compute, layers)
    for compute, layers in (
        (skip, {}),
        (dense, {"e": conv(8, 4)}),
        (chunks, {"b4": nn.BatchNorm2d(4)}),
        (views, {"b4": nn.BatchNorm2d(4)}),
        (function, {}),
        (in_place, {}),
        (spectrum, {}),
        (expanded, {}),
        (chosen, {}),
        (sampled, {}),
        (
            sequence,
            {
                "attention": nn.MultiheadAttention(8, 2, batch_first=True),
                "lstm": nn.LSTM(8, 8, batch_first=True),
                "b1": nn.BatchNorm1d(8),
            },
        ),
        (cached, {}),
        (hooked, {}),
        (shared, {}),
        (sparse, {}),
    )
}


@pytest.mark.parametrize("name", NETS)
def test_gradients_and_statistics_are_the_full_batch_s(name: str):
    compute, layers = NETS[name]
    check(net(compute, **copy.deepcopy(layers)), *images())


def test_channels_last_and_weights_that_are_computed():
    model = net(skip, c=weight_norm(conv(3, 8)), d=weight_norm(conv(8, 8)))
    inputs, factors = images()
    check(model, inputs, factors)
    check(net(skip).to(memory_format=torch.channels_last), inputs.to(memory_format=torch.channels_last), factors)


def test_a_tensor_that_waits_at_several_layers_and_changes_in_place_between_some():
    """Nothing saves it, so its bytes are copied for the waiting alone, once for each content that it has."""

    def compute(own: Any, x: Tensor) -> Tensor:
        x = own.c(x)
        held = x * 2
        x = own.b2(own.d(own.b(x).tanh()))
        held.add_(1)
        x = own.b(own.d(own.b(x.tanh())))
        held.mul_(3)
        return own.b2(own.d(x)).tanh() * held

    check(net(compute), *images())
