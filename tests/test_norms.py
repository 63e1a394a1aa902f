"""The contract of every norm under ``engine/norms``, the formulas of those there are, and the refusals."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from small_nets import pixels
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from accum_core import catalogue
from accum_core.engine import check_norms, convert_norms
from accum_core.engine.models import deeplab, unet
from accum_core.errors import SettingError

NORMS = catalogue.entries("norms")
each_norm = pytest.mark.parametrize("kind", NORMS)
C = 8


def batch_norm() -> nn.BatchNorm2d:
    """A BatchNorm of 8 channels with affine parameters and an eps that nobody has by default."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(C, eps=3e-3)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


def images(samples: int = 3, *size: int) -> Tensor:
    return torch.randn(samples, C, *(size or (4, 5)), generator=torch.Generator().manual_seed(1)) * 2 + 1


def adds(kind: str) -> tuple[str, ...]:
    """Parameters that a layer of this kind has besides weight and bias."""
    return NORMS[kind].get("ADDS", ())


# The contract.


@each_norm
def test_its_file_says_what_it_is(kind: str):
    constants = NORMS[kind]
    assert isinstance(constants["TITLE"], str)
    assert isinstance(constants["SUMMARY"], str)
    assert isinstance(constants["BATCH_INDEPENDENT"], bool)


@each_norm
@pytest.mark.parametrize("size", [(4, 5), (7,), (2, 3, 4)], ids=["2d", "1d", "3d"])
def test_shape_and_type_are_kept(kind: str, size: tuple[int, ...]):
    source = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[len(size)](C)
    for dtype in (torch.float32, torch.float64):
        layer = convert_norms(copy.deepcopy(source).to(dtype), kind)
        inputs = images(3, *size).to(dtype)
        outputs = layer(inputs)
        assert outputs.shape == inputs.shape
        assert outputs.dtype == dtype
        assert bool(outputs.isfinite().all())


@each_norm
def test_it_is_batch_independent_if_it_says_so(kind: str):
    """Change one sample: the others' outputs stay to the last bit, or they move; likewise what an output depends on."""
    layer = convert_norms(batch_norm(), kind)
    inputs = images(4)
    changed = inputs.clone()
    changed[1] = changed[1] * 3 - 1
    others = [0, 2, 3]
    same = torch.equal(layer(inputs)[others], layer(changed)[others])
    assert same is NORMS[kind]["BATCH_INDEPENDENT"]
    inputs.requires_grad_()
    (gradient,) = torch.autograd.grad(layer(inputs)[0].square().sum(), inputs)
    assert bool(gradient[0].any())
    assert bool(gradient[1:].any()) is not same
    if same:
        alone = torch.cat([layer(sample[None]) for sample in inputs])
        torch.testing.assert_close(alone, layer(inputs), rtol=1e-6, atol=1e-6)


@each_norm
def test_in_evaluation_mode_every_kind_is_batch_independent(kind: str):
    """Running statistics, where there are any, are those of earlier passes."""
    layer = convert_norms(batch_norm(), kind)
    layer(images(4) - 3)
    layer.eval()
    together, alone = layer(images(4)), torch.cat([layer(sample[None]) for sample in images(4)])
    torch.testing.assert_close(alone, together, rtol=1e-6, atol=1e-6)


@each_norm
def test_affine_parameters_move_over_as_the_same_objects(kind: str):
    """So an optimizer keeps its state for them, and a change of norm keeps the other weights."""
    model = pixels(batch_norm(), channels=C)
    before = dict(model.named_parameters())
    values = {name: parameter.detach().clone() for name, parameter in before.items()}
    converted = convert_norms(model, kind)
    after = dict(converted.named_parameters())
    assert after.keys() - before.keys() == {f"1.{name}" for name in adds(kind)}
    for name, parameter in before.items():
        assert after[name] is parameter
        assert torch.equal(parameter, values[name])


