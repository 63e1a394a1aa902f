"""EvoNorm-S0 and filter response norm: the papers' formulas in NumPy, and the activations whose place they take."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
import torchvision
from small_nets import gradients, relative_error
from torch import Tensor, nn

from accum_core.engine import accumulate_gradients, check_norms, convert_norms
from accum_core.engine.activations import Absorbed
from accum_core.engine.models import deeplab
from accum_core.engine.objectives import CrossEntropy
from accum_core.engine.recompute import checkpoint_activations
from accum_core.errors import SettingError

C, EPS = 6, 3e-3
FUSED = ["evonorm_s0", "filter_response"]
each_fused = pytest.mark.parametrize("kind", FUSED)
each_size = pytest.mark.parametrize("size", [(4, 5), (7,), (2, 3, 4), ()], ids=["2d", "1d", "3d", "vectors"])


def layer(kind: str, **options: int) -> nn.Module:
    """With parameters that nobody has by default."""
    torch.manual_seed(0)
    made = convert_norms(nn.BatchNorm2d(C, eps=EPS).double(), kind, **options)
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made


def inputs(*size: int, samples: int = 3) -> Tensor:
    return torch.randn(samples, C, *size, generator=torch.Generator().manual_seed(1)).double() * 2 + 1


# The formulas.


@each_size
def test_evonorm_s0_is_the_papers(size: tuple[int, ...]):
    norm, x = layer("evonorm_s0", num_groups=2), inputs(*size).numpy()
    weight, bias, v = (p.detach().numpy() for p in (norm.weight, norm.bias, norm.v))
    expected = np.empty_like(x)
    for m in range(len(x)):
        for c in range(C):
            first = c // 3 * 3
            deviation = np.sqrt(x[m, first : first + 3].var() + EPS)
            gate = 1 / (1 + np.exp(-v[c] * x[m, c]))
            expected[m, c] = x[m, c] * gate / deviation * weight[c] + bias[c]
    np.testing.assert_allclose(norm(torch.from_numpy(x)).detach().numpy(), expected, rtol=1e-12, atol=1e-12)


@each_size
def test_filter_response_norm_is_the_papers(size: tuple[int, ...]):
    norm, x = layer("filter_response"), inputs(*size).numpy()
    weight, bias, tau = (p.detach().numpy() for p in (norm.weight, norm.bias, norm.tau))
    expected = np.empty_like(x)
    for m in range(len(x)):
        for c in range(C):
            y = weight[c] * x[m, c] / np.sqrt(np.mean(x[m, c] ** 2) + EPS) + bias[c]
            expected[m, c] = np.maximum(y, tau[c])
    np.testing.assert_allclose(norm(torch.from_numpy(x)).detach().numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kind", "name", "start"), [("evonorm_s0", "v", 1.0), ("filter_response", "tau", 0.0)])
def test_the_parameter_of_its_own_starts_as_in_the_paper(kind: str, name: str, start: float):
    made = convert_norms(nn.BatchNorm2d(C), kind, **({"num_groups": 2} if kind == "evonorm_s0" else {}))
    assert torch.equal(getattr(made, name), torch.full((C,), start))


@each_fused
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_does_not_overflow_in_the_squares(kind: str, dtype: torch.dtype):
    """300^2 is above what float16 holds."""
    norm = convert_norms(nn.BatchNorm2d(8), kind)
    x = 300 * torch.randn(2, 8, 9, 9, generator=torch.Generator().manual_seed(1))
    found = copy.deepcopy(norm).to(dtype)(x.to(dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), norm(x), rtol=0.03, atol=0.03)


def test_evonorm_s0_of_one_value_a_group_is_refused():
    with pytest.raises(SettingError, match=r"norm = 'evonorm_s0': .*one value a group"):
        check_norms(nn.Sequential(convert_norms(nn.BatchNorm1d(C), "evonorm_s0", num_groups=C)), torch.zeros(4, C))


# A layer of the same kind again: what a change of N does.


@each_fused
def test_a_conversion_to_the_same_kind_keeps_the_parameters_of_its_own(kind: str):
    before = layer(kind, **({"num_groups": 2} if kind == "evonorm_s0" else {}))
    parameters = dict(before.named_parameters())
    again = convert_norms(before, kind, **({"num_groups": 3} if kind == "evonorm_s0" else {}))
    assert dict(again.named_parameters()).keys() == parameters.keys()
    assert all(parameter is parameters[name] for name, parameter in again.named_parameters())


@each_fused
def test_a_frozen_layer_brings_frozen_parameters(kind: str):
    frozen, half = nn.BatchNorm2d(8).requires_grad_(False), nn.BatchNorm2d(8)
    half.weight.requires_grad_(False)
    assert not any(parameter.requires_grad for parameter in convert_norms(frozen, kind).parameters())
    assert [p.requires_grad for p in convert_norms(half, kind).parameters()] == [False, True, True]


# The activation behind it.


def stack(*activations: nn.Module) -> nn.Sequential:
    return nn.Sequential(*[layer for a in activations for layer in (nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), a)])


@each_fused
def test_a_rectifier_behind_the_norm_is_taken_away_and_put_back(kind: str):
    relu, swish, tanh = nn.ReLU(inplace=True), nn.SiLU(), nn.Tanh()
    model = stack(relu, swish, tanh)
    names = list(model.state_dict())
    convert_norms(model, kind)
    x = torch.randn(2, 8, 3, 3)
    # By hand: norms straight into the next convolution, and the tanh where it was.
    y = model[1](model[0](x))
    y = model[7](model[6](model[4](model[3](y))))
    torch.testing.assert_close(model(x), torch.tanh(y))
    assert set(names) - set(model.state_dict()) == {name for name in names if "running" in name or "tracked" in name}
    convert_norms(model, kind)
    torch.testing.assert_close(model(x), torch.tanh(y))
    convert_norms(model, "batch")
    assert [model[2], model[5], model[8]] == [relu, swish, tanh]


@each_fused
def test_what_a_network_calls_by_itself_stays(kind: str):
    """torchvision's ResNet holds one ReLU a block and calls it twice; the stem's is its own attribute."""
    model = convert_norms(torchvision.models.resnet18(weights=None), kind)
    assert not any(isinstance(module, Absorbed) for module in model.modules())
    assert isinstance(model.relu, nn.ReLU)


@each_fused
def test_blocks_of_torchvision_lose_theirs_and_get_them_back(kind: str):
    model = torchvision.models.mobilenet_v3_small(weights=None)
    kinds = [(name, type(module)) for name, module in model.named_modules() if not isinstance(module, nn.BatchNorm2d)]
    block = convert_norms(model, kind).features[0]
    assert isinstance(block[2], Absorbed)
    assert torch.equal(block(torch.ones(1, 3, 8, 8)), block[1](block[0](torch.ones(1, 3, 8, 8))))
    model = convert_norms(model, "batch")
    after = [(name, type(module)) for name, module in model.named_modules()]
    assert [(name, kind) for name, kind in after if not issubclass(kind, nn.modules.batchnorm._BatchNorm)] == kinds


@each_fused
def test_an_activation_comes_back_in_the_models_mode(kind: str):
    model = convert_norms(stack(nn.ReLU()), kind).eval()
    assert not convert_norms(model, "group")[2].training


@each_fused
def test_copies_and_pickles_have_their_own(kind: str):
    model = convert_norms(stack(nn.ReLU()), kind)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        convert_norms(twin, "group")
        assert isinstance(twin[2], nn.ReLU)
        assert isinstance(model[2], Absorbed)


@each_fused
def test_activation_checkpointing_before_or_after_the_conversion_changes_nothing(kind: str):
    torch.manual_seed(0)
    plain = convert_norms(deeplab.build(3, 4).double(), kind)
    numbers = torch.Generator().manual_seed(1)
    window = [(torch.randn(2, 3, 16, 16, generator=numbers).double(), torch.randint(4, (2, 16, 16))) for _ in range(2)]
    accumulate_gradients(plain, window, CrossEntropy())
    after = checkpoint_activations(copy.deepcopy(plain))
    before = convert_norms(checkpoint_activations(convert_norms(copy.deepcopy(plain), "group")), kind)
    for model in (after, before):
        accumulate_gradients(model, window, CrossEntropy())
        assert relative_error(gradients(model), gradients(plain)) <= 1e-12
