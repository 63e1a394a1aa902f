"""``sync_batch`` and the backward pass: what can be asked of a window's graph, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from step_nets import PLACES, Net, apart, at_once, conv, images, in_parts, net, of, product, skip
from torch import Tensor, nn

from accum_core.engine import convert_norms
from accum_core.engine.lockstep import in_step
from accum_core.errors import SettingError

pytestmark = pytest.mark.usefixtures("moving")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("place", PLACES)
def test_a_branch_that_the_loss_does_not_see_has_no_gradient(place: str):
    """None as from a full batch, and not zero, by which an optimizer would decay its weights."""
    for kept in (0, 1):
        model = net(lambda own, x, kept=kept: (own.b(own.c(x)), own.b2(own.e(x)))[kept], e=conv(3, 8))
        found, expected = in_parts(model, *images(), (2, 4), place), at_once(model, *images())
        assert found.gradients.keys() == expected.gradients.keys()


@pytest.mark.parametrize("place", PLACES)
def test_hooks_of_modules_and_gradients_that_are_kept(place: str):
    """Full backward hooks on a layer and around it, and ``retain_grad`` on a tensor that crosses a layer later."""
    kept: list[Tensor] = []

    def compute(own: Any, x: Tensor) -> Tensor:
        x = own.c(x)
        x.retain_grad()
        kept.append(x)
        return own.b2(own.d(own.b(x))) * x

    model, (inputs, factors) = net(compute), images()
    found = {}
    for way in ("batch", "sync_batch"):
        own = convert_norms(copy.deepcopy(model), way, **{"offload": place} if way == "sync_batch" else {})
        own.b.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 3,))
        own.d.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] + outputs[0],))
        kept.clear()
        parts = [(inputs, factors)] if way == "batch" else zip(inputs.split(2), factors.split(2), strict=True)
        passes = [lambda x=x, y=y, own=own: product(own, x, y) for x, y in parts]
        sum(in_step(own, passes) if way == "sync_batch" else [passes[0]()]).backward()
        found[way] = {**of(own).gradients, "kept": torch.cat([tensor.grad for tensor in kept])}
    assert apart(found["sync_batch"], found["batch"]) <= 1e-12


@pytest.mark.parametrize("place", ["host", "recompute"])
def test_a_gradient_that_would_be_a_part_of_it_is_refused(place: str):
    """Asked for after the tensor crossed a layer, and the tensor is there until the end."""
    kept: list[Tensor] = []

    def compute(own: Any, x: Tensor) -> Tensor:
        x = own.c(x)
        kept.append(x)
        y = own.b(own.d(x))
        x.retain_grad()
        return y * x

    with pytest.raises(SettingError, match=r"retain_grad = \[3, 8, 6, 6\].*call it before.*or use offload none"):
        in_parts(net(compute), *images(), (3, 3), place)
    check_none = net(compute)
    assert in_parts(check_none, *images(), (3, 3), "none").gradients.keys() >= {"c.weight", "d.weight"}


@pytest.mark.parametrize("place", PLACES)
def test_gradients_of_inputs_and_more_than_one_backward_pass(place: str):
    """The graph can be gone through again while it is retained: in part, loss by loss, and for the inputs."""
    model, (inputs, factors) = net(skip), images()
    whole, leaf = copy.deepcopy(model), inputs.clone().requires_grad_()
    product(whole, leaf, factors).backward()
    expected = {**of(whole).gradients, "inputs": leaf.grad}
    own = convert_norms(model, "sync_batch", offload=place)
    leaves = [part.clone().requires_grad_() for part in inputs.split([1, 3, 2])]
    parts = zip(leaves, factors.split([1, 3, 2]), strict=True)
    losses = in_step(own, [lambda x=x, y=y: product(own, x, y) for x, y in parts])

    def found() -> dict[str, Tensor]:
        return {**of(own).gradients, "inputs": torch.cat([leaf.grad for leaf in leaves])}

    torch.autograd.grad(sum(losses), [own.b2.weight], retain_graph=True)  # a part, which leaves nothing behind
    for loss in losses:
        loss.backward(retain_graph=True)
    assert apart(found(), expected) <= 1e-12
    own.zero_grad(), [setattr(leaf, "grad", None) for leaf in leaves]
    sum(losses).backward()
    assert apart(found(), expected) <= 1e-12
    with pytest.raises(RuntimeError, match="a second time"):
        sum(losses).backward()


@pytest.mark.parametrize("place", PLACES)
def test_what_has_changed_before_the_backward_pass_is_refused_as_in_torch(place: str):
    """Parameters by a step, and with the work on the device a layer's input."""
    model, (inputs, factors) = convert_norms(net(skip), "sync_batch", offload=place), images()
    losses = in_step(model, [lambda: product(model, inputs, factors), lambda: product(model, inputs, factors)])
    with torch.no_grad():
        model.d.weight.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place|modified by an inplace operation"):
        sum(losses).backward()

    def overwriting(own: Any, x: Tensor) -> Tensor:
        x = own.c(x)
        y = own.b(x)
        x.mul_(2)
        return x + y

    if place == "none":
        with pytest.raises(RuntimeError, match="changed in place"):
            in_parts(net(overwriting), *images(), (3, 3), place)


@pytest.mark.parametrize("place", PLACES)
def test_a_gradient_inside_of_a_pass_is_refused(place: str):
    """The others have not come as far, so it is not there yet."""

    def penalised(model: nn.Module, x: Tensor, factors: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        loss = product(model, x, factors)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + slope.square().sum()

    with pytest.raises(SettingError, match="no gradient inside a pass.*ask for it after the window"):
        in_parts(net(skip), *images(), (3, 3), place, penalised)


def test_micro_batches_that_need_gradients_and_others_that_do_not_are_refused():
    """Through the statistics each depends on all."""
    model = convert_norms(Net(lambda own, x: own.b(x), b=nn.BatchNorm1d(3, affine=False)), "sync_batch")
    inputs = torch.randn(2, 3), torch.randn(2, 3, requires_grad=True)
    with pytest.raises(SettingError, match="layer b has a gradient in some micro-batches only"):
        in_step(model, [lambda x=x: model(x).square().sum() for x in inputs])