@each_norm
def test_mode_and_frozen_affine_parameters_are_kept(kind: str):
    norm = batch_norm().eval()
    norm.weight.requires_grad_(False)
    layer = convert_norms(norm, kind)
    assert not layer.training
    assert not layer.weight.requires_grad
    assert layer.bias.requires_grad


@settings(deadline=None, max_examples=20)
@given(st.lists(st.sampled_from(list(NORMS)), min_size=1, max_size=6))
def test_any_way_through_the_kinds_and_back_leaves_the_first_layer(way: list[str]):
    """Same Parameter objects, same eps, same output in training mode as a BatchNorm that was never changed."""
    source = batch_norm()
    twin, weight, bias = copy.deepcopy(source), source.weight, source.bias
    layer: nn.Module = source
    for kind in [*way, "batch"]:
        layer = convert_norms(layer, kind)
    assert isinstance(layer, _BatchNorm)
    assert layer.weight is weight
    assert layer.bias is bias
    torch.testing.assert_close(layer(images()), twin(images()))


@each_norm
@pytest.mark.parametrize(
    ("build", "size"),
    [
        (lambda: torchvision.models.resnet18(weights=None), 64),
        (lambda: torchvision.models.mobilenet_v3_small(weights=None), 64),
        (
            lambda: torchvision.models.segmentation.lraspp_mobilenet_v3_large(
                weights=None, weights_backbone=None, num_classes=3
            ),
            64,
        ),
    ],
    ids=["resnet18", "mobilenet_v3_small", "lraspp"],
)
def test_torchvision_models_convert_and_train(kind: str, build: Callable[[], nn.Module], size: int):
    torch.manual_seed(0)
    model = build()
    names = [name for name, _ in model.named_parameters()]
    parameters = list(model.parameters())
    layers = {name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)}
    converted = convert_norms(model, kind)
    kept = {name: p for name, p in converted.named_parameters() if name.rpartition(".")[2] not in adds(kind)}
    assert list(kept) == names
    assert all(new is old for new, old in zip(kept.values(), parameters, strict=True))
    assert len(list(converted.parameters())) == len(names) + len(layers) * len(adds(kind))
    modules = dict(converted.named_modules())
    assert layers <= modules.keys()
    if kind != "batch":
        assert not any(isinstance(modules[name], nn.BatchNorm2d) for name in layers)
    inputs = torch.randn(2, 3, size, size)
    check_norms(converted, inputs)
    outputs = converted(inputs)
    (outputs["out"] if isinstance(outputs, dict) else outputs).square().mean().backward()
    assert all(parameter.grad is not None for parameter in converted.parameters())


# The formulas.

FORMULAS: dict[str, Callable[[Tensor, nn.BatchNorm2d], Tensor]] = {
    "batch": lambda x, n: F.batch_norm(x, None, None, n.weight, n.bias, training=True, eps=n.eps),
    "group": lambda x, n: F.group_norm(x, 4, n.weight, n.bias, n.eps),
    "layer": lambda x, n: F.layer_norm(x, x.shape[1:], eps=n.eps) * n.weight[:, None, None] + n.bias[:, None, None],
    "instance": lambda x, n: F.instance_norm(x, weight=n.weight, bias=n.bias, eps=n.eps),
    "none": lambda x, n: x * n.weight[:, None, None] + n.bias[:, None, None],
}


@pytest.mark.parametrize("kind", FORMULAS)
def test_output_is_torchs_own(kind: str):
    source = batch_norm()
    twin = copy.deepcopy(source)
    layer = convert_norms(source, kind, **({"num_groups": 4} if kind == "group" else {}))
    inputs = images()
    torch.testing.assert_close(layer(inputs), FORMULAS[kind](inputs, twin), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "source",
    [nn.InstanceNorm2d(C), nn.InstanceNorm2d(C, affine=True), nn.GroupNorm(2, C), nn.BatchNorm2d(C, affine=False)],
    ids=str,
)
@each_norm
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_layers_with_and_without_affine_parameters_convert(source: nn.Module, kind: str, dtype: torch.dtype):
    """A model's other layers give its type: a converted layer works in float64 where the source did."""
    model = nn.Sequential(nn.Conv2d(2, C, 1), copy.deepcopy(source)).to(dtype)
    affine = [parameter.shape for parameter in model[1].parameters()]
    converted = convert_norms(model, kind)
    assert converted(torch.randn(2, 2, 3, 3, dtype=dtype)).dtype == dtype
    assert [parameter.shape for parameter in converted[1].parameters()] == affine + [(C,)] * len(adds(kind))


