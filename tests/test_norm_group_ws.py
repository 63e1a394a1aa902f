"""Weight standardisation: the paper's formula, which convolutions it concerns, and that no one else sees it."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
import torchvision
from small_nets import pixels
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from accum_core.engine import convert_norms
from accum_core.engine.models import deeplab
from accum_core.engine.norms.group_ws import PLAIN, STANDARDIZED, standardized
from accum_core.errors import SettingError


def concerned(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if type(module) in PLAIN]


def by_hand(weight: Tensor) -> Tensor:
    """Each filter minus its mean, over its deviation; NumPy's own statistics."""
    values = weight.detach().numpy()
    axes = tuple(range(1, values.ndim))
    deviation = np.sqrt(values.var(axis=axes, keepdims=True) + 1e-10)
    return torch.from_numpy((values - values.mean(axis=axes, keepdims=True)) / deviation)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_filters_have_mean_0_and_variance_1(rank: int):
    """As many filters as channels; padding, stride, dilation, groups and bias are the convolution's."""
    torch.manual_seed(0)
    kind = list(STANDARDIZED)[rank - 1]
    convolution = kind(4, 8, 3, stride=2, padding=1, dilation=2, groups=2).double()
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[rank - 1](8).double()
    inputs = torch.randn(2, 4, *[9] * rank).double()
    model = convert_norms(nn.Sequential(copy.deepcopy(convolution), norm), "group_ws", num_groups=2)
    with torch.no_grad():
        convolution.weight.copy_(by_hand(convolution.weight))
    expected = F.group_norm(convolution(inputs), 2)
    torch.testing.assert_close(model(inputs), expected, rtol=1e-9, atol=1e-9)


def test_a_constant_filter_gives_zeros_and_no_infinity():
    assert not standardized(torch.full((2, 3, 1, 1), 0.1)).any()


def test_scale_and_offset_of_a_filter_do_not_matter():
    """Equation 4 takes both out; eps beside a variance of 1 is nothing."""
    weight = torch.randn(4, 3, 3, 3).double()
    torch.testing.assert_close(standardized(5 * weight + 2), standardized(weight), rtol=1e-8, atol=1e-8)


def test_the_gradient_reaches_the_raw_weights():
    """Autograd of the formula is the judge."""
    torch.manual_seed(0)
    model, inputs = pixels(nn.BatchNorm2d(4)).double(), torch.randn(2, 2, 4, 4).double()
    raw = copy.deepcopy(model[0].weight)
    convert_norms(model, "group_ws", num_groups=2)
    model(inputs).square().sum().backward()
    centred = raw - raw.mean((1, 2, 3), keepdim=True)
    weight = centred / (centred.square().mean((1, 2, 3), keepdim=True) + 1e-10).sqrt()
    features = torch.tanh(F.group_norm(F.conv2d(inputs, weight, model[0].bias, padding=1), 2))
    F.conv2d(features, model[3].weight, model[3].bias).square().sum().backward()
    torch.testing.assert_close(model[0].weight.grad, raw.grad, rtol=1e-9, atol=1e-9)


# Which convolutions.


def test_the_convolution_before_a_norm_is_concerned_and_the_head_is_not():
    assert concerned(convert_norms(pixels(nn.BatchNorm2d(4)), "group_ws", num_groups=2)) == ["0"]


def test_every_convolution_of_deeplab_but_the_head():
    model = convert_norms(deeplab.build(3, 6), "group_ws")
    convolutions = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    assert concerned(model) == [name for name in convolutions if name != "head"]


def test_every_convolution_of_torchvisions_resnet():
    model = convert_norms(torchvision.models.resnet18(weights=None), "group_ws")
    assert concerned(model) == [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]


def test_gates_without_a_norm_keep_their_weights():
    """LRASPP's scale goes from a convolution into a sigmoid; squeeze and excitation likewise."""
    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=3
    )
    found = concerned(convert_norms(model, "group_ws"))
    assert "backbone.0.0" in found
    assert "classifier.cbr.0" in found
    assert not [name for name in found if "scale" in name or "fc" in name or "classifier.low" in name]


def test_filters_of_one_weight_and_transposed_convolutions_are_left_alone():
    model = nn.Sequential(nn.Conv2d(1, 8, 1), nn.BatchNorm2d(8), nn.ConvTranspose2d(8, 8, 2), nn.BatchNorm2d(8))
    assert concerned(convert_norms(model, "group_ws")) == []


# Nobody else sees it.


def test_there_and_back_leaves_objects_names_and_function():
    torch.manual_seed(0)
    model = deeplab.build(3, 6)
    twin, inputs = copy.deepcopy(model), torch.randn(2, 3, 16, 16)
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    values = copy.deepcopy(parameters)
    convert_norms(model, "group_ws")
    assert dict(model.named_parameters()).keys() == parameters.keys()
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    convert_norms(convert_norms(model, "group_ws"), "batch")
    for name, module in model.named_modules():
        assert isinstance(module, nn.BatchNorm2d | nn.modules.batchnorm._BatchNorm) or module is modules[name]
    assert all(p is parameters[name] and torch.equal(p, values[name]) for name, p in model.named_parameters())
    torch.testing.assert_close(model(inputs), twin(inputs))
    assert concerned(model) == []


def test_hooks_copies_pickles_and_other_parameters_work():
    torch.manual_seed(0)
    model, inputs, heard = pixels(nn.BatchNorm2d(4)), torch.randn(2, 2, 4, 4), []
    model[0].register_forward_hook(lambda *_: heard.append(True))
    convert_norms(model, "group_ws", num_groups=2)
    expected = model(inputs)
    assert heard
    model[0]._forward_hooks.clear()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(inputs), expected)
        assert concerned(convert_norms(twin, "layer")) == []
    assert concerned(model) == ["0"]
    other = {name: parameter.detach() + 1 for name, parameter in model.named_parameters() if name == "0.weight"}
    torch.testing.assert_close(functional_call(model, other, (inputs,)), expected, rtol=1e-3, atol=1e-4)
    other = {"0.weight": torch.randn_like(model[0].weight)}
    assert not torch.allclose(functional_call(model, other, (inputs,)), expected, rtol=0.1, atol=0.1)


def test_a_saved_state_has_the_raw_weights_under_their_names():
    torch.manual_seed(0)
    plain = pixels(nn.GroupNorm(2, 4))
    state = {name: value.clone() for name, value in plain.state_dict().items()}
    model = convert_norms(plain, "group_ws", num_groups=2)
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_refusal_leaves_the_model_as_it_was():
    model = pixels(nn.BatchNorm2d(4))
    with pytest.raises(SettingError, match="norm_groups = 3"):
        convert_norms(model, "group_ws", num_groups=3)
    assert concerned(model) == []
    convert_norms(model, "group_ws", num_groups=2)
    with pytest.raises(SettingError, match="norm_groups = 3"):
        convert_norms(model, "group", num_groups=3)
    assert concerned(model) == ["0"]