def test_a_layer_used_in_two_places_is_changed_in_both():
    shared = nn.BatchNorm2d(C)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    convert_norms(model, "group")
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model)
    assert model[0] is model[2]


# Refusals.


def test_an_unknown_kind_or_option_is_refused():
    with pytest.raises(SettingError, match="norm = 'bach': .*batch"):
        convert_norms(nn.BatchNorm2d(8), "bach")
    with pytest.raises(SettingError, match="num_groups"):
        convert_norms(nn.BatchNorm2d(8), "layer", num_groups=4)


@pytest.mark.parametrize(
    ("kind", "samples", "size"),
    [("batch", m, s) for m in (1, 2) for s in ((1, 1), (1, 2))]
    + [("instance", m, s) for m in (1, 3) for s in ((1, 1), (2, 1))],
)
def test_the_check_refuses_what_torch_refuses(kind: str, samples: int, size: tuple[int, int]):
    """PyTorch's own layer in training mode is the judge."""
    layer = convert_norms(batch_norm(), kind)
    inputs = torch.randn(samples, C, *size)
    try:
        F.batch_norm(inputs, None, None, training=True) if kind == "batch" else F.instance_norm(inputs)
    except ValueError:
        with pytest.raises(SettingError):
            check_norms(nn.Sequential(layer), inputs)
    else:
        check_norms(nn.Sequential(layer), inputs)


def test_vectors_of_one_sample_are_refused_for_batch_norm():
    with pytest.raises(SettingError, match="micro_batch_size = 1"):
        check_norms(nn.Sequential(nn.BatchNorm1d(C)), torch.randn(1, C))


def test_batch_norm_with_one_value_a_channel_is_named_with_the_way_out():
    """The image-pooling branch leaves one pixel a channel: at micro-batch 1 that has no variance."""
    model = deeplab.build(3, 6)
    with pytest.raises(SettingError) as refusal:
        check_norms(model, torch.randn(1, 3, 32, 32))
    text = str(refusal.value)
    assert text.startswith("micro_batch_size = 1: ")
    failing = next(name for name, m in model.image_pool.named_modules() if isinstance(m, nn.BatchNorm2d))
    assert f"image_pool.{failing}" in text
    assert "group" in text
    check_norms(model, torch.randn(2, 3, 32, 32))
    check_norms(unet.build(3, 6), torch.randn(1, 3, 32, 32))


def test_instance_norm_of_one_pixel_is_named_with_the_way_out():
    model = convert_norms(deeplab.build(3, 6), "instance")
    with pytest.raises(SettingError, match=r"norm = 'instance': .*image_pool\..*use .*group"):
        check_norms(model, torch.randn(4, 3, 32, 32))
    check_norms(convert_norms(unet.build(3, 6), "instance"), torch.randn(1, 3, 32, 32))


@pytest.mark.parametrize("samples", [1, 2])
def test_the_check_leaves_no_trace(samples: int):
    """Buffers, modes, random state, gradients: as before, whether it refuses (1) or passes (2)."""
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), batch_norm(), nn.Dropout(0.5))
    model[2].eval()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    try:
        check_norms(model, images(samples))
        assert samples == 2
    except SettingError:
        assert samples == 1
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in model] == [True, True, False]
    model.eval()(images(1))  # no hook of the check is left to refuse this
